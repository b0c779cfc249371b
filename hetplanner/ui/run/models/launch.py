"""Starting runs: settings, a rehearsal re-planned, going on from a checkpoint; a proposal, confirmed before it runs.

Everything that a page may choose is a number, a word of a list, or a name that the agent offers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import param

from hetplanner.cost.elastic.swarm_rules import under_rules_of
from hetplanner.errors import HetplannerError, Infeasible, InvalidInput
from hetplanner.launchers.capacity import check_capacity
from hetplanner.launchers.disk import DiskNeed, check_disk, disk_need, free_words, need_of_head
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.launchers.interface import LaunchRequest
from hetplanner.launchers.launch_file import Launch, load_launch
from hetplanner.launchers.registry import make_launcher
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.problem import Problem
from hetplanner.plan.rehearsal import rehearsal_problem
from hetplanner.plan.train import MAX_CONNECTIONS, LrSchedule, TrainConfig
from hetplanner.runs.agent.allowed_paths import Choice, read_allowed_paths
from hetplanner.runs.agent.successor import check_replan
from hetplanner.runs.home import runs_directory
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.resuming import check_resume, checkpoints_of
from hetplanner.swarm.spec import spec_of
from hetplanner.ui.jobs.jobs import SearchJob, SearchRequest, SearchService
from hetplanner.ui.run.models.launch_places import HERE, THIS_MACHINE, Place, hosts_at, places_for
from hetplanner.ui.shell.models.calls import Calls
from hetplanner.ui.shell.models.session import Session
from hetplanner.workload.presets import preset

_log = logging.getLogger(__name__)

REHEARSAL_MODELS = ("tiny-gpt", "tiny-llama", "small-gpt")
REHEARSAL_KINDS = ("pipeline", "swarm")
REHEARSAL_BUDGET_S = 2.0
OWN_DATA = "default: Python sources, or digits"
OWN_RUNS = "the agent's own folder"
SETTINGS = (
    "steps",
    "learning_rate",
    "lr_schedule",
    "warmup_steps",
    "checkpoint_every",
    "checkpoints_async",
    "max_restarts",
    "replan",
    "connections",
    "seed",
    "data",
    "output",
    "hosts",
)
LOCKED = "launch: type the launch token first; it is printed in the server's terminal"


@dataclass(frozen=True)
class Proposal:
    """What would run, for a person to confirm.

    Attributes:
        done: steps done in the run it goes on from.
        disk: what it will write.
        free: what is free where it will write.
        tight: why that may not do; empty if it does.
        place: where it runs.
        hosts: how its hosts are reached; None on this machine.
    """

    plan: AnyPlan
    config: TrainConfig
    choice: Choice
    request: LaunchRequest
    disk: DiskNeed
    free: str
    tight: str
    done: int = 0
    place: Place = THIS_MACHINE
    hosts: Hosts | None = None

    @property
    def is_rehearsal(self) -> bool:
        """Whether it rehearses a larger problem."""
        return self.plan.problem.rehearsal_of is not None


class LaunchModel(param.Parameterized):
    """Settings and the proposal made of them. A changed setting makes the open proposal anew."""

    rehearsal_model: Any = param.Selector(default=REHEARSAL_MODELS[0], objects=list(REHEARSAL_MODELS))
    rehearsal_kind: Any = param.Selector(default=REHEARSAL_KINDS[0], objects=list(REHEARSAL_KINDS))
    rehearsal_stages = param.Integer(default=2, bounds=(1, 16))
    rehearsal_replicas = param.Integer(default=2, bounds=(1, 16))

    steps = param.Integer(default=200, bounds=(1, 1_000_000))
    learning_rate = param.Number(default=1e-3, bounds=(0, 10), inclusive_bounds=(False, True))
    lr_schedule: Any = param.Selector(default="constant", objects=list(get_args(LrSchedule)))
    warmup_steps = param.Integer(default=20, bounds=(0, 1_000_000))
    checkpoint_every = param.Integer(default=50, bounds=(0, 1_000_000), doc="Steps; 0 writes no checkpoints.")
    checkpoints_async = param.Boolean(default=False, doc="A thread writes them, from a copy of the state.")
    max_restarts = param.Integer(default=0, bounds=(0, 100))
    replan = param.Boolean(default=False, doc="Go on without a lost host; a host is lost in a restart.")
    connections = param.Integer(default=1, bounds=(1, MAX_CONNECTIONS), doc="TCP connections between two ranks.")
    seed = param.Integer(default=0, bounds=(0, 2**31 - 1))
    data: Any = param.Selector(default=OWN_DATA, objects=[OWN_DATA], doc="A name that the agent offers.")
    output: Any = param.Selector(default=OWN_RUNS, objects=[OWN_RUNS], doc="A name that the agent offers.")
    hosts: Any = param.Selector(default=HERE, objects=[HERE], doc="Where it runs, by the label of its place.")

    preparing = param.Boolean(default=False, doc="A rehearsal is being re-planned.")
    launching = param.Boolean(default=False, doc="The agent is being asked.")
    proposal = param.ClassSelector(class_=Proposal, default=None)
    error = param.String(default="", doc="Why the proposal as it stands cannot be launched; '' if it can.")

    def __init__(
        self,
        session: Session,
        service: SearchService,
        home: Path | None,
        agent: Callable[[], Any] | None,
        launched: Callable[[str], None],
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.session, self.home = session, home
        self.agent = agent or self._connect
        self.calls = Calls(session)
        self._service = service
        self._launched_run = launched
        self._job: SearchJob | None = None
        self._like: ElasticPlan | None = None
        self._resume: str | None = None
        self._base = TrainConfig(emulate_links=True)
        self._places = {HERE: THIS_MACHINE}
        self.param.watch(self._fit_restarts, ["replan", "max_restarts"])
        self.param.watch(self._again, list(SETTINGS))
        session.param.watch(self._kind_changed, "elastic")

    def _kind_changed(self, event: param.parameterized.Event) -> None:
        """An elastic plan is rehearsed as a swarm unless a person wants otherwise."""
        self.rehearsal_kind = "pipeline" if event.new is None else "swarm"

    def _fit_restarts(self, *events: param.parameterized.Event) -> None:
        """Going on without a host needs a restart: `replan` sets one restart, and no restarts turn `replan` off."""
        if self.replan and not self.max_restarts:
            if any(event.name == "max_restarts" for event in events):
                self.replan = False
            else:
                self.max_restarts = 1

    @property
    def may_replan(self) -> bool:
        """Whether what is proposed can go on without a lost host where it shall run."""
        proposal = self.proposal
        return proposal is not None and self._place.may_replan(proposal.plan)

    @property
    def takes_connections(self) -> bool:
        """Whether what is proposed can have several connections between two ranks where it shall run."""
        proposal = self.proposal
        return proposal is not None and self._place.takes_connections(proposal.plan)

    @property
    def _place(self) -> Place:
        return self._places.get(self.hosts, THIS_MACHINE)

    # -- preparing --------------------------------------------------------------------------------

    def prepare_rehearsal(self, problem: Problem, like: ElasticPlan | None = None) -> None:
        """Re-plans `problem` small enough for this machine; the outcome is a proposal to confirm.

        Args:
            problem: what is rehearsed.
            like: the elastic plan whose rules a rehearsal as a swarm keeps.

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
        how: dict[str, Any] = {}
        if self.rehearsal_kind == "swarm":
            how = {"planner": "swarm", "settings": {"mode": "elastic"}}
        self._like = like
        self._job = self._service.start(SearchRequest(small, budget_s=REHEARSAL_BUDGET_S, title=title, **how))
        self.preparing = True

    def propose(self, plan: AnyPlan) -> None:
        """Proposes to run a plan as it is: where the last one ran, or else where it can.

        Raises:
            Infeasible, InvalidInput: what is in the way of this everywhere.
        """
        self.proposal = None
        self._resume, self._base = None, TrainConfig(emulate_links=True)
        self._offer(plan)
        if isinstance(plan, ElasticPlan):
            self._fit_rounds(plan.local_steps)
        self._show(plan)

    def _show(self, plan: AnyPlan) -> None:
        """Makes the proposal at the chosen place, or where that is refused at the first one that is not."""
        refusals: dict[str, HetplannerError] = {}
        for label in dict.fromkeys((self.hosts, *self._places)):
            self.hosts = label
            try:
                proposal = self._proposal(plan)
            except HetplannerError as error:
                refusals[label] = error
                continue
            self.error, self.proposal = "", proposal
            return
        self.hosts = next(iter(self._places))
        texts = {label: str(error).removeprefix("hosts: ") for label, error in refusals.items()}
        first = texts.pop(self.hosts)
        others = [f"{label}: {text}" for label, text in texts.items() if text != first]
        raise type(refusals[self.hosts])("; ".join([first, *others])[:2000])

    def _fit_rounds(self, size: int) -> None:
        """Steps and checkpoints in whole rounds of local steps: what is saved is what all peers of a stage have."""
        for name in ("steps", "checkpoint_every"):
            most = self.param[name].bounds[1] // size * size
            setattr(self, name, min(-(-getattr(self, name) // size) * size, most))

    def propose_resume(self, run_id: str, reader: RunReader) -> None:
        """Proposes to go on from a run's last checkpoint, with its settings and, if those are done, more steps.

        Raises:
            InvalidInput: it has none, or its data is not offered.
        """
        done = next(iter(checkpoints_of(reader.plan, reader.directory.path)), None)
        if done is None:
            raise InvalidInput(f"restart: run {run_id} holds no checkpoint; set 'Checkpoint every' at the launch")
        old = reader.config
        self.proposal = None
        self._offer(reader.plan, load_launch(reader.directory.path))
        with param.parameterized.discard_events(self):
            self.param.update(
                steps=old.steps if done < old.steps else done + old.steps,
                learning_rate=old.learning_rate,
                lr_schedule=old.lr_schedule,
                warmup_steps=old.warmup_steps,
                checkpoint_every=old.checkpoint_every or 0,
                checkpoints_async=old.checkpoints_async,
                max_restarts=min(old.max_restarts, 100),
                replan=old.replan,
                connections=old.connections,
                seed=old.seed,
                data=self._name_of(old.data),
            )
        self.param.trigger(*SETTINGS)
        self._resume, self._base = run_id, old.replace(data=None, resume=None)
        self._show(reader.plan)

    def _name_of(self, data: str | None) -> str:
        if data is None:
            return OWN_DATA
        offered = read_allowed_paths(self.home).data
        name = next((name for name, path in offered.items() if data in (path, str(Path(path).expanduser()))), None)
        if name is None:
            raise InvalidInput(
                "restart: this run's data is not offered to pages; add it to agent.toml, or go on with"
                " `hetplanner train --resume`"
            )
        return name

    def _offer(self, plan: AnyPlan, earlier: Launch | None = None) -> None:
        """Data, folders and hosts as the agent's file offers them now; a file that is not right is said, and offers
        none.

        Args:
            plan: what shall run.
            earlier: how the run was launched that it goes on from.

        Raises:
            InvalidInput: that run's hosts are not offered.
        """
        data, output = [OWN_DATA], [OWN_RUNS]
        self._places = {HERE: THIS_MACHINE}
        with self.session.reporting():
            offers = read_allowed_paths(self.home)
            data += offers.data_names
            output += offers.output_names
            if earlier is None:
                self._places = places_for(plan, self.home)
        if earlier is not None:
            self._places = places_for(plan, self.home, earlier)
        for name, objects in (("data", data), ("output", output), ("hosts", list(self._places))):
            if self.param[name].objects != objects:
                self.param[name].objects = objects
            if getattr(self, name) not in objects or (name == "hosts" and earlier is not None):
                setattr(self, name, objects[0])

    def _proposal(self, plan: AnyPlan) -> Proposal:
        place = self._place
        hosts = hosts_at(place, self.home)
        config = self._base.replace(
            steps=self.steps,
            learning_rate=float(self.learning_rate),
            lr_schedule=self.lr_schedule,
            warmup_steps=self.warmup_steps,
            checkpoint_every=self.checkpoint_every or None,
            checkpoints_async=self.checkpoints_async and self.checkpoint_every > 0,
            max_restarts=self.max_restarts,
            replan=self.replan and place.may_replan(plan),
            connections=self.connections if place.takes_connections(plan) else 1,
            seed=self.seed,
            emulate_links=self._base.emulate_links and place.is_local,  # hosts have links of their own
        )
        choice = Choice(
            data=None if self.data == OWN_DATA else self.data,
            output=None if self.output == OWN_RUNS else self.output,
            hosts=place.hosts,
            resume=self._resume,
        )
        if place.is_local:
            self._check_capacity(plan, config)
        if isinstance(plan, ElasticPlan):
            spec_of(plan, config)  # what swarms cannot train is said before anything is confirmed
        done, asked = 0, config
        if self._resume is not None:
            folder = (runs_directory(self.home) / self._resume).resolve()
            resumed = config.replace(resume=str(folder))
            check_resume(plan, resumed, read_files=False)
            asked = config if place.is_local else resumed
            done = next(iter(checkpoints_of(plan, folder)), 0)
        check_replan(plan, config, Launch(launcher=place.launcher))
        request = make_launcher(place.launcher, hosts).request(plan, runs_directory(self.home) / "new-run", asked)
        need, folder = disk_need(plan, config), self._folder(choice.output)
        if not place.is_local:
            need = need_of_head(need)
        try:
            tight = check_disk(need, folder)
        except Infeasible as error:  # the agent would refuse it; the dialog's settings can still be changed
            tight = str(error)
        return Proposal(plan, config, choice, request, need, free_words(folder), tight, done, place, hosts)

    def _check_capacity(self, plan: AnyPlan, config: TrainConfig) -> None:
        """Whether this machine holds the run. Raises Infeasible, of the choice of hosts where there is one."""
        try:
            check_capacity(plan, config=config)
        except Infeasible as error:
            raise Infeasible(f"hosts: {error}" if len(self._places) > 1 else str(error)) from None

    def _folder(self, output: str | None) -> Path:
        """Where the run will write."""
        offered = read_allowed_paths(self.home).output.get(output) if output is not None else None
        return Path(offered).expanduser() if offered is not None else runs_directory(self.home)

    def _again(self, *_: Any) -> None:
        if self.proposal is None:
            return
        try:
            self.proposal = self._proposal(self.proposal.plan)
            self.error = ""
        except HetplannerError as error:
            self.error = str(error)

    # -- confirming -------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """Drops the proposal."""
        self.proposal = None

    def confirm(self) -> None:
        """Launches the proposal. The lock is checked here, in the server, not only in the page."""
        proposal = self.proposal
        if proposal is None or self.launching or self.error:
            return
        if not self.session.unlocked:
            self.session.notify("error", LOCKED)
            return
        self.launching = True
        _log.info("launching %s: %s", proposal.plan.problem.workload.name, proposal.request.script().strip())
        self.calls.make(lambda: self._submit(proposal), self._launched, self._refused)

    def _connect(self) -> Any:
        from hetplanner.runs.agent.client import AgentClient  # httpx is needed only by who launches

        return AgentClient(self.home, caller="dashboard")  # starts an agent when none is there

    def _submit(self, proposal: Proposal) -> str:
        agent, launcher = self.agent(), proposal.place.launcher
        return str(agent.start(proposal.plan, proposal.config, launcher=launcher, choice=proposal.choice).id)

    def _launched(self, run_id: str) -> None:
        self.launching, self.proposal = False, None
        self._launched_run(run_id)
        self.session.notify("success", f"Launched {run_id}; it continues when this page is closed.")

    def _refused(self, text: str) -> None:
        self.launching = False
        self.session.notify("error", text)

    def stop(self, run_id: str, then: Callable[[], None]) -> None:
        """Asks the agent to stop a run."""
        if not self.session.unlocked:
            self.session.notify("error", LOCKED.replace("launch:", "stop:"))
            return
        _log.info("stopping %s", run_id)
        self.calls.make(lambda: self.agent().stop(run_id), lambda _: then())

    def take(self) -> None:
        """Takes answers of the agent and of the re-planning."""
        self.calls.take()
        job = self._job
        if job is None or not job.ended:
            return
        self._job, self.preparing = None, False
        with self.session.reporting():
            if job.state == "failed" or job.plan is None:
                raise InvalidInput(job.message or "rehearsal: the search found no plan")
            if job.elastic is None:  # the pages compare static plans; a swarm's start is seen on the Run page
                self.session.plan = job.plan
            like = self._like
            self.propose(job.plan if job.elastic is None else under_rules_of(job.elastic, like))
