"""How well communities match groups that are known."""

import numpy as np

from hetplanner.arrays import IntArray


def purity(community_D: IntArray, truth_D: IntArray) -> float:
    """Share of the devices that belong to their community's most frequent true group."""
    counts = np.zeros((int(community_D.max()) + 1, int(truth_D.max()) + 1), dtype=np.int64)
    np.add.at(counts, (community_D, truth_D), 1)
    return float(counts.max(axis=1).sum() / len(community_D))
