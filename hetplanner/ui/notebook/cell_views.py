"""What a notebook's cell shows of a search and of a run, and the thread that follows a run."""

import contextlib
import threading
import time
from dataclasses import dataclass, field
from html import escape

from hetplanner.errors import HetplannerError
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import LOADING, OBJECTIVE_UNITS, Budget, SearchEvent, SearchResult
from hetplanner.plots.data.curves import left_out_of
from hetplanner.plots.live import ConvergenceCurve, DeviceMap, LossCurve, StepTimes
from hetplanner.runs.agent.keeper import AgentKeeper
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus
from hetplanner.ui.jobs.worker import PlanDrawer
from hetplanner.ui.notebook.cells import Face, LiveCell
from hetplanner.ui.shell.models.texts import against_text, change_text, count_text, seconds_text, value_text

HEIGHT = 300
EVERY_S = 0.5
"""Between two drawings."""
_BIG = "font-size:20px;font-weight:700"
_STRIP = "height:4px;border-radius:2px"


@dataclass
class SearchState:
    """A search as far as it has come."""

    problem: Problem
    planner: str
    budget: Budget
    events: list[SearchEvent] = field(default_factory=list)
    plan: Plan | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    result: SearchResult | None = None


class SearchFace(Face[SearchState]):
    """The convergence, and the best allocation on the map."""

    def __init__(self) -> None:
        self.curve = ConvergenceCurve(height=HEIGHT)
        self.world = DeviceMap(height=HEIGHT)
        self.figures = [self.curve, self.world]

    def update(self, subject: SearchState) -> None:
        """Redraws both."""
        bound = subject.result.lower_bound if subject.result is not None else None
        unit = OBJECTIVE_UNITS[subject.problem.objective]
        left_out = left_out_of(subject.problem.objective, subject.problem.cluster)
        self.curve.update(subject.events, subject.baselines, bound, unit=unit, left_out=left_out)
        self.world.update(subject.problem.cluster, subject.plan)

    def words(self, subject: SearchState) -> str:
        """The best value, how it compares, how far the search is."""
        problem, last = subject.problem, subject.events[-1] if subject.events else None
        title = f"<b>{escape(problem.workload.name)}</b> on <b>{escape(problem.cluster.name)}</b>"
        title += f" · {escape(subject.planner)}"
        if last is None:
            return f"{title}<br>starting …"
        notes = [against_text(last.best, name, value) for name, value in subject.baselines.items()]
        value = value_text(last.best, problem.objective)
        value += f" per million {problem.workload.token_word}" if problem.objective == "cost" else ""
        lines = [title, f'<span style="{_BIG}">{value}</span> {escape(" · ".join(notes))}', _progress(subject, last)]
        if subject.plan is not None and subject.plan.estimate is not None:
            lines.append(f"<b>Bottleneck:</b> {escape(subject.plan.estimate.bottleneck.text)}")
        return "".join(f"<div>{line}</div>" for line in lines)


def _progress(subject: SearchState, last: SearchEvent) -> str:
    done = f"{last.evaluations:,} plans in {last.seconds:.1f} s"
    if subject.result is not None:
        how = "Stopped" if subject.result.cancelled else "Done"
        return f"{how}: {done}; gap to the lower bound {100 * subject.result.gap:.3g} %"
    seconds, evaluations = subject.budget.seconds, subject.budget.evaluations
    shares = [last.seconds / seconds] if seconds else []
    shares += [last.evaluations / evaluations] if evaluations else []
    return f"{escape(last.phase)}: {done}, budget {escape(subject.budget.text())}{_bar(max(shares, default=0.0))}"


def _bar(share: float) -> str:
    done = f"{_STRIP};background:#4477AA;width:{100 * min(max(share, 0.0), 1.0):.0f}%"
    return f'<div style="{_STRIP};background:#e3e6ea;margin:5px 0;max-width:420px"><div style="{done}"></div></div>'


class SearchCell:
    """The live view of one search, fed by its events."""

    def __init__(self, problem: Problem, planner: str, budget: Budget, seed: int) -> None:
        self.state = SearchState(problem, planner, budget)
        self._seed = seed
        self._drawer: PlanDrawer | None = None
        self._due_s = 0.0
        self._cell: LiveCell[SearchState] = LiveCell(SearchFace, self.state)

    def should_stop(self) -> bool:
        """Whether the stop button was pressed."""
        return self._cell.stop_asked.is_set()

    def take(self, event: SearchEvent) -> None:
        """Takes an event of the search; draws twice a second at most."""
        self.state.events.append(event)
        if time.monotonic() < self._due_s:
            return
        if self._drawer is None:
            self._drawer = PlanDrawer(self.state.problem)
        if event.phase != LOADING and not self.state.baselines:  # they need the kernels
            self.state.baselines = baseline_values(self.state.problem, self._seed)
        self.state.plan = self._drawer.draw(event) or self.state.plan
        self._cell.update(self.state)
        self._due_s = time.monotonic() + EVERY_S

    def finish(self, result: SearchResult) -> None:
        """Leaves the result in the cell."""
        self.state.result, self.state.plan = result, result.plan
        self._cell.finish(self.state)


def baseline_values(problem: Problem, seed: int) -> dict[str, float]:
    """Label -> value of what people do without a search; what does not fit in memory is left out."""
    from hetplanner.planners.registry import make_planner

    found = {}
    for label in ("rank order", "random"):
        with contextlib.suppress(HetplannerError):
            one = make_planner(label.replace(" ", "-")).solve(problem, seed=seed, budget=Budget(evaluations=1))
            found[label] = one.value
    return found


class RunState:
    """A run as its directory tells it, read by one thread."""

    def __init__(self, run: Run) -> None:
        self.run = Run(run.path, run.id, run.home)
        self.status: RunStatus = self.run.status()
        self._keeper = AgentKeeper(run.home)

    def read(self) -> None:
        """Reads what is new."""
        self.status = self.run.followed_status(self._keeper)
        if self.status.is_over:
            self.run.read_all()
        else:
            self.run.poll()


class RunFace(Face[RunState]):
    """Loss, and step times against the prediction."""

    def __init__(self) -> None:
        self.loss = LossCurve(height=HEIGHT)
        self.times = StepTimes(height=HEIGHT)
        self.figures = [self.loss, self.times]

    def update(self, subject: RunState) -> None:
        """Redraws both."""
        run = subject.run
        losses = run.losses()
        self.loss.update([s for s, _ in losses], [v for _, v in losses], run.validation_losses())
        timed = [(s.step, s.step_s) for s in run.steps() if s.step_s]
        catalog_s = (run.prediction() or {}).get("catalog_step_s")
        self.times.update([s for s, _ in timed], [v for _, v in timed], run.predicted_step_s(), catalog_s)

    def words(self, subject: RunState) -> str:
        """State, step, loss, measured against predicted."""
        run, status = subject.run, subject.status
        kind = "rehearsal" if status.rehearsal else "run"
        lines = [f"<b>{escape(run.id)}</b> · {kind} of {status.ranks} ranks · <b>{escape(status.word)}</b>"]
        steps, losses = run.steps(), run.losses()
        if steps:
            total = run.config.steps
            loss = f'loss <span style="{_BIG}">{losses[-1][1]:.4f}</span> · ' if losses else ""
            lines.append(f"{loss}step {steps[-1].step + 1} of {total}{_bar((steps[-1].step + 1) / total)}")
            lines.append(" · ".join(_speed(run)))
            if evaluations := run.evaluations():
                lines.append(f"on held-out data: {escape(str(evaluations[-1]))}")
        elif not status.is_over:
            lines.append(f"{escape(run.phase() or 'starting')} …")
        if status.message and status.message != status.state:
            lines.append(escape(status.message))
        if status.word in ("failed", "preempted"):
            lines += [escape(line) for line in status.last_lines[-6:]]
        return "".join(f"<div>{line}</div>" for line in lines)


def _speed(run: Run) -> list[str]:
    measured_s, predicted_s, rate = run.measured_step_s(), run.predicted_step_s(), run.tokens_per_s()
    parts = [f"step time {seconds_text(measured_s)}"]
    if predicted_s:
        parts.append(f"predicted {seconds_text(predicted_s)} {change_text(measured_s, predicted_s)}".rstrip())
    return [*parts, f"{count_text(rate)} {run.any_plan.problem.workload.token_word}/s"] if rate else parts


class RunCell:
    """The live view of one run: a thread of the kernel follows the run's directory until the run is over.

    Attributes:
        ended: set when nothing more will be drawn.
    """

    def __init__(self, run: Run) -> None:
        self.state = RunState(run)
        self.ended = threading.Event()
        if self.state.status.is_over:
            self.state.read()
            self.ended.set()
        self._cell: LiveCell[RunState] = LiveCell(RunFace, self.state, live=not self.ended.is_set())
        if not self.ended.is_set():
            threading.Thread(target=self._follow, daemon=True, name=f"watch-{run.id}").start()

    def _follow(self) -> None:
        try:
            while not self.state.status.is_over:
                if self._cell.stop_asked.wait(EVERY_S):
                    self._stop()
                self.state.read()
                if not self.state.status.is_over:
                    self._cell.update(self.state)
            self.state.read()
            self._cell.finish(self.state)
        except HetplannerError:
            pass  # its directory is gone: the last state stays
        finally:
            self.ended.set()

    def _stop(self) -> None:
        self._cell.stop_asked.clear()
        with contextlib.suppress(HetplannerError):  # it ended by itself, or its agent did: the state tells
            self.state.run.stop()
