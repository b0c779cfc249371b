"""Compiled kernels of the search for a front of step time and dollars. Importing this module imports numba.

Legend of array suffixes: A places of an archive, N devices in use first, S stages, R replicas.

An archive holds the layouts that no other one met is better than in both: ``step_A`` ascending, ``usd_A`` descending,
with their genes; ``size`` has one entry, the number in use. It has room for a fixed number; when it is full, of two
neighbours that are nearest the one in between goes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.planners.search.kernel_random import cooling_factor, draw_limit, next_uniform
from hetplanner.planners.step_time.anneal import copy_layout, move
from hetplanner.planners.step_time.kernels import egress_usd, evaluate, fit_depth, price_devices
from hetplanner.planners.step_time.space import StepProblem, StepWork

Array = NDArray[Any]
# Values this close (relative) are the same: a layout must be better by more to push another one out.
SAME = 1e-9
# Share of the summed objectives that leads along plateaus of the greater of the two.
SLOPE = 0.05


class Archive(NamedTuple):
    """See the module."""

    step_A: Array
    usd_A: Array
    place_AN: Array
    cut_AS: Array
    share_AR: Array
    size: Array


def make_archive(room: int, num_devices: int, stages: int, replicas: int) -> Archive:
    """An empty archive; it keeps at most ``room`` layouts and needs one place to work with."""
    return Archive(
        step_A=np.zeros(room + 1),
        usd_A=np.zeros(room + 1),
        place_AN=np.zeros((room + 1, num_devices), np.int64),
        cut_AS=np.zeros((room + 1, stages + 1), np.int64),
        share_AR=np.zeros((room + 1, replicas), np.int64),
        size=np.zeros(1, np.int64),
    )


@kernel
def price_layout(
    problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, step_s: float, work: StepWork
) -> float:
    """Dollars of one step that takes so long."""
    hourly = price_devices(problem, place_N, (len(cut_S) - 1) * len(share_R))
    return step_s * hourly + egress_usd(problem, place_N, cut_S, share_R, work)


@kernel
def _fits(problem: StepProblem, place_N: Array, cut_S: Array, num_replicas: int) -> bool:
    for s in range(len(cut_S) - 1):
        _, missing = fit_depth(problem, place_N, cut_S, s, num_replicas)
        if missing > 0:
            return False
    return True


@kernel
def _shift(archive: Archive, first: int, by: int) -> None:
    """Moves the entries from ``first`` on up or down; the count follows."""
    count = archive.size[0]
    order = range(count - 1, first - 1, -1) if by > 0 else range(first, count)
    for k in order:
        archive.step_A[k + by] = archive.step_A[k]
        archive.usd_A[k + by] = archive.usd_A[k]
        archive.place_AN[k + by] = archive.place_AN[k]
        archive.cut_AS[k + by] = archive.cut_AS[k]
        archive.share_AR[k + by] = archive.share_AR[k]
    archive.size[0] = count + by


@kernel
def _thin(archive: Archive) -> None:
    """Drops the inner entry whose neighbours are nearest to each other."""
    worst = 1
    least = np.inf
    for k in range(1, archive.size[0] - 1):
        gap = np.log(archive.step_A[k + 1] / archive.step_A[k - 1])
        gap += np.log((archive.usd_A[k - 1] + 1e-300) / (archive.usd_A[k + 1] + 1e-300))
        if gap < least:
            least = gap
            worst = k
    _shift(archive, worst + 1, -1)


@kernel
def offer(
    problem: StepProblem, archive: Archive, step_s: float, usd: float, place_N: Array, cut_S: Array, share_R: Array
) -> bool:
    """Puts a layout into an archive if none there is as good in both and the devices hold it; True if it went in."""
    count = archive.size[0]
    # The last entry that is no slower is the cheapest of those.
    at = int(np.searchsorted(archive.step_A[:count], step_s * (1.0 + SAME), side="right"))
    if at > 0 and archive.usd_A[at - 1] <= usd * (1.0 + SAME):
        return False
    if not _fits(problem, place_N, cut_S, len(share_R)):
        return False
    first = at
    while first > 0 and archive.step_A[first - 1] >= step_s:
        first -= 1
    end = first
    while end < count and archive.usd_A[end] >= usd:
        end += 1
    if end > first + 1:
        _shift(archive, end, first + 1 - end)
    elif end == first:
        _shift(archive, first, 1)
    archive.step_A[first] = step_s
    archive.usd_A[first] = usd
    archive.place_AN[first] = place_N
    archive.cut_AS[first] = cut_S
    archive.share_AR[first] = share_R
    if archive.size[0] == len(archive.step_A):
        _thin(archive)
    return True


@kernel
def weigh(step_s: float, usd: float, weight: float, least_step_s: float, least_usd: float) -> float:
    """One number of both: the greater weighted distance (in logarithms) from the least of each, and a little slope."""
    slow = weight * np.log(step_s / least_step_s)
    dear = (1.0 - weight) * np.log((usd + 1e-300) / least_usd)
    return max(slow, dear) + SLOPE * (slow + dear)


@kernel
def score_both(
    problem: StepProblem, archive: Archive, place_N: Array, cut_S: Array, share_R: Array, work: StepWork
) -> tuple[float, float]:
    """Step time and dollars of a layout, offered to an archive."""
    step_s, _ = evaluate(problem, place_N, cut_S, share_R, work)
    usd = price_layout(problem, place_N, cut_S, share_R, step_s, work)
    offer(problem, archive, step_s, usd, place_N, cut_S, share_R)
    return step_s, usd


@kernel
def anneal_front(
    problem: StepProblem, archive: Archive, place_N: Array, cut_S: Array, share_R: Array, num_moves: int, hot: float,
    cold: float, guide_weight: float, weight: float, least_step_s: float, least_usd: float, state: Array,
    work: StepWork,
) -> None:  # fmt: skip
    """Anneals one layout towards one direction of the front; every layout on the way is offered to the archive."""
    old_N = place_N.copy()
    old_S = cut_S.copy()
    old_R = share_R.copy()
    guide = np.inf
    cooling = cooling_factor(hot, cold, num_moves)
    temperature = hot
    for turn in range(num_moves):
        temperature *= cooling
        x = -1
        y = -1
        if turn == 0:
            next_uniform(state)
        else:
            changed, x, y = move(place_N, cut_S, share_R, state, work)
            if not changed:
                continue
        step_s, soft = evaluate(problem, place_N, cut_S, share_R, work)
        usd = price_layout(problem, place_N, cut_S, share_R, step_s, work)
        offer(problem, archive, step_s, usd, place_N, cut_S, share_R)
        # Means guide where the step has maxima, in both objectives alike.
        softer = 1.0 + guide_weight * soft / step_s
        new_guide = weigh(step_s * softer, usd * softer, weight, least_step_s, least_usd)
        if new_guide <= draw_limit(guide, temperature, state):
            guide = new_guide
            copy_layout(place_N, cut_S, share_R, old_N, old_S, old_R, x, y)
        else:
            copy_layout(old_N, old_S, old_R, place_N, cut_S, share_R, x, y)
