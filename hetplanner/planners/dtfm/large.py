"""The multilevel species of DT-FM's objective for a thousand devices and more.

Devices are grouped by site, the groups placed like devices of a small cluster (structured layouts, annealing), the
best layouts expanded, and single devices exchanged where luck differs between links. Tables are in single precision;
what is emitted is scored again, in double precision, from the published numbers.

Legend of array suffixes: D devices, G groups, M members of a group, S stages, R replicas, N devices placed first,
spare ones after, P layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.planners.dtfm.species import COLD, GUIDE_WEIGHT, DtfmSpecies
from hetplanner.planners.network import seeds
from hetplanner.planners.network.coarsen import group_devices
from hetplanner.planners.search.population import Candidate

# Groups that the coarse searches place, about; the finest of these chooses the layouts that are dealt.
WANTED_GROUPS = (256, 64)
# Layouts that are dealt device by device, and layouts of groups that are annealed, with so many moves each.
DEALT = 24
ANNEALED = 2
ANNEALED_MOVES = 20_000
RANDOM_STARTS = 4
# The heat of a chain is for a cluster of this size: one exchange changes a larger cluster's cost by less.
HEAT_DEVICES = 64


class LargeDtfmSpecies(DtfmSpecies):
    """Candidates of a large cluster: the stages stand in their order, so the second gene counts up.

    Arguments are those of :class:`hetplanner.planners.dtfm.species.DtfmSpecies`.
    """

    kernel_parts: ClassVar[tuple[str, ...]] = ()
    """None is compiled ahead: few have thousands of devices."""

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Layouts read off the network, the likeliest first; then layouts of annealed groups.

        Which layouts are likely is read off groups; these are dealt device by device.
        """
        left = ANNEALED_MOVES * 1000 if limit is None else limit
        for batch, count in self._random_layouts() if self._starts == "random" else self._layouts():
            yield self._candidates(batch[:left]), min(count, left)
            left -= count
            if left <= 0:
                return

    def _random_layouts(self) -> Iterator[tuple[IntArray, int]]:
        for _ in range(RANDOM_STARTS):
            yield seeds.random_layouts(len(self._ids), 1, self._rng), 1

    def _layouts(self) -> Iterator[tuple[IntArray, int]]:
        """Batches of layouts, and how many evaluations each stands for."""
        everybody = np.arange(len(self._ids))
        runs = seeds.list_compositions(self.stages, self._rng)
        for wanted in WANTED_GROUPS:
            group_GM = group_devices(everybody, self._site, group_size(len(self._ids), self.replicas, wanted))
            costs = self._group_costs(group_GM)
            shape = (self.stages, self.replicas // group_GM.shape[1])
            lines = [np.argsort(np.argsort(o)[group_GM].mean(axis=1), kind="stable") for o in self._orders]
            choices = [(run, k) for run in runs for k in range(len(lines))]
            layouts_PG = np.array([seeds.deal_layout(lines[k], run, shape[1]) for run, k in choices])
            ranked = np.argsort(_in_order(*costs, layouts_PG, shape), kind="stable")
            if wanted == max(WANTED_GROUPS):
                dealt = [
                    seeds.deal_layout(self._orders[k], run, self.replicas)
                    for run, k in (choices[i] for i in ranked[:DEALT])
                ]
                yield np.array(dealt), len(choices) + len(dealt)
            for i in ranked[:ANNEALED]:
                found_G = self._anneal_groups(*costs, layouts_PG[i], shape, ANNEALED_MOVES)
                yield self._expand(group_GM[found_G])[None], ANNEALED_MOVES

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """One annealing chain of exchanges."""
        from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels

        members = self._in_path_order(candidate)
        best = members.copy()
        heat *= HEAT_DEVICES / len(members)
        value = dtfm_large_kernels.anneal_large(
            self._shared, self._piped, members, self.stages, self.replicas, moves, heat, min(COLD, heat / 10),
            GUIDE_WEIGHT, self._state, best,
        )  # fmt: skip
        return Candidate(float(value), (best, np.arange(self.stages)))

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """The mother: a child of two large placements is worse than both, and there is no time to mend it."""
        return mother

    def warm_up(self) -> None:
        """Loads the kernels by running each once."""
        state = self._state.copy()
        guess = self.first_guesses()[0]
        self.anneal(guess, 1, 0.01)
        self.placement_SR(guess)
        small = np.zeros((2, 2))
        self._anneal_groups(small, small, np.arange(2), (2, 1), 1)
        _in_order(small, small, np.arange(2)[None], (2, 1))
        self._state[:] = state

    def _candidates(self, members_PN: IntArray) -> list[Candidate]:
        cost_P = _in_order(self._shared, self._piped, members_PN, (self.stages, self.replicas))
        order = np.arange(self.stages)
        return [Candidate(float(cost), (members, order)) for cost, members in zip(cost_P, members_PN, strict=True)]

    def _in_path_order(self, candidate: Candidate) -> IntArray:
        members, order = candidate.genes
        used = self.stages * self.replicas
        return np.concatenate([members[:used].reshape(self.stages, -1)[order].reshape(-1), members[used:]])

    def _group_costs(self, group_GM: IntArray) -> tuple[FloatArray, FloatArray]:
        """Seconds between groups as data-parallel peers (inside one: on the diagonal) and as pipeline neighbours.

        A matching of R devices with R others gets by with the pairs up to a quantile of about (ln R + 1) / R, so that
        is what a hop between two groups counts.
        """
        num_groups, size = group_GM.shape
        shared_GG, piped_GG = np.empty((num_groups, num_groups)), np.empty((num_groups, num_groups))
        rank = min(size * size - 1, int(size * size * (np.log(self.replicas) + 1.0) / self.replicas))
        columns = group_GM.reshape(-1)
        for g, members in enumerate(group_GM):
            grid = np.ix_(members, columns)
            shared_GG[g] = self._shared[grid].reshape(size, num_groups, size).mean(axis=(0, 2), dtype=np.float64) * size
            hops = self._piped[grid].reshape(size, num_groups, size).transpose(1, 0, 2).reshape(num_groups, -1)
            hops[g][hops[g] == 0.0] = np.inf  # a device is not its own neighbour
            piped_GG[g] = np.partition(hops, rank, axis=1)[:, rank]
        return shared_GG, np.maximum(piped_GG, piped_GG.T)

    def _anneal_groups(
        self, shared_GG: FloatArray, piped_GG: FloatArray, layout_G: IntArray, shape: tuple[int, int], moves: int
    ) -> IntArray:
        """Groups in the order of the path after one chain."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        best, order = layout_G.copy(), np.arange(shape[0])
        best_order = order.copy()
        dtfm_kernels.anneal(
            shared_GG, piped_GG, layout_G.copy(), order, shape[1], moves, 0.02, COLD, GUIDE_WEIGHT, self._state,
            best, best_order,
        )  # fmt: skip
        used = shape[0] * shape[1]
        return np.concatenate([best[:used].reshape(shape)[best_order].reshape(-1), best[used:]])

    def _expand(self, devices_GM: IntArray) -> IntArray:
        """Devices of a layout of groups; seats that whole groups leave free go to the nearest of those left over."""
        size = devices_GM.shape[1]
        seats = self.replicas // size * size
        placed = devices_GM.reshape(-1)[: self.stages * seats].reshape(self.stages, seats)
        left = np.setdiff1d(np.arange(len(self._ids)), placed)
        if seats < self.replicas:
            missing = self.replicas - seats
            order = np.argsort(placed.mean(axis=1), kind="stable")
            extra = np.empty((self.stages, missing), dtype=np.int64)
            extra[order] = left[: self.stages * missing].reshape(self.stages, missing)
            placed, left = np.hstack([placed, extra]), left[self.stages * missing :]
        return np.concatenate([placed.reshape(-1), left])


def group_size(num_devices: int, replicas: int, wanted_groups: int) -> int:
    """Devices of a group: a divisor of the replicas near what gives so many groups, if there is one."""
    wanted = max(1, min(replicas, round(num_devices / wanted_groups)))
    divisors = [d for d in range(1, replicas + 1) if replicas % d == 0 and wanted / 2 <= d <= wanted * 2]
    return min(divisors, key=lambda d: (abs(np.log(d / wanted)), d), default=wanted)


def _in_order(
    shared_DD: NDArray[Any], piped_DD: NDArray[Any], members_PN: IntArray, shape: tuple[int, int]
) -> FloatArray:
    from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels

    cost_P = np.empty(len(members_PN))
    dtfm_large_kernels.score_in_order(shared_DD, piped_DD, members_PN, cost_P, *shape)
    return cost_P
