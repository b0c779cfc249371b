"""Plans derived from a plan: the same devices and cut, another schedule, depth, micro-batch, recomputation or codec.

No search: what is not changed stays. Depths that a device no longer has room for become shallower, unless they were
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hetplanner.codecs.spec import Codec, CodecName
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan, Provenance, ScheduleName
from hetplanner.plan.problem import Constraints
from hetplanner.planners.layout import apportion, package_version
from hetplanner.planners.variants.depths import no_deeper_than_fits
from hetplanner.planners.variants.schedules import interleave
from hetplanner.planners.variants.whatif import ChangeCodec, Changes, evaluate_changes
from hetplanner.schema import Noun, checked

Depth = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
DERIVED = "derived"
"""The planner's name in the provenance of a derived plan."""


class CodecChoice(Noun):
    """One codec for all messages, or all reductions; `ratio` and `delta` as of `Codec`."""

    name: CodecName = "none"
    ratio: Annotated[float, Field(strict=True, ge=1, le=1e5)] = 10.0

    def codec(self, block: int) -> Codec:
        """The codec itself."""
        if self.name == "topk":
            return Codec(name="topk", ratio=self.ratio)
        return Codec(name=self.name, block=block)

    def __str__(self) -> str:
        return f"topk:{self.ratio:g}" if self.name == "topk" else self.name


class Derivation(Noun):
    """What is to be different; None leaves it as it is.

    Attributes:
        schedule: gpipe, 1f1b or interleaved.
        chunks: stages of every device when interleaved.
        micro_batch: samples in a micro-batch; the shares of the routes stay in proportion.
        in_flight: micro-batches that each stage may hold: one number for all stages, or one a stage.
        recompute: whether stages compute activations again in the backward pass.
        messages: what travels between stages.
        reductions: what gradients travel as between replicas.
    """

    schedule: ScheduleName | None = None
    chunks: Annotated[int, Field(strict=True, ge=2, le=64)] = 2
    micro_batch: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    in_flight: Annotated[tuple[Depth, ...], Field(min_length=1, max_length=4096)] | None = None
    recompute: bool | None = None
    messages: CodecChoice | None = None
    reductions: CodecChoice | None = None

    @staticmethod
    def of(data: object) -> Derivation:
        """From plain data. Raises InvalidInput."""
        return checked(Derivation, data, "simulate", from_file=True)

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def is_empty(self) -> bool:
        """Whether it leaves every plan as it is."""
        return all(getattr(self, name) is None for name in type(self).model_fields if name != "chunks")


def derive_plan(plan: Plan, wanted: Derivation) -> Plan:
    """A plan with some of its choices changed, checked and estimated; its provenance says what was changed.

    Codecs that the constraints did not allow are allowed from then on: who asks for one means it.

    Raises:
        InvalidInput: naming the field that is wrong and what would be right.
        Infeasible: if a device cannot hold its share.
    """
    made = plan if wanted.micro_batch is None else _with_micro_batch(plan, wanted.micro_batch)
    made = made.replace(estimate=None)
    if wanted.schedule is not None and wanted.schedule != plan.schedule:
        made = _with_schedule(made, wanted.schedule, wanted)
    if wanted.recompute is not None:
        made = made.replace(stages=tuple(stage.replace(recompute=wanted.recompute) for stage in made.stages))
    made = _with_depths(made, wanted.in_flight) if wanted.in_flight is not None else no_deeper_than_fits(made)
    made = evaluate_changes(made, Changes(changes=_codec_changes(made, wanted))).plan
    return made.replace(provenance=_provenance(plan, made))


def _with_micro_batch(plan: Plan, micro_batch: int) -> Plan:
    workload = plan.problem.workload
    if workload.global_batch % micro_batch:
        near = [n for n in _divisors(workload.global_batch) if n >= micro_batch / 4][:5]
        raise InvalidInput(
            f"micro_batch: must divide the global batch of {workload.global_batch}, got {micro_batch}; use one of"
            f" {', '.join(map(str, near))}"
        )
    total = workload.global_batch // micro_batch
    if total < len(plan.routes):
        raise InvalidInput(
            f"micro_batch: {micro_batch} leaves {total} micro-batches for {len(plan.routes)} routes; use at most"
            f" {workload.global_batch // len(plan.routes)}"
        )
    shares = apportion(total, np.array([float(route.micro_batches) for route in plan.routes]))
    routes = tuple(route.replace(micro_batches=int(n)) for route, n in zip(plan.routes, shares, strict=True))
    problem = plan.problem.replace(workload=workload.with_micro_batch(micro_batch))
    return plan.replace(problem=problem, routes=routes, estimate=None)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _with_schedule(plan: Plan, schedule: ScheduleName, wanted: Derivation) -> Plan:
    if plan.is_interleaved:
        raise InvalidInput(
            "schedule: devices of an interleaved plan serve several stages, which no other schedule allows; start from"
            " the plan it was made of"
        )
    if schedule != "interleaved":
        return plan.replace(schedule=schedule)
    try:
        depth = wanted.in_flight[0] if wanted.in_flight else None
        return interleave(plan, wanted.chunks, in_flight=depth)
    except InvalidInput as error:
        raise InvalidInput(f"schedule: {error}") from None


def _with_depths(plan: Plan, depths: tuple[int, ...]) -> Plan:
    if len(depths) not in (1, len(plan.stages)):
        raise InvalidInput(
            f"in_flight: must be one number, or one for each of the {len(plan.stages)} stages, got {len(depths)}"
        )
    each = depths * len(plan.stages) if len(depths) == 1 else depths
    return plan.replace(stages=tuple(s.replace(in_flight=d) for s, d in zip(plan.stages, each, strict=True)))


def _codec_changes(plan: Plan, wanted: Derivation) -> tuple[ChangeCodec, ...]:
    block, changes = plan.problem.constraints.codec_block, []
    if wanted.messages is not None and len(plan.stages) > 1:
        changes.append(ChangeCodec(of="messages", codec=wanted.messages.codec(block)))
    if wanted.reductions is not None:
        changes.append(ChangeCodec(of="reductions", codec=wanted.reductions.codec(block)))
    return tuple(changes)


# -- to another process ----------------------------------------------------------------------------


def derived_to_data(made: Plan) -> dict[str, Any]:
    """A derived plan as plain data, without what who has the plan that it came from knows."""
    problem = made.problem
    body = made.model_dump(mode="json", by_alias=True, exclude={"problem"}, exclude_none=True)
    constraints = problem.constraints.model_dump(mode="json", exclude_none=True)
    return {"plan": body, "micro_batch": problem.workload.micro_batch, "constraints": constraints}


def derived_from_data(data: Mapping[str, Any], plan: Plan) -> Plan:
    """The plan of `derived_to_data`, from the one it came from."""
    problem = plan.problem
    constraints = checked(Constraints, data["constraints"], "simulate")
    if constraints != problem.constraints:
        problem = problem.replace(constraints=constraints)
    if data["micro_batch"] != problem.workload.micro_batch:
        problem = problem.replace(workload=problem.workload.with_micro_batch(data["micro_batch"]))
    return checked(Plan, {"problem": problem, **data["plan"]}, "simulate")


# -- what was changed, in words --------------------------------------------------------------------


def _provenance(plan: Plan, made: Plan) -> Provenance:
    old = plan.provenance
    lead = f"from plan {plan.digest()[:12]} ({old.planner})"
    changes = "; ".join(changes_text(plan, made)) or "no change"
    return Provenance(
        planner=DERIVED,
        seed=old.seed,
        # A bound holds for the problem it was found for.
        lower_bound=old.lower_bound if made.problem == plan.problem else None,
        version=package_version(),
        derived=f"{lead}: {changes}"[:1000],
    )


def changes_text(plan: Plan, made: Plan) -> list[str]:
    """What two plans of the same devices differ in: 'schedule 1f1b → gpipe', 'micro-batch 1 → 2'."""
    pairs = [
        ("schedule", plan.schedule, made.schedule),
        ("stages", len(plan.stages), len(made.stages)),
        ("micro-batch", plan.problem.workload.micro_batch, made.problem.workload.micro_batch),
        ("in flight", _listed(s.in_flight for s in plan.stages), _listed(s.in_flight for s in made.stages)),
        ("recompute", _recomputing(plan), _recomputing(made)),
        ("messages", _messages(plan), _messages(made)),
        ("reductions", _reductions(plan), _reductions(made)),
    ]
    return [f"{name} {old} → {new}" for name, old, new in pairs if old != new]


def _listed(values: Any) -> str:
    """'8', or '8 7 6'; runs of equal numbers are counted."""
    numbers = list(values)
    if len(set(numbers)) == 1:
        return str(numbers[0])
    return " ".join(map(str, numbers)) if len(numbers) <= 24 else f"{min(numbers)}–{max(numbers)}"


def _recomputing(plan: Plan) -> str:
    count = sum(stage.recompute for stage in plan.stages)
    return "none" if not count else "all" if count == len(plan.stages) else f"{count} stages"


def _messages(plan: Plan) -> str:
    if not plan.link_codecs:
        return "dense"
    return "/".join(sorted({str(rule.codec) for rule in plan.link_codecs}))[:80]


def _reductions(plan: Plan) -> str:
    return "/".join(sorted({str(stage.reduce_codec) for stage in plan.stages}))[:80]
