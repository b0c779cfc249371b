"""Plan files: `hetplanner/plan@1`, JSON, validated, never naming code."""

import json
import os
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.reach import find_gap
from hetplanner.schema import check_format, checked, parse_json, read_text, write_text

PLAN_VERSION = 1


def plan_from_json(text: str | bytes, place: str = "plan") -> Plan:
    """A plan from the text of a plan file. Raises InvalidInput naming the field inside `place`."""
    data = check_format(parse_json(text, place), "plan", PLAN_VERSION, place)
    plan = checked(Plan, data, place, from_file=True)
    gap = find_gap(plan)
    if gap is not None:
        raise InvalidInput(f"{place}: {gap}; change the placement or add the link to the cluster")
    return plan


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a file. Raises InvalidInput."""
    return plan_from_json(read_text(path), Path(path).name)


def plan_to_data(plan: Plan) -> dict[str, Any]:
    """The plan file's content as plain data."""
    return {"format": f"hetplanner/plan@{PLAN_VERSION}"} | plan.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan file. Raises InvalidInput if the path cannot be written."""
    write_text(path, json.dumps(plan_to_data(plan), indent=1) + "\n")
