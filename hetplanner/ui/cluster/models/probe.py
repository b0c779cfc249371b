"""Measuring the hosts of the current cluster: `hetplanner cluster probe`, started from the Cluster page.

What a browser gives is a name that the agent offers, and words of lists. The current cluster stays as it is until a
person takes what was measured.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import param

from hetplanner.cluster.model import Cluster
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.hosts.probe.kept import ONLY, when_text
from hetplanner.hosts.probe.pace import left_text
from hetplanner.hosts.probe.record import Record
from hetplanner.hosts.probe.result import probed_cluster
from hetplanner.runs.agent.allowed_paths import allowed_paths_file, read_allowed_paths
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.cluster.models.probe_rows import ProbeRows, measured_text, probe_rows
from hetplanner.ui.jobs.probe_jobs import ProbeJob, ProbeJobs, ProbeRequest, cluster_key
from hetplanner.ui.run.models.launch import LOCKED
from hetplanner.ui.shell.models.calls import Calls
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import counted, without_paths

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 3.0
NO_HOSTS_FILE = (
    "The agent offers no hosts file. Write one as the documentation says (Run over ssh), and name it in agent.toml"
    ' under [hosts], such as lab = "/home/me/lab-hosts.toml".'
)
OTHER_HOSTS = (
    "the cluster no longer has the sites, hosts and devices that were measured; undo the change, or measure again"
)


class ProbeModel(param.Parameterized):
    """Watch `changed` for everything that is shown, and `preview` for the map.

    Attributes:
        names: hosts files that the agent offers.
        hosts: the one that is chosen; '' without an offer.
        only, all_pairs: what is measured.
        on_map: whether the map shows what was measured in place of what the cluster says.
        error: why nothing was started, or taken.
        is_taken: whether the current cluster has what was measured.
        preview: the current cluster with what was measured, for the map; None: the map shows the cluster itself.
    """

    names: Any = param.Parameter(default=())
    hosts = param.String(default="")
    only: Any = param.Selector(default=ONLY[0], objects=list(ONLY))
    all_pairs = param.Boolean(default=False)
    on_map = param.Boolean(default=False)
    error = param.String(default="")
    is_taken = param.Boolean(default=False)
    preview = param.ClassSelector(class_=Cluster, default=None)
    changed = param.Integer(default=0, doc="Counts what a view has to draw anew.")

    def __init__(
        self,
        session: Session,
        editor: Editor,
        jobs: ProbeJobs,
        home: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.session, self._editor, self._jobs, self._home = session, editor, jobs, home
        self._calls = Calls(session)
        self._clock = clock
        self._due_s = clock()
        self._offers_error = ""
        self._offers_seen: object = None
        self._seen: tuple[Any, ...] = ()
        self._followed: ProbeJob | None = None
        self._key: tuple[Cluster | None, str] = (None, "")
        self._asked: tuple[Any, ...] = ()
        self._kept: Record | None = None
        self._measured: Cluster | None = None
        self._beside: Cluster | None = None
        self.param.watch(self._show_preview, "on_map")
        session.param.watch(lambda _: setattr(self, "error", ""), "unlocked")
        editor.param.watch(lambda _: self.poll(), "cluster")  # the map, which is told later, shows this preview

    # -- what there is ----------------------------------------------------------------------------

    @property
    def job(self) -> ProbeJob | None:
        """The newest probe, if it is of these hosts."""
        job = self._jobs.job
        return job if job is not None and job.request.hosts == self.hosts and self._is_of_ours(job) else None

    @property
    def running(self) -> bool:
        """Whether these hosts are being measured."""
        return self.job is not None and not self.job.ended

    @property
    def busy(self) -> bool:
        """Whether any hosts are being measured by this server."""
        return self._jobs.job is not None and not self._jobs.job.ended

    @property
    def record(self) -> Record | None:
        """What was measured of these hosts so far."""
        job = self.job
        if job is None or (job.record is None and (job.ended or not job.request.anew)):
            return self._kept
        return job.record

    @property
    def has_numbers(self) -> bool:
        """Whether there is something to take."""
        record = self.record
        return record is not None and bool(record.links or record.devices)

    @property
    def is_whole(self) -> bool:
        """Whether the newest probe measured all that it was asked for."""
        return self.job is not None and self.job.state == "done"

    def rows(self) -> ProbeRows | None:
        """What was measured, beside what the cluster says, or said before it was taken."""
        return probe_rows(self._beside, self.record) if self.has_numbers and self._beside and self.record else None

    # -- in words ---------------------------------------------------------------------------------

    @property
    def error_text(self) -> str:
        """What keeps the hosts from being measured, with a remedy; '' if nothing does."""
        job = self.job
        failed = without_paths(job.message) if job is not None and job.state == "failed" else ""
        return self.error or failed or self._offers_error

    @property
    def state_text(self) -> str:
        """What goes on, or what there is."""
        job, cluster, other = self.job, self._editor.cluster, self._jobs.job
        if job is not None and not job.ended:
            return _running_text(job)
        if other is not None and not other.ended:
            return (
                f"{other.request.cluster.name} is being measured with {other.request.hosts}: round {other.done + 1} of"
                f" {max(other.total, 1)}."
            )
        if cluster is None:
            return "There is no cluster yet."
        if not self.names:
            return "" if self._offers_error else NO_HOSTS_FILE
        record = self.record
        if record is None or not self.has_numbers:
            return "" if job is None else "Cancelled before anything was measured." if job.state == "stopped" else ""
        found = f"Measured: {measured_text(record)}, begun {when_text(record)}."
        if self.is_taken:
            return f"{found} The cluster uses these numbers and keeps the earlier ones for comparison."
        if job is not None and job.state in ("stopped", "failed"):
            return f"{'Cancelled' if job.state == 'stopped' else 'Not finished'}. {found} Go on measures the rest."
        return f"{found} The cluster is as it was before."

    @property
    def share(self) -> float | None:
        """How much of the rounds is done; None: nothing goes on."""
        job = self.job
        return None if job is None or job.ended else job.done / job.total if job.total else 0.0

    # -- what a person does -----------------------------------------------------------------------

    def start(self, *, anew: bool = False) -> None:
        """Measures the hosts of the current cluster. The lock is checked here, in the server, not only in the page.

        Args:
            anew: what was measured before is not gone on from.
        """
        cluster = self._editor.cluster
        if not self.session.unlocked:
            self.error = LOCKED.replace("launch:", "measure:")
        elif cluster is None:
            self.error = "measure: there is no cluster yet; choose a sample, import one, or draw one"
        elif self.hosts not in self.names:
            self.error = f"measure: {NO_HOSTS_FILE[0].lower()}{NO_HOSTS_FILE[1:]}"
        else:
            self.error = ""
            request = ProbeRequest(cluster, self.hosts, self.only, self.all_pairs, anew)
            try:
                self._jobs.start(request)
            except HetplannerError as error:
                self.error = without_paths(str(error))
            else:
                _log.info("measuring hosts of %s with %s", cluster.name, self.hosts)
                self.on_map = True
        self.poll()

    def cancel(self) -> None:
        """Ends the probe that goes on, of whichever hosts; what was measured stays."""
        if self.session.unlocked:
            self.error = ""
            self._jobs.stop()
        else:
            self.error = LOCKED.replace("launch:", "cancel:")
        self.poll()

    def use(self) -> None:
        """The current cluster takes what was measured; Undo takes it back."""
        record = self.record
        if record is None or not self.has_numbers:
            return
        key = self._key[1]

        def change(newest: Cluster | None) -> Cluster | None:
            if newest is None or cluster_key(newest) != key:
                raise InvalidInput(f"measure: {OTHER_HOSTS}")
            return probed_cluster(newest, record, when_text(record))

        try:
            self._editor.edit(change, f"measured hosts: {measured_text(record)}")
        except HetplannerError as error:
            self.error = without_paths(str(error))
        else:
            self.param.update(error="", on_map=False)
        self.poll()

    # -- keeping up -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Looks at the offers, at the probe and at the cluster; cheap where nothing changed."""
        self._look_at_offers()
        self._calls.take()
        job, cluster = self._jobs.job, self._editor.cluster
        version = 0 if job is None else job.version
        seen = (job, version, cluster, self.hosts, self.names, self._offers_error, self._kept, self.error)
        if _are_same(seen, self._seen):
            return
        if self._key[0] is not cluster:
            self._key = (cluster, cluster_key(cluster) if cluster is not None else "")
            self.error = ""
        if job is not None and job is not self._followed and self._is_of_ours(job):
            self._followed = job  # another page has started it, or this one before a reload
            if job.request.hosts in self.names:
                self.param.update(hosts=job.request.hosts, on_map=self.on_map or not job.ended)
        self._ask_for_kept()
        self._measure()
        self._seen = seen
        self.changed += 1

    def _is_of_ours(self, job: ProbeJob) -> bool:
        return bool(self._key[1]) and job.key == self._key[1]

    def _look_at_offers(self) -> None:
        """Names as the agent's file has them now; what is wrong with it is told, and it then offers none."""
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + LOOK_EVERY_S
        try:
            info = allowed_paths_file(self._home).stat()
            stamp: object = (info.st_mtime_ns, info.st_size, info.st_mode, info.st_uid)
        except OSError:
            stamp = "missing"
        if stamp == self._offers_seen:
            return
        self._offers_seen, self.error = stamp, ""
        try:
            names, self._offers_error = read_allowed_paths(self._home).hosts_names, ""
        except HetplannerError as error:
            names, self._offers_error = (), without_paths(str(error))
        self.param.update(names=names, hosts=self.hosts if self.hosts in names else names[0] if names else "")

    def _ask_for_kept(self) -> None:
        """Reads what an earlier probe of the chosen hosts has kept."""
        cluster, key = self._key
        asked, job = (key, self.hosts, self._jobs.job), self.job
        if (job is not None and (job.record is not None or not job.ended)) or _are_same(asked, self._asked):
            return
        self._asked, self._kept = asked, None
        if cluster is not None and self.hosts:
            hosts = self.hosts
            self._calls.make(lambda: self._jobs.kept(cluster, hosts), lambda found: self._take_kept(asked, found))

    def _take_kept(self, asked: tuple[Any, ...], found: Record | None) -> None:
        if asked is self._asked:
            self._kept = found

    def _measure(self) -> None:
        """The cluster with what was measured, and the one to show beside it."""
        record, cluster = self.record, self._editor.cluster
        self._measured, self.is_taken = None, False
        if cluster is None:
            self._beside = None
        elif not self.has_numbers or record is None:
            self._beside = cluster
        else:
            try:
                self._measured = probed_cluster(cluster, record, when_text(record))
            except HetplannerError as error:
                self.error = without_paths(str(error))
            self.is_taken = self._measured is not None and self._measured == cluster
            if not self.is_taken or self._beside is None or cluster_key(self._beside) != self._key[1]:
                self._beside = cluster
        self._show_preview()

    def _show_preview(self, *_: Any) -> None:
        shown = self._measured if self.on_map and not self.is_taken else None
        if shown is not self.preview:
            self.preview = shown


def _running_text(job: ProbeJob) -> str:
    if job.state == "stopping":
        return "Cancelling …"
    if job.state == "connecting":
        return f"Connecting to {counted(len(job.request.cluster.hosts), 'host')} …"
    left = left_text(job.left_s)
    now = f"Round {min(job.done + 1, job.total)} of {job.total}: {job.words}" if job.words else "Closing"
    return f"{now}{f'; {left}' if left else ''}."


def _are_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether tuples hold the same things: records and clusters are long to compare."""
    return len(one) == len(other) and all(
        a is b or (isinstance(a, str | int | tuple) and a == b) for a, b in zip(one, other, strict=True)
    )
