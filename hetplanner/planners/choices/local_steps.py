"""How many steps replicas take by themselves between two reductions: more than one only where reductions bind."""

from __future__ import annotations

from hetplanner.cost.check import fits_memory
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import OuterOptimizer, Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.choices.codec import rough_objective
from hetplanner.planners.choices.reducer import choose_reducer

# Local steps change the algorithm: they must be worth this share of the step.
WORTH_LOCAL_STEPS = 0.05
# Fewer of them may cost this share of the best.
NEARLY_BEST = 0.02


def choose_local_steps(plan: Plan, model: CostModel) -> Plan:
    """The plan with the fewest local steps that are nearly best for the objective, of those the constraints allow.

    They come with the outer optimizer of DiLoCo, and its memory has to be there. Replicas must be whole pipelines:
    where routes share one, weights that parted would meet in it.

    Source: Douillard et al. 2023, arXiv 2311.08105 (up to 500 steps at little loss of quality, which is not modelled).
    """
    most = plan.problem.constraints.max_local_steps
    if most == 1 or plan.problem.objective == "dtfm" or not _has_whole_pipelines(plan):
        return plan
    if model.is_hurried(len(plan.ranks)) or all(group.tied for group in reduction_groups(plan)):
        return plan
    now = rough_objective(plan, model)
    # Another reducer may be best where few of them are left.
    trials = [choose_reducer(_with_local_steps(plan, steps), model) for steps in _options(most)]
    valued = [(rough_objective(trial, model), trial) for trial in trials if fits_memory(trial, model.tables)]
    best = min((value for value, _ in valued), default=now)
    if best > now * (1 - WORTH_LOCAL_STEPS):
        return plan
    return next(trial for value, trial in valued if value <= best * (1 + NEARLY_BEST))


def _options(most: int) -> list[int]:
    """Powers of two up to the most, and the most."""
    return sorted({*(2**k for k in range(1, most.bit_length()) if 2**k <= most), most})


def _with_local_steps(plan: Plan, steps: int) -> Plan:
    smallest = min(group.num_elements for group in reduction_groups(plan) if not group.tied)
    fragments = min(plan.problem.constraints.fragments, steps, smallest)
    return plan.replace(local_steps=steps, outer=OuterOptimizer(), fragments=fragments)


def _has_whole_pipelines(plan: Plan) -> bool:
    places = [place for route in plan.routes for place in enumerate(route.replicas)]
    return len(plan.routes) > 1 and len(set(places)) == len(places)
