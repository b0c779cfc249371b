"""Compiled kernels: numba's `njit`, cached on disk under a name that changes with the sources.

Numba renews a cached kernel when the kernel's own file changes, but not when a kernel that it calls from another file
does: after an update of the package it could run what is no longer there. Here the folder of the cache carries a
digest of all kernel files. Importing this module imports numba: do it lazily.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core import event as numba_event

from hetplanner.compiling import current_watch

# Folders of former versions that are kept: another checkout or a running process may still use them.
KEPT_CACHES = 3

config: Any = numba_config  # its settings are made at run time


def kernel(function: Callable[..., Any] | None = None, *, allocates: bool | None = None, **options: Any) -> Any:
    """Compiles a function at its first call, as `@kernel` or `@kernel(forceinline=True)`; see `numba.njit`.

    Args:
        function: what is compiled.
        allocates: False: it makes no array, so references to arrays need not be counted, which costs more than the
            arithmetic of a move. A kernel that makes one is then refused by the compiler. Kernels that it calls
            inherit this, so those that make arrays must say `allocates=True`. numba has an option for it without a
            public name (`_nrt`).
        options: of `numba.njit`.
    """
    if allocates is not None:
        options["_nrt"] = allocates
    if function is None:
        return lambda decorated: kernel(decorated, **options)
    folder, given = _folder(), config.CACHE_DIR
    if folder is None:  # numba then keeps them in this user's home, but for a folder that was given and is not safe
        return numba.njit(cache=not given, **options)(function)
    # Numba reads the setting while it decorates; other packages' kernels keep their own place.
    config.CACHE_DIR = os.fspath(folder)
    try:
        return numba.njit(cache=True, **options)(function)
    finally:
        config.CACHE_DIR = given


class _Telling(numba_event.Listener):
    """Tells the current watch of each kernel that is compiled (not of one that is loaded from the cache)."""

    def on_start(self, event: Any) -> None:
        """Before compiling."""
        watch = current_watch()
        if watch is not None:
            watch.compiling_began()

    def on_end(self, event: Any) -> None:
        """After compiling, or what kept it from that."""
        watch = current_watch()
        if watch is not None:
            watch.compiling_ended()


numba_event.register("numba:compile", _Telling())

_cached: list[Path | None] = []


def _folder() -> Path | None:
    """The folder of this version's kernels, made at the first call; None (numba's choice) if it cannot be written."""
    if not _cached:
        package = Path(__file__).parent
        parent = Path(config.CACHE_DIR or package / "__pycache__")
        _cached.append(_make(parent, source_digest(package)))
    return _cached[0]


def kernel_folder() -> Path | None:
    """The folder of this version's kernels; None if they cannot be kept in one of their own."""
    return _folder()


def source_digest(package: Path) -> str:
    """Digest of all files of a package that define kernels."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if b"@kernel" in text or b"kernel(" in text:
            digest.update(text)
    return digest.hexdigest()[:16]


def _make(parent: Path, digest: str) -> Path | None:
    folder = parent / f"kernels-{digest}"
    if not folder.exists():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_former(parent)
        except OSError:
            return None
    return folder if os.access(folder, os.W_OK) and _is_safe(folder) else None


def _is_safe(folder: Path) -> bool:
    """Whether no other user can put code into a folder of kernels, which are loaded without a check."""
    owner, above = folder.stat(), folder.parent.stat()
    if owner.st_uid == os.getuid() and owner.st_mode & 0o022:
        folder.chmod(0o700)
    return owner.st_uid == os.getuid() and above.st_uid in (os.getuid(), 0)


def _forget_former(parent: Path) -> None:
    former = sorted(parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in former[KEPT_CACHES:]:
        shutil.rmtree(path, ignore_errors=True)
