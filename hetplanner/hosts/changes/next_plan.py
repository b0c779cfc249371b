"""The plan that a run over hosts goes on under when hosts leave or return, from its head for the agent.

RUN/next-plan.json   the plan
RUN/next.json        which attempt ended for it, and the hosts that it does without; written last
"""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.atomic_files import write_whole
from hetplanner.launchers.hosts_file import MAX_HOSTS
from hetplanner.plan.files.plan_files import load_any_plan, load_plan, save_plan
from hetplanner.plan.files.resumable import PLAN_FILE
from hetplanner.plan.model import Plan
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text

NEXT_FILE, NEXT_PLAN_FILE = "next.json", "next-plan.json"
NEXT_VERSION = 1
MAX_NEXT_BYTES = 2**20
SEARCH_S = 5.0


class NextPlan(Noun):
    """What comes after a run.

    Attributes:
        attempt: of the run, that ended for it.
        away: hosts of the first run that the plan does without.
    """

    attempt: Annotated[int, Field(strict=True, ge=0)]
    away: Annotated[tuple[Name, ...], Field(max_length=MAX_HOSTS)] = ()


def make_next_plan(first: Path, saved: Path | None, away: tuple[str, ...], seed: int) -> Plan:
    """The plan for the hosts that are left of a run's first ones.

    Args:
        first: directory of the run with all hosts.
        saved: of the run whose checkpoint is gone on from; None: training begins anew.
        away: hosts that are not there; none: the first plan itself.
        seed: of the search.

    Raises:
        InvalidInput, Infeasible: see `planners.without_hosts`.
    """
    whole = load_plan(first / PLAN_FILE)
    if not away:
        return whole
    from hetplanner.planners.interface import Budget  # NumPy and kernels: for few runs
    from hetplanner.planners.registry import make_planner
    from hetplanner.planners.variants.without_hosts import plan_without_hosts

    planner, budget = make_planner("evolution"), Budget(seconds=SEARCH_S)
    found = load_any_plan(saved / PLAN_FILE) if saved is not None else None
    earlier = found if isinstance(found, Plan) else None  # a swarm's placement is no start for the search
    return plan_without_hosts(
        whole, away, earlier, lambda problem, start: planner.solve(problem, seed=seed, budget=budget, start=start).plan
    )


def save_next(run_dir: Path, found: NextPlan, plan: Plan) -> None:
    """Writes both files. Raises OSError, InvalidInput."""
    save_plan(plan, run_dir / NEXT_PLAN_FILE)
    data = {"format": f"hetplanner/next@{NEXT_VERSION}"} | found.model_dump(mode="json")
    write_whole(run_dir / NEXT_FILE, json.dumps(data) + "\n", mode=0o600)


@reader("next plan", at="run_dir")
def load_next(run_dir: Path) -> NextPlan | None:
    """What comes after a run; None: nothing. Raises InvalidInput."""
    path = run_dir / NEXT_FILE
    if not path.exists():
        return None
    place = f"{run_dir.name}/{NEXT_FILE}"
    return checked_json(NextPlan, read_text(path, MAX_NEXT_BYTES), "next", NEXT_VERSION, place)
