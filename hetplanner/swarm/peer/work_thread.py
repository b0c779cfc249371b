"""The one thread on which a peer computes: what the swarm waits for goes first, and backward before forward."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Turn(IntEnum):
    """Whose turn comes first; equal ones in the order in which they were asked for."""

    CONTROL = 0  # state, folding, updates: other processes wait for them
    BACKWARD = 1  # frees activations
    FORWARD = 2


class WorkThread:
    """Performs functions one after the other, by turn. It ends with the process."""

    def __init__(self, name: str) -> None:
        self._queue: queue.PriorityQueue[tuple[Turn, int, Callable[[], Any], Any]] = queue.PriorityQueue()
        self._number = itertools.count()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def do(self, turn: Turn, work: Callable[[], T]) -> T:
        """The result of `work`, once it has been its turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((turn, next(self._number), work, (loop, future)))
        return await future

    def _run(self) -> None:
        while True:
            _, _, work, (loop, future) = self._queue.get()
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(_settle, future, result, error)
            del work, future, result, error  # tensors in them would stay until the next one


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled: no caller waits any more
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
