"""A run's plan with the order of actions that suits its ranks as they measured themselves."""

from dataclasses import dataclass

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.planners.variants.orders import reorder
from hetplanner.reading import reader
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reports.comparison import basis_of_prediction, simulated_steps
from hetplanner.simulator.simulation import summarise_plan


@dataclass(frozen=True)
class Reordered:
    """The run's plan in another order, and the simulated step in the old and in the new one; seconds."""

    plan: Plan
    before_s: float
    after_s: float


@reader("run folder", at="run.directory.path")
def reorder_run(run: RunReader) -> Reordered:
    """Orders the actions of a run's plan anew, for the seconds and links that its ranks measured before the first step.

    Raises:
        InvalidInput: the run is a swarm, or has no profile.
    """
    if isinstance(run.any_plan, ElasticPlan):
        raise InvalidInput(f"run {run.directory.path.name}: is a swarm; only a static plan has an order of actions")
    try:
        basis = basis_of_prediction(run)
        if basis is None:
            raise InvalidInput(f"run {run.directory.path.name}: its ranks have not measured themselves yet; start it")
        steps = simulated_steps(basis.plan)
        found = reorder(basis.plan, basis.durations, steps=steps, fair_links=basis.fair_links)
        seconds = [
            summarise_plan(plan, basis.durations, steps=steps, fair_links=basis.fair_links).step_s
            for plan in (basis.plan, found)
        ]
    except InvalidInput:
        raise
    except (IndexError, ValueError):  # damaged: lists of other lengths than the plan has ranks
        raise InvalidInput(f"run {run.directory.path.name}: prediction.json: is not of this plan") from None
    return Reordered(run.plan.replace(order_scale=found.order_scale), *seconds)
