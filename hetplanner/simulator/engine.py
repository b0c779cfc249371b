"""The event engine: every rank performs its own action list over shared links, NICs and cores.

Semantics, the same as the executor's: a SEND occupies the rank only while it encodes, the transfer goes on by
itself (with an `overlap` below 1 the sender waits for the rest of the wire time); a RECV waits for the arrival, then
decodes; REDUCE performs the rank's part of its group's program (`hetplanner.plan.reducers`); STEP ends the step and the
rank goes on with its next step at once.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import Message, ReductionGroup, reduction_groups
from hetplanner.plan.trace import Span
from hetplanner.simulator.cores import SharedCores
from hetplanner.simulator.fair_network import FairNetwork
from hetplanner.simulator.jitter import COMPUTE, NETWORK, STILL, Jitter, Luck
from hetplanner.simulator.network import NetworkClock

Then = Callable[[float], None]
Told = Callable[[float, float], None]
Key = tuple[int, int, int, str]  # (step, source, micro-batch or group, what) of a message to one rank


@dataclass
class _Rank:
    """Where a rank stands. It has one thing to wait for at a time: its computing, or messages."""

    actions: tuple[Action, ...]
    work_luck: Luck
    wire_luck: Luck
    next: int = 0
    step: int = 0
    work_factor: float = 1.0
    arrival_s: dict[Key, float] = field(default_factory=dict)  # of messages under way or not yet taken
    waiting: tuple[set[Key], Then] | None = None


class Engine:
    """One simulation of `steps` steps, of which the first has the number `first_step`; `run` gives the spans.

    In a step in which replicas do not synchronise, they skip what they average.

    With `fair_links` transfers share links and NICs as connections of real networks do, else they queue as the emulator
    has them.

    Ranks that wake at the same moment go on in the order of their numbers: who hands a transfer to a NIC first
    matters, and the compiled kernel (`hetplanner.simulator.kernel`) follows the same rule.
    """

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        durations: Durations,
        steps: int,
        jitter: Jitter = STILL,
        seed: int = 0,
        *,
        first_step: int = 0,
        fair_links: bool = False,
    ) -> None:
        self.plan, self.durations, self.steps, self.first_step = plan, durations, steps, first_step
        self.network = NetworkClock(plan.problem.cluster, plan.ranks)
        self.fair = FairNetwork(self.network) if fair_links else None
        # Ranks of a machine that has as many cores as ranks never wait for each other.
        machines = [(ranks, cores) for ranks, cores in durations.machines() if cores < len(ranks)]
        self.cores = [SharedCores(cores) for _, cores in machines]
        self._cores_of = {r: shared for (ranks, _), shared in zip(machines, self.cores, strict=True) for r in ranks}
        self.groups = reduction_groups(plan)
        self.ranks = [
            _Rank(schedule.of_rank(r), Luck(jitter, seed, r, COMPUTE), Luck(jitter, seed, r, NETWORK))
            for r in range(schedule.num_ranks)
        ]
        self.spans: list[Span] = []
        self._events: list[tuple[float, int, Then]] = []  # at most one for each rank, so (time, rank) is unique
        self._computing: dict[int, Then] = {}
        self._moved_elements = [
            sum(part.num_elements for g in self.groups if r in g.ranks for part in g.rounds_of(r))
            for r in range(schedule.num_ranks)
        ]

    def run(self) -> tuple[Span, ...]:
        """Performs all steps. Raises RuntimeError if a rank waits for a message without a sender (broken schedule)."""
        for rank in range(len(self.ranks)):
            self._at(0.0, rank, lambda now, rank=rank: self._begin(rank, now))  # type: ignore[misc]
        while True:
            ending = min(filter(None, (shared.next_end() for shared in self.cores)), default=None)
            if self.fair and self.fair.next_end_s() < min(ending[0] if ending else math.inf, self._next_event_s()):
                self.fair.finish_next()
                continue
            if self._events and (ending is None or self._events[0][:2] <= ending):
                now, _, then = heapq.heappop(self._events)
                then(now)
            elif ending is not None:
                now, rank = ending
                self._cores_of[rank].finish(now, rank)
                self._computing.pop(rank)(now)
            else:
                break
        stuck = [r for r, state in enumerate(self.ranks) if state.step < self.steps]
        if stuck:
            raise RuntimeError(f"ranks {stuck} wait for messages that no rank sends")
        return tuple(sorted(self.spans, key=lambda s: (s.start_s, s.rank)))

    # -- primitives -------------------------------------------------------------------------------

    def _at(self, time_s: float, rank: int, then: Then) -> None:
        heapq.heappush(self._events, (time_s, rank, then))

    def _next_event_s(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def _compute(self, rank: int, now: float, work_s: float, then: Then) -> None:
        work_s *= self.ranks[rank].work_factor
        if work_s <= 0:
            then(now)
        elif rank in self._cores_of:
            self._computing[rank] = then
            self._cores_of[rank].start(now, rank, work_s)
        else:
            self._at(now + work_s, rank, then)

    def _transfer(
        self, now: float, source: int, target: int, num_bytes: int, key: Key, told: Told = lambda start, arrival: None
    ) -> None:
        """Hands a message to the network; `told` is called once it is known when it starts and arrives."""
        factor = self.ranks[source].wire_luck.draw()

        def known(at: float, start: float, arrival: float) -> None:
            self.ranks[target].arrival_s[key] = arrival
            self._wake(target, at)
            told(start, arrival)

        if self.fair:
            self.fair.send(now, source, target, num_bytes, factor, known)
        else:
            known(now, *self.network.reserve(now, source, target, num_bytes, factor))

    def _wait(self, rank: int, keys: set[Key], now: float, then: Then) -> None:
        ready = self._ready_s(rank, keys, now)
        if ready is None:
            self.ranks[rank].waiting = (keys, then)
        elif ready <= now:
            then(now)
        else:
            self._at(ready, rank, then)

    def _wake(self, rank: int, now: float) -> None:
        """Lets a waiting rank go on when the last of its messages arrives, if all are under way."""
        state = self.ranks[rank]
        if state.waiting is None:
            return
        keys, then = state.waiting
        ready = self._ready_s(rank, keys, now)
        if ready is not None:
            state.waiting = None
            self._at(ready, rank, then)

    def _ready_s(self, rank: int, keys: set[Key], now: float) -> float | None:
        """When all these messages are there, not before now; None if some are not yet under way. Takes them."""
        arrival_s = self.ranks[rank].arrival_s
        if not keys <= arrival_s.keys():
            return None
        return max([now, *(arrival_s.pop(key) for key in keys)])

    def _span(self, action: Action, start: float, end: float, num_bytes: int = 0, step: int | None = None) -> None:
        step = self.ranks[action.rank].step if step is None else step
        self.spans.append(
            Span(action.rank, str(action.kind), step, action.micro_batch, start, end, num_bytes, action.peer,
                 action.stage, action.role)
        )  # fmt: skip

    # -- actions ----------------------------------------------------------------------------------

    def _begin(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        if state.next == len(state.actions):
            state.next, state.step = 0, state.step + 1
            state.work_luck.begin_step(state.step)
            state.wire_luck.begin_step(state.step)
        if state.step >= self.steps:
            return
        action = state.actions[state.next]
        state.work_factor = state.work_luck.draw()
        match action.kind:
            case Kind.FORWARD:
                chunk = self.plan.chunk_index[rank, action.stage]
                self._work(action, now, float(self.durations.forward_s_C[chunk]))
            case Kind.BACKWARD:
                chunk = self.plan.chunk_index[rank, action.stage]
                self._work(action, now, float(self.durations.backward_s_C[chunk]))
            case Kind.STEP:
                self._work(action, now, self._optimizer_s(rank))
            case Kind.SEND:
                self._send(action, now)
            case Kind.RECV:
                self._receive(action, now)
            case Kind.REDUCE:
                group = self.groups[action.group]
                if group.is_due(self._fragment(rank)):
                    self._reduce(action, group, now)
                else:
                    self._end(action, now)

    def _fragment(self, rank: int) -> int | None:
        return self.plan.fragment_at(self.first_step + self.ranks[rank].step)

    def _optimizer_s(self, rank: int) -> float:
        outer_s_N = self.durations.outer_s_N
        outer_s = 0.0 if outer_s_N is None or self._fragment(rank) is None else float(outer_s_N[rank])
        return float(self.durations.optimizer_s_N[rank]) + outer_s / self.plan.fragments

    def _end(self, action: Action, now: float) -> None:
        self.ranks[action.rank].next += 1
        self._begin(action.rank, now)

    def _work(self, action: Action, now: float, work_s: float) -> None:
        def done(end: float) -> None:
            self._span(action, now, end)
            self._end(action, end)

        self._compute(action.rank, now, work_s, done)

    def _send(self, action: Action, now: float) -> None:
        rank, step = action.rank, self.ranks[action.rank].step
        role: Role = "activation" if action.role == "activation" else "gradient"
        num_bytes = self.plan.boundary_bytes(action.stage, rank, action.peer, role)

        def encoded(at: float) -> None:
            key = (step, rank, action.micro_batch, _what(action))
            self._transfer(
                at,
                rank,
                action.peer,
                num_bytes,
                key,
                lambda start, end: self._span(action, start, end, num_bytes, step),
            )
            wire_s = self.network.wire_s(rank, action.peer, num_bytes)
            waits_s = (1.0 - self.durations.overlap) * wire_s
            self._compute(rank, at, waits_s, lambda end: self._end(action, end))

        self._compute(rank, now, float(self.durations.encode_s_N[rank]) + self.durations.message_s, encoded)

    def _receive(self, action: Action, now: float) -> None:
        rank = action.rank
        key = (self.ranks[rank].step, action.peer, action.micro_batch, _what(action))

        def decoded(end: float) -> None:
            self._span(action, now, end)
            self._end(action, end)

        def arrived(at: float) -> None:
            self._compute(rank, at, float(self.durations.decode_s_N[rank]) + self.durations.message_s, decoded)

        self._wait(rank, {key}, now, arrived)

    def _reduce(self, action: Action, group: ReductionGroup, start: float) -> None:
        """Round by round: pack and send, wait for what comes, then add it up before the next round."""
        rank, step = action.rank, self.ranks[action.rank].step
        rounds = group.rounds_of(rank)
        element_s = float(self.durations.reduce_s_N[rank]) / max(self._moved_elements[rank], 1)

        def work_s(messages: tuple[Message, ...]) -> float:
            elements = sum(m.transfer.end - m.transfer.first for m in messages)
            return elements * element_s + sum(m.peer != rank for m in messages) * self.durations.message_s

        def begin(number: int, now: float) -> None:
            if number == len(rounds):
                self._span(action, start, now, sum(m.num_bytes for part in rounds for m in part.sends))
                self._end(action, now)
                return
            sends, takes = rounds[number].sends, rounds[number].takes

            def packed(at: float) -> None:
                for m in sends:
                    if m.peer != rank:
                        key = (step, rank, action.group, f"reduce {m.ordinal}")
                        self._transfer(at, rank, m.peer, m.num_bytes, key)
                keys = {(step, m.peer, action.group, f"reduce {m.ordinal}") for m in takes}
                self._wait(rank, keys, at, taken)

            def taken(at: float) -> None:
                self._compute(rank, at, work_s(takes), lambda then: begin(number + 1, then))

            self._compute(rank, now, work_s(sends), packed)

        begin(0, start)


def _what(action: Action) -> str:
    """What a SEND or RECV carries: two ranks may share several boundaries of an interleaved plan."""
    return f"{action.role} {action.stage}"
