"""The compute worker's process: reads questions about plans from stdin, answers in JSON lines, one after the other.

`python -m hetplanner.ui.jobs.compute_process`, started by `hetplanner.ui.jobs.compute`. A plan comes once:
`plan`, with the key by which questions name it. Questions are

* `evaluate`: a plan and `changes` (see `hetplanner.planners.variants.whatif`) -> the changed plan and its result,
* `carry`: a plan and a `problem` -> the plan carried over to it (see `hetplanner.planners.variants.carry_over`),
* `explain`: what the plan's gain over its baseline is made of,
* `simulate`: what is `wanted` otherwise (see `hetplanner.planners.variants.derive`) -> the derived plan, one step,
* `perfetto`: one step of the plan as the text of a trace file,
* `report`: the plan's report as the text of an HTML file; with its search's `moments`, `tried` and `baselines`, if any.

When stdin closes, the server is gone, and so is this process. A person waits for every answer, so that it has the
server's priority, above the search's.
"""

import gc
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TextIO

from hetplanner.errors import HetplannerError
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.search.moments import Moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.planners.variants.attribution import divide_gain
from hetplanner.planners.variants.carry_over import carry_over
from hetplanner.planners.variants.depths import max_depths
from hetplanner.planners.variants.derive import Derivation, derive_plan, derived_to_data
from hetplanner.planners.variants.whatif import Changes, evaluate_changes
from hetplanner.schema import checked
from hetplanner.simulator.replay import replay_step
from hetplanner.ui.jobs.plan_bodies import plan_body

GARBAGE_THRESHOLD = 500_000


class ComputeProcess:
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


def _evaluate(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    return evaluate_changes(worker.plan(message), Changes.of(message["changes"])).to_data()


def _carry(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    problem = checked(Problem, message["problem"], "problem", from_file=True)
    return {"plan": plan_body(carry_over(worker.plan(message), problem))}


def _explain(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    gain = divide_gain(worker.plan(message))
    return {} if gain is None else gain.to_data()


def _simulate(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    plan, wanted = worker.plan(message), Derivation.of(message.get("wanted", {}))
    made = derive_plan(plan, wanted)
    replay = replay_step(made)
    return {"made": derived_to_data(made), "replay": replay.to_data(), "room": max_depths(made)}


def _perfetto(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    plan = worker.plan(message)
    trace = replay_step(plan).spans.to_trace(plan.ranks)
    return {"text": json.dumps(trace.to_perfetto(), separators=(",", ":"))}


def _report(worker: ComputeProcess, message: dict[str, Any]) -> dict[str, Any]:
    from hetplanner.plots.plan_report_page import plan_report_page  # loads Bokeh: only who asks waits for it

    moments = [Moment.from_data(one) for one in message.get("moments", ())]
    tried = [TriedShape(**one) for one in message.get("tried", ())]
    baselines = {label: checked(Estimate, one, label) for label, one in message.get("baselines", {}).items()}
    offset_s = message.get("offset_s", 0.0)
    return {"text": plan_report_page(worker.plan(message), moments, tried, baselines, offset_s=offset_s)}


_ANSWERS: dict[str, Callable[[ComputeProcess, dict[str, Any]], dict[str, Any]]] = {
    "evaluate": _evaluate,
    "carry": _carry,
    "explain": _explain,
    "simulate": _simulate,
    "perfetto": _perfetto,
    "report": _report,
}


def main() -> None:
    """Entry point of `python -m hetplanner.ui.jobs.compute_process`."""
    # A step of five hundred devices is a hundred thousand tuples, none of them in a cycle: looking for cycles among
    # them takes as long as making them.
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    # Answers go to a private copy of stdout: a library that prints must not break the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    ComputeProcess(out).serve(sys.stdin)


if __name__ == "__main__":
    main()
