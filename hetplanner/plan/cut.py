"""Rules for a model's cut into stages, whichever devices serve them."""

from collections.abc import Sequence
from typing import Protocol

from hetplanner.workload.workload import Workload


class OpRange(Protocol):
    """Ops `first_op` .. `end_op` (exclusive)."""

    @property
    def first_op(self) -> int:
        """The first op."""
        ...

    @property
    def end_op(self) -> int:
        """The one behind the last."""
        ...


def check_cut(stages: Sequence[OpRange], workload: Workload) -> None:
    """Refuses stages that leave gaps, overlap, or end where nothing crosses. Raises ValueError naming the stage."""
    num_ops, expected = len(workload.graph.ops), 0
    for s, stage in enumerate(stages):
        if stage.first_op != expected or stage.end_op <= stage.first_op:
            raise ValueError(
                f"stages[{s}]: ops must follow on without gaps and hold at least one op: expected first_op"
                f" {expected} and a larger end_op, got {stage.first_op} to {stage.end_op}"
            )
        expected = stage.end_op
        if expected < num_ops and not workload.boundary_elements[expected]:
            raise ValueError(
                f"stages[{s}].end_op: nothing crosses boundary {expected} of {workload.name}, so later"
                " stages would have no input; end the stage elsewhere"
            )
    if expected != num_ops:
        raise ValueError(f"stages: must cover all {num_ops} ops of {workload.name}, end at {expected}")
