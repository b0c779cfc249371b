"""What a problem's profile says of its devices, spread over the operators of each layer.

A layer's measured seconds are divided among its operators in proportion to what the roofline says of each, so stages
that end inside a layer have a time too. Every other quantity stays the model's own.

Legend of array suffixes: D devices, L layers of the profile in order, o ops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetplanner.cluster.catalog import plain_kind
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.plan.problem import Problem
from hetplanner.profiles.curves import cost_at
from hetplanner.profiles.model import LayerCost

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ProfiledKinds:
    """The rows of a problem's profile at its micro-batch, for one device a layer; empty without a profile."""

    problem: Problem

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the cluster's devices that the profile has seconds of, by their names in the catalog."""
        return tuple(self._costs)

    @cached_property
    def _costs(self) -> dict[str, dict[str, LayerCost]]:
        """By kind and layer."""
        profile = self.problem.profile
        if profile is None:
            return {}
        present = {plain_kind(device.kind) for device in self.problem.cluster.devices}
        found: dict[str, dict[str, LayerCost]] = {}
        for kind in profile.kinds:
            if plain_kind(kind) in present and profile.micro_batches(kind):
                by_layer: dict[str, list[LayerCost]] = {}
                for row in profile.rows:
                    if row.kind == kind and row.degree == 1:
                        by_layer.setdefault(row.layer, []).append(row)
                micro_batch = self.problem.workload.micro_batch
                found[plain_kind(kind)] = {name: cost_at(rows, micro_batch) for name, rows in by_layer.items()}
        return found

    def of_layers(self, kind: str, field: str) -> FloatArray:
        """A field of the rows of a kind, by layer."""
        assert self.problem.profile is not None
        costs = self._costs[kind]
        return np.array([getattr(costs[name], field) or 0.0 for name in self.problem.profile.layer_names])

    @cached_property
    def starts_L(self) -> IntArray:
        """The first operator of every layer."""
        assert self.problem.profile is not None
        return np.concatenate(([0], np.cumsum(self.problem.profile.layer_ops)[:-1])).astype(np.int64)

    def spread(self, total_L: FloatArray, share_o: FloatArray) -> FloatArray:
        """A number of each layer divided among its operators, as `share_o` is; evenly where that is 0."""
        assert self.problem.profile is not None
        size_L = np.array(self.problem.profile.layer_ops, dtype=np.int64)
        sum_L = np.add.reduceat(share_o, self.starts_L)
        factor_o = np.repeat(np.divide(total_L, sum_L, out=np.zeros_like(total_L), where=sum_L > 0), size_L)
        even_o = np.repeat(np.where(sum_L > 0, 0.0, total_L / size_L), size_L)
        return np.asarray(share_o * factor_o + even_o)

    @cached_property
    def kept_L(self) -> FloatArray | None:
        """Bytes that a micro-batch keeps of each layer, the most over the kinds; None where one was not measured."""
        rows = [cost.kept for costs in self._costs.values() for cost in costs.values()]
        if not rows or any(kept is None for kept in rows):
            return None
        return np.max([self.of_layers(kind, "kept") for kind in self.kinds], axis=0)

    def devices(self, table: DeviceTable, flops: float) -> DeviceTable:
        """Devices with the mean rate and the optimizer's speed that the profile says.

        Args:
            table: by the catalog.
            flops: of one micro-batch through the model and back.
        """
        rate_D, update_D = table.rate_flops_per_s_D.copy(), table.update_s_per_weight_D.copy()
        workload = self.problem.workload
        profile = self.problem.profile
        for kind in self.kinds:
            assert profile is not None
            rows = np.array([name == kind for name in table.kind_D])
            rate_D[rows] = flops / float((self.of_layers(kind, "forward") + self.of_layers(kind, "backward")).sum())
            has_update = all(cost.update is not None for cost in self._costs[kind].values())
            # Every layer that uses a tied weight was measured with it.
            trained = sum(op.trained for op in workload.graph.ops)
            if has_update and profile.optimizer == workload.optimizer and trained:
                update_D[rows] = float(self.of_layers(kind, "update").sum()) / trained
        return replace(table, rate_flops_per_s_D=rate_D, update_s_per_weight_D=update_D)
