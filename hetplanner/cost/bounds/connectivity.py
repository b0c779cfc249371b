"""What a network's shape costs every path and every placement: bounds from its connected parts below a threshold.

Legend of array suffixes: D devices, S stages, R replicas.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetplanner.arrays import FloatArray, IntArray

# ``(cost, device, device)``, cheapest first.
Edges = list[tuple[float, int, int]]
# Thresholds, and the most devices that are connected within each.
Parts = tuple[FloatArray, IntArray]

# Thresholds tried by `bound_runs`; each costs one pass over all pairs for every length of a run.
MOST_THRESHOLDS = 8
# Beyond these sizes `bound_runs` takes longer than milliseconds and gives nothing.
MOST_DEVICES = 512
MOST_STAGES = 16


def bound_path(parts: Parts, stages: int) -> FloatArray:
    """A bound below the length of every open path over so many different devices.

    Within a threshold the devices fall into connected parts of at most m devices. So a path over S of them leaves its
    part, by a hop beyond the threshold, at least ceil(S / m) - 1 times. The bound sums this over all thresholds.

    Args:
        parts: those of :func:`largest_parts` over the symmetric costs of hops; further axes may come first.
        stages: devices on the path.
    """
    threshold, largest = parts
    if stages < 2 or not threshold.shape[-1]:
        return np.zeros(threshold.shape[:-1])
    hops = np.full(threshold.shape, stages - 1)
    hops[..., 1:] = -(-stages // largest[..., :-1]) - 1
    finite = np.isfinite(threshold)
    steps = np.diff(np.where(finite, threshold, 0.0), prepend=0.0, axis=-1)
    return np.asarray(np.where(finite, hops * steps, 0.0).sum(axis=-1))


def largest_parts(edges: Edges) -> Parts:
    """For each threshold, rising, the number of devices in the largest connected part behind it."""
    num_devices = len(edges) + 1
    part_D, size_D, largest = np.arange(num_devices), np.ones(num_devices, dtype=np.int64), 1
    largest_E = np.ones(len(edges), dtype=np.int64)
    for i, (_, a, b) in enumerate(edges):
        one, two = int(part_D[a]), int(part_D[b])
        part_D[part_D == two] = one
        size_D[one] += size_D[two]
        largest_E[i] = largest = max(largest, int(size_D[one]))
    return np.array([cost for cost, _, _ in edges], dtype=np.float64), largest_E


def spanning_edges(cost_DD: FloatArray) -> Edges:
    """Edges ``(cost, device, device)`` of a least spanning tree, cheapest first (Prim)."""
    num_devices = len(cost_DD)
    nearest = cost_DD[0].astype(np.float64)
    parent = np.zeros(num_devices, dtype=np.int64)
    nearest[0] = np.inf
    outside = np.ones(num_devices, dtype=bool)
    outside[0] = False
    edges = []
    for _ in range(num_devices - 1):
        device = int(np.argmin(np.where(outside, nearest, np.inf)))
        if not outside[device]:
            device = int(np.argmax(outside))  # nothing left can be reached
        edges.append((float(nearest[device]), int(parent[device]), device))
        outside[device] = False
        closer = outside & (cost_DD[device] < nearest)
        nearest[closer] = cost_DD[device][closer]
        parent[closer] = device
    return sorted(edges)


def bound_runs(data_parallel_s_DD: FloatArray, pipeline_s_DD: FloatArray, hops_E: FloatArray, replicas: int) -> float:
    """A bound on DT-FM's cost that weighs its two terms against each other; 0 where it says nothing.

    Take a threshold. Hops within it join the stages into runs; inside a run of L stages every pipeline stays in its
    connected part, so each stage takes the same number of devices of a part, at most 1/L of them. Few dear hops thus
    mean long runs, long runs mean stages spread over many parts, and those share their gradients over slow links.
    The least of this over all ways to divide the stages into runs holds for every threshold.

    Args:
        data_parallel_s_DD: first result of :func:`hetplanner.cost.dtfm.pair_costs`.
        pipeline_s_DD: second result.
        hops_E: bounds below the hops, cheapest first; their number + 1 is that of stages.
        replicas: number of pipelines.
    """
    num_devices, stages = len(pipeline_s_DD), len(hops_E) + 1
    if not (1 < num_devices <= MOST_DEVICES and 1 < stages <= MOST_STAGES and replicas > 1):
        return 0.0
    off = ~np.eye(num_devices, dtype=bool)
    best = 0.0
    for threshold, part_D in _partitions(spanning_edges(pipeline_s_DD), num_devices):
        beyond = pipeline_s_DD[off & (pipeline_s_DD > threshold)]
        dear = float(beyond.min()) if beyond.size else np.inf
        shared_LD = np.array([_least_shared(data_parallel_s_DD, part_D, n, replicas) for n in range(1, stages + 1)])
        order_LD = np.sort(shared_LD, axis=1)
        least = np.inf
        for lengths in _divisions(stages):
            jumps = len(lengths) - 1
            path = float(hops_E[: stages - 1 - jumps].sum() + np.maximum(hops_E[stages - 1 - jumps :], dear).sum())
            filled = np.cumsum(lengths) * replicas
            shared = max(float(order_LD[n - 1, f - 1]) for n, f in zip(lengths, filled, strict=True))
            least = min(least, path + shared)
        best = max(best, least)
    return best if np.isfinite(best) else 0.0


def _least_shared(shared_DD: FloatArray, part_D: IntArray, length: int, replicas: int) -> FloatArray:
    """What each device pays at least in a stage that takes no more than 1/length of every part; inf if it cannot."""
    num_devices = len(shared_DD)
    cost = shared_DD.copy()
    np.fill_diagonal(cost, -1.0)  # a device itself comes first in its own part
    allowed = np.zeros((num_devices, 0))
    for part in np.unique(part_D):
        members = np.flatnonzero(part_D == part)
        most = min(len(members) // length, replicas)
        if most:
            allowed = np.hstack([allowed, np.sort(cost[:, members], axis=1)[:, :most]])
    if allowed.shape[1] < replicas:
        return np.full(num_devices, np.inf)
    paid = np.sort(allowed, axis=1)[:, :replicas]
    # A device in a part too small for this length cannot be in such a stage at all.
    return np.where(paid[:, 0] < 0, np.maximum(paid, 0.0).sum(axis=1), np.inf)


def _divisions(total: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of whole numbers, the greatest first."""
    if total == 0:
        yield ()
        return
    for first in range(min(total, most or total), 0, -1):
        for rest in _divisions(total - first, first):
            yield (first, *rest)


def _partitions(edges: Edges, num_devices: int) -> Iterator[tuple[float, IntArray]]:
    """Thresholds at which parts grow, with each device's part; an even choice of them if there are many."""
    levels = sorted({cost for cost, _, _ in edges})[:-1]
    chosen = {levels[int(i)] for i in np.linspace(0, len(levels) - 1, MOST_THRESHOLDS)} if levels else set()
    part_D = np.arange(num_devices)
    for i, (cost, a, b) in enumerate(edges):
        part_D[part_D == part_D[b]] = part_D[a]
        is_last = i + 1 == len(edges) or edges[i + 1][0] > cost
        if is_last and cost in chosen:
            yield cost, part_D.copy()
