"""The search worker: a process of its own that reads requests from stdin and writes JSON lines to stdout.

`python -m hetplanner.ui.jobs.worker`, started by `hetplanner.ui.jobs.jobs`. Requests are `search`, `front`
and `stop`; answers are `phase`, `baseline`, `bound`, `event` (with the best plan when it changed, and the moment of an
improvement for the replay) or `front` (its points), then `end` or `error`; an idle worker says in `kernels` which of
them are not compiled yet. A plan travels without its
problem, which the server has. When stdin closes, the server is gone, and so is the worker.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from hetplanner.errors import HetplannerError
from hetplanner.liveness.priority import work_in_background
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.schema import checked
from hetplanner.ui.jobs.plan_bodies import plan_body, plan_of_body

if TYPE_CHECKING:
    from hetplanner.planners.interface import SearchResult

PLAN_INTERVAL_S = 0.4
"""At most this often a new best plan is built and sent; building one takes some 10 ms."""
FRONT_INTERVAL_S = 0.5
MOST_POINTS = 60
"""Of a front on its way, so many points are sent so often."""
RANDOM_SAMPLES = 9
MOST_BOUND_AHEAD = 128
"""Devices of a problem whose lower bound takes less than half a second; of a larger one it would delay the search."""


EVENT_FIELDS = (
    "best",
    "low",
    "median",
    "high",
    "evaluations",
    "seconds",
    "spent_s",
    "searched_s",
    "phase",
)
"""Of a `SearchEvent`: what the page is told."""


class Worker:
    """Runs one search after another; `stop` comes in beside it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._current = ""
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen(self, lines: TextIO) -> None:
        """Takes requests until stdin ends, then ends the process whatever it is doing."""
        for line in lines:
            message = json.loads(line)
            if message["do"] in ("search", "front"):
                self.requests.put(message)
            elif message["do"] == "stop" and message["job"] == self._current:
                self._stop.set()
        os._exit(0)

    def send(self, kind: str, **fields: Any) -> None:
        """Writes one line."""
        text = json.dumps({"type": kind, "job": self._current, **fields}, separators=(",", ":"), allow_nan=False)
        with self._lock:
            self._out.write(text + "\n")
            self._out.flush()

    def serve(self) -> None:
        """Runs requests as they come."""
        while True:
            request = self.requests.get()
            self._stop.clear()
            self._current = request["job"]
            try:
                (self.front if request["do"] == "front" else self.search)(request)
            except HetplannerError as error:
                self.send("error", text=str(error))
            except Exception as error:
                self.send("error", text=f"search: {type(error).__name__}: {error}"[:500])
                raise

    def search(self, request: dict[str, Any]) -> None:
        """One search: baselines first, then the planner, its best plan on the way."""
        from hetplanner.planners.interface import LOADING, Budget, SearchEvent
        from hetplanner.planners.registry import make_planner
        from hetplanner.planners.search.compiled_parts import missing_parts
        from hetplanner.planners.search.moments import MomentLog

        problem = checked(Problem, request["problem"], "problem", from_file=True)
        start = _start_of(request, problem)
        references = [partial(self._send_references, problem, request["seed"])]
        if not missing_parts():
            references.pop()()
        self.send("phase", text="starting the search")
        # Of another problem the start's value says nothing here.
        drawer = PlanDrawer(problem, start if request["start_problem"] is None else None)
        log = MomentLog(problem)
        last: dict[str, Any] = {}  # event
        waiting = ["random"]  # this baseline needs the kernels, which the search loads behind its first plan

        def on_event(event: SearchEvent) -> None:
            if waiting and event.phase != LOADING:
                self._send_baseline(problem, request["seed"], waiting.pop())
            if start is not None and request["start_problem"] is not None and event.phase == LOADING:
                self.send("phase", text=LOADING)  # the first guesses know nothing of the start
                return
            if references and (event.phase != LOADING or len(log.moments) > 1):
                references.pop()()  # without kernels, what a person waits for comes first: a plan, and a better one
            plan, moment = drawer.draw(event), log.take(event)
            extra = {} if plan is None else {"plan": plan_body(plan)}
            extra |= {} if moment is None else {"moment": moment.to_data()}
            last.update({name: getattr(event, name) for name in EVENT_FIELDS})
            self.send("event", **last, **extra)

        with self._bound_beside(problem, request["bound_s"]) as raised:
            result = make_planner(request["planner"], request["settings"]).solve(
                problem,
                seed=request["seed"],
                budget=Budget(seconds=request["budget_s"], evaluations=request["evaluations"]),
                on_event=on_event,
                should_stop=self._stop.is_set,
                start=start,
            )
            if last and request["bound_s"]:  # the page shows the plan while the bound rises
                self.send("event", **last, plan=plan_body(result.plan))
            self._send_result(raised(result))

    def _send_result(self, result: SearchResult) -> None:
        self.send(
            "end",
            plan=plan_body(result.plan),
            value=result.value,
            lower_bound=result.lower_bound,
            evaluations=result.evaluations,
            seconds=result.seconds,
            searched_s=result.searched_s,
            tried=[shape.to_data() for shape in result.tried],
            ancestry=[one.to_data() for one in result.ancestry],
            **({} if result.elastic is None else {"elastic": plan_body(result.elastic)}),
        )

    @contextlib.contextmanager
    def _bound_beside(self, problem: Problem, seconds: float) -> Iterator[Callable[[SearchResult], SearchResult]]:
        """Works on a tighter bound in a process beside the search; what it yields waits for it, or for a stop."""
        if not seconds:
            yield lambda result: result
            return
        from hetplanner.planners.dtfm.tighter_bound import BoundProcess, with_bound

        process, sent = BoundProcess(problem, seconds), 0.0

        def raised(result: SearchResult) -> SearchResult:
            def send_better(bound: float) -> None:
                nonlocal sent
                if bound > sent:
                    sent = bound
                    self.send("bound", value=min(bound, result.value))

            self.send("phase", text="raising the lower bound")
            return with_bound(result, process.wait(self._stop.is_set, send_better))

        try:
            yield raised
        finally:
            process.close()

    def front(self, request: dict[str, Any]) -> None:
        """The front of step time and dollars."""
        from hetplanner.planners.interface import Budget
        from hetplanner.planners.step_time.fronts import search_front
        from hetplanner.planners.step_time.pareto import ParetoEvent, even_choice

        problem = checked(Problem, request["problem"], "problem", from_file=True)
        self.send("phase", text="starting the search")
        phase, due_s = "", 0.0

        def on_event(event: ParetoEvent) -> None:
            nonlocal phase, due_s
            if event.phase == phase and time.monotonic() < due_s:
                return
            phase, due_s = event.phase, time.monotonic() + FRONT_INTERVAL_S
            points = [event.points[i] for i in even_choice(event.points, MOST_POINTS)]
            self.send("front", points=points, evaluations=event.evaluations, spent_s=event.spent_s, phase=event.phase)

        found = search_front(
            problem,
            seed=request["seed"],
            budget=Budget(seconds=request["budget_s"], evaluations=request["evaluations"]),
            on_event=on_event,
            should_stop=self._stop.is_set,
        )
        self.send(
            "end",
            plans=[plan_body(plan) for plan in found.plans],
            rows=found.to_rows(),
            least_step_s=found.least_step_s,
            least_usd_per_mtoken=found.least_usd_per_mtoken,
            evaluations=found.evaluations,
            seconds=found.seconds,
        )

    def _send_references(self, problem: Problem, seed: int) -> None:
        """What a plan is held against before there is a kernel."""
        self.send("phase", text="scoring the baseline")
        self._send_baseline(problem, seed, "rank order")
        self.send("phase", text="computing the lower bound")
        self._send_bound(problem)

    def _send_bound(self, problem: Problem) -> None:
        """What no plan can be below; the planner may prove a higher one in the end."""
        from hetplanner.cost.estimate import CostModel
        from hetplanner.planners.finish import lower_bound
        from hetplanner.planners.shapes import fixed_shape

        if problem.is_grouping_open or len(problem.cluster.devices) > MOST_BOUND_AHEAD:
            return  # the finished plan brings it
        with contextlib.suppress(HetplannerError):  # the planner will say what is wrong
            shape = fixed_shape(problem) if problem.objective == "dtfm" else (1, 1)
            bound = lower_bound(problem, CostModel.of(problem), shape)
            if math.isfinite(bound):
                self.send("bound", value=bound)

    def _send_baseline(self, problem: Problem, seed: int, label: str) -> None:
        from hetplanner.planners.registry import make_planner

        planner = make_planner(label.replace(" ", "-"))
        with contextlib.suppress(HetplannerError):  # what does not fit the devices' memory is no baseline
            result = planner.solve(problem, seed=seed, budget=f"{RANDOM_SAMPLES} evaluations")
            assert result.plan.estimate is not None
            self.send(
                "baseline", label=label, value=result.value, estimate=result.plan.estimate.model_dump(mode="json")
            )


class PlanDrawer:
    """Builds the plan of a search's best placement, when it is new and better and the last one is not too recent."""

    def __init__(self, problem: Problem, start: Plan | None = None) -> None:
        from hetplanner.cost.estimate import CostModel
        from hetplanner.planners.layout import value_of

        self._cluster, self._is_open = problem.cluster, problem.is_grouping_open
        self._model = CostModel.of(problem)
        self._last: tuple[tuple[str, ...], ...] = ()
        self._due_s = 0.0
        self._value = math.inf if start is None else value_of(start)

    def draw(self, event: Any) -> Plan | None:
        """The plan to show with this event, if it is worth a message."""
        if event.placement == self._last or time.monotonic() < self._due_s:
            return None
        if event.draft is None and len({len(stage) for stage in event.placement}) > 1:
            return None  # routes of unequal replicas are not in the event; the finished plan shows them
        from hetplanner.planners.layout import value_of

        self._last, self._due_s = event.placement, time.monotonic() + PLAN_INTERVAL_S
        plan = self._plan(event)
        # The cut of a plan may not be the search's own: what is shown must not become worse on the way.
        if plan is None or value_of(plan) >= self._value:
            return None
        self._value = value_of(plan)
        return plan

    def _plan(self, event: Any) -> Plan | None:
        from hetplanner.planners.finish import equal_plan, fit_plan
        from hetplanner.planners.interface import LOADING

        if event.draft is not None:
            return self._drafted(event)
        if self._is_open:
            return None  # whose groups are not in the event
        rows_SR = np.array([[self._cluster.device_index(d) for d in stage] for stage in event.placement])
        with contextlib.suppress(HetplannerError):  # on the way a placement may not fit in memory
            return equal_plan(rows_SR, self._model) if event.phase == LOADING else fit_plan(rows_SR, self._model)
        return None

    def _drafted(self, event: Any) -> Plan | None:
        """The search's own plan, completed; None while it does not fit in memory."""
        from hetplanner.cost.estimate import CostModel
        from hetplanner.planners.layout import complete_plan

        with contextlib.suppress(HetplannerError):
            draft: Plan = event.draft()
            model = CostModel.of(draft.problem) if self._is_open else self._model
            return complete_plan(draft, model) if draft.estimate is None else draft
        return None


def _start_of(request: dict[str, Any], problem: Problem) -> Plan | None:
    """The plan to begin with; its problem travels only where it is another one."""
    if request["start"] is None:
        return None
    own = request["start_problem"]
    solved = problem if own is None else checked(Problem, own, "start", from_file=True)
    return plan_of_body(solved, request["start"], "start", Plan)


def main() -> None:
    """Entry point of `python -m hetplanner.ui.jobs.worker`."""
    work_in_background()
    # Answers go to a private copy of stdout: a library that prints must not break the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(out)
    threading.Thread(target=worker.listen, args=(sys.stdin,), daemon=True).start()
    import hetplanner.planners.search.planner  # noqa: F401
    from hetplanner.planners.search.compiled_parts import PARTS, missing_parts

    # Numba is loaded before the first request.
    worker.send("kernels", missing=missing_parts(), total=len(PARTS))
    worker.serve()


if __name__ == "__main__":
    main()
