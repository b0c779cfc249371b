"""The search worker: a process of its own that reads requests from stdin and writes JSON lines to stdout.

`python -m hetplanner.ui.worker`, started by `hetplanner.ui.jobs`. Requests are `search` and `stop`; answers are
`phase`, `baseline`, `event` (with the best plan when it changed), then `end` or `error`. A plan travels without its
problem, which the server has. When stdin closes, the server is gone, and so is the worker.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any, TextIO

import numpy as np

from hetplanner.errors import HetplannerError
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.schema import checked
from hetplanner.ui.child import NICENESS

PLAN_INTERVAL_S = 0.4
"""At most this often a new best plan is built and sent; building one takes some 10 ms."""
RANDOM_SAMPLES = 9


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
            if message["do"] == "search":
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
                self.search(request)
            except HetplannerError as error:
                self.send("error", text=str(error))
            except Exception as error:
                self.send("error", text=f"search: {type(error).__name__}: {error}"[:500])
                raise

    def search(self, request: dict[str, Any]) -> None:
        """One search: baselines first, then the planner, its best plan on the way."""
        from hetplanner.planners.interface import Budget, SearchEvent
        from hetplanner.planners.population import LOADING
        from hetplanner.planners.registry import make_planner

        problem = checked(Problem, request["problem"], "problem", from_file=True)
        self.send("phase", text="scoring the baseline")
        self._send_baseline(problem, request["seed"], "rank order")
        self.send("phase", text="starting the search")
        settings = {"starts": request["starts"]} if request["planner"] == "evolution" else None
        drawer = PlanDrawer(problem)
        waiting = ["random"]  # this baseline needs the kernels, which the search loads behind its first plan

        def on_event(event: SearchEvent) -> None:
            if waiting and event.phase != LOADING:
                self._send_baseline(problem, request["seed"], waiting.pop())
            plan = drawer.draw(event)
            extra = {} if plan is None else {"plan": plan_body(plan)}
            self.send(
                "event",
                best=event.best,
                mean=event.mean,
                spread=event.spread,
                evaluations=event.evaluations,
                seconds=event.seconds,
                phase=event.phase,
                **extra,
            )

        result = make_planner(request["planner"], settings).solve(
            problem,
            seed=request["seed"],
            budget=Budget(seconds=request["budget_s"], evaluations=request["evaluations"]),
            on_event=on_event,
            should_stop=self._stop.is_set,
        )
        self.send(
            "end",
            plan=plan_body(result.plan),
            value=result.value,
            lower_bound=result.lower_bound,
            evaluations=result.evaluations,
            seconds=result.seconds,
        )

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
    """Builds the plan of a search's best placement, when it is new and the last one is not too recent."""

    def __init__(self, problem: Problem) -> None:
        from hetplanner.cost.estimate import CostModel

        self._cluster = problem.cluster
        self._model = CostModel.of(problem)
        self._last: tuple[tuple[str, ...], ...] = ()
        self._due_s = 0.0

    def draw(self, event: Any) -> Plan | None:
        """The plan to show with this event, if it is worth a message."""
        if event.placement == self._last or time.monotonic() < self._due_s:
            return None
        if len({len(stage) for stage in event.placement}) > 1:
            return None  # routes of unequal replicas are not in the event; the finished plan shows them
        from hetplanner.planners.finish import fit_plan
        from hetplanner.planners.population import LOADING
        from hetplanner.planners.rank_order import equal_plan

        self._last, self._due_s = event.placement, time.monotonic() + PLAN_INTERVAL_S
        rows_SR = np.array([[self._cluster.device_index(d) for d in stage] for stage in event.placement])
        with contextlib.suppress(HetplannerError):  # on the way a placement may not fit in memory
            return equal_plan(rows_SR, self._model) if event.phase == LOADING else fit_plan(rows_SR, self._model)
        return None


def plan_body(plan: Plan) -> dict[str, Any]:
    """A plan without its problem, as plain data."""
    return plan.model_dump(mode="json", by_alias=True, exclude={"problem"}, exclude_none=True)


def main() -> None:
    """Entry point of `python -m hetplanner.ui.worker`."""
    os.nice(NICENESS)
    # Answers go to a private copy of stdout: a library that prints must not break the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(out)
    threading.Thread(target=worker.listen, args=(sys.stdin,), daemon=True).start()
    import hetplanner.planners.evolution  # noqa: F401 - numba and the kernels load while nobody waits

    worker.serve()


if __name__ == "__main__":
    main()
