"""An elastic plan under another one's rules, as a rehearsal of it is."""

from hetplanner.cost.check import check_memory
from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.elastic.model import ElasticPlan

RULES = ("rebalancing", "times", "delayed_updates", "local_steps", "outer")
"""Of an elastic plan, what has nothing to do with its devices and sizes."""


def checked_swarm(plan: ElasticPlan) -> ElasticPlan:
    """The plan, with an estimate of its own. Raises Infeasible where a device of the start cannot hold its stage."""
    steady = steady_state_plan(plan)
    check_memory(steady)
    return plan.replace(estimate=estimate_plan(steady))


def under_rules_of(plan: ElasticPlan, like: ElasticPlan | None) -> ElasticPlan:
    """A plan under another one's rules: how peers are placed, when updates come, how long is waited.

    Raises:
        InvalidInput: the rules do not go with this plan's model.
    """
    if like is None:
        return plan
    return checked_swarm(plan.replace(**{name: getattr(like, name) for name in RULES}, estimate=None))
