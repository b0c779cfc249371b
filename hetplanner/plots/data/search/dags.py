"""A model's OP-DAG as a drawing: ops in their order along rows, branches in lanes, skips as arcs.

The order is the one that stages cut: a boundary is a gap between two neighbours, and what crosses it are the lines
over that gap. Rows turn at their ends and run back, so that lines from one row to the next stay short. Coordinates: an
op is 1 wide; y grows upwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Plan
from hetplanner.plots.theme import OP_COLOURS, site_colour
from hetplanner.units import short_bytes
from hetplanner.workload.model import Op
from hetplanner.workload.workload import Workload

Columns = dict[str, list[Any]]

LEAST_COLUMNS, MOST_COLUMNS = 30, 40
LANE_HEIGHT = 0.8
ARC_POINTS = 17
NODE_PX = (5.0, 24.0)
EDGE_PX = (0.8, 7.0)
LONG_ARC = 6.0
"""Ops over which an arc has its full height."""


@dataclass(frozen=True)
class DagLayout:
    """Where everything of a workload's graph stands."""

    workload: Workload

    @property
    def ops(self) -> tuple[Op, ...]:
        """The graph's operators."""
        return self.workload.graph.ops

    @cached_property
    def columns(self) -> int:
        """Ops in a row."""
        wanted = int(np.ceil(np.sqrt(4.0 * len(self.ops))))
        most = min(max(wanted, LEAST_COLUMNS), MOST_COLUMNS)
        rows = -(-len(self.ops) // most)
        # The last row as full as the others.
        return -(-len(self.ops) // rows)

    @property
    def rows(self) -> int:
        """Rows in all."""
        return -(-len(self.ops) // self.columns)

    @cached_property
    def lanes(self) -> list[int]:
        """Lane of every op: 0, or one below for a branch that runs beside."""
        return _lanes_of(self.workload)

    @cached_property
    def row_height(self) -> float:
        """From one row to the next: lanes, arcs above them and names below."""
        return LANE_HEIGHT * max(self.lanes) + 1.5 + (0.9 if self.skips else 0.0)

    @cached_property
    def skips(self) -> list[tuple[int, int]]:
        """Edges past at least one other op."""
        return [(a, b) for a, b in self.edges if b - a > 1]

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """All reads, as (op that is read, op that reads)."""
        index = {op.name: i for i, op in enumerate(self.ops)}
        return [(index[name], i) for i, op in enumerate(self.ops) for name in dict.fromkeys(op.inputs)]

    def place(self, op: int) -> tuple[float, float]:
        """Centre of an op."""
        row, column = divmod(op, self.columns)
        x = column if row % 2 == 0 else self.columns - 1 - column
        return float(x), -row * self.row_height - LANE_HEIGHT * self.lanes[op]

    def node_columns(self) -> Columns:
        """One row for every op: x, y, size (pixels), colour, name, kind, layer, params, flops, kept, output, reads."""
        flops = np.array([op.forward_flops + op.backward_flops for op in self.ops])
        size = _scaled(flops, NODE_PX)
        places = [self.place(i) for i in range(len(self.ops))]
        return {
            "x": [x for x, _ in places],
            "y": [y for _, y in places],
            "size": size.tolist(),
            "colour": [OP_COLOURS[op.kind] for op in self.ops],
            "name": [op.name for op in self.ops],
            "kind": [op.kind for op in self.ops],
            "layer": ["–" if op.layer is None else str(op.layer) for op in self.ops],
            "params": [f"{op.num_params:,}" + (f" (tied to {op.tied})" if op.tied else "") for op in self.ops],
            "flops": [f"{value:.3g}" for value in flops],
            "kept": [short_bytes(op.activation_bytes) for op in self.ops],
            "output": [short_bytes(op.output_bytes) for op in self.ops],
            "reads": [", ".join(op.inputs) or "the batch" for op in self.ops],
        }

    def edge_columns(self, *, skips: bool) -> Columns:
        """One row for every edge to the next op, or for every skip: xs, ys (paths), width (pixels), source, target,
        bytes.
        """
        chosen = [(a, b) for a, b in self.edges if (b - a > 1) == skips]
        sizes = np.array([op.output_bytes for op in self.ops], dtype=np.float64)
        # One scale for both kinds.
        width = _scaled(sizes, EDGE_PX, self._largest_edge)
        paths = [self._arc(a, b) if skips else self._line(a, b) for a, b in chosen]
        return {
            "xs": [xs for xs, _ in paths],
            "ys": [ys for _, ys in paths],
            "width": [float(width[a]) for a, _ in chosen],
            "source": [self.ops[a].name for a, _ in chosen],
            "target": [self.ops[b].name for _, b in chosen],
            "bytes": [short_bytes(self.ops[a].output_bytes) for a, _ in chosen],
        }

    def tied_columns(self) -> Columns:
        """One row for every further user of a weight: xs, ys, owner, user, params."""
        groups = self.workload.graph.tied_groups.items()
        pairs = [(owner, members[0], user) for owner, members in groups for user in members[1:]]
        paths = [self._arc(a, b, below=True) for _, a, b in pairs]
        return {
            "xs": [xs for xs, _ in paths],
            "ys": [ys for _, ys in paths],
            "owner": [owner for owner, _, _ in pairs],
            "user": [self.ops[user].name for _, _, user in pairs],
            "params": [f"{self.ops[user].num_params:,}" for _, _, user in pairs],
        }

    def group_columns(self) -> Columns:
        """One row for every stretch of a layer (else of a module) in a row: x, y, x0, x1, text."""
        columns: Columns = {name: [] for name in ("x", "y", "x0", "x1", "text")}
        names = _group_names(self.workload)
        for first, end in self._stretches(names):
            left, right = sorted((self.place(first)[0], self.place(end - 1)[0]))
            y = -(first // self.columns) * self.row_height - LANE_HEIGHT * max(self.lanes) - 0.62
            width = right - left + 0.8
            for key, value in zip(columns, ((left + right) / 2, y, left - 0.4, right + 0.4, ""), strict=True):
                columns[key].append(value)
            columns["text"][-1] = names[first] if len(names[first]) * self.columns * CHARACTER <= width else ""
        return columns

    def stage_columns(self, plan: Plan) -> Columns:
        """One row for every stretch of a plan's stage in a row: x0, y0, x1, y1, colour, stage, ops, params, message,
        devices, and label with label_x, label_y at the beginning of a stage.
        """
        columns: Columns = {
            name: []
            for name in (
                "x0", "y0", "x1", "y1", "colour", "stage", "ops", "params", "message", "devices",
                "label", "label_x", "label_y",
            )
        }  # fmt: skip
        tables = CostTables(plan.problem)
        for first, end in self._stretches(list(plan.stage_of_op)):
            s = plan.stage_of_op[first]
            stage = plan.stages[s]
            left, right = sorted((self.place(first)[0], self.place(end - 1)[0]))
            top = -(first // self.columns) * self.row_height
            ops = plan.ops_of(s)
            begins = first == stage.first_op
            values = (
                left - 0.5,
                top - LANE_HEIGHT * max(self.lanes) - 0.5,
                right + 0.5,
                top + self.row_height - LANE_HEIGHT * max(self.lanes) - 1.0,
                site_colour(s),
                str(s),
                f"{ops[0].name} … {ops[-1].name} ({len(ops)})",
                f"{tables.stage_params(stage.first_op, stage.end_op):,}",
                short_bytes(plan.boundary_elements(s) * self.workload.dtype_bytes) if s + 1 < len(plan.stages) else "–",
                ", ".join(replica[0] for replica in stage.replicas),
                f"stage {s}" if begins else "",
                left - 0.42,
                top + self.row_height - LANE_HEIGHT * max(self.lanes) - 1.18,
            )
            for key, value in zip(columns, values, strict=True):
                columns[key].append(value)
        return columns

    def arrow_columns(self) -> Columns:
        """One row for every row of ops: x, y, text, pointing the way that it runs."""
        rows = range(self.rows)
        return {
            "x": [-0.9 if row % 2 == 0 else self.columns - 0.1 for row in rows],
            "y": [-row * self.row_height for row in rows],
            "text": ["▸" if row % 2 == 0 else "◂" for row in rows],
        }

    @cached_property
    def _largest_edge(self) -> float:
        return max([float(self.ops[a].output_bytes) for a, _ in self.edges], default=1.0)

    def _stretches(self, labels: list[Any]) -> list[tuple[int, int]]:
        """Runs of ops with one label, divided where a row ends."""
        starts = [i for i in range(len(labels)) if i == 0 or i % self.columns == 0 or labels[i] != labels[i - 1]]
        return list(zip(starts, [*starts[1:], len(labels)], strict=True))

    def _line(self, a: int, b: int) -> tuple[list[float], list[float]]:
        """To the next op; where the row turns, round the corner."""
        (x0, y0), (x1, y1) = self.place(a), self.place(b)
        if a // self.columns == b // self.columns:
            return [x0, x1], [y0, y1]
        side = 0.55 if (a // self.columns) % 2 == 0 else -0.55
        return _curve((x0, y0), (x0 + side, y0), (x1 + side, y1), (x1, y1))

    def _arc(self, a: int, b: int, *, below: bool = False) -> tuple[list[float], list[float]]:
        """Over (or under) what lies between; from row to row down the side where the rows turn."""
        (x0, y0), (x1, y1) = self.place(a), self.place(b)
        height = (-0.55 if below else 0.95) * min(1.0, np.log1p(b - a) / np.log1p(LONG_ARC))
        if a // self.columns != b // self.columns:
            side = 0.9 if (a // self.columns) % 2 == 0 else -0.9
            return _curve((x0, y0), (x0 + side, y0 + 0.6 * height), (x1 + side, y1 + height), (x1, y1))
        # A curve of third order reaches three quarters of the way to its inner points.
        return _curve((x0, y0), (x0, y0 + height / 0.75), (x1, y1 + height / 0.75), (x1, y1))


CHARACTER = 0.0062
"""Width of a character of a name, over that of a row."""


def _lanes_of(workload: Workload) -> list[int]:
    """An op goes on in the lane of the one before it if it reads that; joins go to the uppermost lane they join."""
    ops = workload.graph.ops
    index = {op.name: i for i, op in enumerate(ops)}
    last_use = list(range(len(ops)))
    for i, op in enumerate(ops):
        for name in op.inputs:
            last_use[index[name]] = i
    lanes: list[int] = []
    newest: dict[int, int] = {}
    for i, op in enumerate(ops):
        reads = [index[name] for name in op.inputs]
        if i == 0 or i - 1 in reads:
            lane = min((lanes[k] for k in reads), default=0)
        else:
            # A branch of its own: below the lanes whose outputs a later op still reads.
            lane = next(n for n in range(len(ops)) if n not in newest or last_use[newest[n]] <= i)
        lanes.append(lane)
        newest[lane] = i
    return lanes


def _group_names(workload: Workload) -> list[str]:
    """The layer of every op, or the module that it is part of."""
    ops = workload.graph.ops
    if any(op.layer is not None for op in ops):
        return [op.kind if op.layer is None else f"layer {op.layer}" for op in ops]
    return [op.name.rpartition(".")[0] or op.name for op in ops]


def _scaled(values: FloatArray, pixels: tuple[float, float], largest: float | None = None) -> FloatArray:
    """Pixels that grow with the root of a value: areas for sizes."""
    most = largest if largest is not None else float(values.max(initial=0.0))
    share = np.sqrt(np.minimum(values / most, 1.0)) if most > 0 else np.zeros(len(values))
    return np.asarray(pixels[0] + (pixels[1] - pixels[0]) * share)


def _curve(*points: tuple[float, float]) -> tuple[list[float], list[float]]:
    """A Bézier curve of third order."""
    t = np.linspace(0.0, 1.0, ARC_POINTS)
    weights = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    xs, ys = np.array(points).T @ weights
    return xs.tolist(), ys.tolist()
