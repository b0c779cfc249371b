"""The event engine: every rank performs its own action list over shared links, NICs and cores.

Semantics, the same as the executor's: a SEND occupies the rank only while it encodes, the transfer goes on by
itself; a RECV waits for the arrival, then decodes; REDUCE performs the rank's part of its group's program
(`hetplanner.plan.reducers`); STEP ends the step and the rank goes on with its next step at once.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import Message, ReductionGroup, reduction_groups
from hetplanner.plan.trace import Span
from hetplanner.simulator.cores import SharedCores
from hetplanner.simulator.network import NetworkClock

Then = Callable[[float], None]
Key = tuple[int, int, int, str]  # (step, source, micro-batch or group, what) of a message to one rank


@dataclass
class _Rank:
    actions: tuple[Action, ...]
    next: int = 0
    step: int = 0
    arrived: set[Key] = field(default_factory=set)
    waiting: tuple[set[Key], Then] | None = None


class Engine:
    """One simulation of `steps` steps; `run` gives the spans."""

    def __init__(self, plan: Plan, schedule: Schedule, durations: Durations, steps: int) -> None:
        self.plan, self.durations, self.steps = plan, durations, steps
        self.network = NetworkClock(plan)
        self.cores = SharedCores(durations.cores)
        self.groups = reduction_groups(plan)
        self.ranks = [_Rank(schedule.of_rank(r)) for r in range(schedule.num_ranks)]
        self.spans: list[Span] = []
        self._events: list[tuple[float, int, Then]] = []
        self._order = count()
        self._computing: dict[int, Then] = {}
        self._moved_elements = [
            sum(part.num_elements for g in self.groups if r in g.ranks for part in g.rounds_of(r))
            for r in range(schedule.num_ranks)
        ]

    def run(self) -> tuple[Span, ...]:
        """Performs all steps. Raises RuntimeError if a rank waits for what nobody sends (a broken schedule)."""
        for rank in range(len(self.ranks)):
            self._begin(rank, 0.0)
        while True:
            ending = self.cores.next_end()
            if self._events and (ending is None or self._events[0][0] <= ending[0]):
                now, _, then = heapq.heappop(self._events)
                self.cores.advance(now)
                then(now)
            elif ending is not None:
                now, rank = ending
                self.cores.advance(now)
                self.cores.finish(rank)
                self._computing.pop(rank)(now)
            else:
                break
        stuck = [r for r, state in enumerate(self.ranks) if state.step < self.steps]
        if stuck:
            raise RuntimeError(f"ranks {stuck} wait for messages that nobody sends")
        return tuple(sorted(self.spans, key=lambda s: (s.start_s, s.rank)))

    # -- primitives -------------------------------------------------------------------------------

    def _at(self, time_s: float, then: Then) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), then))

    def _compute(self, rank: int, now: float, work_s: float, then: Then) -> None:
        if work_s <= 0:
            then(now)
            return
        self._computing[rank] = then
        self.cores.start(now, rank, work_s)

    def _transfer(self, now: float, source: int, target: int, num_bytes: int, key: Key) -> tuple[float, float]:
        start, arrival = self.network.reserve(now, source, target, num_bytes)
        self._at(arrival, lambda at: self._arrive(target, key, at))
        return start, arrival

    def _arrive(self, target: int, key: Key, now: float) -> None:
        state = self.ranks[target]
        state.arrived.add(key)
        if state.waiting and state.waiting[0] <= state.arrived:
            keys, then = state.waiting
            state.waiting = None
            state.arrived -= keys
            then(now)

    def _wait(self, rank: int, keys: set[Key], now: float, then: Then) -> None:
        state = self.ranks[rank]
        if keys <= state.arrived:
            state.arrived -= keys
            then(now)
        else:
            state.waiting = (keys, then)

    def _span(self, action: Action, start: float, end: float, num_bytes: int = 0) -> None:
        step = self.ranks[action.rank].step
        self.spans.append(
            Span(action.rank, str(action.kind), step, action.micro_batch, start, end, num_bytes, action.peer,
                 action.stage, action.role)
        )  # fmt: skip

    # -- actions ----------------------------------------------------------------------------------

    def _begin(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        if state.next == len(state.actions):
            state.next, state.step = 0, state.step + 1
        if state.step >= self.steps:
            return
        action = state.actions[state.next]
        match action.kind:
            case Kind.FORWARD:
                self._work(action, now, float(self.durations.forward_s_N[rank]))
            case Kind.BACKWARD:
                self._work(action, now, float(self.durations.backward_s_N[rank]))
            case Kind.STEP:
                self._work(action, now, float(self.durations.optimizer_s_N[rank]))
            case Kind.SEND:
                self._send(action, now)
            case Kind.RECV:
                self._receive(action, now)
            case Kind.REDUCE:
                self._reduce(action, self.groups[action.group], now)

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
            key = (step, rank, action.micro_batch, action.role)
            start, arrival = self._transfer(at, rank, action.peer, num_bytes, key)
            self._span(action, start, arrival, num_bytes)
            self._end(action, at)

        self._compute(rank, now, float(self.durations.encode_s_N[rank]) + self.durations.message_s, encoded)

    def _receive(self, action: Action, now: float) -> None:
        rank = action.rank
        key = (self.ranks[rank].step, action.peer, action.micro_batch, action.role)

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
