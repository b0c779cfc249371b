"""Bounds below the cheapest, second cheapest, … hop of every pipeline, whatever the stages.

Legend of array suffixes: D devices, E edges, S stages, R replicas.
"""

from __future__ import annotations

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.bounds.connectivity import largest_parts, spanning_edges

# Beyond so many devices a linear programme over their edges takes longer than a second.
MOST_DEVICES = 256


def bound_hops(piped_s_DD: FloatArray, stages: int, replicas: int) -> FloatArray:
    """Bounds below the hops of every path of stages, cheapest first.

    The k cheapest hops are k*R links, at most two at a device; a linear programme tells below which cost there
    are not so many. They touch k + 1 stages at least, so (k + 1)*R devices have a link that is not dearer. And within a
    cost the devices fall into connected parts: a path leaves a part of m devices after m - 1 hops at the latest.

    Args:
        piped_s_DD: second result of :func:`hetplanner.cost.dtfm.pair_costs`.
        stages: number of pipeline stages.
        replicas: number of pipelines.

    Returns:
        ``stages - 1`` seconds.
    """
    off_DD = np.where(np.eye(len(piped_s_DD), dtype=bool), np.inf, piped_s_DD)
    nearest = np.sort(off_DD.min(axis=1))
    floors = nearest[2 * replicas - 1 : stages * replicas : replicas].copy()
    threshold_E, largest_E = largest_parts(spanning_edges(piped_s_DD))
    for k in range(1, stages):
        # Within a cost there are at most `stages - ceil(stages / m)` hops.
        enough = np.flatnonzero(stages - -(-stages // largest_E) >= k)
        floors[k - 1] = max(floors[k - 1], threshold_E[enough[0]] if len(enough) else np.inf)
    if len(piped_s_DD) <= MOST_DEVICES:
        floors = np.maximum(floors, _bound_by_degrees(piped_s_DD, stages, replicas))
    return np.asarray(np.maximum.accumulate(floors))


def _bound_by_degrees(piped_s_DD: FloatArray, stages: int, replicas: int) -> FloatArray:
    """The cost within which there are k*R links with at most two at a device, for every k."""
    one_E, other_E = np.triu_indices(len(piped_s_DD), 1)
    order_E = np.argsort(piped_s_DD[one_E, other_E], kind="stable")
    one_E, other_E = one_E[order_E], other_E[order_E]
    floors, least = np.zeros(stages - 1), 0
    for k in range(1, stages):
        low, high = max(least, k * replicas), len(order_E)
        while low < high:
            middle = (low + high) // 2
            if _most_links(one_E[:middle], other_E[:middle], len(piped_s_DD)) >= k * replicas - 1e-6:
                high = middle
            else:
                low = middle + 1
        floors[k - 1] = piped_s_DD[one_E[low - 1], other_E[low - 1]]
        least = low
    return floors


def _most_links(one_E: IntArray, other_E: IntArray, num_devices: int) -> float:
    """The most links, at most two at a device and each once; shares of links are allowed."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    count = len(one_E)
    ends = np.concatenate([one_E, other_E])
    degree = csr_matrix((np.ones(2 * count), (ends, np.tile(np.arange(count), 2))), shape=(num_devices, count))
    found = linprog(-np.ones(count), A_ub=degree, b_ub=np.full(num_devices, 2.0), bounds=(0, 1), method="highs")
    return float(-found.fun) if found.status == 0 else np.inf
