"""The evolutionary loop: seeds, annealing, crossover. What a candidate is, a species says.

Everything happens in fixed-size chunks (one annealing chain each), so a time budget only changes how many there are
and the same seed with the same number of evaluations gives the same plan. Several populations (one per shape of the
plan) race: all are screened with a few layouts, the better ones get all their seeds and a chain, the best go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetplanner.plan.model import Plan
from hetplanner.planners.interface import LOADING, TAKES_CORES, Draft, PlannerSettings, Progress, Quantiles
from hetplanner.planners.search.ancestry import Birth, Way

# Values this close (relative) are the same plan up to names of equal devices.
SAME_VALUE = 1e-9
# Of many shapes so many get their seeds, and so many go on after that.
SOWN = 10
FINALISTS = 3
# Of a chain, for those that were not screened best.
FIRST_CHAIN = 0.25


class Candidate(NamedTuple):
    """A value and the arrays that make a plan of it; `birth` is where it comes from, once a population has it."""

    value: float
    genes: tuple[NDArray[Any], ...]
    birth: Birth | None = None


class EvolutionSettings(PlannerSettings):
    """Settings of the evolutionary search."""

    starts: Literal["structured", "random"] = Field(
        "structured", description="first layouts: read off the network, or random"
    )
    population: int = Field(12, ge=2, le=256, description="candidates kept")
    chain: int = Field(20_000, ge=100, le=10_000_000, description="annealing moves per chunk")
    heat: float = Field(0.02, gt=0, le=1, description="starting temperature, as a share of the value")
    crossover: float = Field(0.6, ge=0, le=1, description="share of children with two parents")
    islands: int = Field(1, ge=1, le=64, description="searches apart that exchange their best now and then")
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that run the islands; the result is the same",
        json_schema_extra=TAKES_CORES,
    )
    finalists: int = Field(
        24, ge=1, le=1000, description="best plans that the event simulator compares; 1 leaves it to the closed form"
    )


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


@runtime_checkable
class Drafting(Species, Protocol):
    """A species that makes a plan of a candidate as it stands."""

    def draft(self, candidate: Candidate) -> Plan:
        """See :data:`hetplanner.planners.interface.Draft`."""
        ...


@runtime_checkable
class Screened(Species, Protocol):
    """A species of a race: one of many shapes. `rival` is the best of what it was told to begin with."""

    rival: Candidate | None

    def screen(self) -> list[Candidate]:
        """A few promising layouts, to tell whether the shape is worth more."""
        ...

    def try_all(self, most: int, progress: Progress) -> Candidate | None:
        """The best of all layouts, counted by `progress`; None if there are more than `most` or the budget ended."""
        ...


class Evolution:
    """The population of one species; `is_settled` once all its layouts were tried, `rival` is what it must beat.

    Args:
        species: candidates of one objective (and shape).
        settings: sizes and temperatures.
        progress: clock, budget, events; its `evaluations` counts layouts scored.
        rng: picks parents; the species has its own stream.
        guess: whether to begin with the species' first guesses.
    """

    def __init__(
        self,
        species: Species,
        settings: EvolutionSettings,
        progress: Progress,
        rng: np.random.Generator,
        *,
        guess: bool = True,
    ) -> None:
        self.species, self.settings = species, settings
        self._progress, self._rng = progress, rng
        self._turn = 0
        self.is_settled = False
        self.rival: Candidate | None = None
        self.population: list[Candidate] = []
        if guess:
            guesses = species.first_guesses()
            progress.evaluations += len(guesses)
            self.population = [self._with_birth(c, "seed") for c in sorted(guesses, key=lambda c: c.value)]

    @property
    def chains(self) -> int:
        """Annealing runs so far."""
        return self._turn

    @property
    def best(self) -> Candidate:
        """The best candidate met."""
        return min(self.population, key=lambda c: c.value)

    @property
    def value(self) -> float:
        """Of the best candidate; infinite while there is none."""
        return min((c.value for c in self.population), default=float("inf"))

    @property
    def phase(self) -> str:
        """What it does now, in a word."""
        return "anneal" if self._turn < len(self.population) else "evolve"

    def adopt(self, candidates: Sequence[Candidate]) -> None:
        """Takes candidates into the population if they are good enough."""
        kept = _keep([*self.population, *candidates], self.settings.population)
        self.population = [c if c.birth is not None else self._with_birth(c, "seed") for c in kept]

    def screen(self) -> None:
        """Scores a few promising layouts."""
        species = cast(Screened, self.species)
        found = species.screen()
        self.rival = species.rival
        self._progress.evaluations += len(found)
        self.adopt(found)

    def settle(self) -> bool:
        """Tries every layout where there are no more than a chain has moves; whether it did."""
        left = self._progress.remaining_evaluations
        most = self.settings.chain if left is None else min(self.settings.chain, left)
        best = cast(Screened, self.species).try_all(most, self._progress)
        if best is not None:
            self.adopt([best])
            self.is_settled = True
        return self.is_settled

    def init_population(self) -> None:
        """Scores the starting layouts."""
        for seeds, count in self.species.seeds(self._progress.remaining_evaluations):
            self._progress.evaluations += count
            self.adopt(seeds)
            if self._progress.is_event_due():
                self.report("seeds")
            if self._progress.is_over() or self._progress.is_proven(self.value):
                break

    def advance(self, share: float = 1.0) -> None:
        """One chunk (or a share of one): anneals the next member of the first population, later one child."""
        moves = max(1, int(self.settings.chain * share))
        left = self._progress.remaining_evaluations
        moves = moves if left is None else min(moves, left)
        if self._turn < len(self.population):
            parent = self.population[self._turn]
            self.population[self._turn] = self._annealed(parent, moves, self.settings.heat)
        else:
            child = self._offspring(moves)
            self.adopt([child])
        self._turn += 1
        self._progress.evaluations += moves

    def report(self, phase: str) -> None:
        """Sends an event about this population."""
        best = self.best
        quantiles = Quantiles.of([c.value for c in self.population])
        self._progress.report(best.value, quantiles, self.species.placement(best), phase, self.draft(best))

    def draft(self, candidate: Candidate) -> Draft | None:
        """What makes the plan of a candidate as it stands; None if the species cannot."""
        return partial(self.species.draft, candidate) if isinstance(self.species, Drafting) else None

    def _offspring(self, moves: int) -> Candidate:
        """A child of two parents, or of one re-heated; better candidates are likelier parents (rank selection)."""
        ranked = sorted(self.population, key=lambda c: c.value)
        weight = 1.0 / np.arange(1, len(ranked) + 1)
        first, second = self._rng.choice(len(ranked), size=2, p=weight / weight.sum())
        heat = self.settings.heat * float(10.0 ** self._rng.uniform(-1.0, 0.3))
        parent = ranked[first]
        if first != second and self._rng.random() < self.settings.crossover:
            other = ranked[second]
            parent = self._with_birth(self.species.cross(parent, other), "crossed", parent, other)
        return self._annealed(parent, moves, heat)

    def _annealed(self, parent: Candidate, moves: int, heat: float) -> Candidate:
        child = self.species.anneal(parent, moves, heat)
        if child.value < parent.value:
            return self._with_birth(child, "annealed", parent, moves=moves)
        return child._replace(birth=parent.birth)

    def _with_birth(self, candidate: Candidate, way: Way, *parents: Candidate, moves: int = 0) -> Candidate:
        shape = getattr(self.species, "stages", 0), getattr(self.species, "replicas", None)
        births = tuple(parent.birth for parent in parents if parent.birth is not None)
        birth = Birth.of(way, candidate.value, self._progress.evaluations + moves, shape, births)
        return candidate._replace(birth=birth)


Extra = Callable[[list[Evolution]], list[Evolution]]


def evolve(
    evolutions: list[Evolution],
    progress: Progress,
    extra: Extra | None = None,
    bound: Callable[[], float] | None = None,
) -> Evolution:
    """Searches until the budget is spent, the search is cancelled or the best candidate meets a bound.

    Args:
        evolutions: the populations; their order breaks ties.
        progress: the clock and budget that they share.
        extra: see :func:`run_race`.
        bound: of all candidates, computed behind the first event.

    Returns:
        The population that holds the best candidate.
    """
    progress.start_budget()
    leader_of(evolutions).report(LOADING)
    if progress.is_over():
        return leader_of(evolutions)
    if bound is not None:
        progress.lower_bound = max(progress.lower_bound, bound())
    if progress.is_proven(leader_of(evolutions).value):
        leader_of(evolutions).report("proven optimal")
        return leader_of(evolutions)
    get_ready(evolutions, progress)
    progress.start_budget()
    if not progress.is_over():
        for phase in run_race(evolutions, extra):
            if progress.is_event_due():
                leader_of(evolutions).report(phase)
            if progress.is_over() or progress.is_proven(leader_of(evolutions).value):
                break
    report_end(evolutions, progress)
    return leader_of(evolutions)


def report_end(evolutions: Sequence[Evolution], progress: Progress) -> None:
    """Sends the last event, which says whether the best is proven."""
    leader = leader_of(evolutions)
    tried = "all tried" if all(e.is_settled for e in evolutions) else "done"
    leader.report("proven optimal" if progress.is_proven(leader.value) else tried)


def get_ready(evolutions: Sequence[Evolution], progress: Progress) -> None:
    """Loads the kernels. Where they must be compiled first, another process does, and a search without them goes on.

    With a budget that counts evaluations this process compiles them itself, so that the plan depends on nothing else.
    """
    if progress.remaining_evaluations is None:
        from hetplanner.planners.search.rough_search import search_roughly

        search_roughly(evolutions, progress)
    progress.pause()
    if not progress.is_cancelled():
        warm_up(evolutions)


def warm_up(evolutions: Sequence[Evolution]) -> None:
    """Loads the kernels of every kind of species."""
    for evolution in {type(e.species): e for e in reversed(evolutions)}.values():
        evolution.species.warm_up()


def run_race(evolutions: Sequence[Evolution], extra: Extra | None = None) -> Iterator[str]:
    """All populations' work, chunk by chunk; yields the phase's name behind each. Ends when all layouts were tried.

    One population gets its seeds and evolves. Of several all are screened, small ones are settled, the `SOWN` best of
    the others get their seeds and short chains, then the `FINALISTS` best take turns.

    Args:
        evolutions: the populations.
        extra: asked with all populations, best first, which other populations go on beside them.
    """
    if len(evolutions) == 1 and not isinstance(evolutions[0].species, Screened):
        evolutions[0].init_population()
        yield "seeds"
        while True:
            evolutions[0].advance()
            yield evolutions[0].phase
    for evolution in evolutions:
        evolution.screen()
        yield "shapes"
    for evolution in evolutions:
        if evolution.settle():
            yield "all"
    for rank, evolution in enumerate(_ranked(evolutions)[:SOWN]):
        evolution.init_population()
        yield "seeds"
        # What was screened best is likelier to hold the best plan.
        evolution.advance(1.0 if rank < FINALISTS else FIRST_CHAIN)
        yield "anneal"
    going = _ranked(evolutions)[:FINALISTS]
    ahead = sorted((e for e in evolutions if e.population), key=lambda e: e.value)
    going += [e for e in (extra(ahead) if extra else []) if e not in going]
    turn = 0
    while going:
        going[turn % len(going)].advance()
        turn += 1
        yield leader_of(going).phase


def leader_of(evolutions: Sequence[Evolution]) -> Evolution:
    """The population with the best candidate."""
    return min(evolutions, key=lambda e: e.value)


def _ranked(evolutions: Sequence[Evolution]) -> list[Evolution]:
    """Those with candidates and more to try, best first."""
    return sorted((e for e in evolutions if e.population and not e.is_settled), key=lambda e: e.value)


def _keep(candidates: list[Candidate], size: int) -> list[Candidate]:
    """The best of different values."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.value):
        if not kept or candidate.value > kept[-1].value * (1 + SAME_VALUE):
            kept.append(candidate)
        if len(kept) == size:
            break
    return kept
