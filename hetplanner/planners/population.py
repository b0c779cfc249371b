"""The evolutionary loop: seeds, annealing, crossover. What a candidate is, a species says.

Everything happens in fixed-size chunks (one annealing chain each), so a time budget only changes how many there are
and the same seed with the same number of evaluations gives the same plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

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

    starts: str = Field(
        "structured", pattern="^(structured|random)$", description="first layouts: read off the network, or random"
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

    def seeds(self, limit: int | None) -> tuple[list[Candidate], int]:
        """Scored starting layouts, best first, and how many were scored (at most `limit`)."""
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


def evolve(species: Species, settings: EvolutionSettings, progress: Progress, rng: np.random.Generator) -> Candidate:
    """Searches until the budget is spent or the search is cancelled.

    Args:
        species: candidates of one objective.
        settings: sizes and temperatures.
        progress: clock, budget, events; its `evaluations` counts layouts scored.
        rng: picks parents; the species has its own stream.

    Returns:
        The best candidate met.
    """
    population = sorted(species.first_guesses(), key=lambda c: c.value)
    progress.evaluations += len(population)
    best = population[0]
    _report(species, progress, population, best, "seeds")
    if progress.is_over():
        return best
    species.warm_up()
    progress.start_budget()
    seeds, count = species.seeds(progress.remaining_evaluations)
    progress.evaluations += count
    population = _keep(population + seeds, settings.population)
    best = population[0]
    turn = 0
    while not progress.is_over():
        if progress.is_event_due():
            _report(species, progress, population, best, "evolve" if turn >= len(population) else "anneal")
        left = progress.remaining_evaluations
        moves = settings.chain if left is None else min(settings.chain, left)
        if turn < len(population):
            child = species.anneal(population[turn], moves, settings.heat)
            progress.evaluations += moves
            population[turn] = min(population[turn], child, key=lambda c: c.value)
        else:
            child = _breed(species, settings, population, rng, moves)
            progress.evaluations += moves
            population = _accept(population, child, settings.population)
        turn += 1
        best = min(best, child, key=lambda c: c.value)
    _report(species, progress, population, best, "done")
    return best


def _breed(
    species: Species,
    settings: EvolutionSettings,
    population: list[Candidate],
    rng: np.random.Generator,
    moves: int,
) -> Candidate:
    """A child of two parents, or of one re-heated; better candidates are likelier parents (rank selection)."""
    weight = 1.0 / np.arange(1, len(population) + 1)
    first, second = rng.choice(len(population), size=2, p=weight / weight.sum())
    heat = settings.heat * float(10.0 ** rng.uniform(-1.0, 0.3))
    parent = population[first]
    if first != second and rng.random() < settings.crossover:
        parent = species.cross(population[first], population[second])
    return species.anneal(parent, moves, heat)


def _accept(population: list[Candidate], child: Candidate, size: int) -> list[Candidate]:
    """Takes the child in place of the worst, unless a candidate of its value is there already."""
    return _keep([*population, child], size)


def _keep(candidates: list[Candidate], size: int) -> list[Candidate]:
    """The best of different values."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.value):
        if not kept or candidate.value > kept[-1].value * (1 + SAME_VALUE):
            kept.append(candidate)
        if len(kept) == size:
            break
    return kept


def _report(
    species: Species, progress: Progress, population: list[Candidate], best: Candidate, phase: str
) -> None:
    values = np.array([c.value for c in population])
    progress.report(best.value, float(values.mean()), float(values.std()), species.placement(best), phase)
