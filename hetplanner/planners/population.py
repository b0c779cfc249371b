"""The evolutionary loop: seeds, annealing, crossover. What a candidate is, a species says.

Everything happens in fixed-size chunks (one annealing chain each), so a time budget only changes how many there are
and the same seed with the same number of evaluations gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetplanner.planners.interface import PlannerSettings, Progress

# Values this close (relative) are the same plan up to names of equal devices.
SAME_VALUE = 1e-9


class Candidate(NamedTuple):
    """A value and the arrays that make a plan of it."""

    value: float
    genes: tuple[NDArray[Any], ...]


class EvolutionSettings(PlannerSettings):
    """Settings of the evolutionary search."""

    starts: Literal["structured", "random"] = Field(
        "structured", description="first layouts: read off the network, or random"
    )
    population: int = Field(12, ge=2, le=256, description="candidates kept")
    chain: int = Field(20_000, ge=100, le=10_000_000, description="annealing moves per chunk")
    heat: float = Field(0.02, gt=0, le=1, description="starting temperature, as a share of the value")
    crossover: float = Field(0.6, ge=0, le=1, description="share of children with two parents")


class Species(Protocol):
    """How candidates of one objective arise and change."""

    def first_guesses(self) -> list[Candidate]:
        """A few layouts, scored without compiled kernels."""
        ...

    def warm_up(self) -> None:
        """Loads (or compiles) the kernels."""
        ...

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Batches of starting layouts: the best of each, and how many were scored (at most `limit` in all)."""
        ...

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """The best met in `moves` moves."""
        ...

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """A child of two, scored."""
        ...

    def placement(self, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
        """Devices by stage, then replica."""
        ...


class Evolution:
    """The population of one species.

    Args:
        species: candidates of one objective (and shape).
        settings: sizes and temperatures.
        progress: clock, budget, events; its `evaluations` counts layouts scored.
        rng: picks parents; the species has its own stream.
    """

    def __init__(
        self, species: Species, settings: EvolutionSettings, progress: Progress, rng: np.random.Generator
    ) -> None:
        self.species, self.settings = species, settings
        self._progress, self._rng = progress, rng
        self._turn = 0
        self.population = sorted(species.first_guesses(), key=lambda c: c.value)
        progress.evaluations += len(self.population)

    @property
    def best(self) -> Candidate:
        """The best candidate met."""
        return min(self.population, key=lambda c: c.value)

    @property
    def phase(self) -> str:
        """What it does now, in a word."""
        return "anneal" if self._turn < len(self.population) else "evolve"

    def sow(self) -> None:
        """Scores the starting layouts."""
        for seeds, count in self.species.seeds(self._progress.remaining_evaluations):
            self._progress.evaluations += count
            self.population = _keep(self.population + seeds, self.settings.population)
            if self._progress.is_event_due():
                self.report("seeds")
            if self._progress.is_over():
                break

    def advance(self) -> None:
        """One chunk: anneals the next member of the first population, later one child."""
        left = self._progress.remaining_evaluations
        moves = self.settings.chain if left is None else min(self.settings.chain, left)
        if self._turn < len(self.population):
            parent = self.population[self._turn]
            child = self.species.anneal(parent, moves, self.settings.heat)
            self.population[self._turn] = min(parent, child, key=lambda c: c.value)
        else:
            child = self._breed(moves)
            self.population = _keep([*self.population, child], self.settings.population)
        self._turn += 1
        self._progress.evaluations += moves

    def report(self, phase: str) -> None:
        """Sends an event about this population."""
        values = np.array([c.value for c in self.population])
        best = self.best
        self._progress.report(
            best.value, float(values.mean()), float(values.std()), self.species.placement(best), phase
        )

    def _breed(self, moves: int) -> Candidate:
        """A child of two parents, or of one re-heated; better candidates are likelier parents (rank selection)."""
        ranked = sorted(self.population, key=lambda c: c.value)
        weight = 1.0 / np.arange(1, len(ranked) + 1)
        first, second = self._rng.choice(len(ranked), size=2, p=weight / weight.sum())
        heat = self.settings.heat * float(10.0 ** self._rng.uniform(-1.0, 0.3))
        parent = ranked[first]
        if first != second and self._rng.random() < self.settings.crossover:
            parent = self.species.cross(ranked[first], ranked[second])
        return self.species.anneal(parent, moves, heat)


def evolve(evolutions: list[Evolution], progress: Progress, finalists: int = 3) -> Evolution:
    """Searches until the budget is spent or the search is cancelled.

    All populations (one per shape of the plan) get their seeds and one chain; the best few then take turns.

    Args:
        evolutions: the populations; their order breaks ties.
        progress: the clock and budget that they share.
        finalists: how many go on after the first round.

    Returns:
        The population that holds the best candidate.
    """
    progress.start_budget()
    _leader(evolutions).report("seeds")
    if progress.is_over():
        return _leader(evolutions)
    for evolution in evolutions:
        evolution.species.warm_up()
    progress.start_budget()
    going: list[Evolution] = []
    for evolution in evolutions:
        if progress.is_over():
            break
        evolution.sow()
        if len(evolutions) > 1 and not progress.is_over():
            evolution.advance()
        going.append(evolution)
        if progress.is_event_due():
            _leader(going).report("shapes")
    going = sorted(going, key=lambda e: e.best.value)[:finalists]
    turn = 0
    while not progress.is_over():
        going[turn % len(going)].advance()
        turn += 1
        if progress.is_event_due():
            leader = _leader(going)
            leader.report(leader.phase)
    leader = _leader(evolutions)
    leader.report("done")
    return leader


def _leader(evolutions: list[Evolution]) -> Evolution:
    return min(evolutions, key=lambda e: e.best.value)


def _keep(candidates: list[Candidate], size: int) -> list[Candidate]:
    """The best of different values."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.value):
        if not kept or candidate.value > kept[-1].value * (1 + SAME_VALUE):
            kept.append(candidate)
        if len(kept) == size:
            break
    return kept
