"""How a plan is trained: what is the user's choice at launch, not the planner's. Saved as `run.json`."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hetplanner.errors import InvalidInput
from hetplanner.schema import Noun, Text
from hetplanner.workload.workload import Workload

if TYPE_CHECKING:
    from hetplanner.plan.model import Plan


class TrainConfig(Noun):
    """Settings of one run.

    Attributes:
        data: a folder of text files; None takes the Python standard library's own sources.
        emulate_links: delay every transfer as the plan's links and NICs would (one machine only).
        warmup_steps: the learning rate rises in a straight line over the first steps. Without it the first
            updates of AdamW are so large that rounding alone parts two runs.
        clip_norm: greatest global gradient norm over all stages; None leaves gradients alone.
    """

    steps: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] = 100
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    data: Text | None = None
    emulate_links: bool = False
    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)] = 1e-3
    warmup_steps: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 20
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(strict=True, gt=0)] | None = None

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a step (from 0)."""
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))


def check_runnable(plan: "Plan") -> None:
    """Refuses a plan that the runtime cannot perform, before anything is started. Raises InvalidInput."""
    if plan.is_local:
        raise InvalidInput(
            "local_steps: replicas add up their gradients in every step here; use 1, and no outer optimizer"
        )
    fed_back = next((s for s, stage in enumerate(plan.stages) if stage.error_feedback), None)
    if fed_back is not None:
        raise InvalidInput(f"stages[{fed_back}].error_feedback: the runtime keeps no errors yet; use false")
    check_trainable(plan.problem.workload)


def check_trainable(workload: Workload) -> None:
    """Refuses what the runtime cannot train, before anything is started. Raises InvalidInput."""
    if workload.transformer is None:
        raise InvalidInput(
            f"workload {workload.name}: only transformers can be trained, this is a captured graph;"
            " plan with a preset or a config.json"
        )
    if workload.dtype != "float32":
        raise InvalidInput(
            f"workload {workload.name}: dtype must be float32 to be trained, got {workload.dtype};"
            " plan again with --dtype float32, or rehearse it: hetplanner rehearse"
        )
