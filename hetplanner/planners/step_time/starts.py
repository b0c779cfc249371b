"""What the baselines would do, as layouts for the search to begin with: so that it is never behind them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.planners.baselines.opfence import deal_walk, fence_cut, walk_network
from hetplanner.planners.baselines.pipeline_per_site import PipelinePerSitePlanner
from hetplanner.planners.finish import order_devices
from hetplanner.planners.layout import proportional_cut
from hetplanner.planners.step_time.space import even_layers, even_shares
from hetplanner.planners.step_time.species import Start


class BaselineStarts:
    """Layouts of rank order (equal layers, equal compute), one pipeline per site and OP-Fence, for any shape.

    Args:
        model: the cost model of the problem.
    """

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._per_site = PipelinePerSitePlanner()
        self._cuts_of: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    @cached_property
    def walk_D(self) -> IntArray:
        """OP-Fence's walk through the network."""
        return walk_network(self._model.tables.problem, self._model)

    def of(self, shape: tuple[int, int]) -> list[Start]:
        """The baselines' layouts of a shape, without repeats."""
        problem, stages = self._model.tables.problem, shape[0]
        share = even_shares(problem.workload.num_micro_batches, shape[1])
        layers, compute = self._cuts(stages)
        in_order, per_site = order_devices(problem, shape), self._per_site.place(problem, shape)
        starts = [Start(in_order, layers, share), Start(in_order, compute, share), Start(per_site, layers, share)]
        starts += [Start(place, *fence_cut(place, self._model)) for place in deal_walk(self.walk_D, shape)]
        unlike = {(s.placement_SR.tobytes(), s.op_cut_S, s.share_R.tobytes()): s for s in starts}
        return list(unlike.values())

    def _cuts(self, stages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Equal layers and equal compute; many shapes share them."""
        if stages not in self._cuts_of:
            compute = proportional_cut(self._model, np.ones(stages))
            self._cuts_of[stages] = even_layers(self._model, stages), compute
        return self._cuts_of[stages]
