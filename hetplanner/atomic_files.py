"""Files that are there whole or not at all: written under a random name, then renamed.

A draft is made anew (O_EXCL), so a link that another user has put there is never followed. It is removed when it cannot
be finished, so a full disk gets its space back at once. Only a killed writer leaves one: see `remove_drafts`.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

DRAFT_PATTERNS = (".*.draft", ".tmp??????")
"""Names of drafts: ours, and those that safetensors makes beside the file it writes."""


@contextlib.contextmanager
def drafted(path: Path, *, mode: int = 0o666, sync: bool = False, replace: bool = True) -> Iterator[Path]:
    """An empty file to be written, which becomes `path` when the block is left.

    Args:
        path: what the file is called in the end.
        mode: of the file; the process's umask is taken off, as for any new file.
        sync: return only when content and name survive a crash of the machine.
        replace: take the place of a file that is there.

    Raises:
        OSError: it cannot be written; nothing of it is left.
        FileExistsError: `path` is there, and is not to be replaced.
    """
    with _begun(path, mode, sync=sync, replace=replace) as (draft, _):
        yield draft


def write_whole(
    path: Path, content: str | bytes, *, mode: int = 0o666, sync: bool = False, replace: bool = True
) -> None:
    """Writes a file as `drafted` does; text as UTF-8."""
    with _begun(path, mode, sync=sync, replace=replace) as (_, file):
        # Not by its name: in a folder that others may write, a link may have taken the draft's place.
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def _begun(path: Path, mode: int, *, sync: bool, replace: bool) -> Iterator[tuple[Path, IO[bytes]]]:
    """A draft, by name and open."""
    draft = path.with_name(f".{secrets.token_hex(8)}.draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(draft, flags, mode), "wb")
    try:
        yield draft, file
        file.close()
        if sync:
            synchronise(draft)
        if replace:
            draft.replace(path)
        else:
            os.link(draft, path)  # unlike a rename this never replaces a file
        if sync:
            synchronise(path.parent)
    finally:
        with contextlib.suppress(OSError):  # where it can be neither written nor removed, the first error counts
            draft.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            file.close()


def check_free(folder: Path, num_bytes: int) -> None:
    """Refuses to begin a file that cannot fit, so that others need not run out of space for it. Raises OSError."""
    if num_bytes > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def reserve(file: int, num_bytes: int) -> None:
    """Has the file system keep so many bytes for an open file, which has that size then. Raises OSError."""
    try:
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems without it
            raise


def synchronise(path: Path) -> None:
    """Makes sure that a file's content, or the names in a folder, survive a crash of the machine. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_drafts(folder: Path) -> list[Path]:
    """Removes drafts that killed writers left in a folder; returns their paths. No process may be writing there."""
    removed = []
    for pattern in DRAFT_PATTERNS:
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed
