"""Seconds that a plan's ranks compute, from profile, cluster or catalog; those measured in a run take the same form.

    forward, backward    sums over the stage's ops (`CostTables`); recomputing adds a forward to the backward
    optimizer            trained weights x 28 bytes / memory bandwidth: AdamW reads and writes its state once; and what
                         the cluster says that every step costs (`TransferCost.step`); with ZeRO, of the largest
                         shard
    outer optimizer      trained weights x 24 bytes / memory bandwidth, of stages with replicas that take local steps
    encode, decode       half of the codec's passes over the dense message / memory bandwidth, each
    adding gradients up  passes x trained weights x 4 bytes / memory bandwidth

A stage in front of the first trained weight has no backward, and computes nothing again.

Source: ours; the passes of codecs as measured in :mod:`hetplanner.codecs.spec`.

Legend of array suffixes: N ranks, C chunks (behind `tables`: device classes), S stages.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hetplanner.codecs.spec import Codec
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import reduction_groups, sharded_elements
from hetplanner.plan.reducers.registry import REDUCERS

# Nesterov reads the averaged change, anchor and momentum, and writes the latter two and the weights.
OUTER_TRAFFIC_BYTES_PER_PARAM = 24
# Adding a replica's gradients up reads what arrived and what is there, and writes the sum.
REDUCE_PASSES = 3


def durations_of(plan: Plan, tables: CostTables | None = None) -> Durations:
    """Durations of a plan's ranks by the problem's profile, else by the rates of the cluster file or the catalog.

    Args:
        plan: the plan.
        tables: tables of its problem, if already at hand.

    Returns:
        Seconds per chunk: one micro-batch forward and backward (recomputation included in the backward). Seconds per
        rank: one optimizer step, one boundary message encoded and decoded, and the gradients added up.
    """
    tables = tables or CostTables(plan.problem)
    transfer = plan.problem.cluster.transfer
    device_N = np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])
    memory_N = tables.devices.memory_bandwidth_bytes_per_s_D[device_N]
    rank_C, stage_C = np.array(plan.chunks, dtype=np.int64).T
    row_C = tables.devices.class_D[device_N[rank_C]]
    first_S = np.array([stage.first_op for stage in plan.stages])
    end_S = np.array([stage.end_op for stage in plan.stages])
    trained_S = np.array([tables.stage_trained(s.first_op, s.end_op) for s in plan.stages], dtype=np.float64)
    passes_S = np.array(
        [REDUCE_PASSES + reduce_codec_passes(stage.reduce_codec, stage.error_feedback) for stage in plan.stages]
    )
    shared_S = np.where([len(stage.replicas) > 1 for stage in plan.stages], trained_S * passes_S, 0.0)
    recompute_S = np.array([stage.recompute and tables.has_backward(stage.end_op) for stage in plan.stages])
    first, end = first_S[stage_C], end_S[stage_C]
    forward = tables.forward_s_CO[row_C, end] - tables.forward_s_CO[row_C, first]
    backward = tables.backward_s_CO[row_C, end] - tables.backward_s_CO[row_C, first]
    size = len(plan.ranks)
    stepped_N = np.bincount(rank_C, weights=(trained_S - sharded_elements(plan))[stage_C], minlength=size)
    shared_N = np.bincount(rank_C, weights=shared_S[stage_C] * _reduce_work(plan), minlength=size)
    averaged_N = np.bincount(rank_C, weights=np.where(shared_S > 0, trained_S, 0.0)[stage_C], minlength=size)
    encode_s_N, decode_s_N = _worst_codec_s(plan, memory_N)
    return Durations(
        forward_s_C=forward,
        backward_s_C=backward + np.where(recompute_S[stage_C], forward, 0.0),
        optimizer_s_N=stepped_N * tables.devices.update_s_per_weight_D[device_N] + (transfer.step if transfer else 0.0),
        encode_s_N=encode_s_N,
        decode_s_N=decode_s_N,
        reduce_s_N=shared_N * GRADIENT_ELEMENT_BYTES / memory_N,
        outer_s_N=averaged_N * OUTER_TRAFFIC_BYTES_PER_PARAM / memory_N if plan.is_local else None,
        message_s=transfer.message if transfer else 0.0,
        overlap=transfer.overlap if transfer else 1.0,
    )


def reduce_codec_passes(codec: Codec, error_feedback: bool = False) -> float:
    """Passes over a rank's gradients for a reduction's codec: all parts are encoded once, and decoded twice (taken as
    parts by the shard's owner, as sums by all ranks). To feed errors back, what was encoded is decoded where it was,
    and errors are added and taken: three passes each."""
    work = codec.work()
    fed_back = work.decode + 6.0 if error_feedback and codec.is_lossy else 0.0
    return work.encode + 2.0 * work.decode + fed_back


def _reduce_work(plan: Plan) -> np.ndarray:
    """What each chunk adds up and packs, as a share of its stage's bucket."""
    work_C = np.ones(len(plan.chunks))
    if not REDUCERS[plan.reducer].is_even:
        for group in reduction_groups(plan):
            if not group.tied and group.part != "all-gather":
                chunks = [plan.chunk_index[rank, group.stages[0]] for rank in group.ranks]
                work_C[chunks] = REDUCERS[plan.reducer].work_M(group.members, group.num_elements)
    return work_C


def _worst_codec_s(plan: Plan, memory_bytes_per_s_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the slowest message that each rank encodes, and decodes, over its routes and both roles."""
    encode_s_N, decode_s_N = np.zeros(len(plan.ranks)), np.zeros(len(plan.ranks))
    if not plan.link_codecs:
        return encode_s_N, decode_s_N
    for route in plan.routes:
        path = [plan.rank_at(s, replica) for s, replica in enumerate(route.replicas)]
        for boundary, (above, below) in enumerate(pairwise(path)):
            width = plan.problem.workload.dtype_bytes
            ways: tuple[tuple[int, int, Role], ...] = ((above, below, "activation"), (below, above, "gradient"))
            for source, target, role in ways:
                dense = plan.boundary_elements(boundary, role) * width
                work = plan.codec_between(source, target, role).work(positions_known=role == "gradient")
                encode_s_N[source] = max(encode_s_N[source], work.encode * dense / memory_bytes_per_s_N[source])
                decode_s_N[target] = max(decode_s_N[target], work.decode * dense / memory_bytes_per_s_N[target])
    return encode_s_N, decode_s_N
