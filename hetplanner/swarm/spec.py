"""What a swarm trains: the same words for its coordinator, peers and trainers, whose digest they compare."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Self

from pydantic import Field, model_validator

from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.data.need import TokenNeed, need_of
from hetplanner.elastic.protocol.settings import ElasticSettings, settings_of
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import STATELESS_CODECS, ElasticPlan
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.elastic.settings import check_updates
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig, check_group_optimizer
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, check_format, checked, parse_json
from hetplanner.workload.capturing.stage_calls import batch_reads, calls_of
from hetplanner.workload.workload import Workload

SPEC_VERSION = 1


class SwarmSpec(Noun):
    """A model cut into stages and the rules of its training.

    Attributes:
        first_ops: the first op of every stage, ascending from 0.
        activation_codec, gradient_codec: of what crosses a boundary, forward and back.
        averaging_codec: of gradients between the peers of a stage: none, or int8.
        recompute: by stage: activations are computed again in the backward pass instead of kept.
        in_flight: by stage: micro-batches whose activations a peer holds at once; some more wait for their turn.
        places: stages of the peers of the start, by id; a peer that is not named goes where it is needed.
        rebalancing: how peers change their stage.
        delayed_updates, local_steps, outer: see `ElasticPlan`.
        settings: times of the machines; its `stages` and `micro_batches` follow from the rest.
        train: seed, data, optimizer and number of steps.
        init_digest: of the headers of the folders of first weights, which peers must have; None: weights come from the
            seed.
    """

    workload: Workload
    first_ops: Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(min_length=1, max_length=1000)]
    activation_codec: Codec = NO_CODEC
    gradient_codec: Codec = NO_CODEC
    averaging_codec: Codec = NO_CODEC
    recompute: tuple[bool, ...]
    in_flight: tuple[Annotated[int, Field(strict=True, ge=1)], ...]
    places: dict[Name, Annotated[int, Field(strict=True, ge=0)]] = Field(default_factory=dict)
    rebalancing: Rebalancing = Rebalancing()
    delayed_updates: bool = False
    local_steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    outer: OuterOptimizer | None = None
    settings: ElasticSettings
    train: TrainConfig
    init_digest: Name | None = None

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        cuts, ops = self.first_ops, len(self.workload.graph.ops)
        if cuts[0] != 0 or list(cuts) != sorted(set(cuts)) or not set(cuts[1:]) <= set(self.workload.boundaries):
            raise ValueError(f"first_ops: must ascend from 0 along boundaries of the model's {ops} ops, got {cuts}")
        wanted = (len(cuts), self.workload.num_micro_batches)
        if (self.settings.stages, self.settings.micro_batches) != wanted:
            raise ValueError(f"settings: stages and micro_batches must be {wanted[0]} and {wanted[1]}, as in the model")
        if not len(self.recompute) == len(self.in_flight) == len(cuts):
            raise ValueError(f"recompute and in_flight: must have one entry for each of {len(cuts)} stages")
        if self.places and max(self.places.values()) >= len(cuts):
            raise ValueError(f"places: must be stages from 0 to {len(cuts) - 1}, got {max(self.places.values())}")
        self._check_codecs()
        self._check_model()
        check_updates(delayed=self.delayed_updates, local=self.is_local, crossing_ties=bool(self.tied_stages))
        self._check_rounds()
        self._check_connections()
        return self

    def _check_connections(self) -> None:
        if self.train.connections > 1:
            raise ValueError("connections: peers of a swarm have one to each other; leave it out")

    def _check_rounds(self) -> None:
        """What is saved is what all peers of a stage have, and inside a round of local steps they have nothing new."""
        size, train = self.local_steps, self.train
        wanted = size if self.is_local else 0
        if self.settings.round_steps != wanted:
            raise ValueError(f"settings: round_steps must be {wanted}, as local_steps say")
        for name, steps in (("steps", train.steps), ("checkpoint_every", self.settings.checkpoint_steps)):
            if wanted and steps % size:
                near = f"{steps - steps % size or size} or {steps - steps % size + size}"
                raise ValueError(f"{name}: must be a multiple of {size} local steps, got {steps}; take {near}")
        if wanted and train.clip_norm is not None:
            raise ValueError(
                "clip_norm: with local steps there is no whole gradient to clip; remove it, or local_steps"
            )

    @property
    def is_local(self) -> bool:
        """Whether peers take local steps."""
        return self.local_steps > 1 or self.outer is not None

    def _check_codecs(self) -> None:
        for name in ("activation_codec", "gradient_codec"):
            codec = getattr(self, name)
            if codec.name not in STATELESS_CODECS or codec.delta:
                raise ValueError(f"{name}: must be one of {', '.join(STATELESS_CODECS)}, without delta, got {codec}")
        if self.averaging_codec.name not in ("none", "int8"):
            raise ValueError(f"averaging_codec: must be none or int8, got {self.averaging_codec}")

    def _check_model(self) -> None:
        """What elastic training cannot do yet is refused, not done wrongly."""
        if self.workload.transformer is None:
            self._check_captured()
        if self.workload.dtype == "float16":
            raise ValueError("workload: elastic training has no loss scale for float16; use float32 or bfloat16")
        if self.workload.optimizer == "adamw8bit":
            raise ValueError(
                "workload: elastic training sends no 8-bit states; plan with --optimizer adamw or adafactor"
            )

    def _check_captured(self) -> None:
        """A captured model learns the next token, and its stages read what they are sent."""
        need, program = need_of(self.workload), self.workload.program
        assert program is not None  # `need_of` has refused it
        name, instead = f"workload {self.workload.name!r:.60}", "train it with a static plan"
        if not isinstance(need, TokenNeed) or need.task is not None or need.vocab is None:
            raise ValueError(f"{name}: elastic training takes models that learn the next token of a text; {instead}")
        if any(buffer.running for buffer in program.buffers.values()):
            raise ValueError(f"{name}: elastic training takes no running statistics (batch norm); {instead}")
        for stage in range(self.num_stages):
            reads = batch_reads(calls_of(self.workload, program, *self.ops_of(stage)))
            sent = {name for name, at in (("inputs", 0), ("labels", self.num_stages - 1)) if at == stage}
            if not reads <= sent:
                what = " and ".join(sorted(reads - sent))
                raise ValueError(
                    f"{name}: stage {stage} reads the {what}; in a swarm inputs go to the first stage alone, labels to"
                    f" the last; {instead}"
                )

    @cached_property
    def vocab(self) -> int:
        """Ids of tokens are below it."""
        need = need_of(self.workload)
        assert isinstance(need, TokenNeed)
        assert need.vocab is not None
        return need.vocab

    @property
    def num_stages(self) -> int:
        """Stages of the model."""
        return len(self.first_ops)

    def stage_of(self, op: int) -> int:
        """The stage of an op."""
        return max(s for s, first in enumerate(self.first_ops) if first <= op)

    @cached_property
    def tied_stages(self) -> dict[str, tuple[int, ...]]:
        """Stages that hold the same trained weight, by the op that owns it, for those that several stages hold; in op
        order.
        """
        found = {
            self.workload.graph.ops[min(users)].name: tuple(sorted({self.stage_of(op) for op in users}))
            for users in sorted(self.workload.graph.tied_groups.values(), key=min)
            if self.workload.graph.ops[max(users)].trained
        }
        return {owner: stages for owner, stages in found.items() if len(stages) > 1}

    def ops_of(self, stage: int) -> tuple[int, int]:
        """First op and end (exclusive) of a stage."""
        ends = (*self.first_ops[1:], len(self.workload.graph.ops))
        return self.first_ops[stage], ends[stage]

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Tensors of a stage's state beside `weights` (with all gradients so far) and optimizer states, as long as the
        weights.
        """
        names = ("in_use",) if self.delayed_updates else ()
        if not self.is_local:
            return names
        return (*names, "anchor", *(("velocity",) if self.outer else ()))

    def boundary_elements(self, stage: int) -> int:
        """Elements of one micro-batch's tensor in front of a stage; 0 in front of the first."""
        return self.workload.boundary_elements[self.first_ops[stage]] if stage else 0

    @cached_property
    def batch_bytes(self) -> int:
        """Of a micro-batch's inputs, and as many of its labels: 32-bit token ids."""
        return 4 * self.workload.micro_batch * self.workload.seq_len

    def work_bytes(self, stage: int) -> tuple[int, ...]:
        """Exact sizes of the parts that come with work for a stage: tensor in front or inputs, then labels."""
        elements = self.boundary_elements(stage)
        first = self.activation_codec.wire_bytes(elements, self.workload.dtype_bytes) if stage else self.batch_bytes
        return first, self.batch_bytes

    def gradient_bytes(self, stage: int) -> tuple[int, ...]:
        """Exact sizes of the parts that come back from a stage: the gradient of its input, if one in front wants it."""
        elements = self.workload.gradient_elements[self.first_ops[stage]] if stage else 0
        return (self.gradient_codec.wire_bytes(elements, self.workload.dtype_bytes),) if elements else ()

    @cached_property
    def max_part_bytes(self) -> int:
        """The largest parts of any message together."""
        stages = range(self.num_stages)
        return max(sum(self.work_bytes(s)) + sum(self.gradient_bytes(s)) for s in stages)

    @cached_property
    def fingerprint(self) -> str:
        """What peers compare with their coordinator: version, then digests of model and of everything."""
        model = _digest(self.workload.model_dump(mode="json", by_alias=True))
        return f"{own_version()} model {model[:12]} plan {_digest(self.model_dump(mode='json', by_alias=True))[:12]}"

    def to_json(self) -> str:
        """The description that `read_spec` reads."""
        fields = {"format": f"hetplanner/swarm@{SPEC_VERSION}"} | self.model_dump(mode="json", by_alias=True)
        return json.dumps(fields)


@reader("swarm description", at="place")
def read_spec(text: str | bytes, place: str = "swarm") -> SwarmSpec:
    """What `SwarmSpec.to_json` wrote. Raises InvalidInput."""
    fields = check_format(parse_json(text, place), "swarm", SPEC_VERSION, place)
    return checked(SwarmSpec, _with_tuples(fields), place, from_file=True)


def spec_of(plan: ElasticPlan, config: TrainConfig) -> SwarmSpec:
    """What an elastic plan trains with a run's settings. Raises InvalidInput where elastic training cannot do it."""
    if plan.link_codecs:
        raise InvalidInput("plan: link_codecs: elastic training has one codec for all links; remove the rules")
    if plan.problem.groups:
        check_group_optimizer(plan.problem.workload)
    if config.eval_data is not None or config.eval_every is not None:
        raise InvalidInput("eval_data, eval_every: a swarm is not evaluated while it trains; give a static plan")
    fields = {
        "workload": plan.problem.workload,
        "first_ops": tuple(stage.first_op for stage in plan.stages),
        "recompute": tuple(stage.recompute for stage in plan.stages),
        "in_flight": tuple(stage.in_flight for stage in plan.stages),
        "places": plan.stage_of_peer,
        "settings": settings_of(plan, checkpoint_steps=config.checkpoint_every or 0),
        "train": config.replace(resume=None),  # what a swarm begins with its decision log says
    }
    codecs = ("activation_codec", "gradient_codec", "averaging_codec")
    same = (*codecs, "rebalancing", "delayed_updates", "local_steps", "outer")
    return checked(SwarmSpec, fields | {name: getattr(plan, name) for name in same}, "plan")


def _with_tuples(fields: dict[str, object]) -> dict[str, object]:
    """JSON has no tuples, and the settings of a run are strict."""
    train = fields.get("train")
    if isinstance(train, dict):
        fields["train"] = {k: tuple(v) if isinstance(v, list) else v for k, v in train.items()}
    return fields


def own_version() -> str:
    """Of this package."""
    try:
        return version("hetplanner")
    except PackageNotFoundError:
        return "0"


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
