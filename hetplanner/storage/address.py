"""Addresses of copies, such as s3://bucket/folder: which are taken, and what is said of one that refuses.

Credentials and endpoints come from where the store's own library looks for them: its environment variables and files.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from hetplanner.errors import HetplannerError, InvalidInput, one_line

MODULES = {
    "file": "fsspec", "s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
"""By protocol, the package that fsspec needs."""
_PLAIN = re.compile(r"^[a-z0-9]+://[\w./ =+@~-]+$")


def check_address(address: str, place: str = "copy_to") -> str:
    """An address without a slash at its end. Nothing is opened, no package imported.

    Raises:
        InvalidInput: an unknown protocol, credentials inside, a missing bucket, or a package that is not installed.
    """
    parts = urlsplit(address)
    if "@" in parts.netloc.split("/")[0] and parts.scheme not in ("abfs", "abfss"):
        raise InvalidInput(f"{place}: holds credentials; put them into the store's environment variables or files")
    if parts.scheme in MODULES and parts.scheme != "file" and not parts.netloc:
        raise InvalidInput(f"{place}: names no bucket; give {parts.scheme}://BUCKET/FOLDER")
    if parts.scheme not in MODULES or not _PLAIN.match(address) or ".." in parts.path.split("/"):
        known = ", ".join(f"{name}://" for name in MODULES)
        raise InvalidInput(f"{place}: must be an address that begins with one of {known}, got {address!r:.120}")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise InvalidInput(f"{place}: must name a folder, such as file:///mnt/copies, got {address!r:.120}")
    package = MODULES[parts.scheme]
    if find_spec(package) is None:
        raise InvalidInput(f"{place}: package {package} is not installed; run: pip install {package}")
    return address.rstrip("/")


class Storage:
    """A folder at an address.

    Attributes:
        address: of it.
    """

    def __init__(self, address: str) -> None:
        self.address = check_address(address)
        import fsspec

        with self.answering():
            options = {"auto_mkdir": True} if self.address.startswith("file:") else {}  # a bucket must be there
            self._files, self._root = fsspec.core.url_to_fs(self.address, **options)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What a store refuses becomes one line. Raises InvalidInput."""
        try:
            yield
        except HetplannerError:
            raise
        except Exception as error:  # every store has errors of its own
            said = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            raise InvalidInput(f"{self.address}: the store refuses: {said:.300}") from None

    def check(self) -> None:
        """Writes and removes a small file. Raises InvalidInput."""
        name = f"write-test-{secrets.token_hex(8)}"
        with self.answering():
            self._files.pipe_file(self._path(name), b"hetplanner")
            self._files.rm_file(self._path(name))

    def put(self, source: str, name: str) -> None:
        """Copies a local file. Raises InvalidInput."""
        with self.answering():
            self._files.put_file(source, self._path(name))

    def get(self, name: str, target: str) -> None:
        """Copies to a local file. Raises InvalidInput."""
        with self.answering():
            self._files.get_file(self._path(name), target)

    def read(self, name: str, most: int) -> bytes | None:
        """A small file's content; None where there is none. Raises InvalidInput: also of one that is longer."""
        with self.answering():
            if not self._files.exists(self._path(name)):
                return None
            with self._files.open(self._path(name), "rb") as file:
                content: bytes = file.read(most + 1)
        if len(content) > most:
            raise InvalidInput(f"{self.address}/{name}: must be at most {most} bytes")
        return content

    def list(self, name: str = "") -> dict[str, dict[str, Any]]:
        """By last part of their names, what is in a folder: fields of `fsspec`'s info. Raises InvalidInput."""
        with self.answering():
            self._files.invalidate_cache()
            if not self._files.exists(self._path(name)):
                return {}
            found = self._files.ls(self._path(name), detail=True)
        return {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in found}

    def remove(self, name: str) -> None:
        """Removes a folder, if it is there. Raises InvalidInput."""
        with self.answering():
            try:
                self._files.rm(self._path(name), recursive=True)
            except FileNotFoundError:  # another host was faster
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)
