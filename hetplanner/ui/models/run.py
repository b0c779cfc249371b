"""The Run page: prepare a rehearsal, launch what was confirmed, watch runs. Runs belong to the agent, not to the page.

Everything shown is read from the run's directory, so a reloaded page or a restarted server finds it again; the
agent is asked only to start and to stop.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import param

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.launchers.capacity import check_capacity
from hetplanner.launchers.interface import LaunchRequest
from hetplanner.launchers.registry import make_launcher
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.plan.rehearsal import rehearsal_problem
from hetplanner.plan.trace import Trace
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import RunDirectory, list_run_ids
from hetplanner.runs.home import runs_directory
from hetplanner.runs.reader import RunReader
from hetplanner.runs.status import RunStatus, read_status
from hetplanner.runs.telemetry import PHASES
from hetplanner.ui.jobs import SearchJob, SearchRequest, SearchService
from hetplanner.ui.models.session import Session
from hetplanner.workload.presets import preset

_log = logging.getLogger(__name__)

REHEARSAL_MODELS = ("tiny-gpt", "tiny-llama", "small-gpt")
REHEARSAL_BUDGET_S = 2.0
MAX_RUNS = 50
MAX_LOG_LINES = 400
LIST_EVERY_S = 2.0
DETAIL_EVERY_S = 0.4
TRACE_EVERY_S = 1.5
LAUNCHER_LOG = "launcher"

_executor = ThreadPoolExecutor(4, thread_name_prefix="agent-call")


@dataclass(frozen=True)
class Proposal:
    """What would run, for a person to confirm."""

    plan: Plan
    config: TrainConfig
    request: LaunchRequest

    @property
    def is_rehearsal(self) -> bool:
        """Whether it rehearses a larger problem."""
        return self.plan.problem.rehearsal_of is not None


@dataclass(frozen=True)
class RunRow:
    """A line of the list of runs."""

    run: str
    state: str
    kind: str
    began: str
    ranks: int


class RunModel(param.Parameterized):
    """Launching and watching. `beat` is called five times a second and does little when little changed."""

    rehearsal_model: Any = param.Selector(default=REHEARSAL_MODELS[0], objects=list(REHEARSAL_MODELS))
    rehearsal_stages = param.Integer(default=2, bounds=(1, 16))
    rehearsal_replicas = param.Integer(default=2, bounds=(1, 16))
    steps = param.Integer(default=200, bounds=(1, 1_000_000))

    preparing = param.Boolean(default=False, doc="A rehearsal is being re-planned.")
    launching = param.Boolean(default=False, doc="The agent is being asked.")
    proposal = param.ClassSelector(class_=Proposal, default=None)
    runs = param.List(default=[], doc="One RunRow a run, newest first.")
    selected = param.String(default="")
    status = param.ClassSelector(class_=RunStatus, default=None)
    log_rank = param.String(default="0", doc="Whose log: a rank, or 'launcher'.")

    steps_changed = param.Event()
    trace_changed = param.Event()
    log_changed = param.Event()
    phase_changed = param.Event()

    def __init__(
        self,
        session: Session,
        service: SearchService,
        home: Path | None = None,
        agent: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.session = session
        self.home = home
        self.reader: RunReader | None = None
        self.trace: Trace | None = None
        self.log_lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._service = service
        self._agent = agent or self._connect
        self._clock = clock
        self._job: SearchJob | None = None
        self._calls: list[tuple[Future[Any], Callable[[Any], None]]] = []
        self._due: dict[str, float] = {}
        self._log_cursor = -1
        self._phase: str | None = None
        self.param.watch(self._selected, "selected")
        self.param.watch(self._log_chosen, "log_rank")

    # -- preparing and launching ------------------------------------------------------------------

    def prepare_rehearsal(self, problem: Problem) -> None:
        """Re-plans `problem` small enough for this machine; the outcome is a proposal to confirm.

        Raises:
            InvalidInput: if the shape does not fit the cluster or the model.
        """
        if self.preparing:
            return
        small = rehearsal_problem(
            problem,
            preset(self.rehearsal_model),
            stages=self.rehearsal_stages,
            replicas=self.rehearsal_replicas,
        )
        title = f"rehearsal of {small.rehearsal_of}"
        self._job = self._service.start(SearchRequest(small, budget_s=REHEARSAL_BUDGET_S, title=title))
        self.preparing = True

    def propose(self, plan: Plan) -> None:
        """Proposes to run a plan as it is, on this machine with emulated links. Raises what the launcher refuses."""
        check_capacity(plan)
        config = TrainConfig(steps=self.steps, emulate_links=True)
        folder = runs_directory(self.home) / "new-run"
        self.proposal = Proposal(plan, config, make_launcher("local").request(plan, folder, config))

    def dismiss(self) -> None:
        """Drops the proposal."""
        self.proposal = None

    def confirm(self) -> None:
        """Launches the proposal. The lock is checked here, in the server, not only in the page."""
        proposal = self.proposal
        if proposal is None or self.launching:
            return
        if not self.session.unlocked:
            self.session.notify("error", "launch: type the launch token first; it is printed in the server's terminal")
            return
        self.launching = True
        _log.info("launching %s: %s", proposal.plan.problem.workload.name, proposal.request.script().strip())
        self._call(lambda: self._submit(proposal), self._launched)

    def _connect(self) -> Any:
        from hetplanner.runs.client import AgentClient  # httpx is needed only by who launches

        return AgentClient(self.home)  # starts an agent when none is there

    def _submit(self, proposal: Proposal) -> str:
        return str(self._agent().start(proposal.plan, proposal.config).id)

    def _launched(self, run_id: str) -> None:
        self.proposal = None
        self._due.clear()
        self.list_runs()
        self.select(run_id)
        self.session.notify("success", f"Launched {run_id}; it goes on when this page is closed.")

    def stop(self) -> None:
        """Stops the selected run."""
        run_id = self.selected
        if not run_id or self.status is None or self.status.is_over:
            return
        if not self.session.unlocked:
            self.session.notify("error", "stop: type the launch token first; it is printed in the server's terminal")
            return
        _log.info("stopping %s", run_id)
        self._call(lambda: self._agent().stop(run_id), lambda _: self._due.clear())

    def _call(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Asks the agent off the event loop; `beat` takes the answer."""
        self._calls.append((_executor.submit(call), then))

    # -- the beat ---------------------------------------------------------------------------------

    def beat(self, visible: bool = True) -> None:
        """Takes answers of the agent and of the re-planning; reads the run's directory when somebody looks."""
        self._take_answers()
        self._take_rehearsal()
        if not visible:
            return
        if self._is_due("list", LIST_EVERY_S):
            self.list_runs()
        if self.reader is not None and self._is_due("detail", DETAIL_EVERY_S):
            with self.session.reporting(self._drop_reader):
                self._read_detail(self.reader)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self._clock()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True

    def _take_answers(self) -> None:
        ready = [pair for pair in self._calls if pair[0].done()]
        self._calls = [pair for pair in self._calls if pair not in ready]
        for future, then in ready:
            self.launching = False
            error = future.exception()
            if error is None:
                with self.session.reporting():
                    then(future.result())
            elif isinstance(error, HetplannerError):
                self.session.notify("error", str(error))
            else:
                _log.error("the agent could not be asked", exc_info=error)
                self.session.notify("error", f"agent: {type(error).__name__}: {str(error)[:200]}; see the server's log")

    def _take_rehearsal(self) -> None:
        job = self._job
        if job is None or not job.ended:
            return
        self._job, self.preparing = None, False
        with self.session.reporting():
            if job.state == "failed" or job.plan is None:
                raise InvalidInput(job.message or "rehearsal: the search found no plan")
            self.session.plan = job.plan
            self.propose(job.plan)

    # -- runs -------------------------------------------------------------------------------------

    def list_runs(self) -> None:
        """Reads which runs there are; the newest is shown if none was chosen."""
        ids = list_run_ids(self.home)[::-1][:MAX_RUNS]
        rows = [self._row(run_id) for run_id in ids]
        if rows != self.runs:
            self.runs = rows
        if not self.selected and ids:
            self.select(ids[0])

    def _folder(self, run_id: str) -> Path:
        return (runs_directory(self.home) / run_id).resolve()

    def _row(self, run_id: str) -> "RunRow":
        try:
            status = read_status(RunDirectory(self._folder(run_id)).status_file)
        except HetplannerError:
            return RunRow(run_id, "unknown", "", "", 0)
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.created_unix_s))
        return RunRow(run_id, status.state, "rehearsal" if status.rehearsal else "run", began, status.ranks)

    def select(self, run_id: str) -> None:
        """Shows a run; an id that is not in the list is ignored (it may come from the page's address)."""
        if run_id in list_run_ids(self.home):
            self.selected = run_id

    def _selected(self, event: param.parameterized.Event) -> None:
        self.reader = RunReader(self._folder(event.new)) if event.new else None
        self.trace, self._phase = None, None
        self.status = None
        self._due.pop("detail", None)
        self._due.pop("trace", None)
        self._log_chosen()
        self.param.trigger("steps_changed", "trace_changed", "phase_changed")

    def _drop_reader(self) -> None:
        self.reader = None

    def _log_chosen(self, *_: Any) -> None:
        self.log_lines.clear()
        self._log_cursor = -1
        self.param.trigger("log_changed")

    def _read_detail(self, reader: RunReader) -> None:
        was_over = self.status is not None and self.status.is_over
        status = reader.status()
        if status != self.status:
            self.status = status
            if status.failed_rank is not None and not was_over:
                self.log_rank = str(status.failed_rank)  # its last words are what one wants to read
        news = reader.poll()
        if news or self._phase is None:
            self._phase = reader.phase()
            self.param.trigger("phase_changed")
        if news:
            self.param.trigger("steps_changed")
        if (news or not was_over) and self._is_due("trace", TRACE_EVERY_S):
            trace = reader.trace()
            if trace.spans:
                self.trace = trace
                self.param.trigger("trace_changed")
        self._read_log(reader)

    def _read_log(self, reader: RunReader) -> None:
        rank = None if self.log_rank == LAUNCHER_LOG else int(self.log_rank)
        text, cursor = reader.log(rank, self._log_cursor)
        if text:
            if self.log_lines and self._log_cursor > 0 and not self._ends_line:
                text = self.log_lines.pop() + text
            self._ends_line = text.endswith("\n")
            self.log_lines.extend(line[:2000] for line in text.splitlines())
            self.param.trigger("log_changed")
        self._log_cursor = cursor

    _ends_line = True

    # -- what the page says -----------------------------------------------------------------------

    @property
    def log_choices(self) -> list[str]:
        """Whose logs there are."""
        ranks = len(self.reader.ranks) if self.reader is not None else 0
        return [*map(str, range(ranks)), LAUNCHER_LOG]

    @property
    def reached(self) -> dict[str, int]:
        """Stage of a worker's life -> ranks that have reached it."""
        phases = self.reader.phases() if self.reader is not None else {}
        return {name: len(phases.get(name, {})) for name in PHASES}

    @property
    def can_stop(self) -> bool:
        """Whether there is a live run to stop."""
        return self.status is not None and not self.status.is_over

    def seconds_to_first_loss(self) -> float | None:
        """From submission to the end of the first step, once it is over."""
        if self.reader is None or self.status is None or not self.reader.steps():
            return None
        origins = [t.origin_unix_s for t in self.reader.ranks if t.origin_unix_s is not None]
        return origins[0] + self.reader.steps()[0].end_s - self.status.created_unix_s if origins else None
