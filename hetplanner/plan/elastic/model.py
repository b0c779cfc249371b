"""The plan of mode elastic: which peers a swarm starts with, and the rules by which it goes on without the planner.

Words: a *peer* is a device, or a group of devices of one host, that serves one stage at a time. A group joins and
leaves whole, and is called by its first device. Who joins later is not in the plan. There are no routes: senders wire
every micro-batch by measured speed.
"""

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.cut import check_cut
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.elastic.settings import ElasticTimes, WiringSettings, check_updates
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import LinkCodec, OuterOptimizer, Plan, Provenance, Role, Stage
from hetplanner.plan.problem import Problem
from hetplanner.schema import Name, Noun
from hetplanner.workload.model import Op

STATELESS_CODECS = ("none", "fp16", "bf16", "int8", "int4")
"""Codecs of a swarm: any peer decodes the message that it gets, without a memory of earlier ones."""


def refusal(place: str = "plan") -> str:
    """Why an elastic plan cannot be taken where routes are needed, and what to do."""
    return (
        f"{place}: mode: must be 'static' here, got 'elastic': an elastic plan has no routes of its own; simulate it"
        " with 'hetplanner simulate', or plan again without --mode elastic"
    )


class _WithoutRoutes(Noun):
    """Refuses in one line what only static plans have, so that code made for static plans reports it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _ONLY_STATIC:
                raise InvalidInput(refusal())
            return super().__getattr__(name)


class ElasticStage(_WithoutRoutes):
    """Ops `first_op` .. `end_op` (exclusive) and the devices that serve them at the start.

    Attributes:
        in_flight: micro-batches that a peer holds at once; it refuses more, and senders turn to another.
        recompute: activations are computed again in the backward pass instead of kept.
    """

    first_op: Annotated[int, Field(strict=True, ge=0)]
    end_op: Annotated[int, Field(strict=True, ge=1)]
    peers: Annotated[tuple[Name, ...], Field(min_length=1)]
    in_flight: Annotated[int, Field(strict=True, ge=1)]
    recompute: bool = False


class ElasticPlan(_WithoutRoutes):
    """A swarm's start and its rules. See the module's words; `problem` makes it self-contained.

    Attributes:
        activation_codec: how activations travel, on every link without a rule of its own.
        gradient_codec: the same of the gradients that come back.
        averaging_codec: how gradients travel between the peers of a stage.
        delayed_updates: the optimizer works beside the passes of the next step, on all stages alike: step k is computed
            with the weights after k - 1 updates. A peer keeps another copy of its weights; the estimate does not know.
        local_steps: steps that every peer takes by itself, each with the gradients of its own micro-batches, before the
            peers of a stage average the changes of their weights, weighted by what each has worked on. 1 without
            `outer`: gradients are averaged in every step.
        outer: what becomes of the averaged change; None takes it as it is.
        link_codecs: rules for links between peers of the start; who joins later has none.
        estimate: of a steady-state step: all peers of the start there, wired in proportion to speed.
    """

    problem: Problem
    mode: Literal["elastic"] = "elastic"
    stages: Annotated[tuple[ElasticStage, ...], Field(min_length=1)]
    wiring: WiringSettings = WiringSettings()
    rebalancing: Rebalancing = Rebalancing()
    times: ElasticTimes = ElasticTimes()
    activation_codec: Codec = NO_CODEC
    gradient_codec: Codec = NO_CODEC
    averaging_codec: Codec = NO_CODEC
    link_codecs: tuple[LinkCodec, ...] = ()
    delayed_updates: bool = False
    local_steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    outer: OuterOptimizer | None = None
    estimate: Estimate | None = None
    provenance: Provenance = Provenance()

    @model_validator(mode="after")
    def _structure_holds(self) -> Self:
        check_cut(self.stages, self.problem.workload)
        self._check_peers()
        ties = self.problem.workload.graph.tied_groups.values()
        crossing = any(len({self._stage_of(op) for op in users}) > 1 for users in ties)
        check_updates(delayed=self.delayed_updates, local=self.is_local, crossing_ties=crossing)
        for name in ("activation_codec", "gradient_codec", "averaging_codec"):
            _check_codec(name, getattr(self, name))
        for i, rule in enumerate(self.link_codecs):
            _check_codec(f"link_codecs[{i}].codec", rule.codec)
            for device in (rule.from_device, rule.to_device):
                if device not in self.stage_of_peer:
                    raise ValueError(f"link_codecs[{i}]: {device!r:.60} serves no stage at the start; remove the rule")
        return self

    def _check_peers(self) -> None:
        known, used = set(self.problem.usable_devices), set()
        members = {device: group.leader for group in self.problem.groups or () for device in group.devices[1:]}
        if self.problem.is_grouping_open:
            raise ValueError("problem.groups: must say which devices serve together; plan again")
        for s, stage in enumerate(self.stages):
            for p, peer in enumerate(stage.peers):
                if peer in members:
                    raise ValueError(
                        f"stages[{s}].peers[{p}]: {peer!r:.60} is in the group of {members[peer]!r:.60}; name that one"
                    )
                if peer not in known:
                    raise ValueError(f"stages[{s}].peers[{p}]: {peer!r:.60} is no usable device of the cluster")
                if peer in used:
                    raise ValueError(
                        f"stages[{s}].peers[{p}]: {peer!r:.60} is there twice; a peer serves one stage at a time"
                    )
                used.add(peer)

    @cached_property
    def stage_of_peer(self) -> dict[str, int]:
        """The stage that every peer of the start serves."""
        return {peer: s for s, stage in enumerate(self.stages) for peer in stage.peers}

    @property
    def peers(self) -> tuple[str, ...]:
        """Devices of the start, stage by stage."""
        return tuple(self.stage_of_peer)

    @property
    def is_local(self) -> bool:
        """Whether peers step by themselves and average changes of weights, instead of adding up gradients."""
        return self.local_steps > 1 or self.outer is not None

    def _stage_of(self, op: int) -> int:
        return max(s for s, stage in enumerate(self.stages) if stage.first_op <= op)

    @property
    def num_micro_batches(self) -> int:
        """Of a step."""
        return self.problem.workload.num_micro_batches

    def ops_of(self, stage: int) -> tuple[Op, ...]:
        """Ops of a stage."""
        return self.problem.workload.graph.ops[self.stages[stage].first_op : self.stages[stage].end_op]

    def boundary_elements(self, stage: int) -> int:
        """Elements of one micro-batch's tensors that stage `stage` sends to the next (0 after the last)."""
        return self.problem.workload.boundary_elements[self.stages[stage].end_op]

    @cached_property
    def _codecs(self) -> dict[tuple[str, str, str], Codec]:
        return {(k.from_device, k.to_device, k.role): k.codec for k in self.link_codecs}

    def codec_between(self, from_device: str, to_device: str, role: Role) -> Codec:
        """Codec of a role between two devices, of which either may have joined later."""
        usual = self.activation_codec if role == "activation" else self.gradient_codec
        return self._codecs.get((from_device, to_device, role), usual)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal plans."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _public(noun: type[Noun]) -> set[str]:
    return {name for name in {*noun.model_fields, *vars(noun)} if not name.startswith("_")}


_ONLY_STATIC = (_public(Plan) | _public(Stage)) - _public(ElasticPlan) - _public(ElasticStage)


def _check_codec(place: str, codec: Codec) -> None:
    if codec.name not in STATELESS_CODECS or codec.delta:
        name = f"{codec.name} with delta" if codec.delta else codec.name
        raise ValueError(
            f"{place}: must be one of {', '.join(STATELESS_CODECS)}, without delta: in a swarm the peer that decodes a"
            f" message may not have seen the one before; got {name}"
        )
