"""The search for a plan by DT-FM's objective: one population of the one shape, and the plan that comes of it."""

from __future__ import annotations

import numpy as np

from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.planners.dtfm.factory import dtfm_species
from hetplanner.planners.finish import fit_plan, fitting_plan, usable_rows
from hetplanner.planners.interface import Progress
from hetplanner.planners.search.population import Evolution, EvolutionSettings, Extra
from hetplanner.planners.shapes import fixed_shape
from hetplanner.planners.step_time.warm_start import WarmStart

# Moves of a chain times devices, at most: so chains last a fraction of a second on thousands of devices too.
LONGEST_CHAIN = 2**24
# Candidates kept unless set: with few, a second is enough to anneal each often.
DTFM_POPULATION = 6


class DtfmSearch:
    """See :class:`hetplanner.planners.step_time.plan.StepSearch`.

    Raises:
        InvalidInput: if the problem's shape contradicts its cluster or model, or the plan to begin with.
    """

    judging_share = 0.0

    def __init__(self, model: CostModel, settings: EvolutionSettings, seed: int, progress: Progress) -> None:
        self._model, self._progress = model, progress
        problem = model.tables.problem
        self.largest_shape = fixed_shape(problem)
        self._species = dtfm_species(problem, self.largest_shape, seed, settings.starts)
        settings = dtfm_settings(settings, len(problem.usable_devices))
        self.evolutions = [Evolution(self._species, settings, progress, np.random.default_rng([seed, 0]))]
        if progress.start is not None:
            self._begin(WarmStart(progress.start, model))

    def bound(self) -> float:
        """Below every candidate's value."""
        return self._species.lower_bound()

    @property
    def extra(self) -> Extra | None:
        """Nothing goes on beside the one population."""
        return None

    def prove(self) -> None:
        """Proves nothing."""

    def plan(self) -> Plan | None:
        """The plan of the best candidate that can be."""
        rows = usable_rows(self._model.tables.problem)
        refusals = []
        for candidate in sorted(self.evolutions[0].population, key=lambda c: c.value):
            try:
                return fit_plan(rows[self._species.placement_SR(candidate)], self._model)
            except Infeasible as refusal:
                refusals.append(refusal)
        # The published objective knows neither memory nor tied weights: better a placement that can be than none.
        plan = fitting_plan(*self.largest_shape, self._model)
        if plan is None:
            raise refusals[0]
        return plan

    def _begin(self, start: WarmStart) -> None:
        if start.shape != self.largest_shape:
            stages, replicas = self.largest_shape
            raise InvalidInput(
                f"start: objective dtfm needs a plan of {stages} stages x {replicas} replicas; give the start's own"
                " stages and replicas, or no start"
            )
        numbers = np.searchsorted(usable_rows(self._model.tables.problem), np.array(start.members))
        self.evolutions[0].adopt([self._species.given(numbers)])


def dtfm_settings(settings: EvolutionSettings, num_devices: int) -> EvolutionSettings:
    """The settings as the search for objective dtfm on so many devices takes them."""
    chain = max(100, min(settings.chain, LONGEST_CHAIN // num_devices))
    population = settings.population if "population" in settings.model_fields_set else DTFM_POPULATION
    return settings.model_copy(update={"chain": chain, "population": population})
