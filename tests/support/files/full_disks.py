"""Disks that are full: a budget of bytes for the writes of this process, or a small file system of its own."""

import contextlib
import errno
import os
from collections.abc import Iterator

import pytest

real_pwrite, real_ftruncate = os.pwrite, os.ftruncate


class Budget:
    """`os.pwrite` takes so many bytes more, of the last write as many as fit; then it fails as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: float = float("inf"), number: int = errno.ENOSPC) -> None:
        self.free, self.number = free, number
        monkeypatch.setattr(os, "pwrite", self._pwrite)
        monkeypatch.setattr(os, "ftruncate", self._ftruncate)

    def _pwrite(self, file: int, data: bytes, offset: int) -> int:
        growth = max(0, offset + len(data) - os.fstat(file).st_size)
        if growth > self.free:
            fits = int(len(data) - growth + self.free)
            if fits <= 0:
                raise OSError(self.number, os.strerror(self.number))
            data, growth = data[:fits], self.free
        self.free -= growth
        return real_pwrite(file, data, offset)

    def _ftruncate(self, file: int, size: int) -> None:
        self.free += os.fstat(file).st_size - size
        real_ftruncate(file, size)


@contextlib.contextmanager
def full_for(monkeypatch: pytest.MonkeyPatch, *, number: int = errno.ENOSPC) -> Iterator[None]:
    """No new file can be made; those that are there can be written to."""
    real_open = os.open

    def refuse(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_EXCL:
            raise OSError(number, os.strerror(number), str(path))
        return real_open(path, flags, *rest, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield
