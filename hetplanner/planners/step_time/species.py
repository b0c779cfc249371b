"""The species of the closed form: placement, layer cut and micro-batch shares, found together.

Legend of array suffixes: D usable devices, N placed devices first and spare ones after, S stages, R replicas,
P layouts, C cuts, H ways to share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan, Provenance
from hetplanner.plan.reach import find_gap
from hetplanner.planners.exhaustive.symmetry import twins_of
from hetplanner.planners.interface import Progress
from hetplanner.planners.layout import Layout, deepest_layout, dense_plan, plan_of, proportional_cut, rough_value
from hetplanner.planners.network import seeds
from hetplanner.planners.pins import honour_pins
from hetplanner.planners.search.population import Candidate
from hetplanner.planners.search.rescoring import can_simulate
from hetplanner.planners.step_time.space import SearchSpace, StepSpaces, even_shares, make_work
from hetplanner.simulator.timing import simulate_step_s

RANDOM_STARTS = 256
SCREENED = 4
# Only with so few devices layouts are counted, to be tried one and all.
FEW_DEVICES = 12
REFITTED = 32
# Seeds scored at most: this over the square of the number of devices.
SEED_WORK = 2**28
GUIDE_WEIGHT = 0.05
COLD = 1e-4
NUM_CUTS = 5


@dataclass(frozen=True)
class Start:
    """A layout to begin with: rows of the cluster by stage and pipeline, op boundaries, micro-batches per pipeline."""

    placement_SR: IntArray
    op_cut_S: tuple[int, ...]
    share_R: IntArray


class StepSpecies:
    """Candidates of one shape; genes are ``(place_N, cut_S, share_R)`` in canonical device numbers.

    `rival` is the best of the layouts it began with, as far as they were scored.

    Args:
        model: the cost model of the problem.
        shape: stages and replicas.
        seed: of every random choice.
        starts: 'structured' or 'random'.
        recompute: whether stages keep only their inputs.
        space: its tables, if already at hand (see `StepSpaces`).
        begin: layouts of the shape to begin with, asked for once.
    """

    kernel_parts: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(
        self,
        model: CostModel,
        shape: tuple[int, int],
        seed: int,
        starts: str,
        *,
        recompute: bool,
        space: SearchSpace | None = None,
        begin: Callable[[tuple[int, int]], Sequence[Start]] | None = None,
    ) -> None:
        self.stages, self.replicas = shape
        self.recompute = recompute
        self._model, self._starts, self._begin = model, starts, begin
        self.rival: Candidate | None = None
        self._space = space or StepSpaces(model).of(recompute=recompute)
        self._rng = np.random.default_rng([seed, *shape])
        self._state = self._rng.integers(1, 2**63, size=1, dtype=np.uint64)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        hosts = len(model.links.nic_out_seconds_per_byte_H)
        tied = len(self._space.problem.tied_bytes_G)
        self.work = make_work(self.stages, self.replicas, hosts, tied)
        self._kept = make_work(self.stages, self.replicas, hosts, tied)

    def first_guesses(self) -> list[Candidate]:
        """One pipeline per site with an even cut, by the closed form itself."""
        place = seeds.deal_layout(self._space.orders[0], [self.stages], self.replicas)
        cut = np.searchsorted(self._space.op_cuts, self._space.even_cut(self.stages)).astype(np.int64)
        return [self.rough((place, cut, even_shares(self._micro_batches, self.replicas)))]

    def rough(self, genes: tuple[IntArray, ...]) -> Candidate:
        """A candidate as its genes stand, scored by the closed form itself; needs no compiled kernels."""
        honour_pins(self._space.problem.pin_D, genes[0][None], self.stages, self.replicas)
        found = Candidate(0.0, genes)
        return found._replace(value=rough_value(self.layout(found), self._model))

    def rough_starts(self) -> list[tuple[IntArray, ...]]:
        """The layouts that are screened beside given ones, with equal work or equal layers, and even shares."""
        edges = [proportional_cut(self._model, np.ones(self.stages)), self._space.even_cut(self.stages)]
        cuts = [np.searchsorted(self._space.op_cuts, edge).astype(np.int64) for edge in dict.fromkeys(edges)]
        share = even_shares(self._micro_batches, self.replicas)
        return [(place.copy(), cut, share) for cut in cuts for place in self._dealt()]

    def _dealt(self) -> IntArray:
        """Pipelines inside sites, and stages inside sites, along the first and the last order of the devices."""
        orders = self._space.orders
        runs = dict.fromkeys([(self.stages,), (1,) * self.stages])
        dealt = [seeds.deal_layout(order, run, self.replicas) for order in [orders[0], orders[-1]] for run in runs]
        return np.unique(np.array(dealt), axis=0)

    def random(self) -> Candidate:
        """One random placement with matched pipelines, its best cut and shares."""
        place = self._rng.permutation(len(self._space.devices)).astype(np.int64)
        honour_pins(self._space.problem.pin_D, place[None], self.stages, self.replicas)
        self._match(place)
        values, cuts, shares = self._score(place[None], fit=True)
        return Candidate(float(values[0]), (place, cuts[0], shares[0]))

    def warm_up(self) -> None:
        """Loads the kernels (the simulator's too) by running each once on the first guess."""
        guess = self.first_guesses()[0]
        plan = self.draft(guess)
        if can_simulate([self.replicas] * self.stages) and find_gap(plan) is None:
            simulate_step_s(plan, self._model)
        state = self._state.copy()
        self.anneal(self.cross(guess, guess), 1, 0.01)
        self._state[:] = state

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Layouts scored with an even cut and even shares; the best of each batch get their own."""
        if self._starts == "random":
            layouts = seeds.random_layouts(len(self._space.devices), RANDOM_STARTS, self._rng)
        else:
            layouts = seeds.structured_layouts(self._space.orders, self.stages, self.replicas, self._rng)
        most = max(1, SEED_WORK // len(self._space.devices) ** 2)
        for batch in seeds.in_batches(layouts[: min(most, limit) if limit is not None else most]):
            values, _, _ = self._score(batch, fit=False)
            best = np.argsort(values, kind="stable")[:REFITTED]
            fitted, cuts, shares = self._score(batch[best], fit=True)
            found = [Candidate(float(fitted[i]), (batch[best[i]], cuts[i], shares[i])) for i in range(len(best))]
            yield found, len(batch)

    def screen(self) -> list[Candidate]:
        """The layouts to begin with, and pipelines or stages inside sites; or, for random starts, a few of these."""
        given = self.started(self._begin((self.stages, self.replicas))) if self._begin else []
        self.rival = min(given, key=lambda c: c.value, default=None)
        if self._starts == "random":
            layouts = seeds.random_layouts(len(self._space.devices), SCREENED, self._rng)
            return given + self._fitted(layouts)
        return given + self._fitted(self._dealt())

    def _fitted(self, layouts_PN: IntArray) -> list[Candidate]:
        values, cuts, shares = self._score(layouts_PN, fit=True)
        return [Candidate(float(values[i]), (layouts_PN[i], cuts[i], shares[i])) for i in range(len(layouts_PN))]

    def started(self, starts: Sequence[Start]) -> list[Candidate]:
        """Given layouts, each with its own cut and shares or, where these are better, with fitted ones."""
        from hetplanner.planners.step_time import anneal as step_anneal

        if not starts:
            return []
        place = np.array([self._place(start.placement_SR) for start in starts])
        honour_pins(self._space.problem.pin_D, place, self.stages, self.replicas)
        cuts = np.array([np.searchsorted(self._space.op_cuts, start.op_cut_S) for start in starts]).astype(np.int64)
        shares = np.array([start.share_R for start in starts]).astype(np.int64)
        values = np.empty(len(starts))
        step_anneal.score_layouts(
            self._space.problem, place, cuts, shares, self._micro_batches, True, values, self.work
        )
        return [Candidate(float(values[i]), (place[i], cuts[i], shares[i])) for i in range(len(starts))]

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """One annealing chain; cut and shares are fitted exactly behind it."""
        from hetplanner.planners.step_time import anneal as step_anneal

        place, cut, share = (gene.copy() for gene in candidate.genes)
        best_place, best_cut, best_share = (gene.copy() for gene in candidate.genes)
        packed, micro_batches = self._space.problem, self._micro_batches
        step_anneal.anneal(
            packed, place, cut, share, moves, heat, min(COLD, heat), GUIDE_WEIGHT, self._state,
            best_place, best_cut, best_share, self.work, self._kept,
        )  # fmt: skip
        value = step_anneal.refit(packed, best_place, best_cut, best_share, micro_batches, self.work)
        return Candidate(float(value), (best_place, best_cut, best_share))

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """Five-point crossover of the placements; pipelines are matched anew, cut and shares fitted."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        order = np.arange(self.stages)
        child = np.empty_like(mother.genes[0])
        dtfm_kernels.cross_over(
            mother.genes[0], order, father.genes[0], order, self.replicas, NUM_CUTS, self._state, child
        )
        honour_pins(self._space.problem.pin_D, child[None], self.stages, self.replicas)
        self._match(child)
        values, cuts, shares = self._score(child[None], fit=True)
        return Candidate(float(values[0]), (child, cuts[0], shares[0]))

    def try_all(self, most: int, progress: Progress) -> Candidate | None:
        """The best of all layouts; None if there are more than `most`, or the budget ended before."""
        from hetplanner.planners.exhaustive.enumeration import StepLayouts

        if len(self._space.devices) > FEW_DEVICES:
            return None
        layouts = StepLayouts(self._model, self)
        if layouts.count(most, progress) is None:
            return None
        best = layouts.search(progress)
        return None if progress.is_late() or progress.cancelled else best

    @property
    def pin_D(self) -> IntArray:
        """Stage of every pinned device in the order that genes number them, -1 of the others."""
        return np.asarray(self._space.problem.pin_D)

    def twins(self) -> IntArray:
        """The nearest device before each that it can change places with, in the order that genes number them."""
        problem = self._space.problem
        tables = (problem.latency_DD, problem.pipe_rate_DD, problem.reduce_rate_DD, problem.egress_DD)
        labels = [problem.class_D, problem.memory_D, problem.price_D, problem.pin_D]
        # Only a NIC ties a device to its host.
        return twins_of(tables, [*labels, problem.host_D] if problem.has_nics else labels)

    def best_of(self, place_PN: IntArray, cut_CS: IntArray, share_HR: IntArray) -> Candidate:
        """The best of all combinations of placements, cuts (numbers of cut points) and micro-batch shares."""
        from hetplanner.planners.exhaustive.kernels import best_of_all

        value, p, c, h = best_of_all(self._space.problem, place_PN, cut_CS, share_HR, self.work)
        return Candidate(float(value), (place_PN[p], cut_CS[c].copy(), share_HR[h].copy()))

    def fitted(self, placement_SR: IntArray) -> Candidate:
        """The candidate of a given placement (device indices of the cluster), with its best cut and shares."""
        return self._of_placement(placement_SR, fit=True)

    def unfitted(self, placement_SR: IntArray) -> Candidate:
        """The candidate of a given placement, with equal layers and shares."""
        return self._of_placement(placement_SR, fit=False)

    def _of_placement(self, placement_SR: IntArray, *, fit: bool) -> Candidate:
        place = self._place(placement_SR)[None]
        values, cuts, shares = self._score(place, fit=fit)
        return Candidate(float(values[0]), (place[0], cuts[0], shares[0]))

    def _place(self, placement_SR: IntArray) -> IntArray:
        """Canonical numbers of a placement's devices, the spare ones behind."""
        placed = [self._space.number_of[int(d)] for d in placement_SR.reshape(-1)]
        spare = np.setdiff1d(np.arange(len(self._space.devices)), placed)
        return np.concatenate([placed, spare]).astype(np.int64)

    def layout(self, candidate: Candidate) -> Layout:
        """The layout of a candidate, with the greatest depths that memory allows; needs no compiled kernels."""
        _, cut, share = candidate.genes
        edges = tuple(int(k) for k in self._space.op_cuts[cut])
        return deepest_layout(self._placed(candidate), edges, share, self.recompute, self._model)

    def draft(self, candidate: Candidate) -> Plan:
        """The plan of a candidate as it stands, without an estimate; needs no compiled kernels."""
        return dense_plan(self.layout(candidate), self._model.tables.problem, Provenance())

    def plan(self, candidate: Candidate) -> Plan | None:
        """The plan of a candidate, or None if a device cannot hold its share."""
        try:
            return plan_of(self.layout(candidate), self._model, Provenance())
        except Infeasible:
            return None

    def placement(self, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
        """Devices by stage, then replica."""
        ids = self._model.tables.problem.cluster.device_ids
        return tuple(tuple(ids[d] for d in row) for row in self._placed(candidate))

    def _placed(self, candidate: Candidate) -> IntArray:
        used = candidate.genes[0][: self.stages * self.replicas]
        return self._space.devices[used].reshape(self.stages, self.replicas)

    def _match(self, place_N: IntArray) -> None:
        """Lines the devices of the stages up in place so that every hop is a bottleneck matching."""
        from hetplanner.planners.dtfm import kernels as dtfm_kernels

        placed = np.empty((self.stages, self.replicas), dtype=np.int64)
        order = np.arange(self.stages)
        dtfm_kernels.align_columns(self._space.distance_DD, place_N, order, self.replicas, placed)
        place_N[: placed.size] = placed.reshape(-1)

    def _score(self, layouts: IntArray, *, fit: bool) -> tuple[FloatArray, IntArray, IntArray]:
        from hetplanner.planners.step_time import anneal as step_anneal

        if self._space.problem.has_pins:
            step_anneal.honour_pins(self._space.problem.pin_D, layouts, self.stages, self.replicas)
        cut = np.searchsorted(self._space.op_cuts, self._space.even_cut(self.stages))
        share = even_shares(self._micro_batches, self.replicas)
        cuts = np.tile(cut, (len(layouts), 1)).astype(np.int64)
        shares = np.tile(share, (len(layouts), 1))
        values = np.empty(len(layouts))
        step_anneal.score_layouts(
            self._space.problem, layouts, cuts, shares, self._micro_batches, fit, values, self.work
        )
        return values, cuts, shares
