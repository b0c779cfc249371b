"""The one global order of a step's actions, by list scheduling.

A rank takes a backward that is ready before a forward that is ready, never holds more micro-batches than its
stage's in-flight depth, and is never idle while something is ready. Ordering globally (not per rank) is what
keeps unequal replica counts free of deadlock: every rank's own list is a part of one valid order.
GPipe holds every backward back until the rank has done all its forwards. A rank with several stages (interleaved)
takes the forward of its deepest stage and the backward of its shallowest stage first: those nearest to their end.

Source: list scheduling (Graham 1966); rule for the global order: ours (design §1). On equal stages the interleaved
rule gives the order of Narayanan et al. 2021 (arXiv 2104.04473, section 2.2).

Shape legend: P routes, E boundaries (stages - 1), C chunks.
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
class _Chunk:
    stage: int
    limit: int
    forward_s: float
    backward_s: float
    held: int = 0
    forwards: list[tuple[float, int]] = field(default_factory=list)  # heaps of (ready_s, micro-batch)
    backwards: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class _Rank:
    chunks: dict[int, _Chunk]  # by stage, ascending
    free_s: float = 0.0
    forwards_left: int = 0


def make_schedule(plan: Plan, durations: Durations | None = None) -> Schedule:
    """Orders the actions of one step.

    Args:
        plan: stages, routes, in-flight depths, schedule name.
        durations: seconds per chunk; None takes the catalog's, so that the order depends on the plan alone (all
            ranks of a run compute the same). Links count: without their round trips a slow network would be
            given the order of a fast one, and its in-flight depth would stay unused.
    """
    return _ListScheduler(plan, durations or durations_of(plan)).run()


class _ListScheduler:
    def __init__(self, plan: Plan, durations: Durations) -> None:
        self.plan = plan
        self.latency_s, self.wire_s = (table.tolist() for table in hop_seconds(plan))
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.route_of = plan.route_of_micro_batch
        self.paths = [plan.path_of_micro_batch(m) for m in range(plan.problem.workload.num_micro_batches)]
        self.hold_backwards = plan.schedule == "gpipe"
        self.ranks = [_Rank({}) for _ in plan.ranks]
        for (rank, s), limit, forward_s, backward_s in zip(
            plan.chunks, depth_limits(plan), durations.forward_s_C, durations.backward_s_C, strict=True
        ):
            self.ranks[rank].chunks[s] = _Chunk(s, limit, float(forward_s), float(backward_s))
        for m, path in enumerate(self.paths):
            for rank in path:
                self.ranks[rank].forwards_left += 1
            heapq.heappush(self.ranks[path[0]].chunks[0].forwards, (0.0, m))
        self.timed: list[tuple[float, int, Action]] = []

    def run(self) -> Schedule:
        events: list[tuple[float, int]] = [(0.0, rank) for rank in range(len(self.ranks))]
        while events:
            now, rank = heapq.heappop(events)
            for wake_s, other in self._dispatch(rank, now):
                heapq.heappush(events, (wake_s, other))
        self.timed.sort(key=lambda item: item[:2])
        actions = [action for _, _, action in self.timed]
        first_stage = [next(iter(state.chunks)) for state in self.ranks]
        actions += [
            Action(Kind.REDUCE, rank, first_stage[rank], group=g)
            for g, group in enumerate(reduction_groups(self.plan))
            for rank in group.ranks
        ]
        actions += [Action(Kind.STEP, rank, stage) for rank, stage in enumerate(first_stage)]
        return Schedule(tuple(actions), len(self.ranks))

    def _dispatch(self, rank: int, now: float) -> list[tuple[float, int]]:
        """Starts what is ready on an idle rank; returns (time, rank) wake-ups."""
        state = self.ranks[rank]
        if state.free_s > now:
            return []
        if not (self.hold_backwards and state.forwards_left):
            for chunk in state.chunks.values():
                if chunk.backwards and chunk.backwards[0][0] <= now:
                    return self._backward(rank, chunk, heapq.heappop(chunk.backwards)[1], now)
        for chunk in reversed(state.chunks.values()):
            if chunk.forwards and chunk.forwards[0][0] <= now and chunk.held < chunk.limit:
                return self._forward(rank, chunk, heapq.heappop(chunk.forwards)[1], now)
        return []

    def _emit(self, time_s: float, action: Action) -> None:
        self.timed.append((time_s, len(self.timed), action))

    def _arrival(self, now: float, way: int, m: int, boundary: int, rank: int, target: int) -> float:
        """When a message sent now is there; a link carries its messages one after the other."""
        route = self.route_of[m]
        served = max(now, self.link_free_s.get((rank, target), 0.0)) + self.wire_s[way][route][boundary]
        self.link_free_s[rank, target] = served
        return served + self.latency_s[way][route][boundary]

    def _forward(self, rank: int, chunk: _Chunk, m: int, now: float) -> list[tuple[float, int]]:
        state, path, s = self.ranks[rank], self.paths[m], chunk.stage
        end = now + chunk.forward_s
        if s > 0:
            self._emit(now, Action(Kind.RECV, rank, s - 1, m, "activation", path[s - 1]))
        self._emit(now, Action(Kind.FORWARD, rank, s, m))
        state.free_s, state.forwards_left = end, state.forwards_left - 1
        chunk.held += 1
        if s + 1 == len(path):
            heapq.heappush(chunk.backwards, (end, m))
            return [(end, rank)]
        target = path[s + 1]
        self._emit(end, Action(Kind.SEND, rank, s, m, "activation", target))
        ready = self._arrival(end, 0, m, s, rank, target)
        heapq.heappush(self.ranks[target].chunks[s + 1].forwards, (ready, m))
        return [(end, rank), (ready, target)]

    def _backward(self, rank: int, chunk: _Chunk, m: int, now: float) -> list[tuple[float, int]]:
        state, path, s = self.ranks[rank], self.paths[m], chunk.stage
        end = now + chunk.backward_s
        if s + 1 < len(path):
            self._emit(now, Action(Kind.RECV, rank, s, m, "gradient", path[s + 1]))
        self._emit(now, Action(Kind.BACKWARD, rank, s, m))
        state.free_s = end
        chunk.held -= 1
        if s == 0:
            return [(end, rank)]
        target = path[s - 1]
        self._emit(end, Action(Kind.SEND, rank, s - 1, m, "gradient", target))
        ready = self._arrival(end, 1, m, s - 1, rank, target)
        heapq.heappush(self.ranks[target].chunks[s - 1].backwards, (ready, m))
        return [(end, rank), (ready, target)]


def depth_limits(plan: Plan) -> list[int]:
    """Micro-batches that each chunk may hold."""
    return [plan.held_S[s] for _, s in plan.chunks]


def hop_seconds(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Latency and wire time of a message across every boundary of every route, no faster than the hosts' NICs.

    Returns:
        Two arrays [2, P, E]: activations first, then gradients.
    """
    cluster = plan.problem.cluster
    latency_2PE, wire_2PE = np.zeros((2, 2, len(plan.routes), len(plan.stages) - 1))
    for p, route in enumerate(plan.routes):
        path = [plan.rank_at(s, replica) for s, replica in enumerate(route.replicas)]
        for e, (a, b) in enumerate(itertools.pairwise(path)):
            ways: tuple[tuple[int, int, Role], ...] = ((a, b, "activation"), (b, a, "gradient"))
            for way, (source, target, role) in enumerate(ways):
                here, there = plan.ranks[source], plan.ranks[target]
                link, hosts = cluster.link(here, there), (cluster.host_of(here), cluster.host_of(there))
                nics = (hosts[0].nic_out, hosts[1].nic_in) if hosts[0].id != hosts[1].id else ()
                rate = min([link.bandwidth, *(nic for nic in nics if nic)])
                latency_2PE[way, p, e] = link.latency
                wire_2PE[way, p, e] = plan.boundary_bytes(e, source, target, role) / rate
    return latency_2PE, wire_2PE
