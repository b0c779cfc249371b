"""All plans of a few runs of *identical* stages, where devices fall into few classes of interchangeable ones.

Stages of one run hold the same number of every class, so a run of k stages takes a multiple of k devices of each. Such
plans (three kinds of stages over eight, say) are often best, and out of reach of single swaps: every way there leads
over unequal stages.

Legend of array suffixes: C classes, K runs, V ways, S stages, R replicas, N devices, P layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetplanner.arrays import IntArray

# Runs of a plan, classes of a network, and plans of one division into runs, at most.
MOST_RUNS = 3
MOST_CLASSES = 16
MOST_PLANS = 4096
# Partial plans that are kept while classes are added one after the other.
MOST_PARTIAL = 200_000


def equal_run_layouts(members_C: Sequence[IntArray], stages: int, replicas: int) -> Iterator[IntArray]:
    """Layouts of identical stages by runs, one batch ``layouts_PN`` for every division of the stages.

    Args:
        members_C: devices of each class; together they are as many as the plan has seats.
        stages: number of pipeline stages.
        replicas: number of pipelines.
    """
    size_C = np.array([len(members) for members in members_C])
    if len(members_C) > MOST_CLASSES or int(size_C.sum()) != stages * replicas:
        return
    for runs in _divisions(stages, MOST_RUNS):
        count_PKC = _ways_to_fill(size_C, np.array(runs), replicas)
        if len(count_PKC):
            yield _lay_out(members_C, runs, count_PKC)


def _divisions(stages: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ways to write the stages as runs, each once up to its direction."""
    for first in range(stages, 0, -1):
        if first == stages:
            yield (stages,)
        elif most > 1:
            yield from (
                (first, *rest)
                for rest in _divisions(stages - first, most - 1)
                if (first, *rest) >= (first, *rest)[::-1] or most < MOST_RUNS
            )


def _ways_to_fill(size_C: IntArray, run_K: IntArray, replicas: int) -> IntArray:
    """Numbers of every class at each stage of a run, ``count_PKC``; an even choice where there are too many."""
    chosen_PKC = np.zeros((1, len(run_K), 0), dtype=np.int64)
    for size in size_C:
        way_VK = _ways_to_part(int(size), run_K, replicas)
        if not len(way_VK):
            return np.zeros((0, len(run_K), 0), dtype=np.int64)
        used_PK = chosen_PKC.sum(axis=2)
        fits_PV = (used_PK[:, None, :] + way_VK[None, :, :] <= replicas).all(axis=2)
        before, way = np.nonzero(fits_PV)
        if len(before) > MOST_PARTIAL:
            kept = np.linspace(0, len(before) - 1, MOST_PARTIAL).astype(np.int64)
            before, way = before[kept], way[kept]
        chosen_PKC = np.concatenate([chosen_PKC[before], way_VK[way][:, :, None]], axis=2)
    full_PKC = chosen_PKC[(chosen_PKC.sum(axis=2) == replicas).all(axis=1)]
    if len(full_PKC) > MOST_PLANS:
        full_PKC = full_PKC[np.linspace(0, len(full_PKC) - 1, MOST_PLANS).astype(np.int64)]
    return full_PKC


def _ways_to_part(size: int, run_K: IntArray, replicas: int) -> IntArray:
    """Ways to give all devices of a class to the runs, as numbers at each stage of a run ``way_VK``."""
    most = [range(min(size // int(run), replicas) + 1) for run in run_K]
    grid = np.stack(np.meshgrid(*most, indexing="ij"), axis=-1).reshape(-1, len(run_K))
    return np.asarray(grid[grid @ run_K == size])


def _lay_out(members_C: Sequence[IntArray], runs: Sequence[int], count_PKC: IntArray) -> IntArray:
    """Devices stage by stage, those of a class in their order."""
    count_PSC = np.repeat(count_PKC, runs, axis=1)
    num_plans, _, num_classes = count_PSC.shape
    classes = np.broadcast_to(np.arange(num_classes), count_PSC.shape).reshape(-1)
    class_PN = np.repeat(classes, count_PSC.reshape(-1)).reshape(num_plans, -1)
    layouts_PN = np.empty_like(class_PN)
    devices_N = np.broadcast_to(np.concatenate(members_C), class_PN.shape)
    np.put_along_axis(layouts_PN, np.argsort(class_PN, axis=1, kind="stable"), devices_N, axis=1)
    return layouts_PN
