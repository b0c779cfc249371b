"""What to plan for: model, shape, what may be sent, which devices. Every field of the problem that a person may set."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import param

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import ALLOWED_CODECS, DEFAULT_MAX_RATIO
from hetplanner.cost.check import check_problem
from hetplanner.dtypes import DType
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.profiles.match import check_profile
from hetplanner.profiles.model import Profile
from hetplanner.reading import reader
from hetplanner.schema import checked, parse_json
from hetplanner.ui.shell.models.session import Session
from hetplanner.workload.files import workload_from_data
from hetplanner.workload.fine_tuning import USUAL_TARGETS
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.optimizers import OPTIMIZERS
from hetplanner.workload.presets import NO_ADAPTERS, NO_BOUNDARY_LAYERS, preset, preset_names, with_overrides
from hetplanner.workload.tensor_degrees import DEGREES, SHARDINGS, Sharding
from hetplanner.workload.transformer import BOUNDARY_KINDS
from hetplanner.workload.workload import Workload

OBJECTIVES = {"Step time": "step-time", "DT-FM communication cost": "dtfm", "Dollars per million tokens": "cost"}
UPLOADED = "(uploaded file)"
MAX_DEVICES = 1024
MAX_LAYERS = 1000
MODEL_SIZES = ("layers", "seq_len", "global_batch", "micro_batch", "dtype", "optimizer", "recompute")
"""Settings that override the model's own."""
TUNING_OPTIONS = ("fine_tuning", "adapter_rank", "adapter_alpha", "adapter_targets", "frozen_layers")
"""Settings that say what of a transformer by formula is trained."""
MODEL_OPTIONS = ("boundary_layers", "boundary_factor", "boundary_every", "shared_layers", *TUNING_OPTIONS)
"""Settings that change what a transformer by formula computes."""
TUNINGS = {"All weights": "all", "Adapters (LoRA)": "adapters", "All but the first layers": "layers"}
USUAL_RANK = 8


PROBLEM_SETTINGS = (
    "cluster", "profile", "preset", "uploaded", *MODEL_SIZES, *MODEL_OPTIONS, "objective", "stages", "replicas",
    "excluded", "pinned", "codecs", "codec_block", "max_ratio", "reducers", "max_local_steps", "fragments", "tensor",
    "sharding", "zero",
)  # fmt: skip
"""Settings that the problem is made of."""


class ProblemSettings(param.Parameterized):
    """The problem as settings. Stages or replicas of 0 are 'auto': the planner finds them."""

    cluster = param.ClassSelector(class_=Cluster, default=None)
    profile = param.ClassSelector(class_=Profile, default=None, doc="Used where it is of the model; see `misfit`.")
    preset: Any = param.Selector(default="gpt3-xl", objects=[*preset_names(), UPLOADED])
    uploaded = param.ClassSelector(
        class_=Workload, default=None, doc="From a Hugging Face config.json or a workload file."
    )
    upload_error = param.String(default="", doc="Why the last file was refused.")
    layers = param.Integer(default=24, bounds=(1, MAX_LAYERS))
    global_batch = param.Integer(default=1024, bounds=(1, 1_000_000))
    micro_batch = param.Integer(default=1, bounds=(1, 1_000_000))
    seq_len = param.Integer(default=2048, bounds=(1, 1_000_000))
    dtype: Any = param.Selector(default="float16", objects=list(get_args(DType)))
    optimizer: Any = param.Selector(default="adamw", objects=list(OPTIMIZERS))
    recompute = param.Boolean(default=False)
    boundary_layers: Any = param.Selector(default=NO_BOUNDARY_LAYERS, objects=[NO_BOUNDARY_LAYERS, *BOUNDARY_KINDS])
    boundary_factor: Any = param.Selector(default="4", objects=["2", "4"], doc="Width over that of what is sent.")
    boundary_every = param.Integer(default=1, bounds=(1, MAX_LAYERS), doc="They stand behind every so many layers.")
    shared_layers = param.Integer(default=1, bounds=(1, MAX_LAYERS), doc="Consecutive layers that share weights.")
    fine_tuning: Any = param.Selector(default="all", objects=list(TUNINGS.values()))
    adapter_rank = param.Integer(default=USUAL_RANK, bounds=(1, 4096))
    adapter_alpha = param.Number(default=2.0 * USUAL_RANK, bounds=(0.001, 1e6))
    adapter_targets = param.List(default=[], item_type=str, doc="Linear layers; none: those that PEFT takes.")
    frozen_layers = param.Integer(default=1, bounds=(1, MAX_LAYERS), doc="From the front, with the embedding.")
    objective: Any = param.Selector(default="step-time", objects=list(OBJECTIVES.values()))
    stages = param.Integer(default=0, bounds=(0, 4096))
    replicas = param.Integer(default=0, bounds=(0, 4096))
    excluded = param.List(default=[], item_type=str, doc="Ids of devices that must not be used.")
    pinned = param.Dict(default={}, doc="Stage, counted from 0, that a device must serve, by device.")
    codecs = param.ListSelector(default=["none"], objects=list(ALLOWED_CODECS))
    codec_block = param.Integer(default=256, bounds=(16, 65536))
    max_ratio = param.Number(default=DEFAULT_MAX_RATIO, bounds=(1.0, 1e5))
    reducers = param.ListSelector(default=list(REDUCER_NAMES), objects=list(REDUCER_NAMES))
    max_local_steps = param.Integer(default=1, bounds=(1, 100_000))
    fragments = param.Integer(default=1, bounds=(1, 1000))
    tensor = param.ListSelector(default=["1"], objects=list(map(str, DEGREES)), doc="Devices that a group may have.")
    sharding = param.ListSelector(default=["tensor"], objects=list(SHARDINGS), doc="What a group may divide.")
    zero = param.Boolean(default=False, doc="Whether replicas shard the optimizer's states (ZeRO stage 1).")
    settled = param.Event(doc="A whole problem has been taken over.")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.taking = False
        """Whether a whole problem is being taken over: until then the settings are partly the old ones."""
        self.param.watch(self._model_chosen, ["preset", "uploaded"])
        self.param.watch(self._cluster_chosen, "cluster")
        self.param.watch(self._devices_chosen, "excluded")

    # -- what follows from a choice ---------------------------------------------------------------

    def _model_chosen(self, *_: Any) -> None:
        self.upload_error = ""
        if self.preset == UPLOADED and self.uploaded is None:
            return
        self._take_sizes(self._base_workload())
        self._fit_shape()

    def _take_sizes(self, workload: Workload) -> None:
        sizes = {name: getattr(workload, name) for name in MODEL_SIZES if name != "layers"}
        self.param.update(layers=min(workload.graph.num_layers, MAX_LAYERS), **sizes, **_model_options(workload))

    def _cluster_chosen(self, *_: Any) -> None:
        if self.cluster is not None:
            known = set(self.cluster.device_ids)
            self.param.update(
                excluded=[d for d in self.excluded if d in known],
                pinned={d: stage for d, stage in self.pinned.items() if d in known},
            )
        self._fit_shape()

    def _devices_chosen(self, *_: Any) -> None:
        self._fit_shape()

    @property
    def usable(self) -> int:
        """Number of devices that a plan may use."""
        return 0 if self.cluster is None else len(set(self.cluster.device_ids) - set(self.excluded))

    def _fit_shape(self) -> None:
        """A fixed shape that this cluster or model does not allow becomes auto, and the page says so."""
        if self.taking or not self.usable or not (self.stages or self.replicas):
            return
        most, needed = self._most_stages, max(self.stages, 1) * max(self.replicas, 1)
        if self.stages <= most and needed <= self.usable:
            return
        shape = f"{self.stages or 'auto'} × {self.replicas or 'auto'}"
        why = f"{self.usable} devices" if needed > self.usable else f"{most} layers to cut between"
        self.param.update(stages=0, replicas=0)
        self.session.notify("info", f"{shape} does not fit {why}: stages and replicas are auto again.")

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
            adapters = () if self.fine_tuning == "adapters" else ("adapter_rank", "adapter_alpha", "adapter_targets")
            frozen = () if self.fine_tuning == "layers" else ("frozen_layers",)
            narrow = ("boundary_factor", "boundary_every") if self.boundary_layers == NO_BOUNDARY_LAYERS else ()
            return (*narrow, *adapters, *frozen)
        fixed = ("layers", "seq_len", *MODEL_OPTIONS)
        return (*fixed, "micro_batch") if base.program is not None else fixed

    def misfit(self, workload: Workload) -> str:
        """Why the loaded profile is not used for a workload; '' if it is, or none is loaded."""
        if self.profile is not None:
            try:
                check_profile(self.profile, workload)
            except ValueError as error:
                return str(error)
        return ""

    # -- the problem ------------------------------------------------------------------------------

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
        sizes = {name: getattr(self, name) for name in MODEL_SIZES if name != "layers"}
        shape: dict[str, Any] = {"layers": None}
        if base.transformer is not None:
            kind = self.boundary_layers
            narrow = kind if kind == NO_BOUNDARY_LAYERS else f"{kind}:{self.boundary_factor}:{self.boundary_every}"
            shape = {"layers": self.layers, "boundary_layers": narrow, "shared_layers": self.shared_layers}
            shape |= {"adapters": self._adapters_text, "freeze_layers": self._freeze_layers}
        return with_overrides(fields, base.name, **shape, **sizes)

    @property
    def _adapters_text(self) -> str:
        if self.fine_tuning != "adapters":
            return NO_ADAPTERS
        return f"{self.adapter_rank}:{self.adapter_alpha:g}:{','.join(self.adapter_targets)}"

    @property
    def _freeze_layers(self) -> int:
        return self.frozen_layers if self.fine_tuning == "layers" else 0

    @property
    def shape(self) -> tuple[int, int]:
        """Stages and replicas, 0 for auto. DT-FM's objective is of one shape: auto is the squarest one there."""
        if self.objective == "dtfm" and not self.stages and not self.replicas and self.usable:
            return default_shape(self.usable, self._most_stages, self.global_batch // self.micro_batch)
        return self.stages, self.replicas

    def constraints(self) -> Constraints:
        """What a planner may choose. Raises InvalidInput."""
        stages, replicas = self.shape
        fields = {
            "stages": stages or None,
            "replicas": replicas or None,
            "excluded": tuple(self.excluded),
            "pinned": self.pinned,
            "codecs": tuple(dict.fromkeys(["none", *self.codecs])),
            "codec_block": self.codec_block,
            "max_ratio": self.max_ratio,
            "reducers": tuple(name for name in REDUCER_NAMES if name in self.reducers),
            "max_local_steps": self.max_local_steps,
            "fragments": self.fragments,
            "tensor": tuple(degree for degree in DEGREES if str(degree) in self.tensor),
            "sharding": self._shardings,
            "zero": int(self.zero),
        }
        return checked(Constraints, fields, "settings")

    @property
    def _shardings(self) -> tuple[Sharding, ...]:
        """In the order of the list; single devices divide nothing."""
        chosen = tuple(name for name in SHARDINGS if name in self.sharding)
        return ("tensor",) if self.tensor == ["1"] else chosen

    def problem(self) -> Problem:
        """What the search will solve. Raises InvalidInput."""
        if self.cluster is None:
            raise InvalidInput("cluster: draw one, choose a sample or import a file on the Cluster page first")
        if not self.usable:
            raise InvalidInput("cluster: every device is excluded; include some on the Cluster page")
        if len(self.cluster.devices) > MAX_DEVICES:
            raise InvalidInput(
                f"cluster: the page plans up to {MAX_DEVICES} devices, this one has {len(self.cluster.devices)};"
                " use the command line (hetplanner plan)"
            )
        workload = self.workload()
        fields = {
            "cluster": self.cluster,
            "workload": workload,
            "objective": self.objective,
            "constraints": self.constraints(),
            "profile": None if self.misfit(workload) else self.profile,
        }
        return checked(Problem, fields, "settings")

    def checked_problem(self) -> Problem:
        """The problem, with its shape checked as a planner will. Raises InvalidInput."""
        problem, (stages, replicas) = self.problem(), self.shape
        if stages or replicas:
            check_problem(problem, stages or 1, replicas or 1)
        return problem

    def take_problem(self, problem: Problem) -> None:
        """Settings that give this problem."""
        with self.taking_over():
            self._take(problem)

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """While a whole problem, and maybe a plan of it, takes the place of another; `settled` follows."""
        outer, self.taking = self.taking, True
        try:
            yield
        finally:
            self.taking = outer
        if not outer:
            self.param.trigger("settled")

    def _take(self, problem: Problem) -> None:
        workload, wanted = problem.workload, problem.constraints
        with param.parameterized.discard_events(self):
            # Together: who shows the cluster shows which of its devices are excluded.
            self.cluster, self.excluded = problem.cluster, list(wanted.excluded)
            if problem.profile is not None or not self.misfit(workload):  # one that is not used stays loaded
                self.profile = problem.profile
            if workload.name in preset_names():
                self.preset = workload.name
            else:
                self.uploaded, self.preset = workload, UPLOADED
        self.param.trigger("cluster", "excluded", "profile", "preset", "uploaded")
        self._take_sizes(workload)
        self.param.update(
            stages=wanted.stages or 0,
            replicas=wanted.replicas or 0,
            pinned=dict(wanted.pinned),
            codecs=[name for name in wanted.codecs if name in ALLOWED_CODECS],
            codec_block=wanted.codec_block,
            max_ratio=wanted.max_ratio,
            reducers=list(wanted.reducers),
            max_local_steps=wanted.max_local_steps,
            fragments=wanted.fragments,
            tensor=list(map(str, wanted.tensor)),
            sharding=list(wanted.sharding),
            zero=bool(wanted.zero),
            objective=problem.objective,
        )

    # -- an uploaded model ------------------------------------------------------------------------

    def upload_model(self, name: str, content: bytes) -> bool:
        """Takes an uploaded Hugging Face config.json (GPT-2 and Llama families) or a workload file, which holds a
        captured model as data, or says no. Errors become a notice, and stay in `upload_error`.
        """
        self.upload_error = ""
        try:
            self.param.update(uploaded=uploaded_workload(content, name), preset=UPLOADED)
        except HetplannerError as error:
            self.refuse_model(str(error))
            return False
        self.session.notify("success", f"Model of {name}: {self.uploaded_text}")
        return True

    def refuse_model(self, text: str) -> None:
        """Says beside the button why a file was not taken."""
        self.upload_error = text
        self.session.notify("error", text)

    @property
    def uploaded_text(self) -> str:
        """The uploaded model in a line."""
        return self.model_text if self.preset == UPLOADED else ""

    @property
    def model_text(self) -> str:
        """The model, as it comes, in a line: its size and depth; '' before one is uploaded."""
        model = self.uploaded if self.preset == UPLOADED else preset(self.preset)
        if model is None:
            return ""
        graph = model.graph
        parts = f"{graph.num_layers} layers" if model.transformer else f"{len(graph.ops)} ops"
        trained = "" if model.transformer or model.program else ", to plan with, not to train"
        tuned = f"; {model.trained_text}" if model.trained_text else ""
        return f"{model.name}: {graph.num_params / 1e6:,.1f} M parameters, {parts}{trained}{tuned}"

    @property
    def model_name(self) -> str:
        """What the header calls the model."""
        return self.uploaded.name if self.preset == UPLOADED and self.uploaded is not None else self.preset


def default_shape(devices: int, layers: int, micro_batches: int) -> tuple[int, int]:
    """(stages, replicas) that use as many devices as possible; among those, nearest to square, deeper first."""
    shapes = ((stages, min(devices // stages, micro_batches)) for stages in range(1, min(layers, devices) + 1))
    return min(shapes, key=lambda s: (-(s[0] * s[1]), abs(s[0] - s[1]), -s[0]))


def _model_options(workload: Workload) -> dict[str, Any]:
    """The options that a model comes with; a captured one, or one without them, has none."""
    model = workload.transformer
    narrow = model.boundary_layers if model is not None else None
    options: dict[str, Any] = {"boundary_layers": NO_BOUNDARY_LAYERS}
    if narrow is not None:
        options = {
            "boundary_layers": narrow.kind,
            "boundary_factor": str(narrow.factor),
            "boundary_every": narrow.every,
        }
    return options | {"shared_layers": model.shared_layers if model is not None else 1} | _tuning_options(workload)


def _tuning_options(workload: Workload) -> dict[str, Any]:
    """What of the model is trained."""
    tuning = workload.fine_tuning
    if tuning is None or workload.transformer is None:
        return {"fine_tuning": "all", "adapter_targets": []}
    if tuning.adapters is None:
        return {"fine_tuning": "layers", "frozen_layers": tuning.frozen_layers}
    adapters, usual = tuning.adapters, USUAL_TARGETS[workload.transformer.family]
    return {
        "fine_tuning": "adapters",
        "adapter_rank": adapters.rank,
        "adapter_alpha": float(adapters.alpha),
        "adapter_targets": [] if adapters.targets == usual else list(adapters.targets),
    }


@reader("model", at="name")
def uploaded_workload(content: bytes, name: str) -> Workload:
    """The model in an uploaded workload file or Hugging Face config. Raises InvalidInput."""
    data = parse_json(content, name)
    if not isinstance(data, dict):
        raise InvalidInput(f"{name}: must be a JSON object, got {type(data).__name__}")
    return workload_from_data(data, name) if "format" in data else workload_from_config(data)
