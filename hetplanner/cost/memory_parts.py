"""What a device's memory holds at the peak of a step: parameters, gradients, optimizer states, activations, buffers.

The parts are those of :func:`hetplanner.cost.check.peak_bytes` and sum to it. Of a worker group they are what its
members hold together.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from hetplanner.cost.check import kept_error_bytes, outer_bytes, sharded_bytes
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables, awaited_messages
from hetplanner.plan.model import Plan


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of a device or worker group by what they hold.

    Attributes:
        parameters: weights in float32, and the copies in a shorter dtype that matrix products read.
        gradients: of the trained weights, in float32.
        optimizer: states of the optimizer, and of the outer one of local steps.
        activations: what micro-batches in flight keep for their backward; with recomputation their inputs, and the
            activations of the one that is recomputed.
        buffers: temporaries of a backward or of the update, messages between stages and of reductions, and what
            codecs of reductions have lost.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return float(sum(astuple(self)))

    def __add__(self, other: MemoryParts) -> MemoryParts:
        return MemoryParts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


PART_WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "buffers": "buffers",
}
"""What labels call the parts, in the order in which they are drawn."""


def memory_parts(plan: Plan, tables: CostTables | None = None) -> list[MemoryParts]:
    """What each rank holds at its peak, in bytes; all the stages that it serves together.

    Args:
        plan: the plan; its estimate is not read.
        tables: cost tables of its problem, if already at hand.
    """
    tables = tables or CostTables(plan.problem)
    of_stage = [_stage_parts(plan, s, held, tables) for s, held in enumerate(plan.held_S)]
    return [sum((of_stage[s] for s, _ in places), MemoryParts()) for places in plan.places_of_rank]


def _stage_parts(plan: Plan, s: int, held: int, tables: CostTables) -> MemoryParts:
    """Of a replica of a stage, as :meth:`CostTables.bytes_with_reduction` finds the peak."""
    stage = plan.stages[s]
    first, end, recompute, replicas = stage.first_op, stage.end_op, stage.recompute, len(stage.replicas)
    trained = tables.stage_trained(first, end)
    parameters, gradients, optimizer = tables.state_parts(first, end)
    elsewhere = sharded_bytes(plan, s, tables)
    always = tables.stage_bytes(first, end, 0, recompute) - elsewhere
    optimizer -= elsewhere
    kept = tables.kept_bytes(first, end, held, recompute)
    by_layer = tables.is_by_layer(first, end, held, recompute)
    steady = always + kept + tables.working_bytes(first, end, by_layer=by_layer) * (held > 0)
    if replicas > 1 and held > 0:
        part = GRADIENT_ELEMENT_BYTES * trained / replicas
        last = tables.stage_bytes(first, end, 1, recompute, held) - elsewhere
        reducing = awaited_messages(replicas) * part + max(last, always + part)
        if reducing > steady:
            # A reduction begins in the backward of the last micro-batch, or goes on after it.
            kept = tables.kept_bytes(first, end, 1, recompute, held) if last >= always + part else 0.0
            steady = reducing
    return MemoryParts(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer + outer_bytes(plan, stage) * trained,
        activations=kept,
        buffers=steady - kept - parameters - gradients - optimizer + kept_error_bytes(plan, s, tables),
    )
