"""The baseline that knows no network: devices by site in file order, equal layers, one pipeline after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from hetplanner.arrays import IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.finish import best_of_shapes, equal_plan, fitted_plan, order_devices
from hetplanner.planners.interface import PlannerSettings, Progress
from hetplanner.planners.pins import pin_placement
from hetplanner.planners.step_time.space import StepSpaces


class RankOrderSettings(PlannerSettings):
    """Settings of the baselines that search nothing."""

    cut: Literal["layers", "compute"] = Field(
        "layers", description="every stage gets as many layers, or as many FLOPs, as any other"
    )


class RankOrderPlanner(BasePlanner[RankOrderSettings]):
    """Ranks as a launcher would number them: pipeline p takes the p-th run of S devices, site by site."""

    name: ClassVar[str] = "rank-order"
    is_baseline: ClassVar[bool] = True
    summary: ClassVar[str] = "baseline: devices by site in file order, equal layers, one pipeline after the other"
    settings_type: ClassVar[type[RankOrderSettings]] = RankOrderSettings
    honours_pins: ClassVar[bool] = True

    def search(self, problem: Problem, model: CostModel, seed: int, progress: Progress) -> Plan:
        """See :meth:`hetplanner.planners.base.BasePlanner.search`; nothing is searched beyond a free shape."""
        spaces = StepSpaces(model)

        def plans_of(shape: tuple[int, int], recompute: bool) -> Iterator[Plan | None]:
            place = pin_placement(self.place(problem, shape), problem)
            yield plan_placement(place, model, spaces, recompute, self.settings.cut)

        return best_of_shapes(problem, model, progress, plans_of)

    def place(self, problem: Problem, shape: tuple[int, int]) -> IntArray:
        """Device index by stage and replica."""
        return order_devices(problem, shape)


def plan_placement(
    placement_SR: IntArray, model: CostModel, spaces: StepSpaces, recompute: bool, cut: str
) -> Plan | None:
    """The plan of a placement with equal stages and shares; only if these do not fit, with the best cut.

    Args:
        placement_SR: device index of the cluster by stage and pipeline.
        model: the cost model of the problem.
        spaces: its search spaces.
        recompute: whether stages keep only their inputs.
        cut: what is equal: 'layers' or 'compute'.

    Returns:
        None if no cut fits the devices in this placement.
    """
    equal = equal_plan(placement_SR, model, recompute, cut)
    return fitted_plan(placement_SR, model, spaces, recompute) if equal is None else equal
