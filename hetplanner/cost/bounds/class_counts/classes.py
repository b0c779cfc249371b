"""Classes of devices that are near each other, and the counts of them that a stage may have.

Legend of array suffixes: D devices, C classes, N counts of a stage, R replicas, L levels of a hop, G groups of classes,
K limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetplanner.arrays import FloatArray, IntArray

# More classes than this, or more counts, make the first step take longer than seconds.
MOST_CLASSES = 12
MOST_COUNTS = 25_000
# Levels at which hops are told apart; each costs a matching for every pair of classes.
LEVELS = 90


@dataclass(frozen=True)
class DeviceClasses:
    """A partition of the devices into classes of neighbours.

    Attributes:
        order_D: the devices, class by class.
        start_C: where each class begins in that order, and the number of devices.
        class_D: class of each device in that order.
    """

    order_D: IntArray
    start_C: IntArray
    class_D: IntArray

    @staticmethod
    def of(class_D: IntArray) -> DeviceClasses:
        """The partition in which device d is of class ``class_D[d]``."""
        order_D = np.argsort(class_D, kind="stable")
        start_C = np.concatenate([[0], np.cumsum(np.bincount(class_D))])
        return DeviceClasses(order_D, start_C.astype(np.int64), class_D[order_D])

    @property
    def size_C(self) -> IntArray:
        """Devices of each class."""
        return np.diff(self.start_C)


def cluster_devices(piped_s_DD: FloatArray) -> list[IntArray]:
    """For every number of classes, 1 and up, the class of each device: average linkage of the logarithm of costs."""
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    num_devices = len(piped_s_DD)
    off = ~np.eye(num_devices, dtype=bool)
    finite = piped_s_DD[off & np.isfinite(piped_s_DD)]
    far = float(finite.max()) * 10.0 if finite.size else 1.0
    cost = np.where(np.isfinite(piped_s_DD), piped_s_DD, far)
    logs = np.log(np.maximum(cost, 1e-12))
    logs = np.where(off, logs - logs[off].min(), 0.0)
    tree = linkage(squareform(logs, checks=False), "average")
    numbers = list(range(1, min(MOST_CLASSES, num_devices) + 1))
    return [column.astype(np.int64) for column in cut_tree(tree, numbers).T]


def number_of_counts(size_C: IntArray, replicas: int) -> int:
    """How many counts a stage of R devices may have."""
    ways_R = np.zeros(replicas + 1)
    ways_R[0] = 1
    for size in size_C:
        ways_R = np.convolve(ways_R, np.ones(min(int(size), replicas) + 1))[: replicas + 1]
    return int(ways_R[replicas])


def list_counts(size_C: IntArray, replicas: int) -> IntArray:
    """All counts of a stage of R devices, a row each."""
    rows = np.zeros((1, 0), dtype=np.int64)
    behind_C = np.cumsum(size_C[::-1])[::-1]
    for c, size in enumerate(size_C):
        left_N = replicas - rows.sum(axis=1)
        later = int(behind_C[c + 1]) if c + 1 < len(size_C) else 0
        longer = []
        for count in range(min(int(size), replicas) + 1):
            fits = (count <= left_N) & (left_N - count <= later)
            longer.append(np.column_stack([rows[fits], np.full(int(fits.sum()), count)]))
        rows = np.concatenate(longer)
    return np.ascontiguousarray(rows, dtype=np.int64)


def least_paid(shared_s_DD: FloatArray, classes: DeviceClasses, replicas: int) -> FloatArray:
    """What each device pays at least to 0, 1, … R devices of each class; infinite beyond their number.

    Args:
        shared_s_DD: data-parallel seconds in the order of the classes.
    """
    num_devices, num_classes = len(shared_s_DD), len(classes.size_C)
    least = np.full((num_devices, num_classes, replicas + 1), np.inf)
    for d in range(num_devices):
        for c in range(num_classes):
            members = np.arange(classes.start_C[c], classes.start_C[c + 1])
            nearest = np.sort(shared_s_DD[d, members[members != d]])[:replicas]
            least[d, c, : len(nearest) + 1] = np.concatenate([[0.0], np.cumsum(nearest)])
    return least


def most_crossing(piped_s_DD: FloatArray, classes: DeviceClasses, level_L: FloatArray) -> IntArray:
    """The most pipelines that can go from class to class in one hop, for every level of its cost.

    Between two classes it is the size of a maximum matching; inside one, half of that of all pairs both ways.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    num_classes = len(classes.size_C)
    most = np.zeros((len(level_L), num_classes, num_classes), dtype=np.int64)
    for a in range(num_classes):
        for b in range(a, num_classes):
            rows, columns = (slice(classes.start_C[c], classes.start_C[c + 1]) for c in (a, b))
            cost, full = piped_s_DD[rows, columns].copy(), int(min(classes.size_C[a], classes.size_C[b]))
            if a == b:
                np.fill_diagonal(cost, np.inf)
            for i, level in enumerate(level_L):
                size = full
                if i == 0 or most[i - 1, a, b] < (full // 2 if a == b else full):
                    pairs = csr_matrix(cost <= level)
                    size = int((maximum_bipartite_matching(pairs, perm_type="column") >= 0).sum())
                most[i, a, b] = most[i, b, a] = size // 2 if a == b else size
    return most


def choose_levels(piped_s_DD: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Levels of a hop's cost, rising, and what a hop costs at least that is beyond so many of them."""
    costs = np.unique(piped_s_DD[np.triu_indices(len(piped_s_DD), 1)])
    costs = costs[np.isfinite(costs)]
    if len(costs) > LEVELS:
        first = costs[len(costs) // 100]
        wanted = np.geomspace(first, costs[-1], LEVELS) if first > 0 else np.linspace(first, costs[-1], LEVELS)
        places = np.unique(np.append(np.minimum(np.searchsorted(costs, wanted), len(costs) - 1), len(costs) - 1))
        levels = costs[places]
    else:
        levels = costs
    beyond = np.searchsorted(costs, levels, side="right")
    next_costs = np.where(beyond < len(costs), costs[np.minimum(beyond, len(costs) - 1)], np.inf)
    return levels, np.concatenate([costs[:1], next_costs])
