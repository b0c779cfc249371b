"""The page's default search (stages and replicas auto) against the front of time and cost, and against a fixed shape.

    python tests/benchmarks/search/bench_default_search.py [--clusters 20] [--seconds 10]

On random clusters of unlike GPUs, every search with the same budget. Prints per cluster the step of each plan, and by
how much the default's is longer than the better of the two others; the page says so where it is more than 2 %.
"""

import argparse
import statistics

from bench_mixed import instance

from hetplanner.errors import HetplannerError
from hetplanner.plan.problem import Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.step_time.fronts import search_front
from hetplanner.ui.plan.models.front import WORTH_SAYING
from hetplanner.ui.settings.models.problem import default_shape


def fixed(problem: Problem) -> Problem:
    """The problem in the squarest shape of all devices, which the page filled in before."""
    workload = problem.workload
    shape = default_shape(len(problem.usable_devices), workload.most_stages, workload.num_micro_batches)
    return problem.replace(constraints=problem.constraints.replace(stages=shape[0], replicas=shape[1]))


def step_s(problem: Problem, budget: str) -> float | None:
    """Of the plan that the default planner finds; None if it finds none."""
    try:
        return make_planner("evolution").solve(problem, budget=budget).plan.estimate.step_s
    except HetplannerError:
        return None


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    budget = f"{args.seconds:g} s"
    make_planner("evolution").solve(instance(0), budget="0.1 s")
    search_front(instance(0), budget="0.1 s")
    print(f"{'':2} {'devices':>7} {'model':9} {'default s':>10} {'front s':>10} {'square s':>10} {'longer by':>9}")
    longer = []
    for number in range(args.clusters):
        problem = instance(number)
        default_s = step_s(problem, budget)
        front_s = min(plan.estimate.step_s for plan in search_front(problem, budget=budget).plans)
        square_s = step_s(fixed(problem), budget)
        others = [value for value in (front_s, square_s) if value is not None]
        longer.append(default_s / min(others) - 1)
        said = "  said" if longer[-1] > WORTH_SAYING else ""
        square = "none" if square_s is None else f"{square_s:.4g}"
        print(
            f"{number:2} {len(problem.usable_devices):7} {problem.workload.name:9} {default_s:10.4g} {front_s:10.4g}"
            f" {square:>10} {100 * longer[-1]:8.1f} %{said}",
            flush=True,
        )
    print(
        f"longer by: median {100 * statistics.median(longer):.1f} %, worst {100 * max(longer):.1f} %;"
        f" within 2 %: {sum(x <= WORTH_SAYING for x in longer)} of {len(longer)}"
    )


if __name__ == "__main__":
    main()
