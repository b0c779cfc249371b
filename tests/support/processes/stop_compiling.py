"""Runs every planner until it begins to compile a kernel, and stops it there; prints what it gives as JSON.

To be started with an empty NUMBA_CACHE_DIR.
"""

import json
import sys
from pathlib import Path

from hetplanner import compiling
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.workload.presets import preset

SAMPLE = Path(__file__).parents[3] / "sample_clusters" / "continents_4_sites_8.json"


class Stop:
    """Is asked by a planner; says yes from the first kernel on that is compiled."""

    def __init__(self) -> None:
        self.compiled = False

    def __call__(self) -> bool:
        watch = compiling.current_watch()
        self.compiled = self.compiled or (watch is not None and watch.is_compiling)
        return self.compiled


def stopped(name: str, objective: str) -> dict:
    shape = Constraints(stages=4, replicas=2)
    task = Problem(cluster=load_cluster(SAMPLE), workload=preset("tiny-gpt"), objective=objective, constraints=shape)
    stop = Stop()
    result = make_planner(name).solve(task, budget="5000 evaluations", should_stop=stop)
    return {
        "name": name,
        "objective": objective,
        "compiled": stop.compiled,
        "cancelled": result.cancelled,
        "events": len(result.events),
        "plan": plan_to_data(result.plan),
    }


if __name__ == "__main__":
    json.dump([stopped(n, o) for n in planner_names() for o in planner_type(n).objectives], sys.stdout)
