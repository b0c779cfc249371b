"""The op boundaries that planners cut a model at: of many the cheapest, spread over the model's work and memory.

A transformer by formula is cut between its layers. A captured model may be cut wherever a tensor crosses, which can
be at hundreds of boundaries; the search looks at some dozens: the model is divided into parts of equal weight, and of
the boundaries in a part the one with the fewest bytes across stays. In a residual network these are the boundaries
between blocks, where one tensor crosses; inside a block two do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetplanner.workload.workload import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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
    part = np.minimum((_weight_before(workload)[boundaries] * most).astype(np.int64), most - 1)
    crossing = np.array(workload.boundary_elements, dtype=np.int64)[boundaries]
    # By part, then bytes; of equals the first.
    order = np.lexsort((boundaries, crossing, part))
    _, first = np.unique(part[order], return_index=True)
    chosen = set(boundaries[order[first]].tolist())
    # Parts without a boundary leave room: for the cheapest of the others.
    for k in boundaries[np.lexsort((boundaries, crossing))].tolist():
        if len(chosen) >= most:
            break
        chosen.add(k)
    return np.array(sorted(chosen), dtype=np.int64)


def _weight_before(workload: Workload) -> FloatArray:
    """Share of the model's work and memory before each boundary: the mean of FLOPs, weights and activations."""
    ops = workload.graph.ops
    columns = np.array([(op.forward_flops + op.backward_flops, op.num_params, op.activation_bytes) for op in ops])
    total = columns.sum(axis=0)
    shares = columns[:, total > 0] / total[total > 0]
    if not shares.size:
        return np.arange(len(ops) + 1) / (len(ops) + 1)
    return np.concatenate(([0.0], np.cumsum(shares.mean(axis=1))))
