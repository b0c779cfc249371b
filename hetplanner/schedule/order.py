"""The one global order of a step's actions, by list scheduling.

A rank takes a backward that is ready before a forward that is ready, never holds more micro-batches than its
stage's in-flight depth, and is never idle while something is ready. Ordering globally (not per rank) is what
keeps unequal replica counts free of deadlock: every rank's own list is a part of one valid order.
GPipe holds every backward back until the rank has done all its forwards.

Source: list scheduling (Graham 1966); rule for the global order: ours (design §1).
"""

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np

from hetplanner.cost.durations import durations_of
from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import reduction_groups


@dataclass
class _Rank:
    stage: int
    limit: int
    free_s: float = 0.0
    held: int = 0
    forwards_left: int = 0
    forwards: list[tuple[float, int]] = field(default_factory=list)  # heaps of (ready_s, micro-batch)
    backwards: list[tuple[float, int]] = field(default_factory=list)


def make_schedule(plan: Plan, durations: Durations | None = None) -> Schedule:
    """Orders the actions of one step.

    Args:
        plan: stages, routes, in-flight depths, schedule name.
        durations: seconds per rank; None takes the catalog's, so that the order depends on the plan alone (all
            ranks of a run compute the same). Links count: without their round trips a slow network would be
            given the order of a fast one, and its in-flight depth would stay unused.
    """
    return _ListScheduler(plan, durations or durations_of(plan)).run()


class _ListScheduler:
    def __init__(self, plan: Plan, durations: Durations) -> None:
        self.plan = plan
        self.forward_s = durations.forward_s_N
        self.backward_s = durations.backward_s_N
        self.hop_s = _hop_seconds(plan)
        self.paths = [plan.path_of_micro_batch(m) for m in range(plan.problem.workload.num_micro_batches)]
        gpipe = plan.schedule == "gpipe"
        self.ranks = [
            _Rank(stage=s, limit=len(self.paths) if gpipe else plan.stages[s].in_flight) for s, _ in plan.place_of_rank
        ]
        self.hold_backwards = gpipe
        for m, path in enumerate(self.paths):
            for rank in path:
                self.ranks[rank].forwards_left += 1
            heapq.heappush(self.ranks[path[0]].forwards, (0.0, m))
        self.timed: list[tuple[float, int, Action]] = []

    def run(self) -> Schedule:
        events: list[tuple[float, int]] = [(0.0, rank) for rank in range(len(self.ranks))]
        while events:
            now, rank = heapq.heappop(events)
            for wake_s, other in self._dispatch(rank, now):
                heapq.heappush(events, (wake_s, other))
        self.timed.sort(key=lambda item: item[:2])
        actions = [action for _, _, action in self.timed]
        actions += [
            Action(Kind.REDUCE, rank, self.ranks[rank].stage, group=g)
            for g, group in enumerate(reduction_groups(self.plan))
            for rank in group.ranks
        ]
        actions += [Action(Kind.STEP, rank, state.stage) for rank, state in enumerate(self.ranks)]
        return Schedule(tuple(actions), len(self.ranks))

    def _dispatch(self, rank: int, now: float) -> list[tuple[float, int]]:
        """Starts what is ready on an idle rank; returns (time, rank) wake-ups."""
        state = self.ranks[rank]
        if state.free_s > now:
            return []
        may_backward = not (self.hold_backwards and state.forwards_left)
        if may_backward and state.backwards and state.backwards[0][0] <= now:
            return self._backward(rank, heapq.heappop(state.backwards)[1], now)
        if state.forwards and state.forwards[0][0] <= now and state.held < state.limit:
            return self._forward(rank, heapq.heappop(state.forwards)[1], now)
        return []

    def _emit(self, time_s: float, action: Action) -> None:
        self.timed.append((time_s, len(self.timed), action))

    def _forward(self, rank: int, m: int, now: float) -> list[tuple[float, int]]:
        state, path = self.ranks[rank], self.paths[m]
        s, end = state.stage, now + float(self.forward_s[rank])
        if s > 0:
            self._emit(now, Action(Kind.RECV, rank, s - 1, m, "activation", path[s - 1]))
        self._emit(now, Action(Kind.FORWARD, rank, s, m))
        state.free_s, state.held, state.forwards_left = end, state.held + 1, state.forwards_left - 1
        if s + 1 == len(path):
            heapq.heappush(state.backwards, (end, m))
            return [(end, rank)]
        target = path[s + 1]
        self._emit(end, Action(Kind.SEND, rank, s, m, "activation", target))
        ready = end + float(self.hop_s[rank, target])
        heapq.heappush(self.ranks[target].forwards, (ready, m))
        return [(end, rank), (ready, target)]

    def _backward(self, rank: int, m: int, now: float) -> list[tuple[float, int]]:
        state, path = self.ranks[rank], self.paths[m]
        s, end = state.stage, now + float(self.backward_s[rank])
        if s + 1 < len(path):
            self._emit(now, Action(Kind.RECV, rank, s, m, "gradient", path[s + 1]))
        self._emit(now, Action(Kind.BACKWARD, rank, s, m))
        state.free_s, state.held = end, state.held - 1
        if s == 0:
            return [(end, rank)]
        target = path[s - 1]
        self._emit(end, Action(Kind.SEND, rank, s - 1, m, "gradient", target))
        ready = end + float(self.hop_s[rank, target])
        heapq.heappush(self.ranks[target].backwards, (ready, m))
        return [(end, rank), (ready, target)]


def _hop_seconds(plan: Plan) -> np.ndarray:
    """Latency plus wire time of a boundary message between neighbouring ranks; [N, N], 0 elsewhere."""
    cluster = plan.problem.cluster
    hop_s = np.zeros((len(plan.ranks), len(plan.ranks)))
    for route in plan.routes:
        path = [plan.rank_at(s, replica) for s, replica in enumerate(route.replicas)]
        for s, (a, b) in enumerate(itertools.pairwise(path)):
            both: tuple[tuple[int, int, Role], ...] = ((a, b, "activation"), (b, a, "gradient"))
            for source, target, role in both:
                link = cluster.link(plan.ranks[source], plan.ranks[target])
                num_bytes = plan.boundary_bytes(s, source, target, role)
                hop_s[source, target] = link.latency + num_bytes / link.bandwidth
    return hop_s
