"""Structured starting layouts, read off the network: linear orders of the devices cut into runs of equal stages.

Legend of array suffixes: D devices, O orders, P layouts, N devices in use first, spare ones after.

A layout is a linear order of the devices and a composition of the stages into runs. A run of k stages takes the next
k*R devices and deals them round-robin: one run of all stages gives one pipeline per site, runs of one stage give one
stage per site, and everything between is a mix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.planners.network.coarsen import LARGE, list_leaves, sort_devices

# All 2^(S-1) compositions up to here; a sample of them above.
FULL_COMPOSITIONS = 8
SAMPLED_COMPOSITIONS = 128
GREEDY_TOURS = 5
# Layouts in the first batch; later ones grow.
FIRST_BATCH = 8


def list_orders(distance_DD: NDArray[Any]) -> list[IntArray]:
    """Linear orders in which near devices stand together; from :data:`LARGE` devices on, by sites alone.

    Args:
        distance_DD: symmetric seconds between devices.

    Returns:
        Permutations of the devices without repeats, the dendrogram's first.
    """
    num_devices = len(distance_DD)
    if num_devices < 3:
        return [np.arange(num_devices)]
    if num_devices >= LARGE:
        order, site_D = sort_devices(distance_DD)
        return _distinct([order, *_order_sites(distance_DD, site_D, order)])
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    capped = _capped(distance_DD)
    condensed = squareform(_log_distance(capped), checks=False)
    trees = [hierarchy.linkage(condensed, method) for method in ("average", "complete", "single")]
    orders = [list_leaves(tree) for tree in trees]
    sites = _cut_sites(trees[0], num_devices)
    orders.extend(_order_sites(capped, sites, orders[0]))
    return _distinct(orders)


def dendrogram_order(distance_DD: FloatArray) -> IntArray:
    """The first of :func:`list_orders` for less than :data:`LARGE` devices."""
    if len(distance_DD) < 3:
        return np.arange(len(distance_DD))
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    condensed = squareform(_log_distance(_capped(distance_DD)), checks=False)
    return list_leaves(hierarchy.linkage(condensed, "average"))


def list_compositions(stages: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Ways to write the stages as runs of equal stages: all of them if few, else a sample; the even ones first."""
    even = [(run,) * (stages // run) for run in range(stages, 0, -1) if stages % run == 0]
    if stages <= FULL_COMPOSITIONS:
        return list(dict.fromkeys([*even, *_all_runs(stages)]))
    while len(even) < SAMPLED_COMPOSITIONS:
        ends = np.flatnonzero(rng.random(stages - 1) < rng.uniform(0.0, 0.6)) + 1
        even.append(tuple(int(n) for n in np.diff(np.concatenate(([0], ends, [stages])))))
    return list(dict.fromkeys(even))


def deal_layout(order_D: IntArray, runs: Sequence[int], replicas: int) -> IntArray:
    """Lays the first devices of an order out stage by stage; the rest stays behind as spare."""
    layout = order_D.copy()
    start = 0
    for run in runs:
        stop = start + run * replicas
        layout[start:stop] = order_D[start:stop].reshape(replicas, run).T.reshape(-1)
        start = stop
    return layout


def deal_layouts(
    orders: Sequence[IntArray], stages: int, replicas: int, rng: np.random.Generator
) -> Iterator[IntArray]:
    """All compositions x orders (and, with spare devices, a few windows of each order), one layout after the other."""
    for runs in list_compositions(stages, rng):
        for order in orders:
            for window in _windows(order, stages * replicas):
                yield deal_layout(window, runs, replicas)


def structured_layouts(orders: Sequence[IntArray], stages: int, replicas: int, rng: np.random.Generator) -> IntArray:
    """What :func:`deal_layouts` gives, as ``layouts_PD``."""
    return np.array(list(deal_layouts(orders, stages, replicas, rng)), dtype=np.int64)


def random_layouts(num_devices: int, count: int, rng: np.random.Generator) -> IntArray:
    """Uniform permutations of the devices, as ``layouts_PD``."""
    return np.array([rng.permutation(num_devices) for _ in range(count)], dtype=np.int64)


def in_batches(layouts: Iterable[IntArray], limit: int | None = None) -> Iterator[IntArray]:
    """Gathers layouts (at most `limit`) into batches ``layouts_PD``, small at first, so that the best ones show early.

    No batch takes longer than a fraction of a second, so that a search can stop between them: scoring a layout of D
    devices takes about D^2 operations; 1024 layouts of 64 devices make one batch.
    """
    rest = islice(layouts, limit)
    size = FIRST_BATCH
    while batch := list(islice(rest, size)):
        yield np.array(batch, dtype=np.int64)
        size = max(1, min(4 * size, 2**22 // len(batch[0]) ** 2))


def _capped(distance_DD: FloatArray) -> FloatArray:
    finite = distance_DD[np.isfinite(distance_DD)]
    return np.where(np.isfinite(distance_DD), distance_DD, 10.0 * finite.max() + 1.0)


def _log_distance(distance_DD: FloatArray) -> FloatArray:
    """Links differ by factors, so distances are compared on a logarithmic scale."""
    positive = distance_DD[distance_DD > 0]
    scale = np.log1p(distance_DD / max(float(np.median(positive)) if positive.size else 1.0, 1e-300))
    np.fill_diagonal(scale, 0.0)
    return scale


def _windows(order_D: IntArray, used: int) -> Iterator[IntArray]:
    spare = len(order_D) - used
    yield order_D
    if spare:
        yield np.roll(order_D, -spare)
        yield np.roll(order_D, -(spare // 2))


@cache
def _all_runs(stages: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write a number as an ordered sum."""
    if stages == 0:
        return ((),)
    return tuple((first, *rest) for first in range(stages, 0, -1) for rest in _all_runs(stages - first))


def _cut_sites(tree: FloatArray, num_devices: int) -> IntArray:
    """Cuts a dendrogram at its widest relative jump between merge heights, where sites end."""
    from scipy.cluster import hierarchy

    heights = tree[:, 2]
    floor = max(float(heights.max()) * 1e-6, 1e-300)
    jumps = np.diff(np.log(np.maximum(heights, floor)))
    # A cut that leaves every device alone or all together separates nothing.
    useful = jumps[: num_devices - 2]
    height = heights[int(np.argmax(useful))] if useful.size and useful.max() > 0 else heights[-1]
    return np.asarray(hierarchy.fcluster(tree, height * (1 + 1e-9), "distance") - 1, dtype=np.int64)


def _order_sites(distance_DD: NDArray[Any], site_D: IntArray, base_D: IntArray) -> list[IntArray]:
    """Orders of whole sites: by size, by mean distance, and nearest-neighbour tours from several sites."""
    num_sites = int(site_D.max()) + 1
    size = np.bincount(site_D, minlength=num_sites).astype(np.float64)
    member = np.zeros((num_sites, len(site_D)), dtype=distance_DD.dtype)
    member[site_D, np.arange(len(site_D))] = 1.0 / size[site_D]
    between = (member @ distance_DD @ member.T).astype(np.float64)
    mean = between.mean(axis=1)
    first_seen = np.empty(num_sites)
    first_seen[site_D[base_D][::-1]] = np.arange(len(base_D))[::-1]
    ranks = [np.lexsort((first_seen, -size)), np.lexsort((mean, -size)), np.argsort(mean, kind="stable")]
    starts = np.argsort(mean, kind="stable")[:: max(1, num_sites // GREEDY_TOURS)][:GREEDY_TOURS]
    ranks.extend(_greedy_tour(between, int(start)) for start in starts)
    place = np.empty(len(base_D), dtype=np.int64)
    place[base_D] = np.arange(len(base_D))
    orders = []
    for rank in ranks:
        position = np.empty(num_sites, dtype=np.int64)
        position[rank] = np.arange(num_sites)
        orders.append(np.lexsort((place, position[site_D])).astype(np.int64))
    return orders


def _greedy_tour(between: FloatArray, start: int) -> IntArray:
    tour = [start]
    free = np.ones(len(between), dtype=bool)
    free[start] = False
    while free.any():
        step = int(np.argmin(np.where(free, between[tour[-1]], np.inf)))
        tour.append(step)
        free[step] = False
    return np.array(tour, dtype=np.int64)


def _distinct(orders: list[IntArray]) -> list[IntArray]:
    return list({order.tobytes(): order for order in orders}.values())
