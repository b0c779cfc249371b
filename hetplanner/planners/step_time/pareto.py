"""The front of step time and dollars: plans of which no other is both faster and cheaper.

Three searches share one budget: for the shortest step and for the fewest dollars (the evolutionary search, a fifth
each), then between them. That last one anneals layouts of every shape towards many weightings of the two (the greater
of both weighted logarithms, which also leads to points that no weighted sum has as its optimum), and keeps every
layout it meets that no other met is better than in both. Devices that a shape leaves out are swapped in and out, so
subsets of the devices are searched as well.

Legend of array suffixes: S stages, R replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetplanner.cluster.egress import egress_rows
from hetplanner.compiling import watched_compiling
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan, Provenance
from hetplanner.plan.problem import Objective, Problem
from hetplanner.planners.finish import try_plan
from hetplanner.planners.interface import (
    LOADING,
    Budget,
    CancelledWhileCompiling,
    Progress,
    SearchEvent,
    ShouldStop,
    checked_seed,
)
from hetplanner.planners.layout import package_version, require_prices
from hetplanner.planners.search.planner import EvolutionPlanner
from hetplanner.planners.search.population import Candidate, EvolutionSettings
from hetplanner.planners.shapes import feasible_shapes, free_shapes
from hetplanner.planners.step_time.space import SearchSpace, StepSpaces
from hetplanner.planners.step_time.species import StepSpecies

# Share of the budget for each end of the front.
END_SHARE = 0.2
# Layouts an archive keeps for each shape, plans a front has at most.
ROOM = 200
MOST_PLANS = 60
# Starting layouts of each shape, annealing moves in one chain, and how it cools (in logarithms of the objectives).
STARTS, CHAIN, HOT, COLD, GUIDE_WEIGHT = 16, 10_000, 0.03, 1e-4, 0.05
# Share of the chains that go to shapes which have nothing on the front yet.
CURIOSITY = 0.15
# Plans this close (relative) in both count as one.
SAME_PLAN = 1e-6

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class ParetoEvent:
    """Where the search for a front stands.

    Attributes:
        points: seconds of a step and dollars per million tokens of the layouts on the front so far, fastest first.
        evaluations: layouts scored so far.
        seconds: since the search began.
        phase: what it is doing: step-time, cost, between, done; loading kernels before the first and the third.
        spent_s: of a budget in seconds: since the search began without loading the kernels.
    """

    points: Points
    evaluations: int
    seconds: float
    phase: str
    spent_s: float = 0.0


OnParetoEvent = Callable[[ParetoEvent], None]


@dataclass(frozen=True)
class ParetoFront:
    """Plans of which none is both faster and cheaper than another.

    Attributes:
        plans: the fastest first, the cheapest last; each with its estimate.
        least_step_s: no plan's step is shorter.
        least_usd_per_mtoken: no plan's million tokens cost less.
        evaluations, seconds, seed: of the search.
        events: all events sent.
        cancelled: whether `should_stop` ended the search.
    """

    problem: Problem
    plans: tuple[Plan, ...]
    least_step_s: float
    least_usd_per_mtoken: float
    evaluations: int
    seconds: float
    seed: int
    events: tuple[ParetoEvent, ...] = field(default=(), repr=False)
    cancelled: bool = False

    @property
    def fastest(self) -> Plan:
        """The plan with the shortest step."""
        return self.plans[0]

    @property
    def cheapest(self) -> Plan:
        """The plan with the fewest dollars per token."""
        return self.plans[-1]

    def to_rows(self) -> list[dict[str, Any]]:
        """One mapping per plan: what it costs in time and dollars, and its shape."""
        return [_row(plan) for plan in self.plans]

    @property
    def unpriced_egress_bytes(self) -> dict[str, float]:
        """Bytes of a step that leave a site at an unknown price, by the site's name; the most of any plan."""
        most: dict[str, float] = {}
        for plan in self.plans:
            assert plan.estimate is not None
            for site, size in (plan.estimate.unpriced_egress_bytes or {}).items():
                most[site] = max(size, most.get(site, 0.0))
        return most

    def to_data(self) -> dict[str, Any]:
        """Everything but the plans, for JSON."""
        return {
            "cluster": self.problem.cluster.name,
            "model": self.problem.workload.name,
            "least_step_s": self.least_step_s,
            "least_usd_per_mtoken": self.least_usd_per_mtoken,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "seed": self.seed,
            "cancelled": self.cancelled,
            "unpriced_egress_bytes": self.unpriced_egress_bytes,
            "egress_prices": egress_rows(self.problem.cluster),
            "points": self.to_rows(),
        }


def search_front_of_grouping(
    problem: Problem, seed: int, budget: Budget, on_event: OnParetoEvent | None, should_stop: ShouldStop | None
) -> ParetoFront:
    """The front of a problem whose groups are known; all else is as of `fronts.search_front`."""
    require_prices(problem)
    if problem.constraints.pinned:
        raise InvalidInput("constraints.pinned: the front of step time and dollars does not honour pins; drop them")
    return _FrontSearch(problem, checked_seed(seed), budget, on_event, should_stop).run()


def undominated(points: Iterable[tuple[float, float]], same: float = 0.0) -> list[int]:
    """Which of the points no other one is as good as in both, fastest first; of equal ones the first.

    Args:
        points: seconds and dollars.
        same: a point must be cheaper by this share than all that are as fast.
    """
    rows = list(points)
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda k: (*rows[k], k)):
        if not kept or rows[i][1] < rows[kept[-1]][1] * (1.0 - same):
            kept.append(i)
    return kept


class _FrontSearch:
    """One search for a front; see :func:`search_front_of_grouping`."""

    def __init__(
        self,
        problem: Problem,
        seed: int,
        budget: Budget,
        on_event: OnParetoEvent | None,
        should_stop: ShouldStop | None,
    ) -> None:
        self._problem = problem.replace(objective="step-time")
        self._seed, self._on_event, self._should_stop = seed, on_event, should_stop
        self._model = CostModel.of(self._problem)
        self._budget, self._progress = budget, Progress(budget, None, should_stop)
        self._events: list[ParetoEvent] = []
        self._ends: list[Plan] = []
        self._shapes: list[_Shape] = []

    def run(self) -> ParetoFront:
        """Both ends, then between them."""
        for objective in ("step-time", "cost"):
            if not self._ends or not self._progress.cancelled:
                self._ends.append(self._search_end(objective))
        # The clock of what is left starts now: the ends kept their own.
        self._progress.budget = _part(self._budget, 1.0 - len(self._ends) * END_SHARE, self._budget.evaluations)
        self._progress.start_budget()
        if not self._progress.is_over():
            with watched_compiling(self._progress), suppress(CancelledWhileCompiling):
                self._search_between()
        plans = self._finished()
        self._report("done", [point_of(plan) for plan in plans])
        return ParetoFront(
            problem=self._problem,
            plans=plans,
            least_step_s=bound_step(self._model.tables, self._model.links),
            least_usd_per_mtoken=bound_cost(self._model.tables, self._model.links),
            evaluations=self._progress.evaluations,
            seconds=self._progress.seconds,
            seed=self._seed,
            events=tuple(self._events),
            cancelled=self._progress.cancelled,
        )

    def _search_end(self, objective: Objective) -> Plan:
        """The best plan for one of the two alone."""
        task = self._problem.replace(objective=objective)

        def watch(event: SearchEvent) -> None:
            if self._progress.is_event_due():
                self._report(LOADING if event.phase == LOADING else objective, self._points(), event.spent_s)

        share = None if self._budget.evaluations is None else int(self._budget.evaluations * END_SHARE)
        part = Progress(_part(self._budget, END_SHARE, share), watch, self._should_stop)
        # The front is one of estimates, so the simulator is not asked.
        plan = EvolutionPlanner(EvolutionSettings(finalists=1)).watched_search(
            task, CostModel.of(task), self._seed, part
        )
        self._progress.evaluations += part.evaluations
        self._progress.cancelled |= part.cancelled
        return plan.replace(problem=self._problem)

    def _search_between(self) -> None:
        """Anneals towards random weightings, shape by shape."""
        self._shapes = list(self._make_shapes())
        rng = np.random.default_rng([self._seed, 3])
        self._report(LOADING, self._points(), 0.0)
        self._shapes[0].warm_up()
        self._progress.start_budget()
        for shape in _scattered(self._shapes):
            if self._progress.is_over():
                break
            self._progress.evaluations += shape.init_population(self._progress.remaining_evaluations)
            if self._progress.is_event_due():
                self._report("between", self._points())
        known = [shape for shape in self._shapes if shape.points()]
        while known and not self._progress.is_over():
            self._advance(known, rng)
            if self._progress.is_event_due():
                self._report("between", self._points())

    def _advance(self, shapes: list[_Shape], rng: np.random.Generator) -> None:
        """One chain, of a shape that is on the front (or now and then of any)."""
        points = [(point, k) for k, shape in enumerate(shapes) for point in shape.points()]
        front = sorted({points[i][1] for i in undominated(point for point, _ in points)})
        options = list(range(len(shapes))) if rng.random() < CURIOSITY else front
        shape = shapes[options[int(rng.integers(len(options)))]]
        least = min(p[0] for p, _ in points), max(min(p[1] for p, _ in points), 1e-300)
        remaining = self._progress.remaining_evaluations
        moves = CHAIN if remaining is None else min(CHAIN, remaining)
        shape.anneal(moves, float(rng.random()), least, rng)
        self._progress.evaluations += moves

    def _make_shapes(self) -> Iterator[_Shape]:
        spaces = StepSpaces(self._model)
        for shape, recompute in feasible_shapes(
            self._model, free_shapes(self._problem, self._model.tables, spare=True)
        ):
            yield _Shape(self._model, shape, self._seed, recompute, spaces.of(recompute=recompute))

    def _points(self) -> list[tuple[float, float]]:
        """Seconds, and dollars per million tokens, of what is on the front so far."""
        points = [point for shape in self._shapes for point in shape.points()]
        points += [point_of(plan) for plan in self._ends]
        return [points[i] for i in undominated(points)]

    def _finished(self) -> tuple[Plan, ...]:
        """Plans of the layouts on the front, an even choice of them if there are many; none dominated."""
        met = [(point, shape, k) for shape in self._shapes for k, point in enumerate(shape.points())]
        best = [met[i] for i in undominated(point for point, _, _ in met)]
        chosen = [best[i] for i in even_choice([point for point, _, _ in best], MOST_PLANS)]
        plans = list(self._ends)
        for _, shape, k in chosen:
            plan = try_plan(shape.species.layout(shape.candidate(k)), self._model)
            if plan is not None:
                plans.append(plan)
        front = [plans[i] for i in undominated((point_of(plan) for plan in plans), SAME_PLAN)]
        return tuple(plan.replace(provenance=self._provenance()) for plan in front)

    def _provenance(self) -> Provenance:
        return Provenance(
            planner="pareto",
            seed=self._seed,
            budget=self._budget.text(),
            evaluations=self._progress.evaluations,
            seconds=self._progress.seconds,
            version=package_version(),
        )

    def _report(self, phase: str, points: list[tuple[float, float]], part_s: float | None = None) -> None:
        ends = len(self._ends) * END_SHARE * (self._budget.seconds or 0.0)
        spent_s = ends + (self._progress.spent_s if part_s is None else part_s)
        event = ParetoEvent(tuple(points), self._progress.evaluations, self._progress.seconds, phase, spent_s)
        self._progress.note_event()
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)


class _Shape:
    """The archive of one shape and what grows it."""

    def __init__(
        self, model: CostModel, shape: tuple[int, int], seed: int, recompute: bool, space: SearchSpace
    ) -> None:
        from hetplanner.planners.step_time import pareto_kernels

        self._kernels: Any = pareto_kernels
        self.species = StepSpecies(model, shape, seed, "structured", recompute=recompute, space=space)
        priced = replace(space, problem=space.problem._replace(priced=True))
        self._cheap = StepSpecies(model, shape, seed, "structured", recompute=recompute, space=priced)
        self._problem, self._work = space.problem, self.species.work
        self._archive = pareto_kernels.make_archive(ROOM, len(space.devices), *shape)
        self._state = np.random.default_rng([seed, 4, *shape, int(recompute)]).integers(1, 2**63, 1, dtype=np.uint64)

    def warm_up(self) -> None:
        """Loads (or compiles) the kernels; leaves no trace."""
        place, cut, share = (gene.copy() for gene in self.species.first_guesses()[0].genes)
        archive = self._kernels.make_archive(2, len(place), len(cut) - 1, len(share))
        self._kernels.score_both(self._problem, archive, place, cut, share, self._work)
        state = self._state.copy()
        self._kernels.anneal_front(
            self._problem, archive, place, cut, share, 1, HOT, COLD, GUIDE_WEIGHT, 0.5, 1.0, 1.0, state, self._work
        )

    def init_population(self, limit: int | None) -> int:
        """Offers the best starting layouts for either objective; returns how many layouts were scored."""
        scored = 0
        for species in (self.species, self._cheap):
            room = STARTS if limit is None else min(STARTS, limit - scored)
            for found, count in species.seeds(max(room, 0)):
                scored += count
                for candidate in found:
                    self._kernels.score_both(self._problem, self._archive, *candidate.genes, self._work)
        return scored

    def anneal(self, moves: int, weight: float, least: tuple[float, float], rng: np.random.Generator) -> None:
        """One chain in one direction, from the layout that is best there or from any."""
        count = int(self._archive.size[0])
        values = [self._kernels.weigh(s, usd, weight, *least) for s, usd in self.points()]
        k = int(np.argmin(values)) if rng.random() < 0.5 else int(rng.integers(count))
        heat = HOT * float(10.0 ** rng.uniform(-1.0, 0.5))
        self._kernels.anneal_front(
            self._problem, self._archive, *self.candidate(k).genes, moves, heat, min(COLD, heat), GUIDE_WEIGHT,
            weight, *least, self._state, self._work,
        )  # fmt: skip

    def points(self) -> list[tuple[float, float]]:
        """Seconds and dollars of one step, the fastest first."""
        count = int(self._archive.size[0])
        return list(zip(self._archive.step_A[:count].tolist(), self._archive.usd_A[:count].tolist(), strict=True))

    def candidate(self, k: int) -> Candidate:
        """The layout in a place of the archive."""
        tables = (self._archive.place_AN, self._archive.cut_AS, self._archive.share_AR)
        return Candidate(float(self._archive.step_A[k]), tuple(table[k].copy() for table in tables))


def _scattered(shapes: list[_Shape]) -> list[_Shape]:
    """In an order whose every beginning is spread over all of them, should the budget end before the last."""
    order = sorted(range(len(shapes)), key=lambda k: (k * (5**0.5 - 1) / 2) % 1.0)
    return [shapes[k] for k in order]


def even_choice(points: Sequence[tuple[float, float]], most: int) -> list[int]:
    """At most so many of a front, the ends among them, evenly along its length in logarithms."""
    if len(points) <= most:
        return list(range(len(points)))
    logs = np.log(np.maximum(np.array(points), 1e-300))
    length = np.concatenate(([0.0], np.cumsum(np.abs(np.diff(logs, axis=0)).sum(axis=1))))
    wanted = np.linspace(0.0, length[-1], most)
    return sorted({int(np.argmin(np.abs(length - w))) for w in wanted})


def _part(budget: Budget, share: float, evaluations: int | None) -> Budget:
    """A share of the time, and so many evaluations."""
    return Budget(seconds=None if budget.seconds is None else budget.seconds * share, evaluations=evaluations)


def point_of(plan: Plan) -> tuple[float, float]:
    """Seconds of its step, and dollars per million tokens."""
    assert plan.estimate is not None
    assert plan.estimate.usd_per_mtoken is not None
    return plan.estimate.step_s, plan.estimate.usd_per_mtoken


def _row(plan: Plan) -> dict[str, Any]:
    found = plan.estimate
    assert found is not None
    return {
        "step_s": found.step_s,
        "tokens_per_s": found.tokens_per_s,
        "usd_per_mtoken": found.usd_per_mtoken,
        "tokens_per_usd": found.tokens_per_usd,
        "device_usd": found.device_usd,
        "egress_usd": found.egress_usd,
        "unpriced_egress_bytes": found.unpriced_egress_bytes,
        "stages": len(plan.stages),
        "pipelines": len(plan.routes),
        "devices": len(plan.processes),
        "bottleneck": found.bottleneck.name,
    }
