"""The search on islands, in this process or in several."""

from __future__ import annotations

from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import LOADING, Progress
from hetplanner.planners.search.island_processes import ProcessCrew
from hetplanner.planners.search.islands import EPOCH, Crew, Elites, LocalCrew, MakeSearch, Search, Task
from hetplanner.planners.search.population import get_ready, leader_of, report_end


def evolve_islands(make: MakeSearch, search: Search, problem: Problem, seed: int, progress: Progress) -> None:
    """Searches on islands until the budget is spent or the search is cancelled; the populations get what they found.

    Args:
        make: builds the populations of an island.
        search: the populations that end up with the best of all islands; their first guesses are reported at once.
        problem: what to plan.
        seed: of every random choice.
        progress: clock, budget and events of the whole search.
    """
    settings = search.evolutions[0].settings
    leader_of(search.evolutions).report(LOADING)
    if progress.is_over():
        return
    if search.bound is not None:
        progress.lower_bound = max(progress.lower_bound, search.bound())
    if progress.is_proven(leader_of(search.evolutions).value):
        report_end(search.evolutions, progress)
        return
    get_ready(search.evolutions, progress)
    if progress.is_cancelled():
        report_end(search.evolutions, progress)
        return
    counts = _split(progress.remaining_evaluations, settings.islands)
    task = Task(make, problem, settings, seed, progress.start, progress.remaining_seconds, counts)
    if settings.processes > 1:
        with ProcessCrew(task, progress, search.evolutions) as crew:
            _run_epochs(crew, settings.islands, progress)
            states = crew.states()
    else:
        with LocalCrew(task, progress, search.evolutions) as local:
            _run_epochs(local, settings.islands, progress)
            states = local.states()
    for state in states:
        for evolution, found in zip(search.evolutions, state, strict=True):
            evolution.adopt(found.candidates)
            evolution.is_settled |= found.is_settled
            evolution.rival = evolution.rival or found.rival
    report_end(search.evolutions, progress)


def _run_epochs(crew: Crew, islands: int, progress: Progress) -> None:
    incoming: dict[int, Elites] = {}
    target = EPOCH
    while not progress.is_late():
        elites = crew.run(target, incoming)
        if elites is None or progress.is_cancelled():
            return
        if progress.is_proven(min(candidate.value for found in elites.values() for _, candidate in found)):
            return
        # Around the ring: every island gets what the one before found.
        incoming = {number: elites[(number - 1) % islands] for number in range(islands)}
        target += EPOCH


def _split(total: int | None, parts: int) -> tuple[int | None, ...]:
    if total is None:
        return (None,) * parts
    return tuple(total // parts + (i < total % parts) for i in range(parts))
