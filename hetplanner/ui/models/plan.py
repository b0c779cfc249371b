"""The Plan page: what to plan for, the search that runs elsewhere, and what it has found so far."""

import time
from collections.abc import Mapping
from typing import Any

import param

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import ALLOWED_CODECS, DEFAULT_MAX_RATIO
from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import SearchEvent
from hetplanner.planners.registry import planner_names
from hetplanner.schema import checked, parse_json
from hetplanner.ui.jobs import ENDED, SearchJob, SearchRequest, SearchService
from hetplanner.ui.models.session import Session
from hetplanner.workload.files import workload_from_data
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.presets import preset, preset_names, with_overrides
from hetplanner.workload.workload import Workload

OBJECTIVES = {"Step time": "step-time", "DT-FM communication cost": "dtfm", "Dollars per million tokens": "cost"}
UPLOADED = "(uploaded file)"
MAX_BUDGET_S = 600.0
MAX_BUDGET_LOCKED_S = 60.0
"""Longest search of a page without the launch token: anyone who reaches the page may plan, not occupy the machine."""
MAX_DEVICES = 1024
MAX_POINTS = 1500
MAX_LAYERS = 1000


class PlanModel(param.Parameterized):
    """Settings, and the state of the session's search. Numbers of 0 mean 'let the planner choose'."""

    cluster = param.ClassSelector(class_=Cluster, default=None)
    excluded: Any = param.Parameter(default=(), doc="Ids of devices that must not be used; the map sets them.")
    preset: Any = param.Selector(default="gpt3-xl", objects=[*preset_names(), UPLOADED])
    uploaded = param.ClassSelector(
        class_=Workload, default=None, doc="From a Hugging Face config.json or a workload file."
    )
    layers = param.Integer(default=24, bounds=(1, MAX_LAYERS))
    global_batch = param.Integer(default=1024, bounds=(1, 1_000_000))
    micro_batch = param.Integer(default=1, bounds=(1, 1_000_000))
    seq_len = param.Integer(default=2048, bounds=(1, 1_000_000))
    stages = param.Integer(default=8, bounds=(0, 4096))
    replicas = param.Integer(default=8, bounds=(0, 4096))
    codecs = param.ListSelector(default=["none"], objects=list(ALLOWED_CODECS))
    max_ratio = param.Number(default=DEFAULT_MAX_RATIO, bounds=(1.0, 1e5))
    objective: Any = param.Selector(default="step-time", objects=list(OBJECTIVES.values()))
    planner: Any = param.Selector(default=planner_names()[0], objects=list(planner_names()))
    seed = param.Integer(default=0, bounds=(0, 2**31 - 1))
    budget_s = param.Number(default=10.0, bounds=(0.1, MAX_BUDGET_S))
    starts: Any = param.Selector(default="structured", objects=["structured", "random"])

    state = param.String(default="idle", doc="idle, or the state of the job.")
    phase = param.String(default="")
    job_id = param.String(default="")
    points_changed = param.Event()
    baselines_changed = param.Event()
    plan = param.ClassSelector(class_=Plan, default=None)
    value = param.Number(default=None, allow_None=True)
    lower_bound = param.Number(default=None, allow_None=True)

    def __init__(self, session: Session, service: SearchService, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self._service = service
        self._job: SearchJob | None = None
        self._cursor = 0
        self.points: list[SearchEvent] = []
        self.baselines: dict[str, float] = {}
        self.baseline_estimates: dict[str, Estimate] = {}
        self.param.watch(self._model_chosen, ["preset", "uploaded"])
        self.param.watch(self._cluster_chosen, ["cluster", "excluded"])

    # -- the problem ------------------------------------------------------------------------------

    def _model_chosen(self, *_: Any) -> None:
        if self.preset == UPLOADED and self.uploaded is None:
            return
        workload = self._base_workload()
        self.param.update(
            layers=min(workload.graph.num_layers, MAX_LAYERS),
            global_batch=workload.global_batch,
            micro_batch=workload.micro_batch,
            seq_len=workload.seq_len,
        )
        self._fit_shape()

    def _cluster_chosen(self, *_: Any) -> None:
        self._fit_shape()

    def _fit_shape(self) -> None:
        """A shape that this cluster and model allow: as before if it fits, else as square as possible."""
        if self.cluster is None or len(self.excluded) >= len(self.cluster.devices):
            return
        devices = len(self.cluster.devices) - len(self.excluded)
        most = self._most_stages
        if self.stages * self.replicas == devices and self.stages <= most:
            return
        self.stages, self.replicas = default_shape(devices, most, self.global_batch // self.micro_batch)

    @property
    def _most_stages(self) -> int:
        if self.preset == UPLOADED and self.uploaded is None:
            return self.layers
        base = self._base_workload()
        return self.layers if base.transformer else base.most_stages

    @property
    def fixed_settings(self) -> tuple[str, ...]:
        """Settings that the model does not leave open: a captured one is as large as it was captured."""
        if self.preset == UPLOADED and self.uploaded is None:
            return ()
        base = self._base_workload()
        if base.transformer is not None:
            return ()
        return ("layers", "seq_len", "micro_batch") if base.program is not None else ("layers", "seq_len")

    def _base_workload(self) -> Workload:
        if self.preset != UPLOADED:
            return preset(self.preset)
        if self.uploaded is None:
            raise InvalidInput(
                "model: upload a Hugging Face config.json or a captured workload first, or choose a preset"
            )
        return self.uploaded

    def workload(self) -> Workload:
        """The model with the overrides. Raises InvalidInput."""
        base = self._base_workload()
        fields = {name: getattr(base, name) for name in Workload.model_fields}
        return with_overrides(
            fields,
            base.name,
            layers=self.layers if base.transformer else None,
            global_batch=self.global_batch,
            micro_batch=self.micro_batch,
            seq_len=self.seq_len,
        )

    def problem(self) -> Problem:
        """What the search will solve. Raises InvalidInput."""
        if self.cluster is None:
            raise InvalidInput("cluster: draw one, choose a sample or import a file on the Cluster page first")
        if len(self.excluded) == len(self.cluster.devices):
            raise InvalidInput("cluster: every device is excluded; include some on the Cluster page")
        if len(self.cluster.devices) > MAX_DEVICES:
            raise InvalidInput(
                f"cluster: the page plans up to {MAX_DEVICES} devices, this one has {len(self.cluster.devices)};"
                " use the command line (hetplanner plan)"
            )
        constraints = {
            "stages": self.stages or None,
            "replicas": self.replicas or None,
            "excluded": self.excluded,
            "codecs": tuple(dict.fromkeys(["none", *self.codecs])),
            "max_ratio": self.max_ratio,
        }
        fields = {
            "cluster": self.cluster,
            "workload": self.workload(),
            "objective": self.objective,
            "constraints": checked(Constraints, constraints, "settings"),
        }
        return checked(Problem, fields, "settings")

    def upload_model(self, name: str, content: bytes) -> None:
        """Takes an uploaded Hugging Face config.json (GPT-2 and Llama families) or a workload file, which holds a
        captured model as data. Errors become a notice.
        """
        with self.session.reporting():
            self.param.update(uploaded=_uploaded_workload(content, name), preset=UPLOADED)
            self.session.notify("success", f"Model of {name}: {self.uploaded_text}")

    @property
    def uploaded_text(self) -> str:
        """The uploaded model in a line."""
        if self.uploaded is None or self.preset != UPLOADED:
            return ""
        graph = self.uploaded.graph
        parts = f"{graph.num_layers} layers" if self.uploaded.transformer else f"{len(graph.ops)} ops"
        trained = "" if self.uploaded.transformer or self.uploaded.program else ", to plan with, not to train"
        return f"{self.uploaded.name}: {graph.num_params / 1e6:,.1f} M parameters, {parts}{trained}"

    @property
    def model_name(self) -> str:
        """What the header calls the model."""
        return self.uploaded.name if self.preset == UPLOADED and self.uploaded is not None else self.preset

    # -- the search -------------------------------------------------------------------------------

    @property
    def searching(self) -> bool:
        """Whether this session's search is going on."""
        return self.state in ("starting", "running", "stopping")

    @property
    def budget_cap_s(self) -> float:
        """Longest budget this session may ask for."""
        return MAX_BUDGET_S if self.session.unlocked else MAX_BUDGET_LOCKED_S

    def start(self) -> None:
        """Starts a search; a wrong setting becomes a notice."""
        if self.searching:
            return
        with self.session.reporting():
            problem = self.problem()
            budget_s = min(self.budget_s, self.budget_cap_s)
            if budget_s < self.budget_s:
                self.session.notify(
                    "info", f"Without the launch token a search lasts at most {budget_s:g} s; yours is cut to that."
                )
            request = SearchRequest(problem, self.planner, self.seed, budget_s, None, self.starts, self.title(problem))
            self._follow(self._service.start(request))

    def title(self, problem: Problem) -> str:
        """What the list of searches calls it."""
        shape = f"{problem.constraints.stages or 'free'} × {problem.constraints.replicas or 'free'}"
        return f"{problem.workload.name} on {problem.cluster.name}, {shape}, seed {self.seed}"

    def stop(self) -> None:
        """Asks the search to stop; its best plan stays."""
        if self._job is not None:
            self._service.stop(self._job.id)
            self.poll()

    def join(self, job_id: str) -> bool:
        """Shows a search of this server that another page (or this one, before a reload) started."""
        job = self._service.job(job_id)
        if job is None:
            return False
        problem = job.request.problem
        workload = problem.workload
        with param.parameterized.discard_events(self):
            self.cluster, self.excluded = problem.cluster, problem.constraints.excluded
            if workload.name in preset_names():
                self.preset = workload.name
            else:
                self.uploaded, self.preset = workload, UPLOADED
        self.param.trigger("cluster", "excluded", "preset", "uploaded")
        self.param.update(
            layers=min(workload.graph.num_layers, MAX_LAYERS),
            global_batch=workload.global_batch,
            micro_batch=workload.micro_batch,
            seq_len=workload.seq_len,
            stages=problem.constraints.stages or 0,
            replicas=problem.constraints.replicas or 0,
            codecs=list(problem.constraints.codecs),
            max_ratio=problem.constraints.max_ratio,
            objective=problem.objective,
            planner=job.request.planner,
            seed=job.request.seed,
            starts=job.request.starts,
        )
        if job.request.budget_s is not None:
            self.budget_s = job.request.budget_s
        self._follow(job)
        return True

    def recent(self) -> dict[str, str]:
        """Title -> id of this server's searches, newest first."""
        return {
            f"{time.strftime('%H:%M:%S', time.localtime(job.started_s))} · {job.request.title}": job.id
            for job in self._service.jobs
            if job.request.problem.rehearsal_of is None
        }

    def _follow(self, job: SearchJob) -> None:
        self._job, self._cursor = job, 0
        self.points, self.baselines, self.baseline_estimates = [], {}, {}
        self.param.update(job_id=job.id, plan=None, value=None, lower_bound=None, state=job.state, phase="starting")
        self.param.trigger("points_changed", "baselines_changed")
        self.poll()

    def poll(self) -> None:
        """Takes what is new from the job's log; cheap when nothing is."""
        job = self._job
        if job is None or (self.state in ENDED and self._cursor):
            return
        records, self._cursor = job.log.since(self._cursor)
        if not records:
            return
        new_points = new_baselines = False
        for record in records:
            kind = record["type"]
            if kind == "event":
                self.points.append(_event_of(record))
                new_points = True
            elif kind == "baseline":
                self.baselines[record["label"]] = record["value"]
                self.baseline_estimates[record["label"]] = Estimate.model_validate(record["estimate"])
                new_baselines = True
            self._take_state(record)
        if job.plan is not None and job.plan is not self.plan:
            self.plan = job.plan
        if new_points:
            self.points = thinned(self.points, MAX_POINTS)
            self.param.trigger("points_changed")
        if new_baselines:
            self.param.trigger("baselines_changed")

    def _take_state(self, record: Mapping[str, Any]) -> None:
        kind = record["type"]
        if kind == "event":
            self.param.update(value=record["best"], phase=record["phase"])
            if self.state == "starting":
                self.state = "running"
        elif kind == "phase":
            self.phase = record["text"]
        elif kind == "state":
            if record.get("value") is not None:
                self.param.update(value=record["value"], lower_bound=record["lower_bound"])
            if self._job is not None and self._job.plan is not None:
                self.plan = self._job.plan
            if record["state"] in ENDED:
                self.session.plan = self.plan or self.session.plan
            self.state = record["state"]
            if record["state"] == "failed":
                self.session.notify("error", record["text"])

    # -- what the page says -----------------------------------------------------------------------

    @property
    def estimate(self) -> Estimate | None:
        """Of the best plan so far."""
        return self.plan.estimate if self.plan is not None else None

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """Label and value of the baseline that is hardest to beat."""
        return min(self.baselines.items(), key=lambda item: item[1], default=None)

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0 to 1."""
        if self.state in ("done", "stopped"):
            return 1.0
        budget_s = self._job.request.budget_s if self._job else None
        return min(1.0, self.points[-1].seconds / budget_s) if self.points and budget_s else 0.0

    @property
    def progress_text(self) -> str:
        """One line under the progress bar."""
        if self._job is None:
            return "Not searched yet."
        if not self.points:
            return {"failed": "The search failed.", "stopped": "Stopped."}.get(self.state, f"{self.phase} …")
        last = self.points[-1]
        counted = f"{last.evaluations:,} placements in {last.seconds:.1f} s"
        if self.state in ENDED:
            return {"done": "Done", "stopped": "Stopped", "failed": "Failed"}[self.state] + f": {counted}"
        left_s = max(0.0, (self._job.request.budget_s or 0.0) - last.seconds)
        return f"{self.phase}: {counted}, {left_s:.0f} s left"


def default_shape(devices: int, layers: int, micro_batches: int) -> tuple[int, int]:
    """(stages, replicas) that use as many devices as possible; among those, nearest to square, deeper first."""
    shapes = ((stages, min(devices // stages, micro_batches)) for stages in range(1, min(layers, devices) + 1))
    return min(shapes, key=lambda s: (-(s[0] * s[1]), abs(s[0] - s[1]), -s[0]))


def thinned(points: list[SearchEvent], most: int) -> list[SearchEvent]:
    """At most `most` points, the older half thinned first; the newest always stays."""
    if len(points) <= most:
        return points
    half = len(points) // 2
    return points[:half:2] + points[half:]


def _uploaded_workload(content: bytes, name: str) -> Workload:
    data = parse_json(content, name)
    if not isinstance(data, dict):
        raise InvalidInput(f"{name}: must be a JSON object, got {type(data).__name__}")
    return workload_from_data(data, name) if "format" in data else workload_from_config(data)


def _event_of(record: Mapping[str, Any]) -> SearchEvent:
    return SearchEvent(
        best=record["best"],
        mean=record["mean"],
        spread=record["spread"],
        evaluations=record["evaluations"],
        seconds=record["seconds"],
        placement=(),
        phase=record["phase"],
    )
