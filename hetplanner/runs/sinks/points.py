"""What a run's telemetry says, as points for sinks: each step once, when all that belongs to it is known."""

import re
from functools import cached_property

from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import rank_labels
from hetplanner.runs.annotations import known_annotations
from hetplanner.runs.reading.reader import Evaluation, RunReader, StepSummary
from hetplanner.runs.sinks.interface import METRICS, Point, RunFacts

LEFT_OUT = {"data", "eval_data", "init_from", "resume"}
"""Settings that name files of this machine."""


def facts_of(run: RunReader, run_id: str) -> RunFacts:
    """What a sink may say of a run. Raises InvalidInput: its plan or settings cannot be read."""
    plan, said = run.any_plan, known_annotations(run.directory.path)
    workload = plan.problem.workload
    settings = run.config.model_dump(mode="json", exclude=LEFT_OUT)
    settings |= {
        "mode": "elastic" if isinstance(plan, ElasticPlan) else "static",
        "plan": plan.digest(),
        "ranks": len(rank_labels(plan)),
        "global_batch": workload.global_batch,
        "micro_batch": workload.micro_batch,
        "dtype": workload.dtype,
    }
    word = re.sub(r"[^0-9A-Za-z.-]+", "-", run_id)[:80]  # of a folder that is no run of this home
    return RunFacts(word, said.name or word, workload.name, said.tags, settings)


class PointReader:
    """Reads a run on. Of a run that goes on the newest step waits for the next one: its validation may follow it."""

    def __init__(self, run: RunReader) -> None:
        """At the first step of `run`, whatever was read of it before."""
        self._run = run
        self._last = -1
        self._sent_bytes = 0
        for telemetry in run.ranks:
            telemetry.tail.max_backlog_bytes = 2**62  # every step counts, however long the files are

    def new(self, *, is_over: bool) -> list[Point]:
        """Points of the steps since the last call, in order.

        Args:
            is_over: the run writes no more.

        Raises:
            InvalidInput: the run's files are damaged.
        """
        self._run.read_all()
        steps = self._run.steps(self._last)
        if not is_over:
            steps = steps[:-1]
        evaluations = {found.step: found for found in self._run.evaluations()} if steps else {}
        points = [self._point(step, evaluations.get(step.step)) for step in steps]
        if points:
            self._last = points[-1].step
        return points

    def _point(self, s: StepSummary, evaluation: Evaluation | None) -> Point:
        self._sent_bytes += s.boundary_bytes + s.reduce_bytes
        rate = s.num_tokens / s.step_s if s.step_s and s.num_tokens else None
        reads_tokens = self._run.any_plan.problem.workload.reads_tokens
        found: dict[str, float | None] = {
            "loss": s.loss,
            "validation_loss": None if evaluation is None else evaluation.loss,
            "validation_perplexity": None if evaluation is None else evaluation.perplexity,
            "validation_accuracy": None if evaluation is None else evaluation.accuracy,
            "learning_rate": self._run.config.learning_rate_at(s.step),
            "grad_norm": s.grad_norm,
            "step_seconds": s.step_s,
            "predicted_step_seconds": self._predicted_step_s(),
            "tokens_per_second" if reads_tokens else "samples_per_second": rate,
            "memory_bytes": s.memory_bytes or None,  # a swarm's coordinator does not know that of its peers
            "device_memory_bytes": s.device_bytes or None,
            "boundary_bytes": s.boundary_bytes,
            "reduce_bytes": s.reduce_bytes,
            "sent_bytes": self._sent_bytes,
        }
        origin_s = self._run.ranks[0].origin_unix_s or 0.0
        values = {name: float(value) for name in METRICS if (value := found.get(name)) is not None}
        return Point(s.step, origin_s + s.end_s, values)

    def _predicted_step_s(self) -> float | None:
        if isinstance(self._run.any_plan, ElasticPlan):
            return self._steady_step_s
        if self._static_step_s is None:
            self._static_step_s = self._run.predicted_step_s()
        return self._static_step_s

    _static_step_s: float | None = None

    @cached_property
    def _steady_step_s(self) -> float | None:
        """Of a swarm, where its peers and links are slowed to those of the plan: its steady-state step."""
        plan = self._run.any_plan
        if not isinstance(plan, ElasticPlan) or not self._run.config.emulate_links:
            return None
        return (plan.estimate or estimate_plan(steady_state_plan(plan))).step_s
