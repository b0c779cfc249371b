"""Planners side by side: the same problem and budget, several seeds, one table."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hetplanner.cluster.formats.spreadsheet import guarded
from hetplanner.errors import HetplannerError, Infeasible, InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import OBJECTIVE_UNITS, Budget, Planner, SearchEvent, SearchResult, ShouldStop
from hetplanner.planners.registry import make_planner, planner_names, planner_type

MOST_SEEDS = 1000


@dataclass(frozen=True)
class ComparisonRow:
    """One planner with one seed.

    Attributes:
        result: of the search; None where it gave no plan.
        error: why not, in one line.
    """

    planner: str
    seed: int
    result: SearchResult | None = field(repr=False)
    error: str | None = None


@dataclass(frozen=True)
class PlannerSummary:
    """One planner over its seeds; values are in the objective's unit, the less the better.

    Attributes:
        runs: searches that gave a plan.
        failed: searches that gave none.
        best, median, worst: of their values; None without a plan.
        gap: share of the median above the comparison's lower bound.
        seconds: median of the searches' times.
        evaluations: median of the plans scored.
        ratio: the baseline's median over this one's: 2 is twice as good.
        error: why the first failed search gave no plan.
    """

    planner: str
    runs: int
    failed: int
    best: float | None
    median: float | None
    worst: float | None
    gap: float | None
    seconds: float | None
    evaluations: float | None
    ratio: float | None
    error: str | None


@dataclass(frozen=True)
class Comparison:
    """The outcome of :func:`compare_planners`.

    Attributes:
        planners, seeds: what was asked for; rows exist for what was finished.
        budget: of every search, in words.
        baseline: the planner that ratios refer to.
        cancelled: whether `should_stop` ended it; the search under way is left out.
    """

    problem: Problem
    planners: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: str
    baseline: str
    rows: tuple[ComparisonRow, ...]
    cancelled: bool = False

    @property
    def unit(self) -> str:
        """Unit of the values."""
        return OBJECTIVE_UNITS[self.problem.objective]

    @property
    def lower_bound(self) -> float | None:
        """The highest bound any of the searches proved: no plan is below this. None without a plan."""
        return max((row.result.lower_bound for row in self.rows if row.result), default=None)

    def gap(self, value: float) -> float:
        """Share of a value above the lower bound: 0 is proven optimal."""
        bound = self.lower_bound
        return max(0.0, 1.0 - bound / value) if bound is not None and value > 0 else 0.0

    def results(self, planner: str) -> dict[int, SearchResult]:
        """The searches of one planner that gave a plan, by seed."""
        return {row.seed: row.result for row in self.rows if row.planner == planner and row.result is not None}

    def best_result(self, planner: str | None = None) -> SearchResult:
        """The search with the best plan, of one planner or of all.

        Raises:
            InvalidInput: if there is none.
        """
        found = [row.result for row in self.rows if row.result and planner in (None, row.planner)]
        if not found:
            raise InvalidInput(f"comparison: no plan of {planner or 'any planner'!r:.60}")
        return min(found, key=lambda result: result.value)

    def summaries(self) -> tuple[PlannerSummary, ...]:
        """One line per planner, in the order asked for."""
        base = [result.value for result in self.results(self.baseline).values()]
        return tuple(self._summary(name, statistics.median(base) if base else None) for name in self.planners)

    def _summary(self, planner: str, base: float | None) -> PlannerSummary:
        results = list(self.results(planner).values())
        errors = [row.error for row in self.rows if row.planner == planner and row.error is not None]
        values = [result.value for result in results]
        median = statistics.median(values) if values else None
        return PlannerSummary(
            planner=planner,
            runs=len(results),
            failed=len(errors),
            best=min(values, default=None),
            median=median,
            worst=max(values, default=None),
            gap=self.gap(median) if median is not None else None,
            seconds=statistics.median(r.seconds for r in results) if results else None,
            evaluations=statistics.median(r.evaluations for r in results) if results else None,
            ratio=base / median if base is not None and median else None,
            error=errors[0] if errors else None,
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One mapping per finished search: planner, seed, value, gap, the plan's shape and estimate, or the error."""
        return [self._row(row) for row in self.rows]

    def _row(self, row: ComparisonRow) -> dict[str, Any]:
        result = row.result
        estimate = result.plan.estimate if result else None
        return {
            "planner": row.planner,
            "seed": row.seed,
            "value": result.value if result else None,
            "lower_bound": result.lower_bound if result else None,
            "gap": self.gap(result.value) if result else None,
            "seconds": result.seconds if result else None,
            "evaluations": result.evaluations if result else None,
            "stages": len(result.plan.stages) if result else None,
            "pipelines": len(result.plan.routes) if result else None,
            "step_s": estimate.step_s if estimate else None,
            "tokens_per_s": estimate.tokens_per_s if estimate else None,
            "usd_per_mtoken": estimate.usd_per_mtoken if estimate else None,
            "tokens_per_usd": estimate.tokens_per_usd if estimate else None,
            "dollars_leave_out": estimate.left_out_text if estimate else None,
            "error": row.error,
        }

    def to_data(self) -> dict[str, Any]:
        """Everything but the plans, for JSON."""
        return {
            "cluster": self.problem.cluster.name,
            "model": self.problem.workload.name,
            "objective": self.problem.objective,
            "unit": self.unit,
            "budget": self.budget,
            "seeds": list(self.seeds),
            "baseline": self.baseline,
            "lower_bound": self.lower_bound,
            "cancelled": self.cancelled,
            "planners": [asdict(summary) for summary in self.summaries()],
            "rows": self.to_rows(),
        }

    def to_csv(self) -> str:
        """:meth:`to_rows` as CSV; what is unknown is blank, and no spreadsheet takes an error for a formula."""
        out = io.StringIO()
        rows = self.to_rows()
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["planner", "seed"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"error": guarded(row["error"] or "")} for row in rows)
        return out.getvalue()


@dataclass(frozen=True)
class ComparisonEvent:
    """Where a comparison stands.

    Attributes:
        done, total: searches.
        event: of the search under way.
    """

    planner: str
    seed: int
    done: int
    total: int
    event: SearchEvent


OnComparisonEvent = Callable[[ComparisonEvent], None]


def run_comparison(
    problem: Problem,
    *,
    planners: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 5,
    budget: Budget | str | float | None = "2 s",
    baseline: str | None = None,
    on_event: OnComparisonEvent | None = None,
    should_stop: ShouldStop | None = None,
) -> Comparison:
    """Solves a problem with several planners and seeds; seed after seed, so that a stop leaves all planners equal.

    Args:
        problem: what to plan.
        planners: names in the registry; None takes all of them.
        seeds: how many (0, 1, …), or which.
        budget: of every search. The same number of evaluations gives the same values everywhere.
        baseline: whose median ratios refer to; by default the first baseline among the planners, else the first.
        on_event: called at most ten times a second.
        should_stop: True ends the comparison and drops the search under way, as KeyboardInterrupt does.

    Returns:
        The comparison. A planner that finds no plan has rows with the reason.

    Raises:
        InvalidInput: for a name, seed or budget that cannot be; or if every planner refuses the problem.
        Infeasible: if no planner finds a plan and the first says that there is none.
    """
    names = _checked_names(planners)
    numbers = _checked_seeds(seeds)
    limit = Budget.parse(budget)
    reference = _checked_baseline(baseline, names)
    solvers = {name: make_planner(name) for name in names}
    rows: list[ComparisonRow] = []
    errors: list[HetplannerError] = []
    total = len(names) * len(numbers)

    def watch(name: str, seed: int) -> Callable[[SearchEvent], None] | None:
        return on_event and (lambda event: on_event(ComparisonEvent(name, seed, len(rows), total, event)))

    for name, seed in ((name, seed) for seed in numbers for name in names):
        if should_stop is not None and should_stop():
            break
        try:
            result, error = _try(solvers[name], problem, seed, limit, watch(name, seed), should_stop)
        except KeyboardInterrupt:
            break
        if result is not None and result.cancelled:
            break
        if error is not None:
            errors.append(error)
        rows.append(ComparisonRow(name, seed, result, str(error) if error is not None else None))
    if errors and len(errors) == len(rows) == total:
        raise errors[0]
    return Comparison(problem, names, numbers, limit.text(), reference, tuple(rows), cancelled=len(rows) < total)


def _try(
    planner: Planner,
    problem: Problem,
    seed: int,
    budget: Budget,
    on_event: Callable[[SearchEvent], None] | None,
    should_stop: ShouldStop | None,
) -> tuple[SearchResult | None, HetplannerError | None]:
    try:
        result = planner.solve(problem, seed=seed, budget=budget, on_event=on_event, should_stop=should_stop)
    except (InvalidInput, Infeasible) as error:
        return None, error
    return result, None


def _checked_names(planners: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(planner_names() if planners is None else planners)
    if not names:
        raise InvalidInput(f"planners: must name at least one of {', '.join(planner_names())}")
    for name in names:
        planner_type(name)
        if names.count(name) > 1:
            raise InvalidInput(f"planners: {name} is there twice; remove one")
    return names


def _checked_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int) and not 1 <= seeds <= MOST_SEEDS:
        raise InvalidInput(f"seeds: must be from 1 to {MOST_SEEDS}, got {seeds}")
    numbers = tuple(range(seeds) if isinstance(seeds, int) else seeds)
    if not 1 <= len(numbers) <= MOST_SEEDS or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise InvalidInput(f"seeds: must be 1 to {MOST_SEEDS} different numbers from 0 on, got {numbers!s:.60}")
    return numbers


def _checked_baseline(baseline: str | None, names: tuple[str, ...]) -> str:
    if baseline is None:
        return next((name for name in names if planner_type(name).is_baseline), names[0])
    if baseline not in names:
        raise InvalidInput(f"baseline: must be one of the planners ({', '.join(names)}), got {baseline!r:.60}")
    return baseline
