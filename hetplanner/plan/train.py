"""How a plan is trained: what is the user's choice at launch, not the planner's. Saved as `run.json`."""

from typing import Annotated

from pydantic import Field

from hetplanner.schema import Noun, Text


class TrainConfig(Noun):
    """Settings of one run.

    Attributes:
        data: a folder of text files; None takes the Python standard library's own sources.
        emulate_links: delay every transfer as the plan's links and NICs would (one machine only).
        clip_norm: greatest global gradient norm over all stages; None leaves gradients alone.
    """

    steps: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] = 100
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    data: Text | None = None
    emulate_links: bool = False
    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)] = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(strict=True, gt=0)] | None = None
