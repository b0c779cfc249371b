"""The desk's process: reads questions about plans from stdin, answers in JSON lines, one after the other.

`python -m hetplanner.ui.desk_worker`, started by `hetplanner.ui.desk`. A plan comes once (`plan`, with the key under
which questions name it); questions are

* `evaluate`: a plan and `changes` (see `hetplanner.planners.whatif`) -> the changed plan and what became of it,
* `explain`: what the plan's gain over its baseline is made of,
* `simulate`: `steps`, and whether the `trace` is wanted -> summary, and spans as columns.

When stdin closes, the server is gone, and so is this process.
"""

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TextIO

from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import HetplannerError
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Span, Trace
from hetplanner.planners.attribution import divide_gain
from hetplanner.planners.whatif import Changes, evaluate_changes
from hetplanner.schema import checked
from hetplanner.simulator.simulation import simulate, summarise_plan
from hetplanner.ui.child import NICENESS

SPAN_FIELDS = ("rank", "kind", "step", "micro_batch", "start_s", "end_s", "bytes", "peer", "stage", "role")


class DeskWorker:
    """Answers questions about the plans it was told."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._plans: OrderedDict[int, Plan] = OrderedDict()

    def serve(self, lines: TextIO) -> None:
        """Until the pipe closes."""
        for line in lines:
            message = json.loads(line)
            if message["do"] == "plan":
                self._learn(message)
                continue
            answer: dict[str, Any] = {"id": message["id"]}
            try:
                answer["result"] = _ANSWERS[message["do"]](self, message)
            except HetplannerError as error:
                answer["error"] = str(error)
            except Exception as error:
                answer["error"] = f"{message['do']}: {type(error).__name__}: {error}"[:500]
                sys.excepthook(*sys.exc_info())
            self._out.write(json.dumps(answer, separators=(",", ":"), allow_nan=False) + "\n")
            self._out.flush()

    def _learn(self, message: dict[str, Any]) -> None:
        self._plans[message["key"]] = checked(Plan, message["plan"], "plan", from_file=True)
        while len(self._plans) > message["most"]:
            self._plans.popitem(last=False)

    def plan(self, message: dict[str, Any]) -> Plan:
        """The plan that a question is about."""
        self._plans.move_to_end(message["key"])
        return self._plans[message["key"]]


def _evaluate(worker: DeskWorker, message: dict[str, Any]) -> dict[str, Any]:
    return evaluate_changes(worker.plan(message), Changes.of(message["changes"])).to_data()


def _explain(worker: DeskWorker, message: dict[str, Any]) -> dict[str, Any]:
    gain = divide_gain(worker.plan(message))
    return {} if gain is None else gain.to_data()


def _simulate(worker: DeskWorker, message: dict[str, Any]) -> dict[str, Any]:
    plan, steps = worker.plan(message), int(message.get("steps", 1))
    trace = simulate(plan, steps=steps)
    result = {
        "summary": summarise_plan(plan, steps=steps, trace=trace).to_dict(),
        "estimate": estimate_plan(plan).model_dump(mode="json"),
    }
    if message.get("trace"):
        result["trace"] = trace_columns(trace)
    return result


def trace_columns(trace: Trace) -> dict[str, list[Any]]:
    """A trace's spans as columns, and the labels of its ranks: a third of the text of one object for each."""
    columns: dict[str, list[Any]] = {name: [getattr(s, name) for s in trace.spans] for name in SPAN_FIELDS}
    return columns | {"rank_labels": list(trace.rank_labels)}


def trace_from_columns(columns: dict[str, list[Any]]) -> Trace:
    """The trace of :func:`trace_columns`."""
    rows = zip(*(columns[name] for name in SPAN_FIELDS), strict=True)
    return Trace(tuple(Span(*row) for row in rows), tuple(columns["rank_labels"]))


_ANSWERS: dict[str, Callable[[DeskWorker, dict[str, Any]], dict[str, Any]]] = {
    "evaluate": _evaluate,
    "explain": _explain,
    "simulate": _simulate,
}


def main() -> None:
    """Entry point of `python -m hetplanner.ui.desk_worker`."""
    os.nice(NICENESS)
    # Answers go to a private copy of stdout: a library that prints must not break the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    DeskWorker(out).serve(sys.stdin)


if __name__ == "__main__":
    main()
