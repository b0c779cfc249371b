"""Captured configs are kept: a digest of the request and of all versions names a file, so the next capture reads it.

The files are compressed workload files, in `$HETPLANNER_HOME/captures` or the platform's cache. They are validated as
any workload file is, and their checksum is gzip's own. What cannot be read or trusted is captured anew.
"""

import gzip
import hashlib
import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs

from hetplanner.atomic_files import DRAFT_PATTERNS, write_whole
from hetplanner.errors import InvalidInput
from hetplanner.reading import note, reader
from hetplanner.schema import MAX_FILE_BYTES, one_line, read_text
from hetplanner.workload.files import workload_from_json, workload_to_data
from hetplanner.workload.workload import Workload

MAX_KEPT_BYTES = 256 * 2**20
"""Of all files; the ones that were not used for the longest time go first."""
DRAFT_AGE_S = 3600.0
"""A draft this old was left by a writer that was killed."""
VERSIONS = ("torch", "transformers", "peft")
CODE = ("capture", "workload")
"""Packages of hetplanner that decide what a capture holds."""


def captures_folder() -> Path:
    """Where captures are kept; perhaps missing."""
    home = os.environ.get("HETPLANNER_HOME")
    base = Path(home).expanduser().absolute() if home else Path(platformdirs.user_cache_path("hetplanner"))
    return base / "captures"


def digest_of(request: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what is asked, of the versions of Python, torch and transformers, and of our own code."""
    told = json.dumps([dict(request), sys.version_info[:2], [_version(name) for name in VERSIONS]], sort_keys=True)
    digest = hashlib.sha256(told.encode())
    root = Path(__file__).parents[2]
    for file in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def kept_capture(digest: str) -> Workload | None:
    """What was captured under a digest; None if there is nothing, or nothing that can be read and trusted."""
    path = captures_folder() / f"{digest}.json.gz"
    if not path.is_file() or not _is_private(path.parent):
        return None
    try:
        workload = load_kept(path)
    except InvalidInput as error:
        note(f"{error}; the model is captured anew")
        return None
    with suppress(OSError):
        os.utime(path)
    return workload


@reader("kept capture", at="path")
def load_kept(path: Path) -> Workload:
    """One kept file. Raises InvalidInput."""
    try:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        text = unpacker.decompress(read_text(path), MAX_FILE_BYTES)
    except zlib.error as error:
        raise InvalidInput(f"{one_line(path.name)}: the kept capture is damaged ({error})") from None
    if not unpacker.eof:
        raise InvalidInput(f"{one_line(path.name)}: the kept capture is cut off or too large")
    return workload_from_json(text, one_line(path.name))


def keep_capture(digest: str, workload: Workload) -> None:
    """Keeps a capture. A full disk, or a folder that cannot be written, keeps nothing."""
    folder = captures_folder()
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder):
            return
        content = packed(workload)
        if len(content) <= MAX_KEPT_BYTES:
            write_whole(folder / f"{digest}.json.gz", content, mode=0o600)
        _make_room(folder)


def packed(workload: Workload) -> bytes:
    """The content of a kept file."""
    return gzip.compress(json.dumps(workload_to_data(workload), separators=(",", ":")).encode(), mtime=0)


def _make_room(folder: Path) -> None:
    for pattern in DRAFT_PATTERNS:
        for draft in folder.glob(pattern):
            if time.time() - draft.stat().st_mtime > DRAFT_AGE_S:
                draft.unlink(missing_ok=True)
    kept = sorted(((p.stat(), p) for p in folder.glob("*.json.gz")), key=lambda one: one[0].st_mtime_ns)
    excess = sum(info.st_size for info, _ in kept) - MAX_KEPT_BYTES
    for info, path in kept:
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= info.st_size


def _is_private(folder: Path) -> bool:
    """Whether the folder is this user's, and no other user writes it: its files say what is trained."""
    with suppress(OSError):
        info = folder.lstat()
        return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022
    return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
