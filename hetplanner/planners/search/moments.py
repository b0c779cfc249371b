"""The improvements of a search, kept for its replay: who served what, and what a step took.

Of more than `MOST_MOMENTS` the older half is thinned, so that at least half as many are always kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hetplanner.cost.closed_form import time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, split_terms, step_arrays
from hetplanner.plan.model import Plan, Provenance
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import SearchEvent, SearchResult
from hetplanner.planners.layout import deepest_layout, dense_plan, proportional_cut
from hetplanner.planners.step_time.space import even_shares

MOST_MOMENTS = 500
TERMS_SHARE = 0.05
"""Of the search's time, at most so much goes into the terms of its moments."""


@dataclass(frozen=True)
class Moment:
    """A search at one of its improvements.

    Attributes:
        searched_s: seconds of search so far.
        evaluations: placements scored so far.
        value: of the best plan, in the objective's unit.
        stages: device indices of the cluster by stage, then replica.
        terms: seconds of a step by term, of the plan as the search had it; empty where they were not computed.
        phase: what the search did.
    """

    searched_s: float
    evaluations: int
    value: float
    stages: tuple[tuple[int, ...], ...]
    terms: dict[str, float]
    phase: str = ""

    def to_data(self) -> dict[str, Any]:
        """As the data of JSON."""
        return asdict(self)

    @staticmethod
    def from_data(data: dict[str, Any]) -> Moment:
        """Of what :meth:`to_data` gave."""
        return Moment(**data | {"stages": tuple(tuple(row) for row in data["stages"])})


class MomentLog:
    """Makes moments of a search's events and keeps them.

    Args:
        problem: what is searched for.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._cluster = problem, problem.cluster
        self.moments: list[Moment] = []
        self._due_s = 0.0

    @cached_property
    def _model(self) -> CostModel:
        """Made behind the first event: before it the planner says what is wrong with the problem."""
        return CostModel.of(self._problem)

    def take(self, event: SearchEvent) -> Moment | None:
        """The moment of an event that brought something better; None of any other."""
        if not event.placement or (self.moments and event.best >= self.moments[-1].value):
            return None
        stages = tuple(tuple(self._cluster.device_index(d) for d in row) for row in event.placement)
        moment = Moment(
            event.searched_s, event.evaluations, event.best, stages, self._terms(event, stages), event.phase
        )
        keep(self.moments, moment)
        return moment

    def kept_in(self, result: SearchResult) -> SearchResult:
        """The result of the search with its moments, the last of them the finished plan."""
        keep(self.moments, plan_moment(result.plan, result.value, result.searched_s, result.evaluations))
        return replace(result, moments=tuple(self.moments))

    def _terms(self, event: SearchEvent, stages: Sequence[Sequence[int]]) -> dict[str, float]:
        start_s = time.monotonic()
        if start_s < self._due_s:
            return {}
        plan = event.draft() if event.draft is not None else self._plain(stages)
        has_groups = plan is not None and bool(plan.problem.groups)
        terms = {} if plan is None else terms_of(plan, CostModel.of(plan.problem) if has_groups else self._model)
        end_s = time.monotonic()
        self._due_s = end_s + (end_s - start_s) / TERMS_SHARE
        return terms

    def _plain(self, stages: Sequence[Sequence[int]]) -> Plan | None:
        """The plan of a placement with equal stages and shares; None if replicas are unequal, or groups not known."""
        if len({len(row) for row in stages}) != 1 or self._problem.is_grouping_open:
            return None
        problem = self._model.tables.problem
        share = even_shares(problem.workload.num_micro_batches, len(stages[0]))
        cut = proportional_cut(self._model, np.ones(len(stages)))
        layout = deepest_layout(np.array(stages), cut, share, problem.workload.recompute, self._model)
        return dense_plan(layout, problem, Provenance())


def terms_of(plan: Plan, model: CostModel) -> dict[str, float]:
    """Seconds of a plan's step by term; of a finished plan those of its estimate."""
    if plan.estimate is not None:
        return dict(plan.estimate.terms)
    arrays = step_arrays(plan, durations_of(plan, model.tables), model)
    return dict(split_terms(arrays, time_step(arrays)))


def keep(moments: list[Moment], moment: Moment) -> None:
    """Adds a moment, in place; thins the older half when there are more than `MOST_MOMENTS`."""
    moments.append(moment)
    if len(moments) > MOST_MOMENTS:
        half = len(moments) // 2
        moments[:half] = moments[:half:2]


def plan_moment(plan: Plan, value: float, searched_s: float, evaluations: int) -> Moment:
    """The moment of a finished plan, behind the search."""
    index = plan.problem.cluster.device_index
    stages = tuple(tuple(index(replica[0]) for replica in stage.replicas) for stage in plan.stages)
    terms = {} if plan.estimate is None else dict(plan.estimate.terms)
    return Moment(searched_s, evaluations, value, stages, terms, "chosen")
