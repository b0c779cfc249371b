"""The baseline that knows no network: devices by site in file order, equal layers, one pipeline after the other."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.check import explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.finish import try_plan
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.layout import value_of
from hetplanner.planners.shapes import feasible_shapes, fixed_shape, free_shapes
from hetplanner.planners.step_search import StepSpecies


class RankOrderPlanner(BasePlanner[PlannerSettings]):
    """Ranks as a launcher would number them: pipeline p takes the p-th run of S devices, site by site."""

    name: ClassVar[str] = "rank-order"
    is_baseline: ClassVar[bool] = True
    summary: ClassVar[str] = "baseline: devices by site in file order, equal layers, one pipeline after the other"

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`; nothing is searched beyond a free shape."""
        shapes = [fixed_shape(problem)] if problem.objective == "dtfm" else free_shapes(problem, model.tables)
        best: Plan | None = None
        for shape, recompute in feasible_shapes(model, shapes):
            plan = plan_in_order(model, shape, recompute)
            progress.evaluations += 1
            if plan is not None and (best is None or value_of(plan) < value_of(best)):
                best = plan
            if best is not None and progress.is_over():
                break
        if best is None:
            raise explain_infeasible(problem, model.tables, *shapes[-1])
        value = value_of(best)
        placement = tuple(tuple(r[0] for r in stage.replicas) for stage in best.stages)
        progress.report(value, value, 0.0, placement, "done")
        return best


def order_devices(problem: Problem, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Device index by stage and replica: usable devices by site in file order, S after S for each pipeline."""
    stages, replicas = shape
    cluster = problem.cluster
    rows = [cluster.device_index(d) for d in problem.usable_devices]
    rows.sort(key=lambda d: int(cluster.site_index_D[d]))
    return np.array(rows[: stages * replicas], dtype=np.int64).reshape(replicas, stages).T


def plan_in_order(model: CostModel, shape: tuple[int, int], recompute: bool) -> Plan | None:
    """The plan of :func:`order_devices` with equal layers and shares; only if these do not fit, with the best cut.

    Returns:
        None if no cut fits the devices in this order.
    """
    species = StepSpecies(model, shape, 0, "structured", recompute=recompute)
    placement = order_devices(model.tables.problem, shape)
    equal = try_plan(species.layout(species.unfitted(placement)), model)
    return equal or try_plan(species.layout(species.fitted(placement)), model)
