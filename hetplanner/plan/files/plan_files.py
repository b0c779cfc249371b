"""Plan files: `hetplanner/plan@1` (static), `@2` (elastic), `@3` (static with groups of devices), `@4` (with ZeRO over
replicas), `@5` (with ZeRO inside groups).

They are JSON, validated, and never name code.

A file has the oldest format that can hold it, so that older versions go on reading static plans.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan, refusal
from hetplanner.plan.model import Plan
from hetplanner.plan.reach import find_elastic_gap, find_gap
from hetplanner.reading import reader
from hetplanner.schema import check_format, checked, parse_json, read_text, write_text

PLAN_VERSION = 5
STATIC_VERSION = 1
ELASTIC_VERSION = 2
GROUPS_VERSION = 3
ZERO_VERSION = 4

AnyPlan = Plan | ElasticPlan


@reader("plan file", at="place")
def any_plan_from_data(data: object, place: str = "plan") -> AnyPlan:
    """A plan of either mode from a plan file's content. Raises InvalidInput naming the field inside `place`."""
    fields = check_format(data, "plan", PLAN_VERSION, place)
    plan: AnyPlan
    if fields.get("mode") == "elastic":
        plan = checked(ElasticPlan, fields, place, from_file=True)
        gap = find_elastic_gap(plan)
    else:
        plan = checked(Plan, fields, place, from_file=True)
        gap = find_gap(plan)
    if gap is not None:
        raise InvalidInput(f"{place}: {gap}; change the placement or add the link to the cluster")
    return plan


def static_plan_from_data(data: object, place: str = "plan") -> Plan:
    """A static plan from a plan file's content. Raises InvalidInput naming the field inside `place`."""
    if isinstance(data, Mapping) and data.get("mode") == "elastic":
        raise InvalidInput(refusal(place))
    plan = any_plan_from_data(data, place)
    assert isinstance(plan, Plan)
    return plan


@reader("plan file", at="place")
def plan_from_json(text: str | bytes, place: str = "plan") -> Plan:
    """A static plan from the text of a plan file. Raises InvalidInput naming the field inside `place`."""
    return static_plan_from_data(parse_json(text, place), place)


@reader("plan file", at="place")
def any_plan_from_json(text: str | bytes, place: str = "plan") -> AnyPlan:
    """A plan of either mode from the text of a plan file. Raises InvalidInput naming the field inside `place`."""
    return any_plan_from_data(parse_json(text, place), place)


@reader("plan file", at="path")
def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A static plan from a file. Raises InvalidInput, also for an elastic plan."""
    return plan_from_json(read_text(path), Path(path).name)


@reader("plan file", at="path")
def load_any_plan(path: str | os.PathLike[str]) -> AnyPlan:
    """A plan of either mode from a file. Raises InvalidInput."""
    return any_plan_from_json(read_text(path), Path(path).name)


@reader("plan file", at="path")
def load_elastic_plan(path: str | os.PathLike[str]) -> ElasticPlan:
    """An elastic plan from a file. Raises InvalidInput, also for a static plan."""
    plan = load_any_plan(path)
    if isinstance(plan, ElasticPlan):
        return plan
    raise InvalidInput(
        f"{Path(path).name}: mode: must be 'elastic' here, got 'static'; make an elastic plan with"
        " 'hetplanner plan --mode elastic'"
    )


def rank_labels(plan: AnyPlan) -> tuple[str, ...]:
    """Who writes the telemetry of a run, by rank: devices, or the coordinator that speaks for a swarm."""
    return ("coordinator",) if isinstance(plan, ElasticPlan) else plan.ranks


def process_labels(plan: AnyPlan) -> tuple[str, ...]:
    """The processes of a run that are looked after: a device each, or the coordinator that speaks for a swarm."""
    return ("coordinator",) if isinstance(plan, ElasticPlan) else plan.processes


def plan_to_data(plan: AnyPlan) -> dict[str, Any]:
    """The plan file's content as plain data."""
    version = ELASTIC_VERSION if isinstance(plan, ElasticPlan) else STATIC_VERSION
    if plan.problem.groups is not None or plan.problem.constraints.tensor != (1,):
        version = GROUPS_VERSION
    if plan.problem.constraints.zero:
        version = ZERO_VERSION
    shards_samples = any(group.sharding != "tensor" for group in plan.problem.groups or ())
    if shards_samples or plan.problem.constraints.sharding != ("tensor",):
        version = PLAN_VERSION
    return {"format": f"hetplanner/plan@{version}"} | plan.model_dump(mode="json", by_alias=True, exclude_none=True)


def save_plan(plan: AnyPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan file. Raises InvalidInput if the path cannot be written."""
    write_text(path, json.dumps(plan_to_data(plan), indent=1) + "\n")
