"""The watch that is told of compiled kernels. Imports no numba: planning asks to be told before it loads any kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class CompilingWatch(Protocol):
    """Is told, in the thread that compiles; kernels that call others are compiled one inside the other."""

    def compiling_began(self) -> None:
        """Before a kernel is compiled; an exception keeps it from that, and ends the call that needed it."""
        ...

    def compiling_ended(self) -> None:
        """After that, whatever came of it."""
        ...


_watch: ContextVar[CompilingWatch | None] = ContextVar("compiling_watch", default=None)


def current_watch() -> CompilingWatch | None:
    """The watch of this thread."""
    return _watch.get()


@contextmanager
def watched_compiling(watch: CompilingWatch) -> Iterator[None]:
    """Tells `watch` of every kernel that is compiled meanwhile in this thread."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
