"""What a problem's profile says of its devices, spread over the operators of each layer.

A layer's measured seconds are divided among its operators in proportion to what the roofline says of each, so stages
that end inside a layer have a time too. Every other quantity stays the model's own.

Legend of array suffixes: D devices, L layers of the profile in order, o ops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.catalog import plain_kind
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.plan.problem import Problem
from hetplanner.profiles.curves import cost_at
from hetplanner.profiles.model import LayerCost
from hetplanner.workload.tensor_degrees import SHARDINGS, Sharding


class PlainCell(NamedTuple):
    """Equal devices, or equal groups of so many: kind in the catalog, degree, and what a group divides."""

    kind: str
    degree: int = 1
    sharding: Sharding = "tensor"


Way = Literal["forward", "backward"]


@dataclass(frozen=True)
class ProfiledKinds:
    """The rows of a problem's profile at its micro-batch, for one device a layer; empty without a profile."""

    problem: Problem

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the cluster's devices that the profile has seconds of, by their names in the catalog."""
        return tuple(dict.fromkeys(kind for kind, *_ in self.cells))

    @cached_property
    def cells(self) -> dict[PlainCell, dict[str, LayerCost]]:
        """Costs at the problem's micro-batch by cell and layer; of kinds in the cluster.

        A member of a group that divides samples computes some of them as a single device.
        """
        profile = self.problem.profile
        if profile is None:
            return {}
        present = {plain_kind(device.kind) for device in self.problem.cluster.devices}
        rows: dict[tuple[str, int], dict[str, list[LayerCost]]] = {}
        for row in profile.rows:
            kind = plain_kind(row.kind)
            if kind in present:
                rows.setdefault((kind, row.degree), {}).setdefault(row.layer, []).append(row)
        size = self.problem.workload.micro_batch
        sizes = {PlainCell(*cell): (size, by_layer) for cell, by_layer in rows.items()}
        for degree, sharding in {(g.degree, g.sharding) for g in self.problem.groups or () if g.sharding != "tensor"}:
            alone = ((kind, by_layer) for (kind, members), by_layer in rows.items() if members == 1)
            sizes |= {PlainCell(kind, degree, sharding): (size // degree, by_layer) for kind, by_layer in alone}
        return {
            cell: {name: cost_at(found, part) for name, found in by_layer.items()}
            for cell, (part, by_layer) in sizes.items()
        }

    def seconds(self, cell: PlainCell, way: Way, roofline_o: FloatArray, exchange_o: FloatArray) -> FloatArray:
        """By op: seconds of a device of a kind, or of a group of so many.

        Measured at this degree; else as measured on one device, divided by the degree or of fewer samples, with what
        a group exchanges; else by the roofline.
        """
        alone = PlainCell(cell.kind)
        if cell in self.cells and cell.sharding == "tensor":
            return self.spread(self.of_layers(cell, way), roofline_o + exchange_o)
        if cell in self.cells:
            return self.spread(self.of_layers(cell, way), roofline_o) + exchange_o
        if alone in self.cells:
            return self.spread(self.of_layers(alone, way) / cell.degree, roofline_o) + exchange_o
        return roofline_o + exchange_o

    def of_layers(self, cell: PlainCell, field: str) -> FloatArray:
        """A field of the costs of a kind at a degree, by layer."""
        assert self.problem.profile is not None
        costs = self.cells[cell]
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
        """Bytes that a micro-batch keeps of each layer on a device, or on the members of a group together.

        The most over the problem's devices and groups; None where one was not measured. A group of a degree that was
        not measured keeps as much as a single device.
        """
        if not self.cells:
            return None
        cells = {cell if cell in self.cells else PlainCell(cell.kind) for cell in self._cells_in_use}
        if any(cost.kept is None for cell in cells for cost in self.cells.get(cell, {}).values()):
            return None
        measured = [cell.degree * self.of_layers(cell, "kept") for cell in cells if cell in self.cells]
        return np.max(measured, axis=0) if measured else None

    @cached_property
    def _cells_in_use(self) -> set[PlainCell]:
        problem, cluster = self.problem, self.problem.cluster
        group_of = {group.leader: group for group in problem.groups or ()}
        found = set()
        for device in problem.usable_devices:
            kind, group = plain_kind(cluster.devices[cluster.device_index(device)].kind), group_of.get(device)
            found.add(PlainCell(kind, group.degree, group.sharding) if group else PlainCell(kind))
        return found

    def devices(self, table: DeviceTable, flops: float) -> DeviceTable:
        """Devices with the mean rate and the optimizer's speed that the profile says.

        Args:
            table: by the catalog.
            flops: of one micro-batch through the model and back.
        """
        rate_D, update_D = table.rate_flops_per_s_D.copy(), table.update_s_per_weight_D.copy()
        rows_of: dict[PlainCell, list[int]] = {}
        for row in range(len(table.kind_D)):
            rows_of.setdefault(cell_of(table, row), []).append(row)
        for cell, rows in rows_of.items():
            known = cell if cell in self.cells else PlainCell(cell.kind)
            if known in self.cells:
                share = cell.degree / known.degree
                passes_L = self.of_layers(known, "forward") + self.of_layers(known, "backward")
                rate_D[rows] = share * flops / float(passes_L.sum())
                update_s = self._update_s_per_weight(known)
                if update_s is not None:
                    update_D[rows] = update_s / (share if cell.sharding == "tensor" else cell.degree)
        return replace(table, rate_flops_per_s_D=rate_D, update_s_per_weight_D=update_D)

    def _update_s_per_weight(self, cell: PlainCell) -> float | None:
        """Of the optimizer's step, where it was measured with the problem's optimizer."""
        workload, profile = self.problem.workload, self.problem.profile
        # Every layer that uses a tied weight was measured with it.
        trained = sum(op.trained for op in workload.graph.ops)
        unknown = any(cost.update is None for cost in self.cells[cell].values())
        if profile is None or profile.optimizer != workload.optimizer or unknown or not trained:
            return None
        return float(self.of_layers(cell, "update").sum()) / trained


def cell_of(table: DeviceTable, device: int) -> PlainCell:
    """Which cell a device, or the group that it leads, belongs to."""
    return PlainCell(table.kind_D[device], int(table.degree_D[device]), SHARDINGS[table.sharding_D[device]])
