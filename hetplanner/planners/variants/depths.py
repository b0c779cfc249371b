"""How many micro-batches in flight the devices of a plan have room for."""

from __future__ import annotations

from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.planners.layout import greatest_depth


def no_deeper_than_fits(plan: Plan) -> Plan:
    """Depths that were not asked for follow the room there is; at least one micro-batch is left."""
    if plan.is_interleaved or plan.schedule == "gpipe":
        return plan  # the search for interleaved depths has seen to it; GPipe holds everything
    most = max_depths(plan)
    stages = (s.replace(in_flight=max(1, min(s.in_flight, n))) for s, n in zip(plan.stages, most, strict=True))
    return plan.replace(stages=tuple(stages))


def max_depths(plan: Plan) -> list[int]:
    """Micro-batches in flight that the devices of each stage have room for; 0 where not even one fits."""
    model, index = CostModel.of(plan.problem), plan.problem.cluster.device_index
    memory_D = model.tables.devices.memory_bytes_D
    return [
        greatest_depth(
            model, stage.first_op, stage.end_op,
            min(float(memory_D[index(device)]) for replica in stage.replicas for device in replica), stage.recompute,
            len(stage.replicas),
        )
        for stage in plan.stages
    ]  # fmt: skip
