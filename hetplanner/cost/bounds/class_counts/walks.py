"""The cheapest walk over counts of stages: a bound below the pipeline term of placements whose stages have such counts.

Legend of array suffixes: C classes, N counts of a stage, S stages, L levels of a hop, G groups of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.bounds.class_counts.shortest_walks import Network

# What sums of single-precision numbers may be off.
ROUNDING = 1e-5
# First step of the prices of all classes together, seconds, and of a weight per hop.
PRICE_STEP_S = 0.3
WEIGHT_STEP = 0.15


@dataclass
class Multipliers:
    """Prices of the relaxed conditions; any values give a valid bound, better ones a higher bound.

    Attributes:
        price_C: of a device of each class.
        weight_L: how much of each step between levels is charged by the walk's hops; the rest is charged by the bounds
            of the single hops.
        pace: of the next change.
        best: the bound they gave.
    """

    price_C: FloatArray
    weight_L: FloatArray
    pace: float = 1.0
    best: float = -np.inf

    def copied(self) -> Multipliers:
        """The same prices for another limit."""
        return Multipliers(self.price_C.copy(), self.weight_L.copy())


@dataclass(frozen=True)
class Walks:
    """Walks of as many stages over counts. No more devices of a group of classes are used than there are.

    Attributes:
        count_NC: devices of each class at a stage.
        level_NN: index into `beyond_s_L` of the hop between two counts.
        beyond_s_L: what a hop costs at least, by level.
        hop_s_S: bounds below the single hops, cheapest first.
        size_C: devices of each class.
        group_C: group of each class.
        stages: number of stages.
        replicas: devices of a stage.
    """

    count_NC: IntArray
    level_NN: NDArray[np.uint8]
    beyond_s_L: FloatArray
    hop_s_S: FloatArray
    size_C: IntArray
    group_C: IntArray
    stages: int
    replicas: int

    def start(self) -> Multipliers:
        """No prices; hops are charged beyond the median of the bounds of single hops."""
        middle = float(np.median(self.hop_s_S))
        return Multipliers(np.zeros(len(self.size_C)), (self.beyond_s_L > middle).astype(np.float64))

    def improve(self, at: Multipliers, number: int, is_cancelled: Callable[[], bool]) -> float:
        """One step of the subgradient method.

        Args:
            at: the multipliers, which are changed.
            number: stages may have the first so many counts.
            is_cancelled: asked often.

        Returns:
            Bound below the sum of hops; infinite if there is no walk.

        Raises:
            Cancelled: if it was asked to end.
        """
        counts_NC, level_NN = self.count_NC[:number], self.level_NN[:number, :number]
        step_L = np.diff(self.beyond_s_L, prepend=0.0)
        step_L[~np.isfinite(self.beyond_s_L)] = np.inf
        in_group_CG = np.eye(int(self.group_C.max()) + 1, dtype=np.int64)[self.group_C]
        charged_L = np.where(np.isfinite(step_L), at.weight_L, 1.0) * np.maximum(step_L, 1e-300)
        network = Network(
            counts_NC @ in_group_CG,
            self.size_C @ in_group_CG,
            (counts_NC @ at.price_C).astype(np.float32),
            np.cumsum(charged_L).astype(np.float32)[level_NN],
            self.replicas,
        )
        walk, value = network.cheapest_walk(self.stages, is_cancelled)
        if walk is None:
            return float("inf")
        single_L = self._single_hops(step_L)
        free_L = np.where(np.isfinite(step_L), (1.0 - at.weight_L) * single_L, 0.0)
        priced = float(at.price_C @ self.size_C)
        magnitude = float(np.abs(at.price_C) @ self.size_C) + abs(value)
        bound = value + float(free_L @ np.where(free_L > 0, step_L, 0.0)) - priced
        bound -= ROUNDING * magnitude
        hops_L = (level_NN[walk[:-1], walk[1:]][:, None] >= np.arange(len(step_L))).sum(axis=0)
        self._change(at, bound, counts_NC[walk].sum(axis=0) - self.size_C, hops_L - single_L)
        return bound

    def _single_hops(self, step_L: FloatArray) -> FloatArray:
        """How many hops are beyond each step between two levels by the bounds of the single hops, parts counted."""
        before_L = np.concatenate([[0.0], self.beyond_s_L[:-1]])
        is_step = np.isfinite(step_L) & (step_L > 0)
        parts = np.clip(self.hop_s_S[:, None] - before_L, 0.0, np.where(is_step, step_L, 0.0))
        return np.asarray(np.where(is_step, parts.sum(axis=0) / np.where(is_step, step_L, 1.0), 0.0))

    def _change(self, at: Multipliers, bound: float, excess_C: IntArray, excess_L: FloatArray) -> None:
        if bound > at.best:
            at.best = bound
        else:
            at.pace *= 0.7
        norm = float(excess_C @ excess_C)
        if norm > 0:
            at.price_C = at.price_C + at.pace * PRICE_STEP_S * excess_C / np.sqrt(norm)
            if int(self.size_C.sum()) > self.stages * self.replicas:  # devices may be idle
                at.price_C = np.maximum(at.price_C, 0.0)
        at.weight_L = np.clip(at.weight_L + at.pace * WEIGHT_STEP * excess_L, 0.0, 1.0)
