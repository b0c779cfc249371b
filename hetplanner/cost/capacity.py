"""Whether devices' memory holds a model cut into stages, exactly, and if not, which device lacks how much.

The devices of a shape, sorted by memory, form groups of one replica each: the best choice of groups, since the smallest
device of a group limits its stage and no other grouping has a k-th largest limit above that of this one. What is left
is which group serves which stage and where the cuts are. A state is the number of groups of each size in use; for
each the boundaries are known that so many stages can end at.

Legend of array suffixes: K places where a stage may begin or end, S stages, G groups of devices (largest first),
D usable devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables, awaited_messages

# Combinations of groups looked at; with more, sizes that differ least count as the smaller one.
MOST_STATES = 4096
# Halvings of the shortage that is asked for: the answer is exact to a millionth.
HALVINGS = 24


@dataclass(frozen=True)
class Fit:
    """A cut and who serves what.

    Attributes:
        edge_S: places (of K) where the stages begin, and the last one's end.
        group_S: group of devices of each stage, 0 the one with the most memory.
    """

    edge_S: tuple[int, ...]
    group_S: tuple[int, ...]


@dataclass(frozen=True)
class Shortage:
    """A device that lacks memory in the layout whose worst-off device lacks least."""

    device: str
    needed_bytes: float
    limit_bytes: float

    @property
    def missing_bytes(self) -> float:
        """By how much it is short."""
        return self.needed_bytes - self.limit_bytes


@dataclass(frozen=True)
class Capacity:
    """The memory of a problem's usable devices against what stages need."""

    tables: CostTables

    @cached_property
    def edges_K(self) -> IntArray:
        """Op boundaries where a stage may begin or end."""
        return np.concatenate(([0], self.tables.cuts, [self.tables.num_ops])).astype(np.int64)

    @cached_property
    def devices_D(self) -> IntArray:
        """Rows of the usable devices in the cluster, the most memory first."""
        problem = self.tables.problem
        rows = np.array([problem.cluster.device_index(d) for d in problem.usable_devices], dtype=np.int64)
        return rows[np.argsort(-self.tables.devices.memory_bytes_D[rows], kind="stable")]

    def stage_bytes_KK(
        self, in_flight: int = 1, *, replicas: int = 1, recompute: bool = True, sharded: float = 0.0
    ) -> FloatArray:
        """Peak bytes of a stage between two places; infinite where there is none.

        As :meth:`CostTables.stage_bytes`, with replicas as :meth:`CostTables.bytes_with_reduction`.

        Args:
            in_flight: micro-batches held at once, at least 1.
            replicas: that reduce the stage's gradients.
            recompute: whether only inputs are kept, of stages or of layers.
            sharded: bytes per trained weight that are elsewhere; at least the states that ZeRO shards.
        """
        first_KK, total_KK = (self._held_KK(n, in_flight, recompute=recompute) for n in (1, in_flight))
        if replicas > 1:
            part_KK = self._trained_KK * (GRADIENT_ELEMENT_BYTES / replicas)
            reducing_KK = np.maximum(first_KK, self._always_KK + part_KK)
            total_KK = np.maximum(total_KK, awaited_messages(replicas) * part_KK + reducing_KK)
        sharded = max(sharded, self.tables.sharded_bytes_per_trained * (1.0 - 1.0 / replicas))
        total_KK = total_KK - self._trained_KK * sharded
        return np.where(np.triu(np.ones(total_KK.shape, dtype=bool), 1), total_KK, np.inf)

    def _held_KK(self, in_flight: int, deepest: int, *, recompute: bool) -> FloatArray:
        held_KK, each_KK = self._memory[recompute]
        whole_KK = held_KK + in_flight * each_KK
        if not recompute:
            return whole_KK
        held_KK, each_KK, below_KK = self._layers
        return np.where(deepest < below_KK, held_KK + in_flight * each_KK, whole_KK)

    @cached_property
    def _layers(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.tables.layers_between(self.edges_K)

    @cached_property
    def _memory(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Without and with recomputation."""
        plain, again = (self.tables.memory_between(self.edges_K, recompute=again) for again in (False, True))
        return plain, again

    @cached_property
    def _always_KK(self) -> FloatArray:
        return self.tables.always_between(self.edges_K)

    @cached_property
    def _trained_KK(self) -> FloatArray:
        return self.tables.trained_between(self.edges_K)

    def limits_G(self, stages: int, replicas: int) -> FloatArray:
        """Memory of the smallest device of each group."""
        memory_D = self.tables.devices.memory_bytes_D[self.devices_D]
        return np.asarray(memory_D[replicas - 1 : stages * replicas : replicas])

    def fit(self, stages: int, replicas: int, in_flight: int = 1, *, recompute: bool = True) -> Fit | None:
        """A layout that every device holds, or None if there is none (of stages of so many replicas each)."""
        if stages * replicas > len(self.devices_D):
            return None
        return find_fit(
            self.stage_bytes_KK(in_flight, replicas=replicas, recompute=recompute), self.limits_G(stages, replicas)
        )

    def shortages(self, stages: int, replicas: int) -> list[Shortage]:
        """Devices that lack memory, the worst-off first, in the layout whose worst-off device lacks least.

        Recomputing, and with one micro-batch in flight. Empty if everything fits, or no cut has so many stages.
        """
        bytes_KK, limits_G = self.stage_bytes_KK(replicas=replicas), self.limits_G(stages, replicas)
        low, high = 0.0, float(bytes_KK[np.isfinite(bytes_KK)].max())
        best = find_fit(bytes_KK, limits_G + high)
        if best is None:
            return []
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            found = find_fit(bytes_KK, limits_G + middle)
            low, high, best = (low, middle, found) if found else (middle, high, best)
        return self._lacking(best, bytes_KK, replicas)

    def _lacking(self, fit: Fit, bytes_KK: FloatArray, replicas: int) -> list[Shortage]:
        cluster, memory_D = self.tables.problem.cluster, self.tables.devices.memory_bytes_D
        found = []
        for s, group in enumerate(fit.group_S):
            needed = float(bytes_KK[fit.edge_S[s], fit.edge_S[s + 1]])
            for row in self.devices_D[group * replicas : (group + 1) * replicas].tolist():
                if needed > memory_D[row]:
                    found.append(Shortage(cluster.device_ids[row], needed, float(memory_D[row])))
        return sorted(found, key=lambda short: -short.missing_bytes)


def find_fit(bytes_KK: FloatArray, limits_G: Sequence[float] | FloatArray) -> Fit | None:
    """Cuts a model into as many stages as there are limits, and assigns these, so that every stage keeps its own.

    Args:
        bytes_KK: what a stage between two places needs.
        limits_G: what each group of devices holds.

    Returns:
        None if there is no such cut.
    """
    even = np.linspace(0, len(bytes_KK) - 1, len(limits_G) + 1).round().astype(np.int64)
    if float(bytes_KK[even[:-1], even[1:]].max()) <= min(limits_G):
        return Fit(tuple(even.tolist()), tuple(range(len(limits_G))))
    sizes = _few_sizes(np.asarray(limits_G, dtype=np.float64))
    values = sorted(set(sizes.tolist()), reverse=True)
    most = [int((sizes == value).sum()) for value in values]
    allowed = [bytes_KK <= value for value in values]
    start = (0,) * len(values)
    ends: dict[tuple[int, ...], BoolArray] = {start: np.arange(len(bytes_KK)) == 0}
    for state in _states(most):
        reached = np.zeros(len(bytes_KK), dtype=bool)
        for v, before in _predecessors(state):
            reached |= allowed[v][ends[before]].any(axis=0)
        ends[state] = reached
    if not ends[tuple(most)][-1]:
        return None
    return _traced(ends, allowed, tuple(most), [np.flatnonzero(sizes == value).tolist() for value in values])


def _traced(
    ends: dict[tuple[int, ...], BoolArray],
    allowed: list[BoolArray],
    state: tuple[int, ...],
    members: list[list[int]],
) -> Fit:
    """Walks back from the end of the model."""
    edges, groups = [len(allowed[0]) - 1], []
    while sum(state):
        for v, before in _predecessors(state):
            options = np.flatnonzero(ends[before] & allowed[v][:, edges[-1]])
            if len(options):
                # The latest begin leaves this stage the least.
                edges.append(int(options[-1]))
                groups.append(members[v][state[v] - 1])
                state = before
                break
    return Fit(tuple(edges[::-1]), tuple(groups[::-1]))


def _states(most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All numbers of groups in use but none, in an order in which every state follows those it is reached from."""
    states = product(*(range(n + 1) for n in most))
    next(states)
    return states


def _predecessors(state: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    for v, count in enumerate(state):
        if count:
            yield v, (*state[:v], count - 1, *state[v + 1 :])


def _few_sizes(limits_G: FloatArray) -> FloatArray:
    """The limits, of which those nearest to each other count as the smaller one until there are few states."""
    sizes = limits_G.copy()
    while True:
        values, counts = np.unique(sizes, return_counts=True)
        if prod(int(n) + 1 for n in counts) <= MOST_STATES:
            return sizes
        nearest = int(np.argmin(np.diff(values)))
        sizes[sizes == values[nearest + 1]] = values[nearest]
