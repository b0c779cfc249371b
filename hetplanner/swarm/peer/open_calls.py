"""Calls that a peer is working on: what came with each, what goes on from it, and which caller waits for its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hetplanner.elastic.protocol.messages import Work
from hetplanner.elastic.protocol.peer_events import CallKey
from hetplanner.errors import InvalidInput

Parts = Sequence[memoryview]


@dataclass
class OpenCall:
    """One call.

    Attributes:
        inputs: what came with it, until it went forward.
        output: what goes to the next stage, later to the caller.
        answer: the next stage's gradient.
    """

    work: Work
    waiting: asyncio.Future[bytes]
    inputs: Parts = ()
    output: tuple[bytes, ...] = ()
    answer: Parts = ()


class OpenCalls:
    """By caller and number. A call that is over is not there any more, whatever is still computed for it."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, OpenCall] = {}
        self._waiting: dict[CallKey, asyncio.Future[bytes]] = {}
        self._computing: set[CallKey] = set()
        self._line: deque[CallKey] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, key: CallKey) -> OpenCall | None:
        """The call, if it is not over."""
        return self._calls.get(key)

    def holds(self, key: CallKey, call: OpenCall) -> bool:
        """Whether it is this call, and not over; may be asked by any thread."""
        return self._calls.get(key) is call

    def begin(self, key: CallKey, work: Work, inputs: Parts) -> asyncio.Future[bytes]:
        """A call begins; returns what its answer will be in. Raises InvalidInput: it is under way already."""
        if key in self._waiting:
            raise InvalidInput(f"work: call {work.call} is under way already")
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        self._calls[key] = OpenCall(work, waiting, inputs)
        return waiting

    def line_up(self, key: CallKey) -> None:
        """A call is to be computed when there is room for it."""
        self._line.append(key)

    def admitted(self, most: int) -> list[CallKey]:
        """Calls whose turn it is, so that at most so many are computed at once; they count until they are over."""
        found = []
        while self._line and len(self._computing) < most:
            key = self._line.popleft()
            if key in self._calls:
                self._computing.add(key)
                found.append(key)
        return found

    def answer(self, key: CallKey, frame: bytes) -> None:
        """The call is over: nothing of it is needed any more."""
        self._calls.pop(key, None)
        self._computing.discard(key)
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame)

    def leave(self, key: CallKey, waiting: asyncio.Future[bytes]) -> None:
        """The caller has its answer, or waits no longer."""
        if self._waiting.get(key) is waiting:
            del self._waiting[key]
        call = self._calls.get(key)
        if call is not None and call.waiting is waiting:
            del self._calls[key]
            self._computing.discard(key)

    def drop_all(self) -> None:
        """All tensors are freed; waiting callers are answered one by one."""
        self._calls.clear()
        self._computing.clear()
        self._line.clear()
