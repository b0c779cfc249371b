"""How a plan is trained: what is the user's choice at launch, not the planner's. Saved as `run.json`."""

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from hetplanner.cluster.catalog import is_processor
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput
from hetplanner.schema import Noun, Text
from hetplanner.workload.optimizers import ELEMENTWISE
from hetplanner.workload.trainable import check_captured
from hetplanner.workload.workload import Workload

if TYPE_CHECKING:
    from hetplanner.plan.model import Plan


"""Those that look at each element of a weight by itself."""
MAX_CONNECTIONS = 16
"""Between two ranks; every rank has as many to each other one."""

LrSchedule = Literal["constant", "linear", "cosine"]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]


class TrainConfig(Noun):
    """Settings of one run.

    Attributes:
        data: a path (text, token files, a saved Hugging Face data set, images) or the word of a kind of data, see
            `hetplanner.data`; None takes the Python standard library's own sources, or digits for images.
        device: what ranks compute on; auto takes a GPU where the plan has one and the host too.
        emulate_links: delay every transfer as the plan's links and NICs would (one machine only).
        connections: TCP connections between two ranks, each of which carries a part of a large message. A connection
            carries at most its window in a round trip; several fill a long path that one cannot.
        warmup_steps: the learning rate rises in a straight line over the first steps. Without it the first
            updates of AdamW are so large that rounding alone parts two runs.
        lr_schedule: how the learning rate falls from the end of the warm-up to the last step.
        lr_floor: share of the learning rate that is left at the last step (linear, cosine).
        lr_from_zero: the first step of a warm-up has rate 0, and each step the rate that `transformers.get_scheduler`
            gives it (with `lr_floor` 0). Without it every step has the rate of the next one there, since a step of rate
            0 learns nothing.
        betas: how slowly AdamW's two moments change (also with 8-bit states, and of what Muon leaves to AdamW).
        momentum: of sgd and muon; None takes the optimizer's own (0.9 and 0.95).
        weight_decay: of matrices; norms and biases do not decay. As `torch.optim` has it: sgd adds it to the gradient.
        clip_norm: greatest global gradient norm over all stages; None leaves gradients alone.
        checkpoint_every: steps between two checkpoints, and one after the last step; None writes none.
        checkpoints_kept: how many of them stay.
        checkpoints_max_age_s: those that are older go, but for the newest; None: none does.
        checkpoints_async: a thread writes them beside the steps, from a copy of the state in main memory; a swarm
            always writes them so.
        copy_to: address of `fsspec` that every host copies its checkpoints to, such as s3://bucket/folder.
        init_from: a Hugging Face model folder, whose weights the training begins with; what is resumed has its own.
        adapter: folder of a saved adapter, as PEFT writes it, to go on with; `init_from` has its model.
        eval_data: what the model is evaluated on, like `data`, and whole; None takes the validation split of `data`.
        eval_every: steps between two evaluations; there is one after the last step anyway.
        eval_batches: global batches of an evaluation, the same ones every time; no more than the data has.
        resume: directory of an earlier run for the same training, from whose last checkpoint this one goes on.
        delta_cache_bytes: what each end of a boundary may keep in memory (on the rank's device) where its codec has
            `delta`; samples that find no room travel without it. The plan's memory does not count it.
        max_restarts: how often in all the agent starts the run again, from its last checkpoint, after a rank or the
            launcher was lost, or the run was preempted; each process of a swarm is started again as often by itself.
        replan: of a run over ssh: go on without a host that does not come back, under a plan made anew for the others,
            and under the first plan again once it is back.
    """

    steps: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] = 100
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    data: Text | None = None
    emulate_links: bool = False
    connections: Annotated[int, Field(strict=True, ge=1, le=MAX_CONNECTIONS)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)] = 1e-3
    warmup_steps: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 20
    lr_schedule: LrSchedule = "constant"
    lr_floor: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    lr_from_zero: Annotated[bool, Field(strict=True)] = False
    betas: tuple[Share, Share] = (0.9, 0.95)
    momentum: Share | None = None
    weight_decay: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(strict=True, gt=0)] | None = None
    checkpoint_every: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] | None = None
    checkpoints_kept: Annotated[int, Field(strict=True, ge=1, le=1000)] = 2
    checkpoints_max_age_s: Annotated[float, Field(strict=True, gt=0, le=1e10)] | None = None
    checkpoints_async: Annotated[bool, Field(strict=True)] = False
    copy_to: Text | None = None
    eval_data: Text | None = None
    eval_every: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] | None = None
    eval_batches: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1
    resume: Text | None = None
    init_from: Text | None = None
    adapter: Annotated[Text | None, Field(exclude_if=lambda value: value is None)] = None
    delta_cache_bytes: Annotated[int, Field(strict=True, ge=0, le=2**50)] = 2**28
    max_restarts: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    replan: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _adapter_has_a_model(self) -> Self:
        if self.adapter is not None and self.init_from is None:
            raise ValueError("adapter: lies beside a model's weights; give these, too, with --init-from DIR")
        return self

    @model_validator(mode="after")
    def _links_are_real(self) -> Self:
        if self.emulate_links and self.connections > 1:
            raise ValueError("connections: emulated links have one each; leave it out")
        return self

    @model_validator(mode="after")
    def _writes_checkpoints(self) -> Self:
        if self.copy_to is not None and self.checkpoint_every is None:
            raise ValueError("copy_to: there is nothing to copy; give checkpoint_every, too")
        if self.checkpoints_async and self.checkpoint_every is None:
            raise ValueError("checkpoints_async: there are none to write; give checkpoint_every, too")
        return self

    def device_for(self, kind: str) -> str:
        """What computes where the plan has a device of this kind: `device`, but with auto no GPU for a processor."""
        return "cpu" if self.device == "auto" and is_processor(kind) else self.device

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of a step (from 0). Source for cosine: Loshchilov and Hutter 2017 (SGDR), without restarts."""
        steps_done = step if self.lr_from_zero else step + 1
        if step < self.warmup_steps:
            return self.learning_rate * (steps_done / self.warmup_steps)
        if self.lr_schedule == "constant":
            return self.learning_rate
        done = min(1.0, (steps_done - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        left = 1.0 - done if self.lr_schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.learning_rate * (self.lr_floor + (1.0 - self.lr_floor) * left)


def exchanges_norms(config: TrainConfig, dtype: DType) -> bool:
    """Whether all ranks tell each other the size of their gradients in every step: to clip them, or because float16
    gradients can overflow.
    """
    return config.clip_norm is not None or dtype == "float16"


def check_runnable(plan: "Plan") -> None:
    """Refuses a plan that the runtime cannot perform, before anything is started. Raises InvalidInput."""
    check_trainable(plan.problem.workload)
    if len(plan.processes) > len(plan.ranks):
        _check_groups_runnable(plan)


def _check_groups_runnable(plan: "Plan") -> None:
    """Refuses what groups of devices cannot do. Raises InvalidInput."""
    check_group_optimizer(plan.problem.workload)
    if plan.is_local:
        raise InvalidInput(
            "groups: replicas that are groups of devices add up gradients in every step, and the plan has"
            f" {plan.local_steps} local steps; plan without --max-local-steps, or without --tensor"
        )


def check_group_optimizer(workload: Workload) -> None:
    """Refuses an optimizer that groups of devices cannot step with. Raises InvalidInput."""
    if workload.optimizer not in ELEMENTWISE:
        raise InvalidInput(
            f"groups: {workload.optimizer} needs whole matrices, and each device of a group has a part of them; plan"
            f" with --optimizer {' or '.join(ELEMENTWISE)}, or without --tensor"
        )


def check_trainable(workload: Workload) -> None:
    """Refuses what the runtime cannot train, before anything is started. Raises InvalidInput."""
    if workload.transformer is None:
        check_captured(workload)


def check_packages(workload: Workload) -> None:
    """Refuses an optimizer whose package is not installed on this host. Raises InvalidInput."""
    if workload.optimizer == "adamw8bit" and find_spec("bitsandbytes") is None:
        raise InvalidInput(
            "optimizer: adamw8bit needs bitsandbytes on every host: pip install 'hetplanner[eight-bit]', or plan with"
            " --optimizer adamw"
        )
