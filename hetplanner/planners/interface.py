"""The one interface of all planners: a problem, a seed and a budget in; a plan, and events on the way, out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.units import parse_seconds

if TYPE_CHECKING:
    from hetplanner.planners.search.ancestry import Ancestor
    from hetplanner.planners.search.moments import Moment
    from hetplanner.planners.search.tried import TriedShape

EVENT_INTERVAL_S = 0.1
# A value this close to a bound (relative) meets it: sums in another order differ in the last digits.
SAME_AS_BOUND = 1e-12
# A search may take so much more than its time to make its plan as good as it can.
GRACE_S = 2.0
MOST_SEED = 2**63 - 1
LOADING = "loading kernels"
"""Phase of first events: what is placed so far needed no compiled kernels."""
LAST_PHASES = frozenset({"done", "all tried", "proven optimal"})
"""Phases of a last event; behind it the best plans are judged."""
OBJECTIVE_UNITS = {"step-time": "s", "cost": "$ per million tokens", "dtfm": "s"}
"""Unit of every objective's values."""

_BARE_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Budget:
    """How long to search: until either limit is met. None = no such limit.

    Attributes:
        seconds: wall time from the first evaluation on.
        evaluations: candidate placements scored; the same seed and number give the same plan.

    Raises:
        InvalidInput: for a limit below 0 or one that is no finite number.
    """

    seconds: float | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 <= self.seconds < float("inf"):
            raise InvalidInput(f"budget: must be 0 s or more, got {self.seconds:g}")
        if self.evaluations is not None and self.evaluations < 0:
            raise InvalidInput(f"budget: must be 0 evaluations or more, got {self.evaluations}")

    @staticmethod
    def parse(value: Budget | str | float | int | None, default_s: float = 10.0) -> Budget:
        """A budget from '5s', '10 s', '2 min', '20000 evaluations' or a number of seconds.

        Raises:
            InvalidInput: if the text is none of these.
        """
        if value is None:
            return Budget(seconds=default_s)
        if isinstance(value, Budget):
            return value
        if isinstance(value, int | float):
            return Budget(seconds=float(value))
        text = value.strip()
        count = re.fullmatch(r"(\d+)\s*(evaluations?|evals?)", text)
        if count:
            return Budget(evaluations=int(count[1]))
        if _BARE_NUMBER.fullmatch(text):
            return Budget(seconds=float(text))
        try:
            return Budget(seconds=parse_seconds(text))
        except InvalidInput:
            raise InvalidInput(
                f"budget: must be a time such as '10 s' or a count such as '20000 evaluations', got {text!r:.60}"
            ) from None

    def text(self) -> str:
        """The budget in words, for the plan's provenance."""
        parts = [f"{self.seconds:g} s"] if self.seconds is not None else []
        parts += [f"{self.evaluations} evaluations"] if self.evaluations is not None else []
        return " or ".join(parts) or "none"


class Quantiles(NamedTuple):
    """Of the values of a population: a tenth of them is no greater than `low`, a tenth no less than `high`."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Quantiles:
        """The 10, 50 and 90 % quantiles; each is one of the values."""
        return Quantiles(*np.quantile(np.asarray(values, dtype=np.float64), (0.1, 0.5, 0.9), method="nearest").tolist())


Placement = tuple[tuple[str, ...], ...]
"""Devices by stage, then replica."""
Draft = Callable[[], Plan]
"""Makes the plan of a placement as it stands: dense, with the search's own cut and shares, without an estimate."""


@dataclass(frozen=True)
class SearchEvent:
    """Where a search stands; values are in the objective's unit (seconds, or dollars per million tokens).

    Attributes:
        best: value of the best plan so far; never more than in the event before.
        low, median, high: 10, 50 and 90 % quantiles of the current population's values.
        evaluations: candidate placements scored so far.
        seconds: since the search began.
        placement: devices of the best plan by stage, then replica.
        phase: what the search is doing, in a word.
        spent_s: of a budget in seconds: since the search began without loading the kernels.
        searched_s: since the first evaluation, without loading or compiling kernels.
        draft: makes the best plan; only of an event on its way, and only where the planner has one.
    """

    best: float
    low: float
    median: float
    high: float
    evaluations: int
    seconds: float
    placement: Placement
    phase: str = "search"
    spent_s: float = 0.0
    searched_s: float = 0.0
    draft: Draft | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    Attributes:
        plan: the best plan, with its estimate and provenance.
        value: what the objective gives it.
        lower_bound: no plan is below this.
        events: all events sent, for the convergence plot.
        cancelled: whether `should_stop` ended the search.
        elastic: the elastic plan, where one was asked for; `plan` then is a steady-state step of it.
        moments: its improvements, for a replay, where they were kept.
        tried: the shapes that it tried, the best first, where the planner tells.
        ancestry: where its best placement comes from, parents before children, where the planner tells.
    """

    plan: Plan
    value: float
    lower_bound: float
    evaluations: int
    seconds: float
    seed: int
    events: tuple[SearchEvent, ...] = field(default=(), repr=False)
    cancelled: bool = False
    elastic: ElasticPlan | None = None
    moments: tuple[Moment, ...] = field(default=(), repr=False)
    tried: tuple[TriedShape, ...] = field(default=(), repr=False)
    ancestry: tuple[Ancestor, ...] = field(default=(), repr=False)

    @property
    def searched_s(self) -> float:
        """Seconds of search at the last event, see `SearchEvent`."""
        return self.events[-1].searched_s if self.events else 0.0

    @property
    def gap(self) -> float:
        """Share of the value above the bound: 0 is proven optimal."""
        return max(0.0, 1.0 - self.lower_bound / self.value) if self.value > 0 else 0.0


OnEvent = Callable[[SearchEvent], None]
ShouldStop = Callable[[], bool]


TAKES_CORES: JsonDict = {"takes_cores": True}
"""Marks a setting that takes more of the machine: a page without the launch token may not raise it."""


NO_FIELD: JsonDict = {"no_field": True}
"""Marks a setting that pages do not offer."""


class PlannerSettings(BaseModel):
    """Base of a planner's own settings; a user interface makes one widget of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Planner(Protocol):
    """What every planner offers.

    Attributes:
        name: key in the registry.
        summary: one line for people.
        settings_type: its settings.
        is_baseline: whether it stands for what people do without a search; comparisons refer to it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    settings_type: ClassVar[type[PlannerSettings]]
    is_baseline: ClassVar[bool]

    def check(self, problem: Problem, start: Plan | None = None) -> None:
        """Refuses what this planner cannot do. Raises InvalidInput."""
        ...

    def solve(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        budget: Budget | str | float | None = None,
        on_event: OnEvent | None = None,
        should_stop: ShouldStop | None = None,
        start: Plan | None = None,
    ) -> SearchResult:
        """Solves a problem.

        Args:
            problem: what to plan.
            seed: of every random choice; same seed and same number of evaluations give the same plan.
            budget: see :class:`Budget`; zero still gives a valid plan.
            on_event: called at most ten times a second, and once at the end.
            should_stop: asked between chunks of work; True ends the search with the best plan so far.
            start: a plan of the same cluster to begin with; where the problem allows it, the result is no worse.

        Raises:
            InvalidInput: if the problem's shape contradicts its cluster or model, or `start` is of another cluster.
            Infeasible: if no plan fits the devices' memory.
        """
        ...


class CancelledWhileCompiling(Exception):
    """The search was cancelled while it compiled kernels: whatever needed them has come to nothing."""


class Progress:
    """Keeps a search's clock, budget, events and cancellation; planners share it.

    A planner that proves a bound of its own sets `lower_bound`. `start` is the plan that the search begins with, if
    any. Told of kernels that are compiled (:mod:`hetplanner.compiling`), it takes that time off the budget's clock,
    and asks between two of them whether the search was cancelled.
    """

    def __init__(
        self,
        budget: Budget,
        on_event: OnEvent | None,
        should_stop: ShouldStop | None,
        clock: Callable[[], float] = time.perf_counter,
        start: Plan | None = None,
    ) -> None:
        self.budget, self.start = budget, start
        self.evaluations = 0
        self.events: list[SearchEvent] = []
        self.cancelled = False
        self.lower_bound = 0.0
        self.tried: tuple[TriedShape, ...] = ()
        self.ancestry: tuple[Ancestor, ...] = ()
        self._on_event = on_event
        self._should_stop = should_stop
        self._clock = clock
        self._start = clock()
        self._search_start = self._start
        self._searched_before = 0.0
        self._best: tuple[float, Placement, Draft | None] = (float("inf"), (), None)
        self._last_event = -EVENT_INTERVAL_S
        self._held_back = 0.0
        self._compiling = 0
        self._compiling_start = 0.0

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return self._clock() - self._start

    @property
    def spent_s(self) -> float:
        """Of a budget in seconds: since its clock was started."""
        return self._clock() - self._search_start

    @property
    def searched_s(self) -> float:
        """Since the first evaluation, without loading or compiling kernels."""
        return self._searched_before + self.spent_s

    def pause(self) -> None:
        """Stops the clock of :attr:`searched_s` until the budget's is started (again)."""
        self._searched_before = self.searched_s
        self._search_start = self._clock()

    def begin_at(self, plan: Plan, value: float) -> None:
        """Takes a plan of the problem for the best so far."""
        placement = tuple(tuple(replica[0] for replica in stage.replicas) for stage in plan.stages)
        self._best = (value, placement, lambda: plan)

    def start_budget(self) -> None:
        """Starts the budget's clock; before it lie loading (or, once per installation, compiling) the kernels."""
        self._search_start = self._clock()

    def compiling_began(self) -> None:
        """See :class:`hetplanner.compiling.CompilingWatch`. Raises CancelledWhileCompiling."""
        if self._compiling == 0:
            self._compiling_start = self._clock()
        self._compiling += 1
        if self.is_cancelled():
            raise CancelledWhileCompiling

    @property
    def is_compiling(self) -> bool:
        """Whether a kernel is compiled just now."""
        return self._compiling > 0

    def compiling_ended(self) -> None:
        """See :class:`hetplanner.compiling.CompilingWatch`."""
        self._compiling -= 1
        if self._compiling == 0:
            self._search_start += self._clock() - self._compiling_start

    def hold_back(self, share: float) -> None:
        """Ends the search that much of its time early (0: no earlier), for what follows it."""
        self._held_back = share

    @property
    def remaining_evaluations(self) -> int | None:
        """What the budget leaves; None if it does not count evaluations."""
        if self.budget.evaluations is None:
            return None
        return max(0, self.budget.evaluations - self.evaluations)

    @property
    def remaining_seconds(self) -> float | None:
        """What the budget leaves; None if it does not count seconds."""
        if self.budget.seconds is None:
            return None
        return max(0.0, self.budget.seconds * (1.0 - self._held_back) - self.spent_s)

    def is_cancelled(self) -> bool:
        """Whether the search was cancelled."""
        if self._should_stop is not None and self._should_stop():
            self.cancelled = True
        return self.cancelled

    def is_over(self) -> bool:
        """Whether the budget is spent or the search was cancelled."""
        if self.is_cancelled() or self.remaining_evaluations == 0:
            return True
        return self.is_late()

    def is_late(self) -> bool:
        """Whether the budget's time is spent; one that counts evaluations alone never is."""
        return self.remaining_seconds == 0.0

    def is_pressed(self) -> bool:
        """Whether choices that take long are no longer worth it: cancelled, or `GRACE_S` beyond the budget's time.

        Never for a budget that counts evaluations alone, whose plan depends on nothing else.
        """
        if self.is_cancelled():
            return True
        return self.budget.seconds is not None and self.spent_s > self.budget.seconds + GRACE_S

    def is_proven(self, value: float) -> bool:
        """Whether a value meets the bound that the planner has proved."""
        return 0.0 < self.lower_bound >= value * (1.0 - SAME_AS_BOUND)

    def is_event_due(self) -> bool:
        """Whether a tenth of a second has passed since the last event."""
        return self.seconds - self._last_event >= EVENT_INTERVAL_S

    def note_event(self) -> None:
        """Starts the wait for the next event, where another kind than :class:`SearchEvent` was sent."""
        self._last_event = self.seconds

    def report(
        self,
        best: float,
        quantiles: Quantiles | None,
        placement: Placement,
        phase: str = "search",
        draft: Draft | None = None,
    ) -> None:
        """Sends one event; callers ask :meth:`is_event_due` first, except for the last one.

        Args:
            best: value of the best plan so far; an earlier one that is better is reported in its place.
            quantiles: of the population; None: there is none but the best plan.
            placement: of the best plan so far.
            phase: what the search does, in a word.
            draft: makes the best plan so far.
        """
        if best < self._best[0] or not self._best[1]:
            self._best = (best, placement, draft)
        best, placement, draft = self._best
        event = SearchEvent(
            best,
            *(quantiles or (best,) * 3),
            evaluations=self.evaluations,
            seconds=self.seconds,
            placement=placement,
            phase=phase,
            spent_s=self.spent_s,
            searched_s=self.searched_s,
            draft=draft,
        )
        self._last_event = event.seconds
        self.events.append(replace(event, draft=None))
        if self._on_event is not None:
            self._on_event(event)
        if phase == LOADING:  # what the listener does with first plans is no search
            self._search_start += self.seconds - event.seconds


def checked_seed(seed: int) -> int:
    """A seed of random choices. Raises InvalidInput if it is out of range."""
    if not 0 <= seed <= MOST_SEED:
        raise InvalidInput(f"seed: must be from 0 to {MOST_SEED}, got {seed}")
    return seed
