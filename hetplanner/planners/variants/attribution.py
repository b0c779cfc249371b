"""What a plan's advantage is made of: each of its choices switched off in turn, the others kept.

With all of them off it is the baseline: the same stages and pipelines on devices as a launcher would number them,
equal layers, equal shares, the usual depth of 1F1B, no codecs, the first allowed reducer. A share is the part of the
gain over it that is lost when one choice goes. Choices lean on each other, so shares need not add up to 1, and one may
be negative (a choice that pays only beside another).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hetplanner.codecs.spec import NO_CODEC
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan
from hetplanner.planners.choices.codec import step_seconds_of
from hetplanner.planners.finish import order_devices
from hetplanner.planners.layout import value_of
from hetplanner.planners.pins import pin_rows
from hetplanner.planners.step_time.space import even_layers, even_shares

CHOICE_WORDS = {
    "placement": "placement (which device serves which stage)",
    "cut": "cut (which layers form a stage)",
    "shares": "shares (how much each pipeline does)",
    "depth": "depth (micro-batches in flight)",
    "codecs": "codecs (what is sent compressed)",
    "reducer": "reducer (how gradients are added up)",
    "local steps": "local steps (fewer exchanges)",
}
"""A choice as people read it."""


@dataclass(frozen=True)
class GainPart:
    """One choice of a plan.

    Attributes:
        name: placement, cut, shares, depth, codecs or reducer.
        beside: the choice that had to go with it: on unlike devices a cut made for one placement rarely fits another.
        value: of the plan without it, in the objective's unit; None if it would not fit the devices' memory either way.
        share: of the gain that is lost without it; None likewise.
    """

    name: str
    beside: str | None
    value: float | None
    share: float | None


@dataclass(frozen=True)
class Gain:
    """A plan against the baseline of its own shape.

    Attributes:
        value, baseline: what the objective gives both.
        parts: where the gain comes from; empty if there is none.
    """

    value: float
    baseline: float
    parts: tuple[GainPart, ...]

    @property
    def ratio(self) -> float:
        """How many times better than the baseline the plan is (1 where both cost nothing)."""
        return self.baseline / self.value if self.value > 0 else 1.0

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        parts = {part.name: asdict(part) for part in self.parts}
        return {"value": self.value, "baseline": self.baseline, "ratio": self.ratio, "parts": parts}


def attribute_gain(plan: Plan, *, model: CostModel | None = None) -> Gain | None:
    """The gain of a plan over the baseline of its shape, and what each of its choices contributes.

    Args:
        plan: the plan.
        model: cost model of the plan's problem, if already at hand.

    Returns:
        None if the baseline fits the devices' memory neither with equal layers nor with the plan's own cut.

    Raises:
        InvalidInput: for objective `cost` if a device's price is unknown.
    """
    model = model or CostModel.of(plan.problem)
    value = _value(plan, model)
    base = _value_if_it_fits(_switched_off(plan, model, tuple(_SWITCHES)), model)
    if base is None:
        base = _value_if_it_fits(_switched_off(plan, model, tuple(n for n in _SWITCHES if n != "cut")), model)
    if base is None:
        return None
    if base <= value:
        return Gain(value, base, ())
    parts = []
    # Local steps change the algorithm: only who takes them needs to know what they bring.
    for name in (name for name in _SWITCHES if name != "local steps" or plan.is_local):
        beside, without = _value_without(plan, model, name)
        share = None if without is None else (without - value) / (base - value)
        parts.append(GainPart(name, beside, without, share))
    return Gain(value, base, tuple(parts))


def divide_gain(plan: Plan, *, model: CostModel | None = None) -> Gain | None:
    """The gain of a plan over the baseline of its shape, choice by choice, so that the shares add up to 1.

    Beginning with the baseline, of the plan's choices the one that then gains most is made, until all are. Choices
    that gain nothing one by one are made together. A mixture that does not fit the devices' memory with its cut counts
    with equal layers, or the other way round.

    Args:
        plan: the plan.
        model: cost model of the plan's problem, if already at hand.

    Returns:
        As `attribute_gain`, but parts in the order in which they are made (`name` of several: joined by ' + '), each
        with the `value` that the plan has with it and all before. None likewise.

    Raises:
        InvalidInput: for objective `cost` if a device's price is unknown.
    """
    model = model or CostModel.of(plan.problem)
    rest = [name for name in _SWITCHES if _SWITCHES[name](plan, model) != plan]
    value, base = _value(plan, model), _mixture(plan, model, ())
    if base is None:
        return None
    parts: list[GainPart] = []
    at, made = base, tuple[str, ...]()
    while rest and base > value:
        tried = {name: _mixture(plan, model, (*made, name)) if len(rest) > 1 else value for name in rest}
        known = {name: found for name, found in tried.items() if found is not None}
        best = min(known, key=lambda name: known[name], default=None)
        gains = best is not None and known[best] < at
        chosen = [best] if gains and best is not None else list(rest)
        after = known[chosen[0]] if gains else value
        parts.append(GainPart(" + ".join(chosen), None, after, (at - after) / (base - value)))
        at, made, rest = after, (*made, *chosen), [name for name in rest if name not in chosen]
    return Gain(value, base, tuple(parts))


def _mixture(plan: Plan, model: CostModel, kept: tuple[str, ...]) -> float | None:
    """Value of a plan with only these of its choices; with equal layers or its own where only that fits."""
    off = tuple(name for name in _SWITCHES if name not in kept)
    value = _value_if_it_fits(_switched_off(plan, model, off), model)
    if value is None and "cut" not in off:
        value = _value_if_it_fits(_switched_off(plan, model, (*off, "cut")), model)
    if value is None and "cut" in off:
        value = _value_if_it_fits(_switched_off(plan, model, tuple(n for n in off if n != "cut")), model)
    return value


def _value_without(plan: Plan, model: CostModel, name: str) -> tuple[str | None, float | None]:
    """What had to go beside a choice, and the value without both."""
    alone = _value_if_it_fits(_switched_off(plan, model, (name,)), model)
    partner = {"placement": "cut", "cut": "placement"}.get(name)
    if alone is not None or partner is None:
        return None, alone
    return partner, _value_if_it_fits(_switched_off(plan, model, (name, partner)), model)


def _switched_off(plan: Plan, model: CostModel, names: tuple[str, ...]) -> Plan:
    for name in names:
        plan = _SWITCHES[name](plan, model)
    return plan


def _in_rank_order(plan: Plan, model: CostModel) -> Plan:
    """The same stages on the devices as a launcher would number them: one pipeline after the other, site by site."""
    slots = [
        (s, r) for r in range(_most_replicas(plan)) for s, stage in enumerate(plan.stages) if r < len(stage.replicas)
    ]
    order = order_devices(plan.problem, (len(slots), 1))[:, 0]
    placed = _pinned(dict(zip(slots, order.tolist(), strict=True)), pin_rows(plan.problem))
    ids = plan.problem.cluster.device_ids
    taken = {plan.stages[s].replicas[r][0]: ids[d] for (s, r), d in placed.items()}
    stages = tuple(
        stage.replace(replicas=tuple(tuple(taken[device] for device in replica) for replica in stage.replicas))
        for stage in plan.stages
    )
    codecs = tuple(
        link.replace(from_device=taken[link.from_device], to_device=taken[link.to_device]) for link in plan.link_codecs
    )
    return plan.replace(stages=stages, ranks=tuple(taken[device] for device in plan.ranks), link_codecs=codecs)


def _with_even_cut(plan: Plan, model: CostModel) -> Plan:
    ends = even_layers(model, len(plan.stages))
    stages = (stage.replace(first_op=ends[s], end_op=ends[s + 1]) for s, stage in enumerate(plan.stages))
    return plan.replace(stages=tuple(stages))


def _with_even_shares(plan: Plan, model: CostModel) -> Plan:
    shares = even_shares(plan.problem.workload.num_micro_batches, len(plan.routes))
    return plan.replace(routes=tuple(r.replace(micro_batches=int(n)) for r, n in zip(plan.routes, shares, strict=True)))


def _with_usual_depth(plan: Plan, model: CostModel) -> Plan:
    """One micro-batch in flight for every stage that follows, as 1F1B has it; nothing deeper."""
    if plan.schedule != "1f1b":
        return plan
    last = len(plan.stages)
    stages = (stage.replace(in_flight=min(stage.in_flight, last - s)) for s, stage in enumerate(plan.stages))
    return plan.replace(stages=tuple(stages))


def _without_codecs(plan: Plan, model: CostModel) -> Plan:
    dense = {"reduce_codec": NO_CODEC, "error_feedback": False}
    return plan.replace(link_codecs=(), stages=tuple(stage.replace(**dense) for stage in plan.stages))


def _with_first_reducer(plan: Plan, model: CostModel) -> Plan:
    """The sharded parameter server, unless the constraints forbid it."""
    return plan.replace(reducer=plan.problem.constraints.first_reducer)


def _in_step(plan: Plan, model: CostModel) -> Plan:
    """Replicas add up their gradients in every step."""
    return plan.replace(local_steps=1, outer=None, fragments=1)


_SWITCHES: dict[str, Callable[[Plan, CostModel], Plan]] = {
    "placement": _in_rank_order,
    "cut": _with_even_cut,
    "shares": _with_even_shares,
    "depth": _with_usual_depth,
    "codecs": _without_codecs,
    "reducer": _with_first_reducer,
    "local steps": _in_step,
}


def _pinned(placed: dict[tuple[int, int], int], pins: dict[int, int]) -> dict[tuple[int, int], int]:
    """Devices by (stage, replica) with pinned ones swapped into their stages."""
    for device, stage in pins.items():
        here = next((slot for slot, d in placed.items() if d == device), None)
        if here is not None and here[0] == stage:
            continue
        there = next(slot for slot, d in placed.items() if slot[0] == stage and pins.get(d) != stage)
        if here is not None:
            placed[here] = placed[there]
        placed[there] = device
    return placed


def _most_replicas(plan: Plan) -> int:
    return max(len(stage.replicas) for stage in plan.stages)


def _value(plan: Plan, model: CostModel) -> float:
    if plan.problem.objective == "step-time":
        return step_seconds_of(plan, model)  # an estimate would look for the bottleneck as well
    return value_of(plan.replace(estimate=estimate_plan(plan, model=model)))


def _value_if_it_fits(plan: Plan, model: CostModel) -> float | None:
    plan = _no_deeper_than_fits(plan, model)
    try:
        check_plan(plan, model.tables)
    except Infeasible:
        return None
    return _value(plan, model)


def _no_deeper_than_fits(plan: Plan, model: CostModel) -> Plan:
    """Other devices behind a stage may have room for fewer micro-batches in flight; at least one is left."""
    index = plan.problem.cluster.device_index
    memory_D = model.tables.devices.memory_bytes_D
    stages = []
    for stage in plan.stages:
        limit = min(float(memory_D[index(device)]) for replica in stage.replicas for device in replica)
        limit += model.tables.sharded_bytes(stage.first_op, stage.end_op, len(stage.replicas))
        depth = stage.in_flight
        while depth > 1 and model.tables.stage_bytes(stage.first_op, stage.end_op, depth, stage.recompute) > limit:
            depth -= 1
        stages.append(stage.replace(in_flight=depth))
    return plan.replace(stages=tuple(stages))
