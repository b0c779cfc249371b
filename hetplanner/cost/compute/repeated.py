"""What the devices of a group repeat of a captured model whose layers they divide, by op.

A group of k computes at k times the rate of a device and holds k times its memory. What is whole on each device counts
k times. Memory is that of the problem's largest group.

Legend of array suffixes: o ops.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.workload.workload import Workload


def times_kept_o(workload: Workload, members: int) -> FloatArray:
    """How often a group holds what an op keeps for its backward: once where all is divided."""
    return 1.0 + _again_o(workload, members, "kept")


def times_computed_o(workload: Workload, members: int) -> FloatArray:
    """Seconds of an op on a group over those of an op that is divided."""
    return 1.0 + _again_o(workload, members, "computed")


def repeated_params_o(workload: Workload, members: int) -> FloatArray:
    """Elements of weights that a group has again on each device but the first."""
    return _again_o(workload, members, "params")


def _again_o(workload: Workload, members: int, field: str) -> FloatArray:
    """A field of `WholeShares` for all devices but the first; 0 where nothing is divided so."""
    if workload.program is None or members == 1:
        return np.zeros(len(workload.graph.ops))
    found: Mapping[str, float] = getattr(workload.whole_shares(members), field)
    return (members - 1.0) * np.array([found.get(op.name, 0.0) for op in workload.graph.ops])
