"""The finalists of a search, completed into plans; the event simulator says which one is emitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetplanner.cost.dollars import usd_per_step
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.planners.interface import Progress
from hetplanner.planners.layout import value_of
from hetplanner.simulator.timing import simulate_step_s

# Forwards and backwards that all finalists together may have, so that judging stays a fraction of a second.
MOST_ACTIONS = 2_000_000
# A stage's replicas talk to each other in pairs, and a transfer takes the simulator about as long as so many of these.
TRANSFER_ACTIONS = 100
# Finalists closer than this (relative) to the best count as no worse.
SAME_STEP = 1e-9


def best_plan(
    plans: Iterable[Plan], rivals: Sequence[Plan], model: CostModel, progress: Progress, *, simulated: bool
) -> Plan | None:
    """The plan to emit.

    The best by simulation among the plans that the closed form puts no behind any rival, so that a search is behind
    none of what it began with by either measure. Without time for it, for thousands of devices, or after a cancel, the
    closed form decides.

    Args:
        plans: completed plans, the most promising first.
        rivals: completed plans that must not be better.
        model: the cost model of their problem.
        progress: judging ends with its budget of time.
        simulated: whether to ask the simulator.

    Returns:
        None if there are no plans.
    """
    everything = sorted([*plans, *rivals], key=value_of)
    if not everything:
        return None
    ceiling = min((value_of(rival) for rival in rivals), default=float("inf"))
    fit = [plan for plan in everything if value_of(plan) <= ceiling * (1 + SAME_STEP)]
    if not simulated or progress.cancelled or not can_simulate([len(stage.replicas) for stage in fit[0].stages]):
        return fit[0]
    judged: list[tuple[float, Plan]] = []
    actions = 0
    for plan in fit:
        actions += _work_of(plan)
        if actions > MOST_ACTIONS or (judged and progress.is_late()):
            break
        step_s = simulate_step_s(plan, model)
        plan = plan.replace(provenance=plan.provenance.replace(simulated_step_s=step_s))
        judged.append((_simulated_value(plan, step_s, model), plan))
    return min(judged, key=lambda pair: pair[0])[1] if judged else fit[0]


def _work_of(plan: Plan) -> int:
    """Forwards and backwards of a step, and what its reductions take beside one of these."""
    pairs = sum(len(stage.replicas) ** 2 for stage in plan.stages)
    return 2 * len(plan.stages) * plan.problem.workload.num_micro_batches + TRANSFER_ACTIONS * pairs


def can_simulate(replicas_S: Iterable[int]) -> bool:
    """Whether a plan of so many replicas per stage is simulated in a fraction of a second."""
    return sum(replicas**2 for replicas in replicas_S) * TRANSFER_ACTIONS <= MOST_ACTIONS


def _simulated_value(plan: Plan, step_s: float, model: CostModel) -> float:
    """The objective's value with the simulated seconds."""
    if plan.problem.objective != "cost":
        return step_s
    usd = usd_per_step(plan, step_s, model.tables, model.links)
    return step_s if usd is None else usd
