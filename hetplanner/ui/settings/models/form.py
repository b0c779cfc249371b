"""The side bar as data: groups of settings, what they show, and what is wrong, beside the field that caused it."""

import json
import re
from dataclasses import dataclass
from typing import Any, get_args

import param

from hetplanner.codecs.spec import ALLOWED_CODECS
from hetplanner.dtypes import DType
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.schema import parse_json
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.settings.models.fields import Setting, planner_defaults, planner_fields
from hetplanner.ui.settings.models.problem import (
    MODEL_OPTIONS,
    MODEL_SIZES,
    OBJECTIVES,
    TUNINGS,
    UPLOADED,
    ProblemSettings,
)
from hetplanner.workload.optimizers import OPTIMIZERS
from hetplanner.workload.presets import NO_BOUNDARY_LAYERS, preset_names
from hetplanner.workload.tensor_degrees import DEGREES, SHARDINGS

MODEL = "preset"
MAX_REMEMBERED = 1500
"""Characters of changed settings that the page's address holds."""
OWN = "planner."
"""Before the name of a planner's own setting."""
_AUTO = "auto"
_OF_MODEL = (*MODEL_SIZES, *MODEL_OPTIONS, "stages", "replicas")
"""Settings that another model takes back."""


def _number(model: type[param.Parameterized], name: str, label: str, hint: str = "", empty: str = "") -> Setting:
    declared = model.param[name]
    low, high = declared.bounds
    kind: Any = "whole" if isinstance(declared, param.Integer) else "number"
    return Setting(name, label, kind, hint, low=low, high=high, empty=empty)


def _options(values: Any) -> tuple[tuple[str, str], ...]:
    return tuple((value, value) for value in values)


@dataclass(frozen=True)
class Group:
    """Fields that belong together; one without a title is always open."""

    title: str
    fields: tuple[Setting, ...]


_SIZES = Group(
    "Model size and batch",
    (
        _number(ProblemSettings, "layers", "Layers"),
        _number(ProblemSettings, "seq_len", "Tokens/sequence"),
        _number(ProblemSettings, "global_batch", "Global batch", "Sequences in one step."),
        _number(ProblemSettings, "micro_batch", "Micro-batch", "Sequences that pass a stage together."),
        Setting("dtype", "Number format", "choice", "Of weights and activations.", _options(get_args(DType))),
        Setting("optimizer", "Optimizer", "choice", "Its states count in the memory.", _options(OPTIMIZERS)),
        Setting(
            "recompute",
            "Recompute always",
            "flag",
            "Activations are computed again in backward in every stage; otherwise only where memory asks for it.",
        ),
    ),
)
_SHAPE = Group(
    "",
    (
        Setting(
            "objective",
            "Objective",
            "choice",
            "The quantity that the search minimises.",
            tuple((v, k) for k, v in OBJECTIVES.items()),
            wide=True,
        ),
        _number(ProblemSettings, "stages", "Stages", "Empty: the search finds it. A number fixes it.", _AUTO),
        _number(ProblemSettings, "replicas", "Replicas", "Empty: the search finds it. A number fixes it.", _AUTO),
    ),
)
_MODEL = Group(
    "Model options",
    (
        Setting(
            "boundary_layers",
            "Boundary layers",
            "choice",
            "Layers that narrow the tensors between stages. They change the model.",
            _options(ProblemSettings.param.boundary_layers.objects),
        ),
        Setting(
            "boundary_factor",
            "Narrowed",
            "choice",
            "Share of the model's width that is sent.",
            tuple((value, f"to 1/{value}") for value in ProblemSettings.param.boundary_factor.objects),
        ),
        _number(ProblemSettings, "boundary_every", "Behind every (layers)", "A stage that ends there sends less."),
        _number(ProblemSettings, "shared_layers", "Layers that share", "Consecutive layers with one set of weights."),
    ),
)
_TUNING = Group(
    "Fine-tuning",
    (
        Setting(
            "fine_tuning",
            "Trained",
            "choice",
            "Frozen weights have no gradients, no optimizer states and no reductions.",
            tuple((value, name) for name, value in TUNINGS.items()),
            wide=True,
        ),
        _number(ProblemSettings, "adapter_rank", "Rank", "Rows of an adapter: it has rank × (in + out) weights."),
        _number(ProblemSettings, "adapter_alpha", "Alpha", "An adapter's output is multiplied by alpha / rank."),
        Setting(
            "adapter_targets",
            "Beside layers",
            "names",
            "Linear layers by their names in transformers, separated by commas.",
            empty="as PEFT",
        ),
        _number(ProblemSettings, "frozen_layers", "Frozen layers", "From the front, with the embedding."),
    ),
)
_DEVICES = Group(
    "Devices",
    (
        Setting("excluded", "Excluded", "names", "Devices not to use, separated by commas.", empty="none"),
        Setting(
            "tensor",
            "Devices in a group",
            "many",
            "Devices of one host that serve a replica together: allowed numbers.",
            _options(map(str, DEGREES)),
        ),
        Setting(
            "sharding",
            "A group divides",
            "many",
            "tensor: layers. zero2: samples, gradients and optimizer states. zero3: weights, too.",
            _options(SHARDINGS),
        ),
        Setting("pinned", "Pinned to a stage", "pins", "Stages count from 0. Planner evolution.", empty="d0: 0, d5: 3"),
    ),
)
_COMPRESSION = Group(
    "Compression",
    (
        Setting(
            "codecs",
            "Codecs allowed",
            "many",
            "More than none changes the numbers trained. topk and adatopk exclude each other.",
            _options(ALLOWED_CODECS[1:]),
        ),
        _number(ProblemSettings, "max_ratio", "Greatest ratio", "Of topk and adatopk: dense bytes over bytes sent."),
        _number(ProblemSettings, "codec_block", "Block", "Elements that share a scale (int8, int4)."),
    ),
)
_AVERAGING = Group(
    "Replicas: how they agree",
    (
        _number(
            ProblemSettings,
            "max_local_steps",
            "Local steps",
            "Most steps that replicas take alone before they average; more than 1 changes the numbers trained.",
        ),
        _number(ProblemSettings, "fragments", "Fragments", "Pieces that are averaged one after the other."),
        Setting("reducers", "Reductions allowed", "many", "All give the same sums.", _options(REDUCER_NAMES)),
        Setting(
            "zero", "Shard optimizer states", "flag", "ZeRO stage 1: each replica has a shard, and steps its weights."
        ),
    ),
)
_SEARCH = Group(
    "",
    (
        Setting("planner", "Planner", "choice", "", _options(planner_names()), wide=True),
        _number(PlanModel, "budget_s", "Budget (s)", "Loading kernels is not counted."),
        _number(PlanModel, "seed", "Seed", "Of every random choice."),
        _number(
            PlanModel,
            "bound_s",
            "Tighter bound (s)",
            "DT-FM objective: seconds for a tighter lower bound, during the search and after it.",
        ),
    ),
)
_FIXED_GROUPS = (_SHAPE, _SIZES, _MODEL, _TUNING, _DEVICES, _COMPRESSION, _AVERAGING, _SEARCH)
_NAMES = [field.name for group in _FIXED_GROUPS for field in group.fields]
_WATCHED = ["cluster", "preset", "uploaded", *_NAMES, "planner_settings"]
_TUNING_PLACES = {"adapters.targets": "adapter_targets", "fine_tuning.frozen_layers": "frozen_layers"}
"""What an error calls them, and their fields."""
_PLACES = re.compile(rf"\b({'|'.join(_NAMES)})\b")


class SettingsForm(param.Parameterized):
    """What the side bar shows. `edit` is all that the page can do; a refused text stays beside its reason until it is
    corrected, and the settings keep their last good value.
    """

    groups = param.List(default=[], doc="Title and fields of every group, as plain data.")
    values = param.Dict(default={}, doc="What every field shows.")
    errors = param.Dict(default={}, doc="What is wrong, by field; '' for what belongs to none.")
    notes = param.Dict(default={}, doc="A closed group in a line, by its title.")
    disabled = param.List(default=[])
    edited = param.String(default="", doc="What was changed since the last search, for the page's address.")

    def __init__(self, plan: PlanModel) -> None:
        super().__init__()
        self.plan = plan
        self._typed: dict[str, tuple[str, str]] = {}
        self._edits: dict[str, Any] = {}
        self._fields: dict[str, Setting] = {}
        self._own: Group | None = None
        plan.param.watch(self._refresh, _WATCHED)
        plan.param.watch(self._search_changed, "state")
        plan.param.watch(self._model_changed, ["preset", "uploaded"])
        plan.param.watch(self._search_begun, "job_id")
        plan.session.param.watch(self._refresh, "unlocked")
        self._refresh()

    # -- what a person does -----------------------------------------------------------------------

    def edit(self, name: str, raw: object) -> None:
        """Takes what was typed or chosen in a field."""
        setting = self._fields.get(name)
        if setting is None or name in self.disabled:
            return
        try:
            value = self._allowed(setting, name, setting.parse(raw))
        except InvalidInput as error:
            self._typed[name] = (str(raw)[:2000], str(error))
            self._refresh()
            return
        self._typed.pop(name, None)
        if name.startswith(OWN):
            self.plan.set_planner_setting(name.removeprefix(OWN), value)
        else:
            setattr(self.plan, name, value)
        self._note_edit(name, raw)
        self._refresh()

    def _note_edit(self, name: str, raw: object) -> None:
        if name != "excluded":  # the draft of the cluster keeps them
            self._edits = {k: v for k, v in self._edits.items() if k != name} | {name: raw}
            text = json.dumps(self._edits, separators=(",", ":"))
            self.edited = text if len(text) <= MAX_REMEMBERED else ""

    def _model_changed(self, *_: Any) -> None:
        """A model brings its own sizes, and a shape that fits."""
        self._edits = {k: v for k, v in self._edits.items() if k not in _OF_MODEL}
        if self.plan.preset != UPLOADED:
            self._note_edit(MODEL, self.plan.preset)

    def _search_begun(self, *_: Any) -> None:
        """From here on the search itself remembers its settings."""
        self._edits, self.edited = {}, ""

    def restore(self, text: str) -> None:
        """Makes the changes again that `edited` tells of; what is not understood is ignored."""
        try:
            edits = parse_json(text.encode(), "settings") if text else {}
        except InvalidInput:
            return
        if not isinstance(edits, dict):
            return
        if edits.get(MODEL) in preset_names():
            self.plan.preset = edits[MODEL]
        # Without a kind of boundary layers, or of fine-tuning, their other fields take nothing.
        for name in sorted(edits, key=lambda name: name not in ("boundary_layers", "fine_tuning")):
            self.edit(name, edits[name])

    def _allowed(self, setting: Setting, name: str, value: Any) -> Any:
        if name in ("excluded", "pinned") and self.plan.cluster is not None:
            known = set(self.plan.cluster.device_ids)
            for device in value:
                if device not in known:
                    raise InvalidInput(f"unknown device {device!r:.60}; the Cluster page lists their names")
        if name == "codecs":
            return value or ["none"]
        if name in ("reducers", "tensor", "sharding") and not value:
            raise InvalidInput("must be at least one; tick one")
        if setting.takes_cores and not self.plan.session.unlocked:
            most = planner_defaults(self.plan.planner)[name.removeprefix(OWN)]
            if value > most:
                raise InvalidInput(f"must be at most {most} without the launch token, got {value}; unlock on Run first")
        return value

    def refusal(self) -> str:
        """What must be corrected before a search, in a line; '' if nothing."""
        for name, (_, text) in self._typed.items():
            return f"{self._fields[name].label}: {text}"
        return ""

    # -- what it shows ----------------------------------------------------------------------------

    def _refresh(self, *_: Any) -> None:
        plan = self.plan
        if self._own is None or self._own.title != _own_title(plan.planner):
            self._typed = {name: typed for name, typed in self._typed.items() if not name.startswith(OWN)}
            self._own = Group(_own_title(plan.planner), planner_fields(plan.planner))
            self._fields = {OWN * (g is self._own) + f.name: f for g in self._groups for f in g.fields}
            self.groups = [self._group_data(group) for group in self._groups]
        with param.parameterized.batch_call_watchers(self):
            self.disabled = list(plan.fixed_settings)
            self._typed = {name: typed for name, typed in self._typed.items() if name not in self.disabled}
            self.values = {name: self._shown(name, setting) for name, setting in self._fields.items()}
            self.errors = {name: text for name, (_, text) in self._typed.items()} or self._violations()
            self.notes = self._notes()

    @property
    def _groups(self) -> tuple[Group, ...]:
        assert self._own is not None
        return (*_FIXED_GROUPS, self._own) if self._own.fields else _FIXED_GROUPS

    def _group_data(self, group: Group) -> dict[str, Any]:
        prefix = OWN if group is self._own else ""
        return {
            "title": group.title,
            "fields": [field.to_data() | {"name": prefix + field.name} for field in group.fields],
        }

    def _shown(self, name: str, setting: Setting) -> Any:
        if name in self._typed:
            return self._typed[name][0]
        if name.startswith(OWN):
            return setting.shown(self.plan.own_settings[name.removeprefix(OWN)])
        return setting.shown(getattr(self.plan, name))

    def _violations(self) -> dict[str, str]:
        """What is wrong with the settings together, beside the field it is about."""
        try:
            problem = self.plan.checked_problem()
            make_planner(self.plan.planner, self.plan.changed_settings).check(problem)
        except HetplannerError as error:
            return located(str(error))
        return {}

    def _search_changed(self, *_: Any) -> None:
        """What a search was refused for stands beside its field until a setting changes."""
        if self.plan.state == "failed" and not self.errors:
            self.errors = located(self.plan.failure)

    def _notes(self) -> dict[str, str]:
        plan = self.plan
        changed = {k: v for k, v in plan.changed_settings.items() if v != planner_defaults(plan.planner)[k]}
        codecs = [name for name in plan.codecs if name != "none"]
        sizes = f"{plan.layers} layers · batch {plan.global_batch:,} of {plan.seq_len:,} tokens · {plan.dtype}"
        return {
            _SIZES.title: sizes,
            _MODEL.title: _model_note(plan),
            _TUNING.title: _tuning_note(plan),
            _DEVICES.title: _devices_note(plan),
            _COMPRESSION.title: ", ".join(codecs) or "none",
            _AVERAGING.title: _averaging_note(plan.max_local_steps, shards=plan.zero),
            _own_title(plan.planner): ", ".join(f"{k} {v}" for k, v in changed.items())
            or planner_type(plan.planner).summary,
        }


def _averaging_note(steps: int, *, shards: bool) -> str:
    agree = "every step" if steps == 1 else f"every step, or up to {steps} alone"
    return f"{agree} · ZeRO 1" if shards else agree


def _own_title(planner: str) -> str:
    return f"Settings of {planner}"


def _model_note(plan: PlanModel) -> str:
    parts = []
    if plan.boundary_layers != NO_BOUNDARY_LAYERS:
        parts.append(f"{plan.boundary_layers} to 1/{plan.boundary_factor}")
    if plan.shared_layers > 1:
        parts.append(f"{plan.shared_layers} share")
    return ", ".join(parts) or "as it is"


def _tuning_note(plan: PlanModel) -> str:
    if plan.fine_tuning == "adapters":
        return f"adapters of rank {plan.adapter_rank}"
    return "all weights" if plan.fine_tuning == "all" else f"all but the first {plan.frozen_layers} layers"


def _devices_note(plan: PlanModel) -> str:
    if plan.cluster is None:
        return ""
    devices = len(plan.cluster.devices)
    parts = [f"all {devices}" if plan.usable == devices else f"{plan.usable} of {devices}"]
    parts += [f"groups of {' or '.join(sorted(plan.tensor, key=int))}"] if plan.tensor != ["1"] else []
    parts += [f"{len(plan.pinned)} pinned"] if plan.pinned else []
    return ", ".join(parts)


def located(message: str) -> dict[str, str]:
    """An error beside the field that its text names first; under '' if it names none.

    What stands before the first colon names a model, a file or 'settings', and is left out for a field.
    """
    if message.startswith("planner "):
        return {"planner": message}
    if message.startswith("constraints: "):
        return {"stages": message.removeprefix("constraints: ")}
    if message.startswith(("model: ", "start: ")) or ": " not in message:
        return {"": message}
    if "boundary_layers.factor" in message:  # a law of the width, which has no field
        return {"boundary_factor": message.rpartition(": ")[2]}
    for place, name in _TUNING_PLACES.items():
        if place in message:
            return {name: message.rpartition(f"{place}: ")[2] or message}
    found = _PLACES.search(message)
    if found is None:
        return {"": message}
    text = message[found.start() :]
    return {found[1]: re.sub(rf"^{found[1]}(?:\[\d+\]|\.)?(?:: )?(?! must)", "", text) or message}
