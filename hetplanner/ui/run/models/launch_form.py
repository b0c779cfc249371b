"""Settings of a launch as fields: what they show, and what is wrong, beside the field that caused it."""

import re
from typing import Any, get_args

import param

from hetplanner.errors import InvalidInput
from hetplanner.plan.train import LrSchedule
from hetplanner.ui.run.models.launch import REHEARSAL_KINDS, REHEARSAL_MODELS, SETTINGS, LaunchModel
from hetplanner.ui.settings.models.fields import Setting


def _number(name: str, label: str, hint: str = "", **options: Any) -> Setting:
    declared = LaunchModel.param[name]
    low, high = declared.bounds
    kind: Any = "whole" if isinstance(declared, param.Integer) else "number"
    return Setting(name, label, kind, hint, low=low, high=high, above=not declared.inclusive_bounds[0], **options)


def _choice(name: str, label: str, values: tuple[str, ...], hint: str = "", **options: Any) -> Setting:
    return Setting(name, label, "choice", hint, tuple((value, value) for value in values), **options)


REHEARSAL = (
    _choice("rehearsal_model", "Rehearse with", REHEARSAL_MODELS, "A model that trains on CPUs."),
    _choice("rehearsal_kind", "As a", REHEARSAL_KINDS, "A swarm's peers may come, go, hang and lag."),
    _number("rehearsal_stages", "Stages"),
    _number("rehearsal_replicas", "Replicas"),
)
TRAINING = (
    _number("steps", "Steps"),
    _number("learning_rate", "Learning rate", "The greatest."),
    _choice("lr_schedule", "Schedule", get_args(LrSchedule), "How it falls after the warm-up."),
    _number("warmup_steps", "Warm-up steps"),
    _number("checkpoint_every", "Checkpoint every", "Steps; empty writes none.", empty="never"),
    Setting(
        "checkpoints_async",
        "Write checkpoints in the background",
        "flag",
        "From a copy of the state in main memory. A swarm always does.",
    ),
    _number("connections", "Connections", "Of two ranks; several fill a long path that one TCP connection cannot."),
    _number("seed", "Seed", "Of weights, data order and dropout."),
    _number("max_restarts", "Restarts", "How many times the run restarts after a loss or a preemption."),
    Setting(
        "replan",
        "Go on without a lost host",
        "flag",
        "If a host does not return, the run continues on the others with a new plan. When the host returns, it goes"
        " back to this plan. Each change takes a restart.",
    ),
)
_OFFERED = {"hosts": "Runs on", "data": "Data", "output": "Runs are written to"}
_NAMES = re.compile(rf"^(?:run\.|config\.|train\.|plan: )?({'|'.join(SETTINGS)}|resume)\b:? ?")


class LaunchForm(param.Parameterized):
    """The fields of `settings`, drawn by the same component as the side bar. A refused text stays beside its reason
    until it is corrected; the setting keeps its last good value.
    """

    groups = param.List(default=[])
    values = param.Dict(default={})
    errors = param.Dict(default={})
    notes = param.Dict(default={})
    disabled = param.List(default=[])

    def __init__(self, launch: LaunchModel, settings: tuple[Setting, ...], *, offers: bool = False) -> None:
        super().__init__()
        self.launch = launch
        self._settings, self._offers = settings, offers
        self._typed: dict[str, tuple[str, str]] = {}
        names = [setting.name for setting in settings]
        launch.param.watch(self._refresh, [*names, "error", *((*_OFFERED, "proposal") if offers else ())])
        self._refresh()

    @property
    def _fields(self) -> dict[str, Setting]:
        fields = {setting.name: setting for setting in self._settings}
        if not self.launch.may_replan:
            fields.pop("replan", None)
        if not self.launch.takes_connections:
            fields.pop("connections", None)
        if not self._offers:
            return fields
        offered = {name: self._offered(name, label) for name, label in _OFFERED.items()}
        hosts = {"hosts": offered.pop("hosts")}
        return (hosts if len(hosts["hosts"].options) > 1 else {}) | fields | offered

    def _offered(self, name: str, label: str) -> Setting:
        return _choice(name, label, tuple(self.launch.param[name].objects), "As agent.toml offers them.", wide=True)

    def edit(self, name: str, raw: object) -> None:
        """Takes what was typed or chosen in a field."""
        setting = self._fields.get(name)
        if setting is None or name in self.disabled:
            return
        self._typed.pop(name, None)
        try:
            setattr(self.launch, name, setting.parse(raw))
        except InvalidInput as error:
            self._typed[name] = (str(raw)[:2000], str(error))
        self._refresh()

    def refusal(self) -> str:
        """What must be corrected before a launch, in a line; '' if nothing."""
        fields = self._fields
        return next((f"{fields[name].label}: {text}" for name, (_, text) in self._typed.items()), "")

    def _refresh(self, *_: Any) -> None:
        fields = self._fields
        groups = [{"title": "", "fields": [field.to_data() for field in fields.values()]}]
        with param.parameterized.batch_call_watchers(self):
            if groups != self.groups:
                self.groups = groups
            proposal = self.launch.proposal if self._offers else None
            resuming = proposal is not None and proposal.choice.resume is not None
            self.disabled = ["seed", "data"] if resuming else []
            self.values = {
                name: self._typed[name][0] if name in self._typed else field.shown(getattr(self.launch, name))
                for name, field in fields.items()
            }
            self.errors = {name: text for name, (_, text) in self._typed.items()} or self._refused()

    def _refused(self) -> dict[str, str]:
        text = self.launch.error if self._offers else ""
        if not text:
            return {}
        found = _NAMES.match(text)
        if found is None:
            return {"": text}
        if found[1] == "resume":
            return {"steps": text}
        rest = text if text.startswith("hosts.") else text[found.end() :]  # a host of the file
        return {self._known(found[1]): rest}

    def _known(self, name: str) -> str:
        """A field that is there; '' stands below all of them."""
        return name if name in self._fields else ""
