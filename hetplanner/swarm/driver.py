"""What coordinator, peer and trainer processes have in common: a machine on an event loop with a clock and a network.

Nothing here computes: whatever takes longer than a moment runs on other threads, so that signs of life go out in time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from hetplanner.elastic.protocol.coordinator_events import Received, Tick
from hetplanner.elastic.protocol.messages import Ended, Message, ReportGarbage, Work
from hetplanner.elastic.protocol.peer_events import CallLost
from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import Heartbeat
from hetplanner.swarm.launch.links import Links
from hetplanner.swarm.wire.certificates import Credentials
from hetplanner.swarm.wire.endpoint import Endpoint, Lost
from hetplanner.swarm.wire.frames import Frame, Part, encode_frame

log = logging.getLogger(__name__)

TICK_S = 0.05
SEND_S = 2.0
"""A message that is not acknowledged by then is lost; machines send again what matters."""
MAX_REASON = 300
MAX_TOLD = 20
"""Refusals of a kind that are logged in full."""


class Driver:
    """A machine and its surroundings.

    Args:
        credentials: of the swarm; None: plain, on loopback.
        max_part_bytes: largest tensors of a message.
        links, proxy: see Endpoint.

    Attributes:
        endpoint: its end of the network.
        garbage: refused messages by sender.
        strangers: connections refused for want of a certificate, by host.
        takes: types of messages that are for this machine; others are refused.
        error: that ended the process.
        was_preempted: it was told to end from outside.
    """

    takes: tuple[type[Any], ...] = ()

    def __init__(
        self, credentials: Credentials | None, max_part_bytes: int, links: Links | None = None, proxy: str = ""
    ) -> None:
        self.endpoint = Endpoint(self, credentials, max_part_bytes, links, proxy)
        self.garbage: Counter[str] = Counter()
        self.strangers: Counter[str] = Counter()
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self.was_preempted = False
        self._tasks: set[asyncio.Task[None]] = set()

    def ends_with(self, event: Any) -> bool:
        """Whether an event says that the training is over; then the process ends."""
        if not (isinstance(event, Received) and isinstance(event.message, Ended)):
            return False
        log.info("ended: %s", event.message.reason)
        self.ended.set()
        return True

    # To be given by each process.

    def handle(self, event: Any) -> None:
        """Hands an event to the machine and performs its actions. A process without a machine only asks others."""
        return

    def on_tick(self) -> None:
        """Called with every tick, before the machine; most have nothing to do of their own."""
        return

    def unreachable(self, address: str, message: Message) -> None:
        """A message could not be delivered: no process is there. Trainers ignore it."""
        return

    # Life.

    def preempt(self) -> None:
        """The process is told to end from outside; what it still does for others each says."""
        self.was_preempted = True
        self.ended.set()

    async def run(self, beat: Heartbeat | None = None) -> None:
        """Ticks until `ended` is set, then hangs up. `beat`: shows that this loop turns."""
        beat = beat or Heartbeat()
        beat.enter("training")
        try:
            while not self.ended.is_set():
                beat.advance()
                self.on_tick()
                self.handle(Tick())
                await _wait(self.ended, TICK_S)
        finally:
            for task in list(self._tasks):
                task.cancel()
            beat.enter("saving")
            await self.endpoint.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Does something beside; an unexpected end of it ends the process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unexpected: %s", error, exc_info=error)
            self.error = self.error or error  # the process ends, the swarm goes on without it
            self.ended.set()

    # Messages.

    def report_garbage(self, address: str, error: InvalidInput, coordinator: str) -> None:
        """What came from an address was garbage: counted here, and told to the coordinator."""
        self.on_garbage(address, str(error))
        if address != coordinator:
            self.tell(coordinator, ReportGarbage(address, str(error)[:MAX_REASON]))

    def tell(self, address: str, message: Message, parts: Sequence[Part] = ()) -> None:
        """Sends a message beside what else is done."""
        self.spawn(self._tell(address, encode_frame(message, parts), message))

    async def _tell(self, address: str, frame: bytes, message: Message) -> None:
        try:
            await self.endpoint.send(address, frame, SEND_S)
        except InvalidInput as error:
            log.warning("not sent: %s", error)
        except Lost as lost:
            if lost.is_gone:
                self.unreachable(address, message)
            else:
                log.info("%s not delivered: %s", type(message).__name__, lost)

    async def exchange(
        self,
        address: str,
        work: Work,
        parts: Sequence[Part],
        budget_s: float,
        check: Callable[[Work, Frame], Awaitable[None]],
        coordinator: str,
    ) -> None:
        """Sends work on and hands the machine the answer, once `check` has taken it. Garbage is reported."""
        try:
            answer = await self.endpoint.work(address, encode_frame(work, parts), budget_s)
            await check(work, answer)
            self.handle(Received(address, answer.message))
        except InvalidInput as error:
            self.report_garbage(address, error, coordinator)
            self.handle(CallLost(work.call))
        except Lost as lost:
            log.info("micro-batch %d, stage %d: %s", work.micro_batch, work.stage, lost)
            if lost.is_gone:
                self.unreachable(address, work)
            if not lost.is_late:
                self.handle(CallLost(work.call))

    async def on_message(self, sender: str, frame: Frame) -> None:
        """See Service: what is not for this machine is refused."""
        if not isinstance(frame.message, self.takes) or frame.parts:
            raise InvalidInput(f"message: {type(frame.message).__name__} with {len(frame.parts)} parts is not for me")
        self.handle(Received(sender, frame.message))

    async def on_work(self, sender: str, frame: Frame) -> bytes:
        """See Service."""
        raise InvalidInput("work: nothing is computed here")

    async def on_state(self, request: bytes) -> AsyncIterator[bytes]:
        """See Service."""
        raise InvalidInput("state: this process has none")
        yield b""

    async def on_query(self, request: bytes) -> bytes:
        """See Service."""
        raise InvalidInput("query: not answered here")

    def on_garbage(self, sender: str, reason: str) -> None:
        """See Service: it is counted by the sender that it names."""
        self.garbage[sender] += 1
        if self.garbage[sender] <= MAX_TOLD:
            log.warning("refused from %s: %s", sender or "unnamed", reason)

    def on_stranger(self, host: str, reason: str) -> None:
        """See Service: it is counted by its host."""
        self.strangers[host] += 1
        if self.strangers[host] <= MAX_TOLD:
            log.warning("refused at %s: %s", host, reason)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def now_s() -> float:
    """The clock of the machines of this process."""
    return time.monotonic()
