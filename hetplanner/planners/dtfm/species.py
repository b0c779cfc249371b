"""The species of DT-FM's objective: a balanced partition of the devices, in the order of its stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.dtfm import bound_dtfm, pair_costs, score_dtfm
from hetplanner.errors import InvalidInput
from hetplanner.planners.dtfm.certificates import find_classes
from hetplanner.planners.dtfm.equal_runs import equal_run_layouts
from hetplanner.planners.network import seeds
from hetplanner.planners.network.coarsen import LARGE, sort_devices
from hetplanner.planners.search.population import Candidate

# Stages up to which the order of a scored layout is exact (Held-Karp tables are 2^S x S).
EXACT_STAGES = 12
RANDOM_STARTS = 256
FIRST_GUESSES = 8
GUIDE_WEIGHT = 0.1
COLD = 1e-4
NUM_CUTS = 5
KEPT_SEEDS = 256
# Plans of identical stages: scored in all, at most this part of what a budget of evaluations leaves; kept of a batch.
MOST_ENUMERATED = 50_000
ENUMERATED_PART = 4
KEPT_RUNS = 8


class DtfmSpecies:
    """Candidates of one cluster and shape; genes are ``(members_N, order_S)`` in canonical device numbers.

    Devices are renumbered by the dendrogram, so that neighbours have near numbers (crossover and re-dealing rely on
    it) and the order of the devices in a file matters little.

    Args:
        delay_ms_DD: published delays.
        bandwidth_gbps_DD: published bandwidths.
        device_ids: their names.
        shape: stages and replicas.
        seed: of every random choice.
        starts: 'structured' or 'random'.
        rows: rows of these devices in the tables; None if they are all, in their order.
    """

    kernel_parts: ClassVar[tuple[str, ...]] = ("dtfm",)

    def __init__(
        self,
        delay_ms_DD: FloatArray,
        bandwidth_gbps_DD: FloatArray,
        device_ids: tuple[str, ...],
        shape: tuple[int, int],
        seed: int,
        starts: str,
        rows: IntArray | None = None,
    ) -> None:
        self.stages, self.replicas = shape
        self._delay, self._bandwidth, self._ids = delay_ms_DD, bandwidth_gbps_DD, device_ids
        self._rows = rows
        self._starts = starts
        self._rng = np.random.default_rng([seed, 1])
        self._state = self._rng.integers(1, 2**63, size=1, dtype=np.uint64)
        dtype = np.float32 if len(device_ids) >= LARGE else np.float64
        shared, piped = pair_costs(delay_ms_DD, bandwidth_gbps_DD, self.replicas, rows=rows, dtype=dtype)
        self._canonical, self._site = self._number(piped)
        grid = np.ix_(self._canonical, self._canonical)
        self._shared = np.ascontiguousarray(shared[grid])
        del shared
        self._piped = np.ascontiguousarray(piped[grid])

    def _number(self, piped_DD: NDArray[Any]) -> tuple[IntArray, IntArray]:
        """The devices in an order that follows the network, and each one's site (all of one if they are few)."""
        if len(piped_DD) >= LARGE:
            order, site_D = sort_devices(piped_DD)
            return order, site_D[order]
        return seeds.dendrogram_order(piped_DD), np.zeros(len(piped_DD), dtype=np.int64)

    @cached_property
    def _orders(self) -> list[IntArray]:
        """Lines of devices from which structured layouts are dealt."""
        return seeds.list_orders(self._piped)

    def first_guesses(self) -> list[Candidate]:
        """The first structured layouts (or a random one), scored as they stand by the independent function."""
        return self._guesses

    @cached_property
    def _guesses(self) -> list[Candidate]:
        rng = np.random.default_rng(0)
        if self._starts == "random":
            layouts = seeds.random_layouts(len(self._ids), 1, rng)
        else:
            line = np.arange(len(self._ids))
            compositions = seeds.list_compositions(self.stages, rng)[:FIRST_GUESSES]
            layouts = np.array([seeds.deal_layout(line, runs, self.replicas) for runs in compositions])
        order = np.arange(self.stages)
        guesses = []
        for layout in layouts:
            guesses.append(self.rough((layout, order)))
        return guesses

    def rough(self, genes: tuple[IntArray, ...]) -> Candidate:
        """A candidate as its genes stand, scored by the independent function; needs no compiled kernels."""
        layout, order = genes
        placed = layout[: self.stages * self.replicas].reshape(self.stages, self.replicas)[order]
        cost = score_dtfm(self._in_tables(placed), self._delay, self._bandwidth)
        return Candidate(cost.total_s, genes)

    def rough_starts(self) -> list[tuple[IntArray, ...]]:
        """The first layouts along every line of devices."""
        if self._starts == "random":
            return []
        compositions = seeds.list_compositions(self.stages, np.random.default_rng(0))[:FIRST_GUESSES]
        order = np.arange(self.stages)
        return [(seeds.deal_layout(line, runs, self.replicas), order) for line in self._orders for runs in compositions]

    def _in_tables(self, placed_SR: IntArray) -> IntArray:
        """Canonical numbers as rows of the published tables."""
        used = self._canonical[placed_SR]
        return used if self._rows is None else self._rows[used]

    def random(self) -> Candidate:
        """One random partition, with its best stage order."""
        members = self._rng.permutation(len(self._ids)).astype(np.int64)
        cost, order = self._score(members[None])
        return Candidate(float(cost[0]), (members, order[0]))

    def given(self, placement_SR: IntArray) -> Candidate:
        """The candidate of a placement (numbers of the usable devices by stage and replica)."""
        placed = np.argsort(self._canonical)[placement_SR.reshape(-1)]
        members = np.concatenate([placed, np.setdiff1d(np.arange(len(self._ids)), placed)]).astype(np.int64)
        cost, order = self._score(members[None])
        return Candidate(float(cost[0]), (members, order[0]))

    @property
    def pair_costs(self) -> tuple[FloatArray, FloatArray]:
        """Seconds between any two devices, in the order that genes number them: data-parallel, pipeline."""
        return self._shared, self._piped

    def lower_bound(self) -> float:
        """The cheap bound below every candidate; 0 for thousands of devices, where it is far from what is found."""
        if len(self._ids) >= LARGE:
            return 0.0
        return bound_dtfm(self._shared, self._piped, self.stages, self.replicas)

    def best_of(self, members_PN: IntArray) -> Candidate:
        """The best of given partitions, with its best stage order."""
        cost, order = self._score(members_PN)
        best = int(np.argmin(cost))
        return Candidate(float(cost[best]), (members_PN[best], order[best]))

    def warm_up(self) -> None:
        """Loads the kernels by running each once on the first guess."""
        from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels

        guess = self.first_guesses()[0]
        state = self._state.copy()
        self.anneal(self.cross(guess, guess), 1, 0.01)
        self.placement(guess)
        self._score(guess.genes[0][None].copy())
        dtfm_large_kernels.score_in_order(
            self._shared, self._piped, guess.genes[0][None].copy(), np.empty(1), self.stages, self.replicas
        )
        self._state[:] = state

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Structured or random layouts, each with its best stage order."""
        if self._starts == "random":
            layouts: Iterable[IntArray] = seeds.random_layouts(len(self._ids), RANDOM_STARTS, self._rng)
        else:
            layouts = seeds.deal_layouts(self._orders, self.stages, self.replicas, self._rng)
        left = limit
        for batch in seeds.in_batches(layouts, limit):
            cost, order = self._score(batch)
            best = np.argsort(cost, kind="stable")[:KEPT_SEEDS]
            yield [Candidate(float(cost[i]), (batch[i], order[i])) for i in best], len(batch)
            left = None if left is None else left - len(batch)
        if self._starts == "structured":
            yield from self._equal_runs(None if left is None else left // ENUMERATED_PART)

    def _equal_runs(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Every plan of a few runs of identical stages, where devices fall into few classes."""
        from hetplanner.planners.dtfm import large_kernels as dtfm_large_kernels

        try:
            classes = find_classes(self._shared, self._piped)
        except InvalidInput:
            return
        left = MOST_ENUMERATED if limit is None else min(limit, MOST_ENUMERATED)
        for batch in equal_run_layouts(classes.members, self.stages, self.replicas):
            batch = batch[: max(left, 0)]
            if not len(batch):
                return
            cost = np.empty(len(batch))
            dtfm_large_kernels.score_in_order(self._shared, self._piped, batch, cost, self.stages, self.replicas)
            best = batch[np.argsort(cost, kind="stable")[:KEPT_RUNS]]
            cost, order = self._score(best)
            left -= len(batch)
            yield [Candidate(float(c), (m, o)) for c, m, o in zip(cost, best, order, strict=True)], len(batch)

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """One annealing chain, then the exact stage order."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        members, order = (gene.copy() for gene in candidate.genes)
        best, best_order = members.copy(), order.copy()
        value = dtfm_kernels.anneal(
            self._shared, self._piped, members, order, self.replicas, moves, heat, min(COLD, heat), GUIDE_WEIGHT,
            self._state, best, best_order,
        )  # fmt: skip
        cost, polished = self._score(best[None], best_order[None])
        if cost[0] < value:
            return Candidate(float(cost[0]), (best, polished[0]))
        return Candidate(float(value), (best, best_order))

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """DT-FM's five-point crossover."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        child = np.empty_like(mother.genes[0])
        dtfm_kernels.cross_over(
            mother.genes[0], mother.genes[1], father.genes[0], father.genes[1], self.replicas, NUM_CUTS, self._state,
            child,
        )  # fmt: skip
        cost, order = self._score(child[None])
        return Candidate(float(cost[0]), (child, order[0]))

    def placement_SR(self, candidate: Candidate) -> IntArray:
        """Device index by stage and replica, with the pipelines matched."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        placed = np.empty((self.stages, self.replicas), dtype=np.int64)
        members, order = candidate.genes
        dtfm_kernels.align_columns(self._piped, members, order, self.replicas, placed)
        return self._canonical[placed]

    def unmatched_SR(self, candidate: Candidate) -> IntArray:
        """Device index by stage and replica as the genes stand, without the kernels."""
        members, order = candidate.genes
        return self._canonical[members[: self.stages * self.replicas].reshape(self.stages, self.replicas)[order]]

    def placement(self, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
        """Devices by stage, then replica."""
        return tuple(tuple(self._ids[d] for d in row) for row in self.unmatched_SR(candidate))

    def _score(self, members_PN: IntArray, order_PS: IntArray | None = None) -> tuple[FloatArray, NDArray[Any]]:
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        natural = np.tile(np.arange(self.stages), (len(members_PN), 1))
        order = natural if order_PS is None else order_PS.copy()
        cost = np.empty(len(members_PN))
        dtfm_kernels.score_population(
            self._shared, self._piped, members_PN, order, cost, self.stages, self.replicas, EXACT_STAGES
        )
        return cost, order
