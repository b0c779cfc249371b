"""The Run page: which run is shown, and what is known of it. Runs belong to the agent, not to the page.

Everything shown is read from the run's directory, so a reloaded page or a restarted server finds it again; the
agent is asked only to start and to stop.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import param

from hetplanner.data.need import TokenNeed, need_of
from hetplanner.errors import InvalidInput
from hetplanner.runs.agent.audit import AuditRecord, audit_records
from hetplanner.runs.annotations import matches
from hetplanner.runs.directory import find_run, list_run_ids
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.telemetry import PHASES
from hetplanner.runs.status import RunStatus
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.run.models.annotations import AnnotationsModel
from hetplanner.ui.run.models.launch import LaunchModel
from hetplanner.ui.run.models.logs import LogModel
from hetplanner.ui.run.models.overlay import OverlayModel
from hetplanner.ui.run.models.peers import PeersModel
from hetplanner.ui.run.models.replay import ReplayModel
from hetplanner.ui.run.models.report import made_report
from hetplanner.ui.run.models.text import TextModel
from hetplanner.ui.shell.models.calls import submit
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.watch import RunDetail, RunRow, RunWatch, run_rows, successor_of, watch_run

SECTIONS = ("progress", "timeline", "network", "hosts", "swarm", "events", "text", "runs")
AWAY_S = 15.0
"""A page that was gone for less was only reloaded."""
MAX_NEWS = 8
NEWS_EVENTS = ("submit", "restart", "end")
LONG_SILENCE_S = 10.0


class RunModel(param.Parameterized):
    """Watching. `beat` is called five times a second and does little when little changed.

    Attributes:
        launch, log, peers, replay, text: the parts of the page with a life of their own.
    """

    runs = param.List(default=[], doc="One RunRow a run, newest first.")
    selected = param.String(default="")
    status = param.ClassSelector(class_=RunStatus, default=None)
    section: Any = param.Selector(default=SECTIONS[0], objects=list(SECTIONS))
    stop_asked = param.Boolean(default=False, doc="Stop was pressed and waits to be confirmed.")
    wanted = param.Tuple(default=("", "", ""), doc="Words, tag and state that the list of runs is filtered by.")
    news = param.List(default=[], doc="AuditRecords of while this browser had no page open.")

    steps_changed = param.Event()
    phase_changed = param.Event()
    detail_changed = param.Event()

    def __init__(
        self,
        session: Session,
        service: SearchService,
        home: Path | None = None,
        agent: Callable[[], Any] | None = None,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.session = session
        self.home = home
        self.watch: RunWatch | None = None
        self.detail: RunDetail | None = None
        self.closed_s: float | None = None
        self.launch = LaunchModel(session, service, home, agent, self._launched)
        self.log, self.replay, self.text = LogModel(), ReplayModel(), TextModel(session)
        self.peers = PeersModel(session, self.launch.agent)
        self.said, self.overlay = AnnotationsModel(session), OverlayModel(home)
        self._version = -1
        self._silent = 0
        self._section_before = ""
        """Where the page was before a failure opened another section."""
        self.param.watch(self._selected, "selected")
        self.param.watch(self._replay_news, "section")

    @property
    def reader(self) -> RunReader | None:
        """The run's directory, as far as it was read."""
        return self.watch.reader if self.watch is not None else None

    # -- the beat ---------------------------------------------------------------------------------

    def beat(self, visible: bool = True) -> None:
        """Takes answers of others; reads the run's directory when the page is visible."""
        self.launch.take()
        self.text.take()
        self.peers.take()
        if not visible:
            return
        self.list_runs()
        if self.section == "runs":
            self.overlay.read()
        if self.watch is not None:
            with self.session.reporting(self._drop):
                self._read(self.watch)

    def _drop(self) -> None:
        self.watch = None

    def _read(self, watch: RunWatch) -> None:
        first = self._version < 0
        was_live = self.can_stop
        watch.refresh()
        if watch.version != self._version or watch.status != self.status:
            self._version = watch.version
            self._show_status(watch.status)
            self.param.trigger("phase_changed", "steps_changed")
            self._replay_news()
        detail = watch.detail()
        if detail is not self.detail or first:
            self.detail = detail
            self.peers.see(detail)
            self.param.trigger("detail_changed")
        self.log.read()
        silent = int((self.silent_s() or 0.0) // LONG_SILENCE_S)
        if silent != self._silent:
            self._silent = silent
            self.param.trigger("phase_changed")
        if was_live:
            self._follow()

    def _follow(self) -> None:
        """A page that watches a run live next shows the run that goes on in its place."""
        status, name = self.status, self.goes_on_as
        if status is None or not status.is_over or not name:
            return
        self.list_runs(anew=True)
        self.select(name)
        self.session.notify("info", f"{status.message}. It is shown now.")

    def _replay_news(self, *_: Any) -> None:
        """Spans are many: they are read while the timeline is shown."""
        if self.section == "timeline":
            self.replay.news()

    def _show_status(self, status: RunStatus | None) -> None:
        had_failed = self.status is not None and self.status.state == "failed"
        self.status = status
        self.stop_asked = self.stop_asked and self.can_stop
        if status is not None and status.state == "failed" and not had_failed:
            if status.failed_rank is not None:
                self.log.rank = str(status.failed_rank)  # its last words are what one wants to read
            self._section_before, self.section = self.section, "events"

    # -- runs -------------------------------------------------------------------------------------

    def list_runs(self, anew: bool = False) -> None:
        """Which runs there are; the newest is shown if none was chosen."""
        rows = run_rows(self.home, anew=anew)
        if rows != self.runs:
            self.runs = rows
        if not self.selected:
            # A run that is being made has no plan yet.
            made = (row.run for row in rows if find_run(row.run, self.home)[1].plan_file.is_file())
            if (newest := next(made, None)) is not None:
                self.select(newest)

    def found_runs(self) -> list[RunRow]:
        """Those of the list that the filter lets through."""
        return [row for row in self.runs if matches(row.said, row.run, row.state, *self.wanted)]

    def save_annotations(self) -> None:
        """Saves name, notes and tags of the run that is shown."""
        if self.said.save():
            self.list_runs(anew=True)

    def select(self, run_id: str) -> None:
        """Shows a run; an id that is not in the list is ignored (it may come from the page's address)."""
        if run_id in list_run_ids(self.home):
            self.selected = run_id

    def _selected(self, event: param.parameterized.Event) -> None:
        self.watch = watch_run(self.home, event.new) if event.new else None
        self.detail, self.status, self._version = None, None, -1
        if self._section_before and self.section == "events":
            self.section = self._section_before
        self._section_before = ""
        self.log.open(self.reader)
        self.replay.open(self.reader)
        self.peers.open(event.new)
        self.stop_asked = False
        self.said.open(self.reader.directory.path if self.reader is not None else None)
        self.text.open(event.new, self.reader.directory.path if self.reader is not None else None)
        self.param.trigger("steps_changed", "detail_changed", "phase_changed")

    def _launched(self, run_id: str) -> None:
        self.list_runs(anew=True)
        self.select(run_id)
        self.section = SECTIONS[0]

    # -- what a person does with a run ---------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """The first press of Stop: `stop` or `keep_running` follow."""
        self.stop_asked = self.can_stop

    def keep_running(self) -> None:
        """Stop was not meant."""
        self.stop_asked = False

    def stop(self) -> None:
        """Stops the selected run."""
        self.stop_asked = False
        if self.selected and self.can_stop:
            self.launch.stop(self.selected, lambda: self.list_runs(anew=True))

    def restart(self) -> None:
        """Proposes to go on from the selected run's last checkpoint."""
        if self.reader is not None and self.status is not None and self.status.is_over:
            with self.session.reporting():
                self.launch.propose_resume(self.selected, self.reader)

    def report(self) -> "Future[bytes]":
        """The selected run's report as one HTML file, when it is done; made outside of this process."""
        folder = self.reader.directory.path if self.reader is not None else None
        if folder is None:
            raise ValueError("no run is selected")
        return submit(lambda: made_report(folder, self.home))

    # -- while the page was closed -------------------------------------------------------------------

    def closed_since(self, closed_s: float) -> None:
        """The browser's last page was closed at this unix time: what happened since becomes `news`."""
        if 0 < closed_s < time.time() - AWAY_S:
            self.closed_s = closed_s
            records = [r for r in audit_records(self.home, since_s=closed_s) if r.event in NEWS_EVENTS]
            self.news = _latest_of_runs(records)[-MAX_NEWS:]

    def dismiss_news(self) -> None:
        """They were read."""
        self.news = []

    # -- what the page says -----------------------------------------------------------------------

    @property
    def reached(self) -> dict[str, int]:
        """Stage of a worker's life -> ranks that have reached it."""
        phases = self.reader.phases() if self.reader is not None else {}
        return {name: len(phases.get(name, {})) for name in PHASES}

    @property
    def can_stop(self) -> bool:
        """Whether there is a live run to stop."""
        return self.status is not None and not self.status.is_over

    @property
    def goes_on_as(self) -> str:
        """The run that goes on in the place of the selected one: the last of them; '' if none does."""
        return successor_of(self.home, self.status) if self.status is not None else ""

    @property
    def goes_on_from(self) -> str:
        """The run that the selected one goes on from; '' if it began by itself."""
        before = next((row.run for row in self.runs if self.selected and row.successor == self.selected), "")
        if before or self.reader is None or self.status is None:
            return before
        with suppress(InvalidInput):  # a damaged file is told where the run is read
            resume = self.reader.config.resume
            if resume is not None and Path(resume).name in list_run_ids(self.home):
                return Path(resume).name
        return ""

    def called(self, run_id: str) -> str:
        """A run as the list calls it: its name with the end of its id, or its id."""
        name = next((row.name for row in self.runs if row.run == run_id), "")
        return f"{name} · {run_id[-4:]}" if name else run_id

    @property
    def is_swarm(self) -> bool:
        """Whether the run is one of an elastic plan."""
        return self.detail is not None and self.detail.swarm is not None

    @property
    def checkpoint(self) -> int | None:
        """Steps in the last checkpoint."""
        return self.detail.checkpoints[0] if self.detail is not None and self.detail.checkpoints else None

    @property
    def can_restart(self) -> bool:
        """Whether the run is over and left a checkpoint to go on from."""
        return self.status is not None and self.status.is_over and self.checkpoint is not None

    @property
    def has_model(self) -> bool:
        """Whether the run has saved a model that continues text."""
        reader = self.reader
        if reader is None or self.status is None or not self.status.is_over:
            return False
        return reader.directory.model_file.exists() and isinstance(need_of(reader.plan.problem.workload), TokenNeed)

    def silent_s(self) -> float | None:
        """Seconds since the ranks of a live run last wrote anything, if that is long."""
        if self.watch is None or not self.can_stop:
            return None
        silence_s = time.monotonic() - self.watch.heard_s
        return silence_s if silence_s > LONG_SILENCE_S else None


def _latest_of_runs(records: list[AuditRecord]) -> list[AuditRecord]:
    """Of each run the last thing that happened to it, oldest first."""
    last = {record.run: record for record in records}
    return sorted(last.values(), key=lambda record: record.time_s)
