"""Certificates for DT-FM's objective: the optimum over classes of interchangeable devices, proved by CP-SAT.

Two devices are interchangeable if swapping them leaves every pair's cost as it is. A plan is then a matrix of counts,
stage by class, for a stage's data-parallel cost depends on its counts alone, and so does the bottleneck matching
between two stages: it is the least threshold at which a flow over class pairs exists. Stages stand in their order, so
the path is part of the model. Costs are rounded down to `RESOLUTION_S`, so what is proved is a bound.

Legend of array suffixes: D devices, C classes, S stages, R replicas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.errors import InvalidInput

# Costs are whole multiples of this in the model.
RESOLUTION_S = 1e-8
# More classes make a model (stages x classes^2 flows) whose proof is out of reach.
MOST_CLASSES = 32
# How often a running proof is asked whether it should end.
POLL_S = 0.02


@dataclass(frozen=True)
class DeviceClasses:
    """Interchangeable devices, and what any two of them cost each other.

    Attributes:
        members: device indices of each class.
        shared_s_CC: seconds as data-parallel peers; 0 within a class of one.
        piped_s_CC: seconds as pipeline neighbours; infinite within a class of one.
    """

    members: tuple[IntArray, ...]
    shared_s_CC: FloatArray
    piped_s_CC: FloatArray

    @property
    def sizes(self) -> list[int]:
        """Devices of each class."""
        return [len(m) for m in self.members]

    def count(self, placement_SR: IntArray) -> IntArray:
        """Devices of each class at each stage."""
        class_D = np.zeros(1 + max(int(m.max()) for m in self.members), dtype=np.int64)
        for c, members in enumerate(self.members):
            class_D[members] = c
        return np.array([np.bincount(class_D[row], minlength=len(self.members)) for row in placement_SR])

    def place(self, count_SC: IntArray) -> IntArray:
        """Devices that make up such counts, by stage; the columns are not matched."""
        used = np.concatenate([np.zeros((1, count_SC.shape[1]), dtype=np.int64), np.cumsum(count_SC, axis=0)])
        return np.array(
            [
                np.concatenate([m[used[s, c] : used[s + 1, c]] for c, m in enumerate(self.members)])
                for s in range(len(count_SC))
            ]
        )


@dataclass(frozen=True)
class Certificate:
    """What a proof came to.

    Attributes:
        lower_bound_s: no placement costs less.
        is_optimal: whether the best placement was proved so (to the resolution of the model).
        count_SC: the best placement met as counts of classes; None if none was.
    """

    lower_bound_s: float
    is_optimal: bool
    count_SC: IntArray | None


def load_solver() -> Any:
    """The CP-SAT module of ortools.

    Raises:
        InvalidInput: if the extra `exact` is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InvalidInput(
            "planner cp-sat needs ortools, which is not installed: pip install 'hetplanner[exact]'"
        ) from None
    return cp_model


def find_classes(shared_s_DD: FloatArray, piped_s_DD: FloatArray) -> DeviceClasses:
    """Classes of interchangeable devices.

    Args:
        shared_s_DD: first result of :func:`hetplanner.cost.dtfm.pair_costs`.
        piped_s_DD: second result.

    Raises:
        InvalidInput: if there are more than `MOST_CLASSES`.
    """
    groups: list[list[int]] = []
    for device in range(len(shared_s_DD)):
        home = next((g for g in groups if _is_same(shared_s_DD, piped_s_DD, g[0], device)), None)
        if home is not None:
            home.append(device)
            continue
        groups.append([device])
        if len(groups) > MOST_CLASSES:
            raise InvalidInput(
                f"planner cp-sat: the {len(shared_s_DD)} devices fall into more than {MOST_CLASSES} classes of"
                " interchangeable ones, which is too many for a proof; use planner evolution"
            )
    first = [g[0] for g in groups]
    shared, piped = (m[np.ix_(first, first)].copy() for m in (shared_s_DD, piped_s_DD))
    for c, group in enumerate(groups):
        pair = (group[0], group[-1])
        shared[c, c] = shared_s_DD[pair]
        piped[c, c] = piped_s_DD[pair] if len(group) > 1 else np.inf
    return DeviceClasses(tuple(np.array(g, dtype=np.int64) for g in groups), shared, piped)


def _is_same(shared_s_DD: FloatArray, piped_s_DD: FloatArray, a: int, b: int) -> bool:
    others = np.ones(len(shared_s_DD), dtype=bool)
    others[[a, b]] = False
    return all(bool(np.array_equal(m[a, others], m[b, others])) for m in (shared_s_DD, piped_s_DD))


def prove_optimum(
    classes: DeviceClasses,
    shape: tuple[int, int],
    *,
    upper_s: float | None = None,
    hint_SC: IntArray | None = None,
    seconds: float | None = None,
    workers: int = 2,
    seed: int = 0,
    is_over: Callable[[float], bool] = lambda best_s: False,
) -> Certificate:
    """Minimises DT-FM's cost over all placements of a shape, with proof.

    Args:
        classes: see :func:`find_classes`.
        shape: stages and replicas.
        upper_s: cost of a known placement; worse ones are not looked at.
        hint_SC: that placement, as counts.
        seconds: time limit; None for none.
        workers: threads of the solver.
        seed: of the solver's choices.
        is_over: asked every 20 ms in the caller's thread with the best cost met; True ends the proof.

    Raises:
        InvalidInput: if ortools is not installed.
    """
    cp_model = load_solver()
    model = _Model(cp_model, classes, shape)
    if upper_s is not None and np.isfinite(upper_s):
        model.limit(upper_s)
    if hint_SC is not None:
        model.hint(hint_SC)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    # Stronger linear relaxations pay: the flows of neighbouring stages are network matrices.
    solver.parameters.linearization_level = 2
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds
    best = [np.inf]
    status = _solve(cp_model, solver, model.model, best, is_over)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = solver.best_objective_bound * RESOLUTION_S if status != cp_model.MODEL_INVALID else 0.0
    count = np.array([[solver.value(v) for v in row] for row in model.count_SC]) if found else None
    return Certificate(max(0.0, float(bound)), status == cp_model.OPTIMAL, count)


def _solve(cp_model: Any, solver: Any, model: Any, best: list[float], is_over: Callable[[float], bool]) -> Any:
    """Solves in a thread of its own, so that the caller's events and stop requests go on."""

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            best[0] = self.objective_value * RESOLUTION_S

    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(solver.solve(model, Watch())), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            # A stop asked for before the search proper has begun is lost, hence again and again.
            if thread.is_alive() and is_over(best[0]):
                solver.stop_search()
    except BaseException:
        while thread.is_alive():
            solver.stop_search()
            thread.join(POLL_S)
        raise
    return result[0] if result else cp_model.UNKNOWN


class _Model:
    """The CP-SAT model of one set of classes and shape."""

    def __init__(self, cp_model: Any, classes: DeviceClasses, shape: tuple[int, int]) -> None:
        self.model = cp_model.CpModel()
        self._sizes, (self._stages, self._replicas) = classes.sizes, shape
        self._shared = _whole(classes.shared_s_CC)
        self._piped = classes.piped_s_CC
        self.count_SC = [
            [self.model.new_int_var(0, min(n, self._replicas), f"count_{s}_{c}") for c, n in enumerate(self._sizes)]
            for s in range(self._stages)
        ]
        for row in self.count_SC:
            self.model.add(sum(row) == self._replicas)
        for column, size in zip(zip(*self.count_SC, strict=True), self._sizes, strict=True):
            self.model.add(sum(column) <= size)
        self._objective = self._data_parallel() + self._path()
        self.model.minimize(self._objective)

    def limit(self, upper_s: float) -> None:
        """Looks at no placement that costs more."""
        self.model.add(self._objective <= int(np.ceil(upper_s / RESOLUTION_S)))

    def hint(self, count_SC: IntArray) -> None:
        """Starts from a known placement."""
        for row, numbers in zip(self.count_SC, count_SC, strict=True):
            for variable, number in zip(row, numbers, strict=True):
                self.model.add_hint(variable, int(number))

    def _data_parallel(self) -> Any:
        """A device of class c pays its peers; a class that a stage does not hold pays nothing there."""
        most = int(self._shared.max()) * self._replicas
        slowest = self.model.new_int_var(0, most, "data_parallel")
        for s, row in enumerate(self.count_SC):
            for c, costs in enumerate(self._shared):
                is_held = self.model.new_bool_var(f"held_{s}_{c}")
                self.model.add(row[c] == 0).only_enforce_if(~is_held)
                self.model.add(row[c] >= 1).only_enforce_if(is_held)
                paid = sum(int(cost) * count for cost, count in zip(costs, row, strict=True)) - int(costs[c])
                self.model.add(paid <= slowest).only_enforce_if(is_held)
        return slowest

    def _path(self) -> Any:
        """The sum of the hops' thresholds; above[k] says that a hop's bottleneck is beyond the k-th threshold."""
        if self._stages < 2:
            return 0
        usable = np.isfinite(self._piped)
        thresholds, inverse = np.unique(_whole(self._piped[usable]), return_inverse=True)
        level_CC = np.full(self._piped.shape, len(thresholds))
        level_CC[usable] = inverse.reshape(-1)
        closed = _closed_sets(level_CC, len(thresholds))
        steps = np.diff(thresholds)
        total: Any = int(thresholds[0]) * (self._stages - 1)
        for s in range(self._stages - 1):
            above = [self.model.new_bool_var(f"above_{s}_{k}") for k in range(len(steps))]
            for k in range(len(steps) - 1):
                self.model.add_implication(above[k + 1], above[k])
            self._match(s, level_CC, above, len(thresholds))
            # Implied: below a threshold nothing leaves the parts into which it splits the classes.
            for k, parts in enumerate(closed):
                for part in parts:
                    here, there = (sum(self.count_SC[t][c] for c in part) for t in (s, s + 1))
                    self.model.add(here == there).only_enforce_if(~above[k])
            total += sum(int(step) * is_above for step, is_above in zip(steps, above, strict=True))
        return total

    def _match(self, s: int, level_CC: IntArray, above: list[Any], num_levels: int) -> None:
        """A flow from the classes of stage s to those of the next, over pairs within the threshold."""
        flow: dict[tuple[int, int], Any] = {}
        for c, d in np.argwhere(level_CC < num_levels).tolist():
            most = min(self._sizes[c], self._sizes[d], self._replicas)
            flow[c, d] = self.model.new_int_var(0, most, f"flow_{s}_{c}_{d}")
            if level_CC[c, d] > 0:
                self.model.add(flow[c, d] == 0).only_enforce_if(~above[level_CC[c, d] - 1])
        for c in range(len(self._sizes)):
            self.model.add(sum(v for (a, _), v in flow.items() if a == c) == self.count_SC[s][c])
            self.model.add(sum(v for (_, b), v in flow.items() if b == c) == self.count_SC[s + 1][c])


def _whole(seconds: FloatArray) -> IntArray:
    """Seconds rounded down to the model's resolution."""
    return np.floor(seconds / RESOLUTION_S).astype(np.int64)


def _closed_sets(level_CC: IntArray, num_levels: int) -> list[list[list[int]]]:
    """For each threshold but the last, the parts into which the class pairs within it connect the classes."""
    result = []
    for k in range(num_levels - 1):
        reach = (level_CC <= k) | np.eye(len(level_CC), dtype=bool)
        for _ in range(len(level_CC).bit_length()):
            reach = (reach.astype(np.int64) @ reach.astype(np.int64)) > 0
        parts = np.unique(reach, axis=0)
        if len(parts) == 1:
            break
        result.append([np.flatnonzero(part).tolist() for part in parts])
    return result
