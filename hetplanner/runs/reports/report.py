"""A run held against its prediction: term by term, rank by rank, link by link; and the model fitted to it again.

Predicted is the simulation from the ranks' own profiles that was written before the first step (`prediction.json`);
the catalog is what the plan promised before it met a machine; re-fitted is the same simulation on a cluster whose
devices and links are fitted to the run's spans.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hetplanner.calibration.model import Calibration, calibration_to_data
from hetplanner.calibration.trace_fit import calibrate_trace, fitted_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Trace
from hetplanner.reading import reader
from hetplanner.runs.reading.reader import Evaluation, RunReader
from hetplanner.runs.reports.comparison import Comparer, LinkReport, RankReport, simulated_steps
from hetplanner.simulator.simulation import simulate
from hetplanner.simulator.terms import StepTerms

TRACED_STEPS = 20
"""Steps of a run that are read: enough for medians, and the run as it was at its end."""


@dataclass(frozen=True)
class RunReport:
    """See the module.

    Attributes:
        step_s: by source: catalog, predicted, measured, refitted; only what is known.
        terms: the same sources, mean over ranks; they add up to their step, up to the median's doing.
        losses, grad_norms: (step, value) of all whole steps.
        difference: the largest one between prediction and measurement, in a sentence.
        calibration: devices and links as the run showed them; None where it showed nothing.
    """

    run: str
    state: str
    message: str
    steps: int
    planned_steps: int
    step_s: dict[str, float]
    terms: dict[str, StepTerms]
    ranks: tuple[RankReport, ...]
    links: tuple[LinkReport, ...]
    losses: tuple[tuple[int, float], ...]
    validation: tuple[tuple[int, float], ...]
    grad_norms: tuple[tuple[int, float], ...]
    difference: str
    calibration: Calibration | None
    evaluations: tuple[Evaluation, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Plain data; what is no finite number is None."""
        data = {name: value for name, value in asdict_of(self).items() if name != "calibration"}
        data["calibration"] = None if self.calibration is None else calibration_to_data(self.calibration)
        found: dict[str, Any] = finite_data(data)
        return found


def asdict_of(report: RunReport) -> dict[str, Any]:
    """Its fields as plain data, the calibration as it is."""
    flat = {name: getattr(report, name) for name in report.__dataclass_fields__}
    flat["terms"] = {source: terms.to_dict() for source, terms in report.terms.items()}
    flat["evaluations"] = [found.to_data() for found in report.evaluations]
    flat["ranks"] = [asdict(row) for row in report.ranks]
    flat["links"] = [asdict(row) for row in report.links]
    return flat


def finite_data(value: Any) -> Any:
    """Plain data in which what is no finite number is None."""
    if isinstance(value, dict):
        return {name: finite_data(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_data(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@reader("run folder", at="run.directory.path")
def report_run(run: RunReader, name: str | None = None, last_steps: int = TRACED_STEPS) -> RunReport:
    """Reads a run (going on, over, stopped or failed) and holds it against its prediction.

    Args:
        run: the run.
        name: what to call it; None takes its directory's name.
        last_steps: how many of the last whole steps with spans are read.

    Raises:
        InvalidInput: its plan or status cannot be read, or its plan is elastic.
    """
    if isinstance(run.any_plan, ElasticPlan):
        raise InvalidInput(f"{name or run.directory.path.name}: is of an elastic plan; report_swarm gives its report")
    run.read_all()
    plan, status, trace = run.plan, run.status(), RunReader.trace(run, last_steps)
    calibration = _calibrated(trace, plan)
    plans = {"catalog": plan} | ({"refitted": fitted_plan(plan, calibration)} if calibration is not None else {})
    count, on_hosts = simulated_steps(plan), run.measured_links() is not None
    traces = {name: simulate(each, steps=count, fair_links=on_hosts) for name, each in plans.items()}
    found = Comparer(run).compare(trace, traces)
    steps = run.steps()
    return RunReport(
        run=name or run.directory.path.name,
        state=status.state,
        message=status.message,
        steps=len(steps),
        planned_steps=run.config.steps,
        step_s=found.step_s,
        terms=found.terms,
        ranks=found.ranks,
        links=found.links,
        losses=tuple(run.losses()),
        validation=tuple(run.validation_losses()),
        evaluations=tuple(run.evaluations()),
        grad_norms=tuple((s.step, s.grad_norm) for s in steps if s.grad_norm is not None),
        difference=f"{found.summary} {found.difference}".rstrip(),
        calibration=calibration,
    )


def _calibrated(trace: Trace, plan: Plan) -> Calibration | None:
    try:
        return calibrate_trace(trace, plan)
    except InvalidInput:  # no whole step, so nothing to fit to
        return None
