"""Plans without the problem that they are of: what travels, or is kept, beside a problem that is there already."""

from collections.abc import Mapping
from typing import Any, TypeVar

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.schema import checked

PlanT = TypeVar("PlanT", Plan, ElasticPlan)


def plan_body(plan: AnyPlan) -> dict[str, Any]:
    """A plan as plain data, without its problem but for the groups that a search has chosen."""
    data: dict[str, Any] = plan.model_dump(mode="json", by_alias=True, exclude={"problem"}, exclude_none=True)
    if plan.problem.groups is not None:
        data["groups"] = [group.model_dump(mode="json") for group in plan.problem.groups]
    return data


def plan_of_body(problem: Problem, body: Mapping[str, Any], place: str, kind: type[PlanT]) -> PlanT:
    """The plan of a body. Raises InvalidInput."""
    fields = dict(body)
    groups = fields.pop("groups", None)
    if groups is not None:
        known = {name: getattr(problem, name) for name in Problem.model_fields}
        problem = checked(Problem, known | {"groups": groups}, place)
    return checked(kind, fields | {"problem": problem}, place)
