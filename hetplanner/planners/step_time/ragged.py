"""The species of ragged layouts: stages with unlike numbers of replicas, routes through overlapping shares.

Legend of array suffixes: D usable devices, N placed devices first and spare ones after, S stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.plan.model import Plan
from hetplanner.planners.baselines.swarm import assign_devices, ragged_plan
from hetplanner.planners.interface import Progress
from hetplanner.planners.layout import complete_plan, proportional_cut
from hetplanner.planners.search.population import Candidate
from hetplanner.planners.step_time.space import SearchSpace, make_ragged_work
from hetplanner.planners.step_time.species import StepSpecies
from hetplanner.planners.step_time.warm_start import WarmStart

COLD = 1e-4


class RaggedSpecies:
    """Candidates of a number of stages; genes are ``(place_N, first_S, load_N, cut_S)`` in canonical device numbers.

    See :mod:`hetplanner.planners.step_time.ragged_kernels` for what they mean. `rival` is SWARM's layout, once scored.

    Args:
        model: the cost model of the problem.
        stages: how many.
        seed: of every random choice.
        recompute: whether stages keep only their inputs.
        space: its tables.
        begin: a plan's layout to begin with.
        walk: gives rows of the usable devices, neighbours near each other, along which SWARM assigns them.
    """

    kernel_parts: ClassVar[tuple[str, ...]] = ("ragged",)

    def __init__(
        self,
        model: CostModel,
        stages: int,
        seed: int,
        *,
        recompute: bool,
        space: SearchSpace,
        begin: WarmStart | None = None,
        walk: Callable[[], IntArray] | None = None,
    ) -> None:
        self.stages, self.recompute = stages, recompute
        self.rival: Candidate | None = None
        self._model, self._begin, self._walk = model, begin, walk
        self._space = space
        rng = np.random.default_rng([seed, stages, 3])
        self._state = rng.integers(1, 2**63, size=1, dtype=np.uint64)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        hosts = len(model.links.nic_out_seconds_per_byte_H)
        self._work = make_ragged_work(len(self._space.devices), stages, hosts)

    def first_guesses(self) -> list[Candidate]:
        """None: what needs no kernels, equal stages give."""
        return []

    def warm_up(self) -> None:
        """Loads the kernels by running each once."""
        for candidate in self.screen()[:1]:
            state = self._state.copy()
            self.anneal(candidate, 1, 0.01)
            self._state[:] = state
        self.rival = None

    def screen(self) -> list[Candidate]:
        """SWARM's assignments along the walk and along the dendrogram."""
        found = []
        cuts = dict.fromkeys([self._space.even_cut(self.stages), proportional_cut(self._model, np.ones(self.stages))])
        orders = self._space.orders[:1]
        if self._walk is not None:
            orders = [np.array([self._space.number_of[int(d)] for d in self._walk()]), *orders]
        for order in orders:
            for cut in cuts:
                group = assign_devices(self._model, self._space.devices[order], cut, self.recompute)
                if group is not None:
                    members = self._pinned([order[group == s] for s in range(self.stages)])
                    found += [self._dealt(members, cut)] if all(len(rows) for rows in members) else []
        self.rival = min(found, key=lambda c: c.value, default=None)
        return found + self._begun()

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Nothing beyond what was screened."""
        yield from ()

    def try_all(self, most: int, progress: Progress) -> Candidate | None:
        """None: ragged layouts are not enumerated."""
        return None

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """One annealing chain."""
        from hetplanner.planners.step_time import ragged_kernels

        place, first, load, cut = (gene.copy() for gene in candidate.genes)
        value = ragged_kernels.anneal_ragged(
            self._space.problem, place, first, load, cut, self._micro_batches, moves, heat, min(COLD, heat),
            self._state, self._work,
        )  # fmt: skip
        return Candidate(float(value), (place, first, load, cut))

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """The mother: stages of unlike sizes have nothing to exchange, device by device."""
        return mother

    def is_like(self, other: StepSpecies) -> bool:
        """Whether equal layouts are among these."""
        return (self.stages, self.recompute) == (other.stages, other.recompute)

    def of_equal(self, candidate: Candidate) -> Candidate:
        """The same layout as an equal one of as many stages."""
        place, cut, share = candidate.genes
        first = np.arange(self.stages + 1) * len(share)
        load = np.ones(len(place), dtype=np.int64)
        load[: first[-1]] = np.tile(share, self.stages)
        return self._scored(place.copy(), first.astype(np.int64), load, cut.copy())

    def placement(self, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
        """Devices by stage, then replica."""
        ids = self._model.tables.problem.cluster.device_ids
        return tuple(tuple(ids[d] for d in rows) for rows in self._members(candidate))

    def plan(self, candidate: Candidate) -> Plan | None:
        """The plan of a candidate, or None if a device cannot hold its share."""
        try:
            return complete_plan(self.draft(candidate), self._model)
        except Infeasible:
            return None

    def draft(self, candidate: Candidate) -> Plan:
        """The plan of a candidate as it stands, without an estimate."""
        _, first, load, cut = candidate.genes
        shares = np.split(load[: first[-1]], first[1:-1])
        edges = tuple(int(k) for k in self._space.op_cuts[cut])
        return ragged_plan(self._model, self._members(candidate), shares, edges, self.recompute)

    def _members(self, candidate: Candidate) -> list[IntArray]:
        place, first = candidate.genes[:2]
        return np.split(self._space.devices[place[: first[-1]]], first[1:-1])

    def _begun(self) -> list[Candidate]:
        """The layout of the plan to begin with, if it has as many stages."""
        begin = self._begin
        if begin is None or begin.cut is None or len(begin.members) != self.stages:
            return []
        members = [np.array([self._space.number_of[int(d)] for d in rows]) for rows in begin.members]
        if self._space.problem.has_pins:
            members = self._pinned(members)
            return [self._dealt(members, begin.cut)] if all(len(rows) for rows in members) else []
        return [self._dealt(members, begin.cut, begin.loads)]

    def _pinned(self, members: list[IntArray]) -> list[IntArray]:
        """The same with pinned devices in their stages; one may be left empty."""
        pin_D = self._space.problem.pin_D
        kept = [rows[(pin_D[rows] < 0) | (pin_D[rows] == s)] for s, rows in enumerate(members)]
        return [
            np.union1d(rows, np.flatnonzero(pin_D == s)) if (pin_D == s).any() else rows for s, rows in enumerate(kept)
        ]

    def _dealt(
        self, members: list[IntArray], op_cut_S: tuple[int, ...], loads: list[IntArray] | None = None
    ) -> Candidate:
        """Devices by stage, with given micro-batches or in proportion to their speed."""
        from hetplanner.planners.step_time import ragged_kernels

        problem = self._space.problem
        used = np.concatenate(members)
        place = np.concatenate([used, np.setdiff1d(np.arange(len(problem.class_D)), used)]).astype(np.int64)
        first = np.concatenate([[0], np.cumsum([len(rows) for rows in members])]).astype(np.int64)
        cut = np.searchsorted(self._space.op_cuts, op_cut_S).astype(np.int64)
        load = np.ones(len(place), dtype=np.int64)
        if loads is not None:
            load[: first[-1]] = np.concatenate(loads)
        for s in range(self.stages if loads is None else 0):
            ragged_kernels.deal_loads(
                problem, place, first[s], first[s + 1], cut[s], cut[s + 1], self._micro_batches, load
            )
        return self._scored(place, first, load, cut)

    def _scored(self, place: IntArray, first: IntArray, load: IntArray, cut: IntArray) -> Candidate:
        from hetplanner.planners.step_time import ragged_kernels

        value = ragged_kernels.evaluate_ragged(self._space.problem, place, first, load, cut, self._work)
        return Candidate(float(value), (place, first, load, cut))
