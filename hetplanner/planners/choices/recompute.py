"""Whether stages compute activations again: only where memory asks for it."""

from __future__ import annotations

from hetplanner.cost.check import fits_memory
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan


def keep_activations(plan: Plan, model: CostModel) -> Plan:
    """The plan without recomputation, where all devices have room for the activations; else as it is.

    A search compares plans with and without it. Where links bind, both take nearly as long.
    """
    if plan.problem.workload.recompute or not any(stage.recompute for stage in plan.stages):
        return plan
    kept = plan.replace(stages=tuple(stage.replace(recompute=False) for stage in plan.stages))
    return kept if fits_memory(kept, model.tables) else plan
