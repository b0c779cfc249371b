"""Which reducer a plan uses: the allowed one that is best for the objective."""

from __future__ import annotations

from hetplanner.cost.check import fits_memory
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.planners.choices.codec import rough_objective

# Another reducer must be better by this share than the one a planner prefers where all cost the same.
WORTH_ANOTHER = 1e-6


def choose_reducer(plan: Plan, model: CostModel) -> Plan:
    """The plan with the allowed reducer of the least step time, or dollars; of equals the first of REDUCER_NAMES.

    One that takes more memory than there is, it leaves out: the hierarchical one, where codecs keep what they lose, and
    with ZeRO one whose members have unequal shards.
    The objective `dtfm` knows the sharded parameter server alone; it is kept where it is allowed.
    """
    allowed = [name for name in REDUCER_NAMES if name in plan.problem.constraints.reducers]
    if len(allowed) == 1 or plan.problem.objective == "dtfm" or not reduction_groups(plan):
        return plan.replace(reducer=allowed[0])
    trials = [plan.replace(reducer=name) for name in allowed]
    if plan.zero or any(stage.error_feedback for stage in plan.stages):
        trials = [trial for trial in trials if fits_memory(trial, model.tables)] or trials
    best, *others = trials
    least = rough_objective(best, model)
    for trial in others:
        if model.is_hurried(len(plan.ranks)):
            break
        value = rough_objective(trial, model)
        if value < least * (1 - WORTH_ANOTHER):
            best, least = trial, value
    return best
