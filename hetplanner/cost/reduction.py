"""Seconds and bytes of gradient reduction by a sharded parameter server.

Every member of a group owns one shard: all send it their part, it adds them up and sends the sum back. Links run at
once, a host's NIC is shared by all flows of its devices, so one of the two phases takes the longer of the slowest
link and the busiest NIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetplanner.codecs.spec import Codec
from hetplanner.cost.links import LinkTable
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan


@dataclass(frozen=True)
class SharedGradients:
    """One bucket that several ranks share; `stages` has one entry, or all that use a tied weight."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    num_elements: int
    codec: Codec

    def shard_bytes(self) -> int:
        """Bytes on the wire of the largest shard."""
        return self.codec.wire_bytes(-(-self.num_elements // len(self.ranks)), GRADIENT_ELEMENT_BYTES)


def shared_gradients(plan: Plan, tables: CostTables) -> Iterator[SharedGradients]:
    """Buckets of a plan: one per stage with several replicas, then one per weight tied across stages."""
    graph = plan.problem.workload.graph
    members = [tuple(plan.rank_at(s, r) for r in range(len(k.replicas))) for s, k in enumerate(plan.stages)]
    for s, stage in enumerate(plan.stages):
        elements = tables.reduced_params(stage.first_op, stage.end_op)
        if len(members[s]) > 1 and elements:
            yield SharedGradients((s,), members[s], elements, stage.reduce_codec)
    for ops in graph.tied_groups.values():
        stages = tuple(s for s, k in enumerate(plan.stages) if any(k.first_op <= op < k.end_op for op in ops))
        if len(stages) > 1:
            ranks = tuple(rank for s in stages for rank in members[s])
            yield SharedGradients(stages, ranks, graph.ops[ops[1]].num_params, plan.stages[stages[0]].reduce_codec)


def reduce_seconds(
    plan: Plan, durations: Durations, links: LinkTable, tables: CostTables
) -> tuple[np.ndarray, tuple[tuple[float, tuple[int, ...]], ...]]:
    """Seconds to reduce each stage's own gradients, and ``(seconds, stages)`` of every weight tied across stages."""
    device_N = np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])
    reduce_s_S = np.zeros(len(plan.stages))
    tied = []
    buckets = list(shared_gradients(plan, tables))
    # Tied weights follow when their stages are through, so the two kinds do not share the NICs.
    nic_of_tied_H = {
        is_tied: _nic_load([b for b in buckets if (len(b.stages) > 1) == is_tied], device_N, links)
        for is_tied in (False, True)
    }
    for bucket in buckets:
        nic_H = nic_of_tied_H[len(bucket.stages) > 1]
        devices = device_N[list(bucket.ranks)]
        pairs = np.ix_(devices, devices)
        seconds = links.latency_s_DD[pairs] + bucket.shard_bytes() * links.seconds_per_byte_DD[pairs]
        np.fill_diagonal(seconds, 0.0)
        phase = max(float(seconds.max()), float(nic_H[links.host_D[devices]].max()))
        total = 2.0 * phase
        if len(bucket.stages) == 1:
            total += float(durations.reduce_s_N[list(bucket.ranks)].max())
            reduce_s_S[bucket.stages[0]] = total
        else:
            tied.append((total, bucket.stages))
    return reduce_s_S, tuple(tied)


def reduction_bytes(plan: Plan, tables: CostTables) -> list[tuple[int, int, float]]:
    """All messages of one step's reductions as ``(from_rank, to_rank, bytes)``, both phases together."""
    return [
        (one, two, 2.0 * bucket.shard_bytes())
        for bucket in shared_gradients(plan, tables)
        for one in bucket.ranks
        for two in bucket.ranks
        if one != two
    ]


def _nic_load(buckets: list[SharedGradients], device_N: np.ndarray, links: LinkTable) -> np.ndarray:
    """Busy seconds of every host's NIC in one phase, were all these groups to reduce at once."""
    if not links.has_nics or not buckets:
        return np.zeros(len(links.nic_out_seconds_per_byte_H))
    source, target, size = [], [], []
    for bucket in buckets:
        devices = device_N[list(bucket.ranks)]
        grid = np.array(np.meshgrid(devices, devices, indexing="ij")).reshape(2, -1)
        grid = grid[:, grid[0] != grid[1]]
        source.append(grid[0])
        target.append(grid[1])
        size.append(np.full(grid.shape[1], float(bucket.shard_bytes())))
    return links.nic_seconds(np.concatenate(source), np.concatenate(target), np.concatenate(size))
