"""The op boundaries that planners cut a model at: of many the cheapest, spread over the model's work and memory.

A transformer by formula is cut between its layers. A captured model may be cut wherever a tensor crosses, which can be
at hundreds of boundaries; the search looks at some dozens: those between layers, if these are no more, and then the
heaviest piece is halved again and again, where the fewest bytes cross near its middle. In a residual network that is
between blocks, where one tensor crosses, until pieces are single blocks; inside a block two do.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.workload.workload import Workload

MOST_CUTS = 64
# Boundaries looked at for each stage that the constraints ask for, if that is more.
CUTS_PER_STAGE = 4


def choose_cuts(workload: Workload, stages: int | None) -> IntArray:
    """Op boundaries where planners may end a stage, ascending.

    Args:
        workload: the model.
        stages: how many are wanted; None if that is open.
    """
    boundaries = np.array(workload.boundaries, dtype=np.int64)
    most = max(MOST_CUTS, CUTS_PER_STAGE * (stages or 1))
    if workload.transformer is not None or len(boundaries) <= most:
        return boundaries
    ops = workload.graph.ops
    between = [k for k in boundaries.tolist() if ops[k].layer != ops[k - 1].layer]
    chosen = _halve(workload, boundaries, between if len(between) <= most else [], most)
    return np.array(sorted(chosen), dtype=np.int64)


def _halve(workload: Workload, boundaries: IntArray, chosen: list[int], most: int) -> list[int]:
    """Adds boundaries until there are so many, each in the heaviest piece that has one inside."""
    weight_O = _weight_before(workload)
    edges = [0, *chosen, len(workload.graph.ops)]
    pieces = [(weight_O[a] - weight_O[b], a, b) for a, b in pairwise(edges)]
    heapq.heapify(pieces)
    chosen = list(chosen)
    while len(chosen) < most:
        _, first, end = heapq.heappop(pieces)
        middle = _cheapest_near_the_middle(workload, boundaries, weight_O, first, end)
        if middle is not None:
            chosen.append(middle)
            for a, b in ((first, middle), (middle, end)):
                heapq.heappush(pieces, (weight_O[a] - weight_O[b], a, b))
    return chosen


def _cheapest_near_the_middle(
    workload: Workload, boundaries: IntArray, weight_O: FloatArray, first: int, end: int
) -> int | None:
    """Of the boundaries in the middle half of a piece, by weight, the one with the fewest bytes, the most even first;
    with none there the most even. None if the piece has no boundary inside.
    """
    inside = boundaries[(boundaries > first) & (boundaries < end)]
    if not len(inside):
        return None
    whole = float(weight_O[end] - weight_O[first])
    off = np.abs(weight_O[inside] - weight_O[first] - whole / 2.0)
    near = off <= whole / 4.0
    crossing = np.array([workload.boundary_elements[k] for k in inside])
    order = np.lexsort((inside, off, np.where(near, crossing, 0), ~near))
    return int(inside[order[0]])


def _weight_before(workload: Workload) -> FloatArray:
    """Share of the model's work and memory before each boundary: the mean of FLOPs, weights and activations."""
    ops = workload.graph.ops
    columns = np.array([(op.forward_flops + op.backward_flops, op.num_params, op.activation_bytes) for op in ops])
    total = columns.sum(axis=0)
    shares = columns[:, total > 0] / total[total > 0]
    if not shares.size:
        return np.arange(len(ops) + 1) / (len(ops) + 1)
    return np.concatenate(([0.0], np.cumsum(shares.mean(axis=1))))
