"""The baseline of homogeneous clusters: one tensor degree everywhere, then data parallel, then pipeline.

Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3: tensor parallelism inside a host, pipelines across hosts.
"""

from __future__ import annotations

from typing import ClassVar

from hetplanner.arrays import IntArray
from hetplanner.plan.problem import Problem
from hetplanner.planners.baselines.rank_order import RankOrderPlanner
from hetplanner.planners.finish import order_devices


class MegatronPlanner(RankOrderPlanner):
    """Ranks in Megatron's order: replicas of a stage are neighbours; the best of all degrees and shapes."""

    name: ClassVar[str] = "megatron"
    is_baseline: ClassVar[bool] = True
    summary: ClassVar[str] = "baseline: one tensor degree, equal layers, a stage's replicas side by side"
    groups_alike: ClassVar[bool] = True

    def place(self, problem: Problem, shape: tuple[int, int]) -> IntArray:
        """Device index by stage and replica: R after R for each stage."""
        stages, replicas = shape
        return order_devices(problem, (stages * replicas, 1)).reshape(stages, replicas)
