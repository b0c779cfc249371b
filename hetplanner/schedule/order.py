"""The one global order of a step's actions, by list scheduling.

A rank takes a backward that is ready before a forward that is ready, never holds more micro-batches than its
stage's in-flight depth, and is never idle while something is ready. Ordering globally (not per rank) is what
keeps unequal replica counts free of deadlock: every rank's own list is a part of one valid order.
GPipe holds every backward back until the rank has done all its forwards.

Interleaved plans, whose ranks serve several stages, take micro-batches in groups: all of a group through a rank's
first stage, then all through its second, and so on; backwards the other way round. Forwards keep that sequence, and so
do backwards; a rank does them in turn where both are ready. A group is as large as the smallest in-flight depth, so
that no rank ever waits for room that only a later group could give.

Source: list scheduling (Graham 1966); rule for the global order: ours (design §1); groups as in Narayanan et al. 2021
(arXiv 2104.04473, section 2.2), where they have as many micro-batches as there are devices in a pipeline.

Shape legend: P routes, E boundaries (stages - 1), C chunks.
"""

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from hetplanner.cost.durations import durations_of
from hetplanner.plan.action import Action, Kind, Schedule
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import reduction_groups

FORWARD, BACKWARD = 0, 1


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


def make_schedule(plan: Plan, durations: Durations | None = None, *, synchronises: bool = True) -> Schedule:
    """Orders the actions of one step.

    Where replicas take local steps, a rank that comes to the first change of weights to be averaged has stepped by
    itself, and STEP is the outer optimizer's.

    Args:
        plan: stages, routes, in-flight depths, schedule name.
        durations: seconds per chunk; None takes the cost model's times `order_scale`, so that the order depends on the
            plan alone (all ranks of a run compute the same). Links count: without their round trips a slow network
            would be given the order of a fast one, and its in-flight depth would stay unused.
        synchronises: whether with what replicas that take local steps average; of several fragments, with all: the
            executor of a step leaves out those that are not due (`ReductionGroup.is_due`).
    """
    scheduler = _InterleavedScheduler if plan.is_interleaved else _ListScheduler
    return scheduler(plan, durations or order_durations(plan)).run(synchronises=synchronises)


def order_durations(plan: Plan, modelled: Durations | None = None) -> Durations:
    """Seconds per chunk that the plan's own order is made for.

    Args:
        plan: with its `order_scale`.
        modelled: the cost model's durations, if already at hand.
    """
    modelled = modelled or durations_of(plan)
    if plan.order_scale is None:
        return modelled
    scaled = {name: getattr(modelled, name) * plan.order_scale for name in ("forward_s_C", "backward_s_C")}
    return replace(modelled, **scaled)


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
            self._deliver(FORWARD, path[0], 0, 0.0, m)
        self.timed: list[tuple[float, int, Action]] = []

    def run(self, *, synchronises: bool) -> Schedule:
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
            if group.every_step or synchronises
        ]
        actions += [Action(Kind.STEP, rank, stage) for rank, stage in enumerate(first_stage)]
        return Schedule(tuple(actions), len(self.ranks))

    def _dispatch(self, rank: int, now: float) -> list[tuple[float, int]]:
        """Starts what is ready on an idle rank; returns (time, rank) wake-ups."""
        state = self.ranks[rank]
        if state.free_s > now:
            return []
        chosen = self._choose(rank, now)
        if chosen is None:
            return []
        way, chunk, m = chosen
        return self._backward(rank, chunk, m, now) if way == BACKWARD else self._forward(rank, chunk, m, now)

    def _choose(self, rank: int, now: float) -> tuple[int, _Chunk, int] | None:
        """What an idle rank starts: (way, chunk, micro-batch); taken from what is ready."""
        state = self.ranks[rank]
        (chunk,) = state.chunks.values()
        may_backward = not (self.hold_backwards and state.forwards_left)
        if may_backward and chunk.backwards and chunk.backwards[0][0] <= now:
            return BACKWARD, chunk, heapq.heappop(chunk.backwards)[1]
        if chunk.forwards and chunk.forwards[0][0] <= now and chunk.held < chunk.limit:
            return FORWARD, chunk, heapq.heappop(chunk.forwards)[1]
        return None

    def _deliver(self, way: int, rank: int, stage: int, ready_s: float, m: int) -> None:
        """A micro-batch can start at a stage of a rank from `ready_s` on."""
        chunk = self.ranks[rank].chunks[stage]
        heapq.heappush(chunk.backwards if way == BACKWARD else chunk.forwards, (ready_s, m))

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
            self._deliver(BACKWARD, rank, s, end, m)
            return [(end, rank)]
        target = path[s + 1]
        self._emit(end, Action(Kind.SEND, rank, s, m, "activation", target))
        ready = self._arrival(end, FORWARD, m, s, rank, target)
        self._deliver(FORWARD, target, s + 1, ready, m)
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
        ready = self._arrival(end, BACKWARD, m, s - 1, rank, target)
        self._deliver(BACKWARD, target, s - 1, ready, m)
        return [(end, rank), (ready, target)]


class _InterleavedScheduler(_ListScheduler):
    def __init__(self, plan: Plan, durations: Durations) -> None:
        self.ready_s: dict[tuple[int, int, int, int], float] = {}  # by (way, rank, stage, micro-batch)
        self.sequences = tuple([iter(part) for part in way] for way in interleaved_sequences(plan))
        self.next = [[next(part, None) for part in way] for way in self.sequences]
        self.last = [FORWARD] * len(plan.ranks)
        super().__init__(plan, durations)

    def _deliver(self, way: int, rank: int, stage: int, ready_s: float, m: int) -> None:
        self.ready_s[way, rank, stage, m] = ready_s

    def _choose(self, rank: int, now: float) -> tuple[int, _Chunk, int] | None:
        for way in (1 - self.last[rank], self.last[rank]):
            item = self.next[way][rank]
            if item is None or self.ready_s.get((way, rank, *item), np.inf) > now:
                continue
            chunk = self.ranks[rank].chunks[item[0]]
            if way == BACKWARD or chunk.held < chunk.limit:
                self.next[way][rank] = next(self.sequences[way][rank], None)
                self.last[rank] = way
                return way, chunk, item[1]
        return None


def interleaved_sequences(plan: Plan) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """(stage, micro-batch) of every rank's forwards and of its backwards, in the order of an interleaved plan."""
    size = min(plan.held_S)
    of_route: list[list[int]] = [[] for _ in plan.routes]
    for m, index in enumerate(plan.route_of_micro_batch):
        of_route[index].append(m)
    forwards: list[list[tuple[int, int]]] = [[] for _ in plan.ranks]
    backwards: list[list[tuple[int, int]]] = [[] for _ in plan.ranks]
    for route, of_this in zip(plan.routes, of_route, strict=True):
        for rank in {plan.rank_at(s, replica) for s, replica in enumerate(route.replicas)}:
            stages = [s for s, _ in plan.places_of_rank[rank]]
            for first in range(0, len(of_this), size):
                group = of_this[first : first + size]
                forwards[rank] += [(s, m) for s in stages for m in group]
                backwards[rank] += [(s, m) for s in reversed(stages) for m in group]
    return forwards, backwards


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
