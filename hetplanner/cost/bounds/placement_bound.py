"""A bound below DT-FM's objective that takes seconds and rises: its two terms are weighed against each other.

Devices are put into classes of neighbours. A stage then has counts: how many devices of each class it takes. For every
limit of the data-parallel term the counts are listed of which a group within the limit may exist; a branch-and-bound
search over devices rules out the others. Below the pipeline term is the cheapest walk over such counts, where a hop
costs at least the bottleneck of a flow between classes. Two conditions tie the stages of a walk: the devices of the
classes suffice, and few links are cheap. The first is kept for groups of classes and priced for single ones, the second
is priced (Lagrangian relaxation). Between two limits the cost is at least the lower limit plus the walk within the
upper one; the least over all of them is the bound.

Legend of array suffixes: D devices, C classes, N counts of a stage, K limits, L levels of a hop, S stages.

Source: Lagrangian relaxation as in Fisher, The Lagrangian Relaxation Method for Solving Integer Programming Problems,
Management Science 27 (1981); walks with counted resources as in Christofides, Mingozzi and Toth, State-Space Relaxation
Procedures, Networks 11 (1981).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray
from hetplanner.cost.bounds.class_counts.classes import MOST_COUNTS, cluster_devices, number_of_counts
from hetplanner.cost.bounds.class_counts.model import CountModel
from hetplanner.cost.bounds.class_counts.shortest_walks import Cancelled
from hetplanner.cost.bounds.class_counts.walks import Multipliers
from hetplanner.cost.bounds.hop_floors import bound_hops
from hetplanner.cost.dtfm import bound_dtfm

# Limits rise by this factor; there are so many at most.
LIMIT_FACTOR = 1.02
MOST_LIMITS = 300
# Counts that are walked over at most, first and after no step helped any more; the work rises by their square.
MOST_WALKED = (600, 1_200, 2_400, 4_800)
# How far above the lowest limit the first one lies that is worked on.
FIRST_JUMP = 8
# Steps of the subgradient method each time that a limit's turn comes, and their pace at which it has ended.
STEPS_PER_TURN = 4
LEAST_PACE = 0.3
# Larger networks are left to the cheap bound.
MOST_DEVICES = 512
# Sums in another order differ by less than this share.
ROUNDING = 1e-9


def improve_bound(
    shared_s_DD: NDArray[np.floating],
    piped_s_DD: NDArray[np.floating],
    stages: int,
    replicas: int,
    *,
    turns: int | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[float]:
    """Better and better bounds below the cost of every placement of ``stages x replicas`` of these devices.

    The first is that of :func:`hetplanner.cost.dtfm.bound_dtfm`. The values depend on the arguments only.

    Args:
        shared_s_DD: first result of :func:`hetplanner.cost.dtfm.pair_costs`.
        piped_s_DD: second result.
        stages: number of pipeline stages.
        replicas: number of pipelines.
        turns: limits of the data-parallel term that are worked on, one after the other; None: while it helps.
        is_cancelled: asked several times a second; True ends the work.

    Yields:
        Seconds of the published objective, rising.
    """
    shared, piped = (np.asarray(cost, dtype=np.float64) for cost in (shared_s_DD, piped_s_DD))
    best = bound_dtfm(shared, piped, stages, replicas)
    yield best
    if stages < 2 or replicas < 2 or len(shared) > MOST_DEVICES or is_cancelled():
        return
    try:
        work = _limits_of(shared, piped, (stages, replicas), is_cancelled)
        while work is not None and (turns is None or turns > 0) and work.take_turn(is_cancelled):
            turns = None if turns is None else turns - 1
            if work.bound() > best:
                best = work.bound()
                yield best
    except Cancelled:
        return


def warm_up() -> None:
    """Loads or compiles the kernels, so that the time of a bound does not count it."""
    places = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [5.0, 5.0], [5.0, 6.0], [6.0, 5.0]])
    cost_DD = 1.0 + np.abs(places[:, None] - places[None, :]).sum(axis=-1)
    np.fill_diagonal(cost_DD, 0.0)
    for _ in improve_bound(cost_DD, cost_DD, 3, 2, turns=2):
        pass


def _limits_of(
    shared_s_DD: FloatArray, piped_s_DD: FloatArray, shape: tuple[int, int], is_cancelled: Callable[[], bool]
) -> _Limits | None:
    """Limits with the finest partition that has not too many counts, and one whose counts can all be walked over."""
    partitions = cluster_devices(piped_s_DD)
    numbers = [number_of_counts(np.bincount(class_D), shape[1]) for class_D in partitions]
    finest = max(i for i, n in enumerate(numbers) if n <= MOST_COUNTS)
    coarsest = max((i for i, n in enumerate(numbers[: finest + 1]) if n <= MOST_WALKED[0]), default=0)
    hop_s_S = bound_hops(piped_s_DD, *shape)
    if not np.isfinite(hop_s_S).all():
        return None
    models = [
        CountModel(shared_s_DD, piped_s_DD, partitions[i], hop_s_S, shape, partitions[: i + 1])
        for i in range(finest, coarsest - 1, -1)
    ]
    least_s, most_s = models[0].least_N.min(), models[0].least_N.max()
    if not (least_s > 0 and np.isfinite(most_s)):
        return None
    count = min(MOST_LIMITS, int(np.ceil(np.log(most_s / least_s) / np.log(LIMIT_FACTOR))) + 2)
    limit_K = least_s * LIMIT_FACTOR ** np.arange(count)
    models[0].grade(limit_K, is_cancelled)
    for coarse in models[1:]:
        coarse.grade_by(models[0])
    return _Limits(models, limit_K, float(hop_s_S.sum()))


class _Limits:
    """Limits of the data-parallel term, and for each a bound below the pipeline term of placements within it."""

    def __init__(self, models: list[CountModel], limit_K: FloatArray, hops_s: float) -> None:
        self._models, self._limit_K = models, limit_K
        # What the data-parallel term costs at least if the limit before is not met.
        self._least_K = np.concatenate([limit_K[:1], limit_K[:-1]])
        self._hops_s = hops_s
        self._path_K = np.full(len(limit_K), hops_s)
        self._at: dict[int, tuple[CountModel, Multipliers]] = {}
        self._rank: dict[int, int] = {}

    @property
    def _value_K(self) -> FloatArray:
        # What holds within a limit holds within all lower ones.
        path_K = np.maximum.accumulate(self._path_K[::-1])[::-1]
        return np.asarray(self._least_K + path_K)

    def bound(self) -> float:
        """The bound that all limits together prove."""
        return float(min(self._value_K.min(), self._limit_K[-1] + self._hops_s)) * (1.0 - ROUNDING)

    def take_turn(self, is_cancelled: Callable[[], bool]) -> bool:
        """Works on a limit that keeps the bound low; False if nothing is left that would help.

        Raises:
            Cancelled: if it was asked to end.
        """
        value_K = self._value_K
        lowest = int(np.argmin(value_K))
        if value_K[lowest] >= self._limit_K[-1] + self._hops_s:
            return False
        worked_on = [k for k in self._rank if k >= lowest]
        target = (lowest + min(worked_on)) // 2 if worked_on else min(lowest + FIRST_JUMP, len(value_K) - 1)
        while not self._is_ready(target):
            rank = self._rank.get(target, -1) + 1
            if rank == len(MOST_WALKED):
                return False
            self._raise_rank(target, rank)
        model, at = self._at[target]
        for _ in range(STEPS_PER_TURN):
            path_s = model.improve(target, at, is_cancelled)
            self._path_K[target] = max(self._path_K[target], path_s)
            if not np.isfinite(path_s):
                break
        return True

    def _is_ready(self, k: int) -> bool:
        return k in self._at and self._at[k][1].pace > LEAST_PACE

    def _raise_rank(self, k: int, rank: int) -> None:
        """Goes on with a finer partition, if more counts to walk over allow one."""
        self._rank[k] = rank
        model = next((m for m in self._models if m.number_within(k) <= MOST_WALKED[rank]), None)
        if model is None or (k in self._at and self._at[k][0] is model):
            return
        near = min(
            (other for other, (of, _) in self._at.items() if of is model), key=lambda o: abs(o - k), default=None
        )
        self._at[k] = (model, model.start() if near is None else self._at[near][1].copied())
