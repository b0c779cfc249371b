"""Seconds that a plan's ranks compute, from the catalog; a profile of the runtime takes the same form.

    forward, backward    sums over the stage's ops (`CostTables`); recomputing adds a forward to the backward
    optimizer            parameters x 28 bytes / memory bandwidth: AdamW reads and writes its state once
    outer optimizer      parameters x 24 bytes / memory bandwidth, of stages with replicas that take local steps
    encode, decode       half of the codec's passes over the dense message / memory bandwidth, each
    adding gradients up  passes x parameters x 4 bytes / memory bandwidth

Source: ours; the passes of codecs as measured in :mod:`hetplanner.codecs.spec`.

Legend of array suffixes: N ranks, C chunks (behind `tables`: device classes), S stages.
"""

from __future__ import annotations

import numpy as np

from hetplanner.codecs.spec import Codec
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, OPTIMIZER_TRAFFIC_BYTES_PER_PARAM, CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.registry import REDUCERS

# Nesterov reads the averaged change, anchor and momentum, and writes the latter two and the weights.
OUTER_TRAFFIC_BYTES_PER_PARAM = 24
# Adding a replica's gradients up reads what arrived and what is there, and writes the sum.
REDUCE_PASSES = 3


def durations_of(plan: Plan, tables: CostTables | None = None) -> Durations:
    """Durations of a plan's ranks by the catalog's rates.

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
    params_S = np.array([tables.stage_params(stage.first_op, stage.end_op) for stage in plan.stages], dtype=np.float64)
    passes_S = np.array(
        [REDUCE_PASSES + reduce_codec_passes(stage.reduce_codec, stage.error_feedback) for stage in plan.stages]
    )
    shared_S = np.where([len(stage.replicas) > 1 for stage in plan.stages], params_S * passes_S, 0.0)
    recompute_S = np.array([stage.recompute for stage in plan.stages])
    first, end = first_S[stage_C], end_S[stage_C]
    forward = tables.forward_s_CO[row_C, end] - tables.forward_s_CO[row_C, first]
    backward = tables.backward_s_CO[row_C, end] - tables.backward_s_CO[row_C, first]
    size = len(plan.ranks)
    held_N = np.bincount(rank_C, weights=params_S[stage_C], minlength=size)
    shared_N = np.bincount(rank_C, weights=shared_S[stage_C] * _reduce_work(plan), minlength=size)
    averaged_N = np.bincount(rank_C, weights=np.where(shared_S > 0, params_S, 0.0)[stage_C], minlength=size)
    codec = [[_worst_codec_s(plan, n, float(memory_N[n]), outgoing=out) for n in range(size)] for out in (True, False)]
    return Durations(
        forward_s_C=forward,
        backward_s_C=backward + np.where(recompute_S[stage_C], forward, 0.0),
        optimizer_s_N=held_N * OPTIMIZER_TRAFFIC_BYTES_PER_PARAM / memory_N,
        encode_s_N=np.array(codec[0]),
        decode_s_N=np.array(codec[1]),
        reduce_s_N=shared_N * GRADIENT_ELEMENT_BYTES / memory_N,
        outer_s_N=averaged_N * OUTER_TRAFFIC_BYTES_PER_PARAM / memory_N if plan.is_local else None,
        message_s=transfer.message if transfer else 0.0,
        overlap=transfer.overlap if transfer else 1.0,
    )


def reduce_codec_passes(codec: Codec, error_feedback: bool = False) -> float:
    """Passes over a rank's gradients for a reduction's codec: all parts are encoded once, and decoded twice (taken as
    parts by the shard's owner, as sums by everybody). To feed errors back, what was encoded is decoded where it was,
    and errors are added and taken: three passes each."""
    work = codec.work()
    fed_back = work.decode + 6.0 if error_feedback and codec.is_lossy else 0.0
    return work.encode + 2.0 * work.decode + fed_back


def _codec_s(
    plan: Plan, ends: tuple[int, int], role: Role, boundary: int, memory_bytes_per_s: float, *, encodes: bool
) -> float:
    """Seconds to encode or to decode one message on one device."""
    work = plan.codec_between(*ends, role).work(positions_known=role == "gradient")
    dense = plan.boundary_elements(boundary) * plan.problem.workload.dtype_bytes
    return (work.encode if encodes else work.decode) * dense / memory_bytes_per_s


def _reduce_work(plan: Plan) -> np.ndarray:
    """What each chunk adds up and packs, as a share of its stage's bucket."""
    work_C = np.ones(len(plan.chunks))
    if not REDUCERS[plan.reducer].is_even:
        for group in reduction_groups(plan):
            if not group.tied:
                chunks = [plan.chunk_index[rank, group.stages[0]] for rank in group.ranks]
                work_C[chunks] = REDUCERS[plan.reducer].work_M(group.members, group.num_elements)
    return work_C


def _worst_codec_s(plan: Plan, rank: int, memory_bytes_per_s: float, *, outgoing: bool) -> float:
    """The slowest of the messages a rank sends (or takes), over its routes and both roles."""
    if not plan.link_codecs:
        return 0.0
    worst = 0.0
    for route in plan.routes:
        for index, replica in plan.places_of_rank[rank]:
            if route.replicas[index] != replica:
                continue
            for boundary, other in ((index, index + 1), (index - 1, index - 1)):
                if not 0 <= other < len(plan.stages):
                    continue
                peer = plan.rank_at(other, route.replicas[other])
                downstream = other > index
                role: Role = "activation" if downstream == outgoing else "gradient"
                ends = (rank, peer) if outgoing else (peer, rank)
                worst = max(worst, _codec_s(plan, ends, role, boundary, memory_bytes_per_s, encodes=outgoing))
    return worst
