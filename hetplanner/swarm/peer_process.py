"""A peer as a process: its machine on the event loop, torch on one thread, averaging on another."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from hetplanner.elastic.peer.peer import Peer
from hetplanner.elastic.protocol import peer_events
from hetplanner.elastic.protocol.coordinator_events import Received
from hetplanner.elastic.protocol.identity import Stamp, Token
from hetplanner.elastic.protocol.messages import CoordinatorToPeer, Message, Send, Sent, Work, Worked, WorkFailed
from hetplanner.errors import InvalidInput, RunError
from hetplanner.swarm.driver import Driver, now_s
from hetplanner.swarm.final_save import DIGEST_QUERY
from hetplanner.swarm.launch.links import Links
from hetplanner.swarm.peer.averaging import Averager, Group, Meeting, Tied, reduce_beside
from hetplanner.swarm.peer.engine import Sum
from hetplanner.swarm.peer.group.leader import Engine
from hetplanner.swarm.peer.open_calls import OpenCalls
from hetplanner.swarm.peer.state_keeper import StateKeeper
from hetplanner.swarm.peer.tensor_checks import check_finite, check_sizes
from hetplanner.swarm.peer.work_thread import Turn, WorkThread
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.certificates import Credentials
from hetplanner.swarm.wire.frames import Frame, encode_frame

log = logging.getLogger(__name__)

T = TypeVar("T")

QUERY_S = 2.0
STORE_QUERY = b"store"
LINE = 4
"""Calls that a peer takes, of those that it can compute at once; it refuses more, and senders turn to another."""
TELL_S = 1.0
WATCH_AGAIN_S = 0.3
"""After a connection to a peer of the same stage broke."""
REFUSED_S = 4.0
"""An id that is in use may become free: its last holder is noticed to be dead within less."""
LEAVE_S = 20.0
"""A peer that is told to end by SIGTERM stays no longer, even if no other peer serves its stage."""
MAX_FAILURES = 5
"""A peer whose own results are no numbers so many times in a row leaves by itself."""


class PeerProcess(Driver):
    """One peer.

    Args:
        name: its id.
        spec: of the run.
        coordinator: its address.
        credentials: of the swarm; None on loopback.
        folder: where checkpoints are, shared by the peers of a stage or not.
        engine: what computes; its speeds are measured where none are emulated.
        seed: of the machine's random numbers.
        links, proxy: see Endpoint.
    """

    takes = get_args(CoordinatorToPeer)

    def __init__(
        self,
        name: str,
        spec: SwarmSpec,
        coordinator: str,
        credentials: Credentials | None,
        folder: Path,
        engine: Engine,
        seed: int | None = None,
        links: Links | None = None,
        proxy: str = "",
    ) -> None:
        super().__init__(credentials, spec.max_part_bytes, links, proxy)
        self._links = links
        self.name, self.spec, self.coordinator, self.folder = name, spec, coordinator, folder
        self._random = random.Random(seed)
        self.engine = engine
        self._torch = WorkThread("torch")
        self._keeper = StateKeeper(spec, self.engine, self._compute, self.endpoint, folder)
        self._calls = OpenCalls()
        self._sent: dict[int, asyncio.Task[None]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._failures = 0
        self._refused_s: float | None = None
        self._bytes, self._told_s = [0, 0], 0.0  # over boundaries, for averaging
        self._is_leaving, self._leave_until_s = False, math.inf
        self._folding: Stamp | None = None

    async def start(self, host: str, port: int = 0) -> str:
        """Measures how fast this device is, listens and begins to join. Returns the address."""
        await self._compute(self.engine.warm_up)
        stage = self.spec.places.get(self.name, self.spec.num_stages // 2)
        speeds = self.engine.speeds
        speed = speeds[stage] if speeds is not None else await self._compute(self.engine.measure)
        address = await self.endpoint.start(host, port)
        spec = self.spec
        self._averager = Averager(host, spec.settings.reduce_s, spec.averaging_codec, self._links, self.engine.device)
        process = self._random.getrandbits(62)
        self.machine = Peer(
            self.name, process, self.spec.fingerprint, speed, self.coordinator, self.spec.settings, self._random
        )
        log.info("peer %s at %s: %.3g micro-batches/s", self.name, address, speed)
        return address

    def leave(self) -> None:
        """Drains: no new work, and released at a step boundary. Asked for a second time it goes at once.

        So does one that has not joined yet: no work depends on it.
        """
        if self._is_leaving or self.machine.version is None:
            self.ended.set()
        self._is_leaving = True
        self.handle(peer_events.LeaveAsked())

    def preempt(self) -> None:
        """See Driver: it leaves between two steps, or when its time is over."""
        if not self.was_preempted:
            self.was_preempted, self._leave_until_s = True, now_s() + LEAVE_S
            if not self._is_leaving:
                self.leave()

    def on_tick(self) -> None:
        """See Driver: a peer that is refused for a while ends, and a group that has lost a device."""
        now = now_s()
        if (failure := self.engine.failure()) is not None:
            self.error = RunError(failure)
            self.ended.set()
        if now > self._leave_until_s:
            self.ended.set()
        self._watch_mates()
        if any(self._bytes) and now - self._told_s >= TELL_S:
            self.tell(self.coordinator, Sent(*self._bytes))
            self._bytes, self._told_s = [0, 0], now
        self._refused_s = None if self.machine.refused is None else self._refused_s or now
        if self._refused_s is not None and now - self._refused_s > REFUSED_S:
            self.error = RunError(str(self.machine.refused))
            self.ended.set()

    # Machine.

    def handle(self, event: Any) -> None:
        """See Driver."""
        if self.ends_with(event):
            return
        for action in self.machine.handle(event, now_s()):
            self._perform(action)
        if self.machine.has_left:
            self.ended.set()

    def _perform(self, action: Any) -> None:
        match action:
            case Send(address=address, message=WorkFailed() as failure):
                self._answer((address, failure.call), encode_frame(failure))
            case Send(address=address, message=message):
                self.tell(address, message)
            case peer_events.Reply(worked=worked, key=key):
                call = self._calls.get(key)
                back = call.output if call is not None else ()
                self._bytes[0] += sum(map(len, back))
                self._answer(key, encode_frame(worked, back))
            case peer_events.SendWork():
                self._sent[action.work.call] = self.spawn(self._send_work(action))
            case peer_events.CancelWork(call=call):
                if (task := self._sent.pop(call, None)) is not None:
                    task.cancel()
            case peer_events.RunForward(key=key):
                self._calls.line_up(key)
                self._admit()
            case peer_events.RunBackward(key=key, token=token):
                self.spawn(self._backward(key, token))
            case peer_events.FoldAndReduce():
                self.spawn(self._reduce(action))
            case peer_events.ApplyUpdate():
                self.spawn(self._apply(action))
            case peer_events.DropSum(attempt=attempt):
                self._folding = None
                self._averager.drop()
                self._soon(lambda: self.engine.drop_sum(attempt))
            case peer_events.DropContributions():
                self._drop()
            case peer_events.FetchState() | peer_events.LoadCheckpoint() | peer_events.InitState():
                self.spawn(self._load(action))
            case peer_events.SaveCheckpoint():
                self.spawn(self._save(action))

    # Torch.

    async def _compute(self, work: Callable[[], T], turn: Turn = Turn.CONTROL) -> T:
        return await self._torch.do(turn, work)

    def _soon(self, work: Callable[[], Any]) -> None:
        """In its turn on torch's thread; no caller waits for it."""

        async def compute() -> None:
            await self._compute(work)

        self.spawn(compute())

    def _drop(self) -> None:
        self._calls.drop_all()
        self._soon(self.engine.drop)

    def _admit(self) -> None:
        """Begins with calls as far as their activations have room here."""
        for key in self._calls.admitted(self.spec.in_flight[self.machine.stage]):
            self.spawn(self._forward(key))

    async def _forward(self, key: peer_events.CallKey) -> None:
        call = self._calls.get(key)
        if call is None:
            return
        work = call.work

        def compute() -> float | None:
            if not self._calls.holds(key, call):
                return None
            began_s = now_s()
            call.output = self.engine.forward(key, work.micro_batch, work.version.step, call.inputs)
            call.inputs = ()
            return now_s() - began_s

        try:
            seconds = await self._compute(compute, Turn.FORWARD)
        except InvalidInput as error:
            self.report_garbage(key[0], error, self.coordinator)
            self.handle(peer_events.BackwardDone(key, is_finite=False))
            return
        if seconds is not None and self._calls.holds(key, call):
            self.handle(peer_events.ForwardDone(key, seconds))

    async def _backward(self, key: peer_events.CallKey, token: Token | None) -> None:
        call = self._calls.get(key)
        if call is None:
            return

        def compute() -> tuple[bool, float]:
            if not self._calls.holds(key, call):
                return False, 0.0
            began_s = now_s()
            back = self.engine.backward(key, token, call.answer)
            call.output, call.answer = back or (), ()
            return back is not None, now_s() - began_s

        try:
            is_finite, seconds = await self._compute(compute, Turn.BACKWARD)
        except InvalidInput as error:
            log.warning("backward: %s", error)
            is_finite, seconds = False, 0.0
        if self._calls.holds(key, call):
            self._count_failures(is_finite=is_finite)
            self.handle(peer_events.BackwardDone(key, is_finite, seconds))

    def _count_failures(self, *, is_finite: bool) -> None:
        self._failures = 0 if is_finite else self._failures + 1
        if self._failures == MAX_FAILURES:
            log.error("%d gradients in a row are no numbers: this peer leaves", MAX_FAILURES)
            self.leave()

    # The chain.

    async def on_work(self, sender: str, frame: Frame) -> bytes:
        """See Service: answered when the rest of the chain has answered, or has not."""
        work = frame.message
        if not isinstance(work, Work) or not 0 <= work.stage < self.spec.num_stages or not sender:
            raise InvalidInput(f"work: must be work for one of {self.spec.num_stages} stages, from an address")
        check_sizes(frame.parts, self.spec.work_bytes(work.stage), "work")
        if not 0 <= work.micro_batch < self.spec.settings.micro_batches:
            raise InvalidInput(f"work: micro_batch: there is no {work.micro_batch}")
        key = (sender, work.call)
        if len(self._calls) >= LINE * self.spec.in_flight[work.stage]:
            return encode_frame(WorkFailed(work.call, "deadline"))  # the sender turns to another
        answer = self._calls.begin(key, work, frame.parts)
        try:
            self.handle(Received(sender, work))
            return await answer
        finally:
            self._calls.leave(key, answer)
            self._admit()

    def _answer(self, key: peer_events.CallKey, frame: bytes) -> None:
        self._calls.answer(key, frame)
        self._admit()
        self._soon(lambda: self.engine.forget(key))

    async def _send_work(self, action: peer_events.SendWork) -> None:
        work, key = action.work, action.key
        assert not isinstance(key, Stamp)
        call = self._calls.get(key)
        parts = call.output if call is not None else ()
        self._bytes[0] += sum(map(len, parts))

        async def take(work: Work, answer: Frame) -> None:
            self._check_answer(work, answer)
            if answer.parts:
                await asyncio.to_thread(self._check_gradient, answer.parts[0], work.stage)
            if call is not None:
                call.answer = answer.parts

        try:
            await self.exchange(action.address, work, parts, work.budget_s, take, self.coordinator)
        finally:
            self._sent.pop(work.call, None)

    def _check_answer(self, work: Work, frame: Frame) -> None:
        message = frame.message
        if not isinstance(message, Worked | WorkFailed) or message.call != work.call:
            raise InvalidInput(f"answer: must be to call {work.call}, got {type(message).__name__}")
        check_sizes(frame.parts, self.spec.gradient_bytes(work.stage) if isinstance(message, Worked) else (), "answer")

    def _check_gradient(self, part: memoryview, stage: int) -> None:
        spec = self.spec
        check_finite(spec.gradient_codec, spec.workload.dtype, part, spec.boundary_elements(stage))

    def unreachable(self, address: str, message: Message) -> None:
        """See Driver: the machine says again what matters, and which peers cannot be reached."""
        log.debug("%s: no process there for %s", address, type(message).__name__)
        self.handle(peer_events.Unreachable(address))

    def _watch_mates(self) -> None:
        """Keeps a connection to each peer of the stage: a cut link is noticed before averaging hangs."""
        mates = self.machine.stage_peers
        for address in [address for address in self._watches if address not in mates]:
            self._watches.pop(address).cancel()
        for address in mates:
            if address not in self._watches:
                self._watches[address] = self.spawn(self._watch(address))

    async def _watch(self, address: str) -> None:
        while True:
            await self.endpoint.watch(address)
            self.handle(peer_events.Unreachable(address))
            await asyncio.sleep(WATCH_AGAIN_S)

    # The step.

    async def _reduce(self, action: peer_events.FoldAndReduce) -> None:
        attempt, member, loop = action.attempt, self.machine.member, asyncio.get_running_loop()
        assert member is not None
        self._folding = attempt

        def fold() -> tuple[Sum, Sum | None]:
            own = self.engine.fold(action.tokens)
            return own, self.engine.offer(own)

        folded, offered = await self._compute(fold)

        def port_of(address: str) -> int:
            found = asyncio.run_coroutine_threadsafe(self.endpoint.query(address, STORE_QUERY, QUERY_S), loop)
            return int(found.result())

        if offered is None:
            total: Sum | None = folded
        else:
            own_end, held = self.engine.tied_ranges()
            tied = self._tied(action.stages, held)
            meeting = Meeting(attempt, member, action.group, tied, own_end, port_of)
            total = await reduce_beside(self._averager, offered, meeting)
        if self._folding != attempt:
            return
        self._folding = None
        self._bytes[1] += self._averager.take_sent()
        if total is None:
            self.handle(peer_events.FoldDone(attempt, None))
            return
        done = await self._compute(lambda: self.engine.keep_sum(attempt, total, folded))
        if done.grad_square is not None and not math.isfinite(done.grad_square):
            log.error("the sum of finite gradients is not finite; it is not used")
            done = peer_events.FoldDone(attempt, None)
        self.handle(done)

    def _tied(self, everyone: tuple[Group, ...], held: Mapping[str, tuple[int, int]]) -> tuple[Tied, ...]:
        """This stage's weights that other stages hold as well, and who sums them."""
        return tuple(
            Tied(owner, *held[owner], tuple(replica for s in stages for replica in everyone[s]))
            for owner, stages in self.spec.tied_stages.items()
            if owner in held
        )

    async def _apply(self, action: peer_events.ApplyUpdate) -> None:
        await self._compute(lambda: self.engine.apply(action.attempt, action.version, action.grad_norm))
        self.handle(peer_events.UpdateApplied(action.attempt))

    # State.

    async def _load(self, order: peer_events.FetchState | peer_events.LoadCheckpoint | peer_events.InitState) -> None:
        version = await self._keeper.load(order, lambda: self.machine.member == order.member)
        if self.machine.member == order.member:
            self.handle(peer_events.StateLoaded(order.member, version))

    def on_state(self, request: bytes) -> AsyncIterator[bytes]:
        """See Service."""
        return self._keeper.give(request)

    async def on_query(self, request: bytes) -> bytes:
        """See Service."""
        if request == STORE_QUERY:
            return str(self._averager.open_store()).encode()
        if request == DIGEST_QUERY:
            return await self._compute(self._keeper.digest)
        raise InvalidInput(f"query: {request[:40]!r} is not known")

    async def _save(self, action: peer_events.SaveCheckpoint) -> None:
        if await self._keeper.save(action):
            self.handle(peer_events.CheckpointDone(action.stage, action.version))
