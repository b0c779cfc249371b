"""The estimate of an elastic plan, and the plan under another one's rules, as a rehearsal of it is."""

from collections import Counter
from collections.abc import Sequence

from hetplanner.cost.check import check_memory
from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.units import short_bytes
from hetplanner.workload.model import Op

RULES = ("rebalancing", "times", "delayed_updates", "local_steps", "outer")
"""Of an elastic plan, what has nothing to do with its devices and sizes."""


def estimate_swarm(plan: ElasticPlan, steady: Plan, model: CostModel | None = None) -> Estimate:
    """The estimate of an elastic plan's steady-state step, with notes on what only a swarm does.

    Args:
        plan: the elastic plan.
        steady: its steady-state step.
        model: cost model of its problem, if already at hand.
    """
    estimate = estimate_plan(steady, model=model)
    late = "quality not modelled: delayed updates; the steps that this may cost are not in the estimate"
    notes = (*estimate.notes, *([late] if plan.delayed_updates else []), _kept_text(plan, steady))
    return estimate.replace(notes=notes)


def _kept_text(plan: ElasticPlan, steady: Plan) -> str:
    """Host memory of the peer that needs most: it keeps the gradient of each micro-batch until the commit."""
    counts: Counter[tuple[int, int]] = Counter()  # micro-batches by stage and replica
    for route in steady.routes:
        counts.update(dict.fromkeys(enumerate(route.replicas), route.micro_batches))
    sizes = [GRADIENT_ELEMENT_BYTES * _trained(plan.ops_of(s)) for s in range(len(plan.stages))]
    stage, replica = max(counts, key=lambda place: sizes[place[0]] * counts[place])
    name = steady.problem.worker_name(steady.stages[stage].replicas[replica][0])
    size = short_bytes(sizes[stage] * counts[stage, replica])
    where = f"of host memory on {name} (stage {stage})"
    return f"gradients of a step take {size} {where} until the commit, and more if peers leave"


def _trained(ops: Sequence[Op]) -> int:
    """Trained weights of a stage; those that two of its ops share count once."""
    names = {op.name for op in ops}
    return sum(op.trained for op in ops if op.tied not in names)


def checked_swarm(plan: ElasticPlan) -> ElasticPlan:
    """The plan, with an estimate of its own. Raises Infeasible where a device of the start cannot hold its stage."""
    steady = steady_state_plan(plan)
    check_memory(steady)
    return plan.replace(estimate=estimate_swarm(plan, steady))


def under_rules_of(plan: ElasticPlan, like: ElasticPlan | None) -> ElasticPlan:
    """A plan under another one's rules: how peers are placed, when updates come, how long is waited.

    Raises:
        InvalidInput: the rules do not go with this plan's model.
    """
    if like is None:
        return plan
    return checked_swarm(plan.replace(**{name: getattr(like, name) for name in RULES}, estimate=None))
