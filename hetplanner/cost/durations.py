"""Seconds that a plan's ranks compute, from the catalog; a profile of the runtime takes the same form.

Legend of array suffixes: N ranks.
"""

from __future__ import annotations

import numpy as np

from hetplanner.codecs.spec import Codec
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, OPTIMIZER_TRAFFIC_BYTES_PER_PARAM, CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan, Role

# Adding a replica's gradients up reads what arrived and what is there, and writes the sum.
REDUCE_PASSES = 3


def durations_of(plan: Plan, tables: CostTables | None = None) -> Durations:
    """Durations of a plan's ranks by the catalog's rates.

    Args:
        plan: the plan.
        tables: tables of its problem, if already at hand.

    Returns:
        Seconds per rank: one micro-batch forward and backward (recomputation included in the backward), one
        optimizer step, one boundary message encoded and decoded, and the gradients added up.
    """
    tables = tables or CostTables(plan.problem)
    cluster = plan.problem.cluster
    columns: dict[str, list[float]] = {
        name: [] for name in ("forward", "backward", "step", "encode", "decode", "reduce")
    }
    for rank, device_id in enumerate(plan.ranks):
        device = cluster.device_index(device_id)
        index, _ = plan.place_of_rank[rank]
        stage = plan.stages[index]
        row = tables.devices.class_D[device]
        forward = tables.forward_s_CO[row, stage.end_op] - tables.forward_s_CO[row, stage.first_op]
        backward = tables.backward_s_CO[row, stage.end_op] - tables.backward_s_CO[row, stage.first_op]
        memory = float(tables.devices.memory_bandwidth_bytes_per_s_D[device])
        params = tables.stage_params(stage.first_op, stage.end_op)
        shared = params if len(stage.replicas) > 1 else 0
        passes = REDUCE_PASSES + reduce_codec_passes(stage.reduce_codec)
        columns["forward"].append(forward)
        columns["backward"].append(backward + (forward if stage.recompute else 0.0))
        columns["step"].append(params * OPTIMIZER_TRAFFIC_BYTES_PER_PARAM / memory)
        columns["encode"].append(_worst_codec_s(plan, rank, memory, outgoing=True))
        columns["decode"].append(_worst_codec_s(plan, rank, memory, outgoing=False))
        columns["reduce"].append(shared * GRADIENT_ELEMENT_BYTES * passes / memory)
    arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    return Durations(
        forward_s_N=arrays["forward"],
        backward_s_N=arrays["backward"],
        optimizer_s_N=arrays["step"],
        encode_s_N=arrays["encode"],
        decode_s_N=arrays["decode"],
        reduce_s_N=arrays["reduce"],
    )


def reduce_codec_passes(codec: Codec) -> float:
    """Passes over a rank's gradients for a reduction's codec: all parts are encoded once, and decoded twice (taken as
    parts by the shard's owner, as sums by everybody)."""
    work = codec.work()
    return work.encode + 2.0 * work.decode


def _codec_s(
    plan: Plan, ends: tuple[int, int], role: Role, boundary: int, memory_bytes_per_s: float, *, encodes: bool
) -> float:
    """Seconds to encode or to decode one message on one device."""
    work = plan.codec_between(*ends, role).work(positions_known=role == "gradient")
    dense = plan.boundary_elements(boundary) * plan.problem.workload.dtype_bytes
    return (work.encode if encodes else work.decode) * dense / memory_bytes_per_s


def _worst_codec_s(plan: Plan, rank: int, memory_bytes_per_s: float, *, outgoing: bool) -> float:
    """The slowest of the messages a rank sends (or takes), over its routes and both roles."""
    if not plan.link_codecs:
        return 0.0
    index, replica = plan.place_of_rank[rank]
    worst = 0.0
    for route in plan.routes:
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
