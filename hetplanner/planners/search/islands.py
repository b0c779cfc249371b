"""Islands: populations that search apart and now and then exchange their best, in one process or several.

Every island has a seed of its own and counts its own evaluations; all exchange elites whenever each has spent another
`EPOCH` of them, in a ring. So the result depends on the seed, the evaluations and the number of islands, never on how
many processes ran them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np

from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import Budget, Progress, Quantiles
from hetplanner.planners.search.population import (
    Candidate,
    Evolution,
    EvolutionSettings,
    Extra,
    leader_of,
    run_race,
    warm_up,
)

# Evaluations of an island between two exchanges, and candidates that it hands on.
EPOCH = 200_000
ELITES = 3
# Populations (by number) and what comes into them.
Elites = list[tuple[int, Candidate]]


class Search(Protocol):
    """What islands run: the populations of one objective."""

    @property
    def evolutions(self) -> Sequence[Evolution]:
        """One population per shape."""
        ...

    @property
    def extra(self) -> Extra | None:
        """See :func:`hetplanner.planners.search.population.run_race`."""
        ...

    @property
    def bound(self) -> Callable[[], float] | None:
        """See :func:`hetplanner.planners.search.population.evolve`."""
        ...


MakeSearch = Callable[[CostModel, EvolutionSettings, int, Progress], Search]


@dataclass(frozen=True)
class Task:
    """What every island needs to begin; goes to other processes.

    Attributes:
        make: builds the populations (a function of a module).
        seconds: of the search, None without such a limit.
        evaluations: of every island, None likewise.
    """

    make: MakeSearch
    problem: Problem
    settings: EvolutionSettings
    seed: int
    start: Plan | None
    seconds: float | None
    evaluations: tuple[int | None, ...]


class News(NamedTuple):
    """Where an island stands."""

    evaluations: int
    best: float
    quantiles: Quantiles
    placement: tuple[tuple[str, ...], ...]
    population: int
    candidate: Candidate


class PopulationState(NamedTuple):
    """What an island found in one population."""

    candidates: list[Candidate]
    rival: Candidate | None
    is_settled: bool


class Island:
    """One search with its own seed and count.

    Args:
        task: what to search.
        number: of the island.
        should_stop: see :class:`hetplanner.planners.interface.Progress`.
    """

    def __init__(self, task: Task, number: int, should_stop: Callable[[], bool] | None) -> None:
        budget = Budget(seconds=task.seconds, evaluations=task.evaluations[number])
        self.progress = Progress(budget, None, should_stop, start=task.start)
        model = CostModel.of(task.problem)
        self._search = task.make(model, task.settings, island_seed(task.seed, number), self.progress)
        self._race = run_race(self._search.evolutions, self._search.extra)
        self._is_done = False

    def start(self) -> None:
        """Loads the kernels and starts the clock."""
        warm_up(self._search.evolutions)
        self.progress.start_budget()

    def step(self, target: int) -> bool:
        """One chunk of work; False if it has spent so many evaluations, or all it may."""
        if self._is_done or self.progress.evaluations >= target or self.progress.is_over():
            return False
        self._is_done = next(self._race, None) is None
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self._is_done or self.progress.is_over()

    @property
    def news(self) -> News:
        """Where it stands."""
        leader = leader_of(self._search.evolutions)
        best, quantiles = leader.best, Quantiles.of([c.value for c in leader.population])
        number = next(k for k, e in enumerate(self._search.evolutions) if e is leader)
        return News(
            self.progress.evaluations, best.value, quantiles, leader.species.placement(best), number, _alone(best)
        )

    def elites(self) -> Elites:
        """Its best candidates, with the numbers of their populations."""
        found = [(c.value, k, i) for k, e in enumerate(self._search.evolutions) for i, c in enumerate(e.population)]
        return [(k, _alone(self._search.evolutions[k].population[i])) for _, k, i in sorted(found)[:ELITES]]

    def receive(self, elites: Elites) -> None:
        """Takes in the candidates of another island."""
        for k, candidate in elites:
            self._search.evolutions[k].adopt([candidate])

    def state(self) -> list[PopulationState]:
        """What it found, by population."""
        return [
            PopulationState([_alone(c) for c in e.population], e.rival, e.is_settled) for e in self._search.evolutions
        ]


def _alone(candidate: Candidate) -> Candidate:
    """Without its parents, which would go to other processes with it."""
    return candidate._replace(birth=None)


class Crew(Protocol):
    """The workers that run the islands."""

    def run(self, target: int, incoming: dict[int, Elites]) -> dict[int, Elites] | None:
        """Lets every island take in elites and go on to a count; their own elites, None if all are over."""
        ...

    def states(self) -> list[list[PopulationState]]:
        """What all islands found, in order."""
        ...


def island_seed(seed: int, number: int) -> int:
    """Seed of an island; the first has the search's own."""
    return seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


class LocalCrew:
    """All islands in this process, a chunk each in turn.

    Args:
        task: what they search.
        progress: of the whole search.
        evolutions: populations like those of every island.
    """

    def __init__(self, task: Task, progress: Progress, evolutions: Sequence[Evolution]) -> None:
        self._board = NewsBoard(progress, evolutions)
        self._islands = [Island(task, i, progress.is_cancelled) for i in range(task.settings.islands)]

    def __enter__(self) -> Self:
        for island in self._islands:
            island.start()
        self._board.progress.start_budget()
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, target: int, incoming: dict[int, Elites]) -> dict[int, Elites] | None:
        """See :class:`Crew`."""
        for number, elites in incoming.items():
            self._islands[number].receive(elites)
        going = list(enumerate(self._islands))
        while going:
            going = [(number, island) for number, island in going if island.step(target)]
            for number, island in going if self._board.progress.is_event_due() else ():
                self._board.post(number, island.news)
        for number, island in enumerate(self._islands):
            self._board.post(number, island.news)
        if all(island.is_over for island in self._islands):
            return None
        return {number: island.elites() for number, island in enumerate(self._islands)}

    def states(self) -> list[list[PopulationState]]:
        """See :class:`Crew`."""
        return [island.state() for island in self._islands]


class NewsBoard:
    """Makes the events of the whole search from the islands' news."""

    def __init__(self, progress: Progress, evolutions: Sequence[Evolution]) -> None:
        self.progress, self._evolutions = progress, evolutions
        self._before = progress.evaluations
        self._known: dict[int, News] = {}
        self._best = float("inf")

    def post(self, number: int, news: News) -> None:
        """Notes where an island stands, and sends an event when one is due."""
        self._known[number] = news
        self.progress.evaluations = self._before + sum(known.evaluations for known in self._known.values())
        best = min(self._known.values(), key=lambda known: known.best)
        if self.progress.is_event_due() and best.best <= self._best:
            self._best = best.best
            draft = self._evolutions[best.population].draft(best.candidate)
            self.progress.report(best.best, best.quantiles, best.placement, "islands", draft)
