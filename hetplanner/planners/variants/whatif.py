"""What if: a plan under a few changes, at once and without a search.

A device is dropped, a link becomes faster or slower, messages travel otherwise, more or fewer devices of a host share
layers. The plan keeps all it can: only the place of a dropped device has to be filled, by the best of the ways tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hetplanner.cluster.link_edits import LinkEnds, link_in_force, overrides_between, set_link, words_before
from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import NO_CODEC, Codec
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import HetplannerError, Infeasible, InvalidInput
from hetplanner.plan.model import LinkCodec, Plan, Provenance, Route
from hetplanner.plan.problem import Problem
from hetplanner.planners.choices.codec import step_seconds_of
from hetplanner.planners.layout import apportion
from hetplanner.planners.variants.regroup import regroup, with_degree, workers_text
from hetplanner.schema import BytesPerSecond, Name, Noun, Seconds, checked
from hetplanner.workload.tensor_degrees import TensorDegree

Pair = tuple[Name, Name]
WHEN = "what if"
"""How the numbers of a changed link are known."""
MAX_CHANGES = 64
MAX_SPARES = 16
"""Idle devices of different kind, site or host that are tried in a dropped one's place."""


class DropDevice(Noun):
    """A device is gone."""

    do: Literal["drop"] = "drop"
    device: Name


class ChangeLink(Noun):
    """All links between the hosts of two sites (or, one site given twice, inside it), both ways."""

    do: Literal["link"] = "link"
    sites: Pair
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.bandwidth is None and self.latency is None:
            raise ValueError("bandwidth or latency: one of the two must be given")
        return self


class ChangeCodec(Noun):
    """What travels between stages (on all links, or on those between two sites), or in gradient reductions."""

    do: Literal["codec"] = "codec"
    of: Literal["messages", "reductions"] = "messages"
    sites: Pair | None = None
    codec: Codec

    @model_validator(mode="after")
    def _belongs_there(self) -> Self:
        if self.of == "messages" and self.codec.name == "powersgd":
            raise ValueError("codec: powersgd adds up factors of gradients; it is for reductions only")
        if self.of == "reductions" and (self.sites is not None or self.codec.delta):
            raise ValueError("sites, codec.delta: belong to messages; remove them")
        return self


class ChangeDegree(Noun):
    """So many devices of a host share layers, in all hosts that have as many of a kind; 1: each serves alone."""

    do: Literal["degree"] = "degree"
    degree: TensorDegree


Change = Annotated[DropDevice | ChangeLink | ChangeCodec | ChangeDegree, Field(discriminator="do")]


class Changes(Noun):
    """What is changed, in this order."""

    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES)] = ()

    @staticmethod
    def of(data: object) -> Changes:
        """From plain data. Raises InvalidInput."""
        return checked(Changes, {"changes": data}, "what if", from_file=True)

    def to_data(self) -> list[dict[str, Any]]:
        """Plain data, quantities with units."""
        changes: list[dict[str, Any]] = self.model_dump(mode="json", exclude_none=True)["changes"]
        return changes


@dataclass(frozen=True)
class WhatIf:
    """A plan under changes.

    Attributes:
        plan: the changed plan, of the changed problem, with its estimate.
        notes: what was done about dropped devices and groups, in words.
    """

    plan: Plan
    notes: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Plain data; who has the plan and the changes has the rest, see `from_data`."""
        body = self.plan.model_dump(mode="json", by_alias=True, exclude={"problem"}, exclude_none=True)
        return {"plan": body, "notes": list(self.notes)}

    @staticmethod
    def from_data(data: dict[str, Any], plan: Plan, changes: Changes) -> WhatIf:
        """What `to_data` gave for these changes of this plan."""
        problem = changed_problem(plan.problem, changes)
        return WhatIf(checked(Plan, {"problem": problem, **data["plan"]}, "what if"), tuple(data["notes"]))


def evaluate_changes(plan: Plan, changes: Changes) -> WhatIf:
    """The plan under changes: nothing is searched, so a new search may do better.

    Raises:
        InvalidInput: for a device or site that is not there, or a change that means nothing.
        Infeasible: if the plan cannot go on without a device, or its devices cannot hold their shares.
    """
    problem = plan.problem
    notes: list[str] = []
    plan = plan.replace(estimate=None, provenance=Provenance(planner="what-if"))
    for change in changes.changes:
        problem = _changed(problem, change)
        if isinstance(change, DropDevice):
            plan, note = _without_device(plan, change.device, problem)
            notes.append(note)
        elif isinstance(change, ChangeDegree):
            plan = regroup(plan, problem)
            notes.append(_served_text(plan))
        else:
            plan = plan.replace(problem=problem)
            if isinstance(change, ChangeCodec):
                plan = _with_codec(plan, change)
    model = CostModel.of(plan.problem)
    check_plan(plan, model.tables)
    return WhatIf(plan.replace(estimate=estimate_plan(plan, model=model)), tuple(notes))


# -- the problem ----------------------------------------------------------------------------------


def changed_problem(problem: Problem, changes: Changes) -> Problem:
    """The problem that a search under these changes has. Raises InvalidInput."""
    for change in changes.changes:
        problem = _changed(problem, change)
    return problem


def _changed(problem: Problem, change: DropDevice | ChangeLink | ChangeCodec | ChangeDegree) -> Problem:
    if isinstance(change, DropDevice):
        return _excluding(problem, change.device)
    if isinstance(change, ChangeLink):
        return problem.replace(cluster=_with_link(problem.cluster, change))
    if isinstance(change, ChangeDegree):
        return with_degree(problem, change.degree)
    wanted, codec = problem.constraints, change.codec
    if codec.name not in wanted.codecs and not (codec.name == "topk" and "adatopk" in wanted.codecs):
        wanted = wanted.replace(codecs=(*wanted.codecs, codec.name))
    return problem.replace(constraints=wanted.replace(max_ratio=max(wanted.max_ratio, codec.ratio)))


def _excluding(problem: Problem, device: str) -> Problem:
    """Without a device, and without its group, whose other devices serve alone; a number of replicas that the others
    cannot fill is left to the planner.
    """
    if device not in problem.usable_devices:
        raise InvalidInput(f"what if: {device!r:.60} is no usable device of {problem.cluster.name:.60}")
    if len(problem.usable_devices) == 1:
        raise InvalidInput(f"what if: {device!r:.60} is the last usable device; keep it")
    if problem.groups is not None:
        problem = problem.replace(groups=tuple(group for group in problem.groups if group.leader != device))
    wanted = problem.constraints
    stages, replicas, left = wanted.stages, wanted.replicas, len(problem.usable_devices) - 1
    if stages and replicas and stages * replicas > left:
        replicas = None
    if stages and stages > left:
        stages = None
    pinned = {name: stage for name, stage in wanted.pinned.items() if name != device}
    excluded = (*wanted.excluded, device)
    constraints = wanted.replace(excluded=excluded, pinned=pinned, stages=stages, replicas=replicas)
    return problem.replace(constraints=constraints)


def _with_link(cluster: Cluster, change: ChangeLink) -> Cluster:
    here, there = change.sites
    given: dict[str, Any] = {"bandwidth": change.bandwidth, "latency": change.latency}
    given = {name: value for name, value in given.items() if value is not None}
    ends = LinkEnds("site", here, there)
    singles = {
        k for k in overrides_between(cluster, here, there)
        if cluster.host_of(k.from_device).id != cluster.host_of(k.to_device).id
    }  # fmt: skip
    if not singles or link_in_force(cluster, ends) is not None:
        cluster = set_link(
            cluster, ends, latency_s=change.latency, bandwidth_bytes_per_s=change.bandwidth, source="assumed", when=WHEN
        )
    values = given | {"source": "assumed", "when": WHEN, "published": None}
    links = tuple(
        link.replace(**values, replaces=words_before(link)) if link in singles else link
        for link in cluster.device_links
    )
    return cluster.replace(device_links=links) if singles else cluster


# -- codecs ---------------------------------------------------------------------------------------


def _with_codec(plan: Plan, change: ChangeCodec) -> Plan:
    codec = change.codec
    if change.of == "reductions":
        feeds_back = codec.name in ("int8", "int4", "topk")
        stages = (stage.replace(reduce_codec=codec, error_feedback=feeds_back) for stage in plan.stages)
        return plan.replace(stages=tuple(stages))
    rules: dict[tuple[str, str, str], LinkCodec] = {
        (rule.from_device, rule.to_device, rule.role): rule for rule in plan.link_codecs
    }
    found = False
    for one, two in _hops(plan):
        ends = {plan.problem.cluster.site_of(one).name, plan.problem.cluster.site_of(two).name}
        if change.sites is None or ends == set(change.sites):
            found = True
            for start, end, role in ((one, two, "activation"), (two, one, "gradient")):
                rules.pop((start, end, role), None)
                if codec != NO_CODEC:
                    back = codec.replace(delta=False) if role == "gradient" else codec
                    rules[start, end, role] = _rule(start, end, role, back)
    if not found:
        between = "" if change.sites is None else f" between {change.sites[0]:.60} and {change.sites[1]:.60}"
        raise InvalidInput(f"what if: the plan sends no messages{between}; choose another link")
    return plan.replace(link_codecs=tuple(rules.values()))


def _rule(start: str, end: str, role: Any, codec: Codec) -> LinkCodec:
    return LinkCodec.model_validate({"from": start, "to": end, "role": role, "codec": codec})


def _hops(plan: Plan) -> Iterator[tuple[str, str]]:
    """Devices that send each other messages, every pair once."""
    paths = ([plan.stages[s].replicas[r][0] for s, r in enumerate(route.replicas)] for route in plan.routes)
    return iter(dict.fromkeys(hop for path in paths for hop in pairwise(path)))


def _served_text(plan: Plan) -> str:
    """Of a plan on other groups: what serves its stages."""
    replicas = sorted({len(stage.replicas) for stage in plan.stages})
    each = "to ".join(f"{n} " for n in dict.fromkeys((replicas[0], replicas[-1])))
    plural = ("" if len(plan.stages) == 1 else "s", "" if replicas[-1] == 1 else "s")
    served = f"{len(plan.stages)} stage{plural[0]} with {each}replica{plural[1]} each"
    return f"{workers_text(plan.ranks, plan.problem)}: {served}; their places were not searched"


# -- a dropped device -----------------------------------------------------------------------------


def _without_device(plan: Plan, device: str, problem: Problem) -> tuple[Plan, str]:
    """The plan with a device's place filled, and how; the way with the shortest step.

    Tried: an idle device in its place; the other replicas of its stage take over; its pipelines end and the others do
    their share.
    """
    if device not in plan.ranks:
        return plan.replace(problem=problem), f"{device} was idle: nothing changes"
    model = CostModel.of(problem)
    found: list[tuple[float, Plan, str]] = []
    reason = ""
    for way in (_spares, _rerouted, _shrunk):
        for changes, note in way(plan, device, problem):
            try:
                changed = plan.replace(problem=problem, **changes)
                check_plan(changed, model.tables)
                found.append((step_seconds_of(changed, model), changed, note))
            except HetplannerError as error:
                reason = reason or str(error)
    if not found:
        reason = reason or "it serves the only replica of its stage, and no device is idle"
        raise Infeasible(f"without {device:.60} this plan cannot go on: {reason}")
    _, best, note = min(found, key=lambda way: way[0])
    return best, note


def _spares(plan: Plan, device: str, problem: Problem) -> Iterator[tuple[dict[str, Any], str]]:
    """Idle devices in its place, one of those that are alike."""
    cluster = problem.cluster
    tried: set[tuple[str, str]] = set()
    for spare in problem.usable_devices:
        twin = cluster.devices[cluster.device_index(spare)].kind, cluster.site_of(spare).name
        if spare in plan.ranks or twin in tried or len(tried) >= MAX_SPARES:
            continue
        tried.add(twin)
        name = {device: spare}
        stages = tuple(
            stage.replace(replicas=tuple(tuple(name.get(d, d) for d in replica) for replica in stage.replicas))
            for stage in plan.stages
        )
        codecs = tuple(
            _rule(name.get(k.from_device, k.from_device), name.get(k.to_device, k.to_device), k.role, k.codec)
            for k in plan.link_codecs
        )
        ranks = tuple(name.get(d, d) for d in plan.ranks)
        yield {"stages": stages, "link_codecs": codecs, "ranks": ranks}, f"{spare}, idle so far, replaces {device}"


def _rerouted(plan: Plan, device: str, problem: Problem) -> Iterator[tuple[dict[str, Any], str]]:
    """The other replicas of its stage take its micro-batches over, evenly."""
    places = plan.places_of_rank[plan.rank_of(device)]
    s, r = places[0]
    others = [q for q in range(len(plan.stages[s].replicas)) if q != r]
    if len(places) > 1 or plan.is_interleaved or not others:
        return
    routes: list[Route] = []
    for route in plan.routes:
        if route.replicas[s] != r:
            routes.append(route)
            continue
        to = others[: route.micro_batches]
        shares = apportion(route.micro_batches, np.ones(len(to)))
        for q, share in zip(to, shares.tolist(), strict=True):
            routes.append(Route(replicas=(*route.replicas[:s], q, *route.replicas[s + 1 :]), micro_batches=share))
    kept = _compacted(plan, routes)
    yield kept, f"the other replicas of stage {s} do the work of {device}"


def _shrunk(plan: Plan, device: str, problem: Problem) -> Iterator[tuple[dict[str, Any], str]]:
    """Its pipelines end; what is left of them is idle, and the other pipelines do their share."""
    mine = set(plan.places_of_rank[plan.rank_of(device)])
    kept = [route for route in plan.routes if not mine & set(enumerate(route.replicas))]
    if not kept:
        return
    total = problem.workload.num_micro_batches
    shares = apportion(total, np.array([float(route.micro_batches) for route in kept]))
    routes = [route.replace(micro_batches=n) for route, n in zip(kept, shares.tolist(), strict=True)]
    changes = _compacted(plan, routes)
    idle = len(plan.ranks) - len(changes["ranks"]) - 1
    also = f", so {idle} more device{'s are' if idle > 1 else ' is'} idle" if idle else ""
    yield changes, f"the pipeline of {device} ends{also}; the others do its share"


def _compacted(plan: Plan, routes: Sequence[Route]) -> dict[str, Any]:
    """Stages, routes, ranks and codecs without the replicas that no route uses.

    A hop that is new has the codecs that its sender used at this boundary, if any.
    """
    used = [sorted({route.replicas[s] for route in routes}) for s in range(len(plan.stages))]
    stages = tuple(
        stage.replace(replicas=tuple(stage.replicas[r] for r in kept))
        for stage, kept in zip(plan.stages, used, strict=True)
    )
    place = [{r: i for i, r in enumerate(kept)} for kept in used]
    moved = tuple(route.replace(replicas=tuple(place[s][r] for s, r in enumerate(route.replicas))) for route in routes)
    left = {device for stage in stages for replica in stage.replicas for device in replica}
    return {
        "stages": stages,
        "routes": moved,
        "ranks": tuple(device for device in plan.ranks if device in left),
        "link_codecs": _codecs_on(plan, routes, left),
    }


def _codecs_on(plan: Plan, routes: Sequence[Route], left: set[str]) -> tuple[LinkCodec, ...]:
    rules: dict[tuple[str, str, str], LinkCodec] = {(k.from_device, k.to_device, k.role): k for k in plan.link_codecs}
    # What every boundary's messages had on any of its links: the first one stands for a link that is new.
    usual: dict[int, dict[str, Codec]] = {}
    for route in plan.routes:
        for s, (one, two) in enumerate(_path_hops(plan, route)):
            pair = ((one, two, "activation"), (two, one, "gradient"))
            here = {role: rules[a, b, role].codec for a, b, role in pair if (a, b, role) in rules}
            usual.setdefault(s, here)
    old = set(_hops(plan))
    for route in routes:
        for s, (one, two) in enumerate(_path_hops(plan, route)):
            if (one, two) not in old:
                for start, end, role in ((one, two, "activation"), (two, one, "gradient")):
                    if role in usual.get(s, {}):
                        rules.setdefault((start, end, role), _rule(start, end, role, usual[s][role]))
    return tuple(k for k in rules.values() if {k.from_device, k.to_device} <= left)


def _path_hops(plan: Plan, route: Route) -> Iterator[tuple[str, str]]:
    return pairwise(plan.stages[s].replicas[r][0] for s, r in enumerate(route.replicas))
