"""Seconds and bytes of gradient reduction, by any reducer.

A reducer's phases (:mod:`hetplanner.plan.reducers`) run one after the other. In a phase links run at once and a
host's NIC is shared by all flows of its devices, those of other groups included, so a phase takes the longer of

    the slowest flow     latency + messages x bytes / bandwidth, and for several rounds the slowest way through them
    the busiest NIC      bytes that pass it in the phase / its bandwidth

With M members, a bucket of B bytes, one-way latency a and bandwidth b of the slowest link used, NICs aside:

    sharded-ps      2 (a + B / (M b))
    central-ps      2 (a + B / b), with the links of the centre alone
    ring            about max(the way round twice: 2 sum over hops of (a + B / (M b)), 2 (M - 1) B / (M b))
    hierarchical    2 (a + B / (K b)) inside, a + B / (K b) between two sites (twice a K-th of 1/S of the bucket for S
                    sites), K members in the largest site

Adding up follows on the slowest member. Source: alpha-beta model (Hockney 1994; Thakur et al. 2005 for collectives),
NICs as in :mod:`hetplanner.simulator.network`; reducers as in their files.

Legend of array suffixes: N ranks, H hosts, F flows of a phase, M members, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, zip_longest

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.links import LinkTable
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.plan.reducers.program import Phase


@dataclass(frozen=True)
class _Flows:
    """One phase of one group on the cluster's devices."""

    phase: Phase
    source_F: IntArray
    target_F: IntArray
    bytes_F: FloatArray

    @staticmethod
    def of(group: ReductionGroup, phase: Phase, device_N: IntArray) -> _Flows:
        device_M = device_N[list(group.ranks)]
        bytes_F = phase.count_F.astype(np.float64) * group.wire_bytes(phase.num_elements)
        return _Flows(phase, device_M[phase.sender_F], device_M[phase.receiver_F], bytes_F)

    def link_seconds(self, links: LinkTable) -> FloatArray:
        """Seconds of the slowest path through the rounds, NICs aside; with the batch axis of `links`."""
        latency_F = links.latency_s(self.source_F, self.target_F)
        wire_F = self.bytes_F * links.seconds_per_byte(self.source_F, self.target_F)
        if self.phase.rounds == 1:
            return np.asarray((latency_F + wire_F).max(axis=-1, initial=0.0))
        sender_F, receiver_F = self.phase.sender_F, self.phase.receiver_F
        ready_M = np.zeros((*wire_F.shape[:-1], int(max(sender_F.max(), receiver_F.max())) + 1))
        served_F = np.zeros_like(wire_F)
        for _ in range(self.phase.rounds):
            served_F = np.maximum(served_F, ready_M[..., sender_F]) + wire_F
            ready_M = np.zeros_like(ready_M)
            np.maximum.at(ready_M.T, receiver_F, (served_F + latency_F).T)
        return np.asarray(ready_M.max(axis=-1))


def reduce_seconds(
    plan: Plan, durations: Durations, links: LinkTable
) -> tuple[FloatArray, tuple[tuple[float, tuple[int, ...]], ...]]:
    """Seconds to reduce each stage's own gradients, and ``(seconds, stages)`` of the groups of weights tied across
    stages, in their order. Of stages whose weights are averaged in fragments: of the largest.
    """
    reduce_s_S, tied = batched_reduce_seconds(plan, durations, links)
    return reduce_s_S, tuple((float(seconds), stages) for seconds, stages in tied)


def batched_reduce_seconds(
    plan: Plan, durations: Durations, links: LinkTable
) -> tuple[FloatArray, tuple[tuple[FloatArray, tuple[int, ...]], ...]]:
    """:func:`reduce_seconds` for a batch of link tables (`LinkTable.with_rules`), with the batch axis first."""
    groups = reduction_groups(plan)
    # Tied weights follow when their stages are through, so the two kinds do not share the NICs.
    tied_groups = [g for g in groups if g.tied]
    # The last fragment is the largest.
    stage_groups = [g for g in groups if not g.tied and g.fragment == plan.fragments - 1]
    reduce_s_S = np.zeros((*links.batch_shape, len(plan.stages)))
    for at_once in _turns(plan, stage_groups):
        for group, seconds in zip(at_once, _network_seconds(plan, at_once, links), strict=True):
            adding_s = float(durations.reduce_s_N[list(group.ranks)].max()) / plan.fragments
            reduce_s_S[..., group.stages[0]] += seconds + (adding_s if group.part != "all-gather" else 0.0)
    tied: list[tuple[FloatArray, tuple[int, ...]]] = []
    for at_once in _copies_of_one(tied_groups):
        found = _network_seconds(plan, at_once, links)
        tied += [(seconds, group.stages) for group, seconds in zip(at_once, found, strict=True)]
    return reduce_s_S, tuple(tied)


def _copies_of_one(groups: list[ReductionGroup]) -> list[list[ReductionGroup]]:
    """Groups of tied weights that reduce at once: those of one weight on unlike pipelines, weight by weight."""
    return [list(same) for _, same in groupby(groups, key=lambda group: (group.every_step, group.part, group.ops))]


def _turns(plan: Plan, groups: list[ReductionGroup]) -> list[list[ReductionGroup]]:
    """Groups that reduce at once: all, or those of every rank's first stage, of its second and so on.

    With ZeRO all sums come first, then all copies.
    """
    turns: dict[tuple[int, bool], list[ReductionGroup]] = {}
    for group in groups:
        stages = [s for s, _ in plan.places_of_rank[group.ranks[0]]]
        turns.setdefault((stages.index(group.stages[0]), group.part == "all-gather"), []).append(group)
    return list(turns.values())


def reduction_bytes(plan: Plan) -> tuple[IntArray, IntArray, FloatArray]:
    """Bytes of one step's reductions as columns: from rank, to rank, bytes; shards count as the largest.

    Where replicas take local steps, what they average counts in proportion.
    """
    nothing = np.zeros(0, dtype=np.int64)
    columns: list[tuple[IntArray, IntArray, FloatArray]] = [(nothing, nothing, np.zeros(0))]
    for group in reduction_groups(plan):
        steps, rank_M = 1 if group.every_step else plan.local_steps, np.array(group.ranks, dtype=np.int64)
        for phase in group.phases:
            each = float(phase.rounds * group.wire_bytes(phase.num_elements)) / steps
            columns.append((rank_M[phase.sender_F], rank_M[phase.receiver_F], phase.count_F * np.float64(each)))
    source, target, size = (np.concatenate(column) for column in zip(*columns, strict=True))
    return source, target, size


def _network_seconds(plan: Plan, groups: list[ReductionGroup], links: LinkTable) -> list[FloatArray]:
    """Seconds of each of several groups that reduce at once, phase by phase."""
    device_N = np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])
    host_N = links.host_D[device_N]
    seconds = [np.zeros(links.batch_shape) for _ in groups]
    before: tuple[Phase | None, ...] = ()
    took: dict[int, FloatArray] = {}
    for phases in zip_longest(*(group.phases for group in groups)):
        # What is sent back the way it came takes as long.
        if len(before) != len(phases) or any(one is not two for one, two in zip(before, phases, strict=True)):
            flows = {
                g: _Flows.of(groups[g], phase, device_N)
                for g, phase in enumerate(phases)
                if phase and len(phase.count_F)
            }
            nic_H = _nic_load(list(flows.values()), links)
            took = {
                g: np.maximum(flow.link_seconds(links), nic_H[host_N[list(groups[g].ranks)]].max())
                for g, flow in flows.items()
            }
            before = phases
        for g, longest_s in took.items():
            seconds[g] = seconds[g] + longest_s
    return seconds


def _nic_load(flows: list[_Flows], links: LinkTable) -> FloatArray:
    """Busy seconds of every host's NIC with all these flows."""
    if not links.has_nics or not flows:
        return np.zeros(len(links.nic_out_seconds_per_byte_H))
    source, target, size = (
        np.concatenate(columns)
        for columns in zip(*((f.source_F, f.target_F, f.phase.rounds * f.bytes_F) for f in flows), strict=True)
    )
    return links.nic_seconds(source, target, size)
