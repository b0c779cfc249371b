"""The Simulate page's controls as one light component, with errors beside their fields."""

import json
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from hetplanner.ui.simulate.model import AS_PLANNED, FIELDS, SimulateModel
from hetplanner.ui.widgets.form import FORM_SCRIPT, FORM_STYLE

_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved, 2 stages a device"}
_CODECS = {AS_PLANNED: AS_PLANNED, "none": "dense"}
_IN_A_ROW = """
.grid { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 8px 12px; margin: 4px 0; }
.field { flex: 0 1 132px; min-width: 112px; }
.field.text { flex: 1 1 200px; max-width: 340px; }
.field:has(.law:not(:empty)) { flex-basis: 300px; }
"""


class ControlsPanel(JSComponent):
    """Draws the settings of a :class:`SimulateModel`; both parameters are JSON text, see `form.js`."""

    groups = param.String(default="[]")
    state = param.String(default='{"values":{},"errors":{},"notes":{},"disabled":[]}')

    _esm = FORM_SCRIPT
    _stylesheets: ClassVar[list[str]] = [FORM_STYLE, _IN_A_ROW]

    def __init__(self, model: SimulateModel, names: tuple[str, ...] = FIELDS, **params: Any) -> None:
        super().__init__(**{"sizing_mode": "stretch_width"} | params)
        self._model, self._names = model, names
        model.param.watch(self._show_groups, "choices_changed")
        model.param.watch(self._show, [*FIELDS, "pipeline", "errors_changed", "shown_changed", "original"])
        self._show_groups()
        self._show()

    def _show_groups(self, *_: Any) -> None:
        self.groups = json.dumps([{"title": "", "fields": fields(self._model, self._names)}])

    def _show(self, *_: Any) -> None:
        model = self._model
        values = {name: str(getattr(model, name)) for name in self._names}
        disabled = list(self._names) if model.original is None else []
        disabled += ["in_flight"] if model.schedule == "gpipe" else []
        disabled += ["ratio"] if "topk" not in (model.messages, model.reductions) else []
        self.state = json.dumps({"values": values, "errors": model.errors, "notes": {}, "disabled": disabled})

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, dict) and isinstance(msg.get("name"), str):
            with pn.io.hold():  # see `binding.on_click`
                self._model.edit(msg["name"], str(msg.get("value")))


def fields(model: SimulateModel, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What `form.js` draws for these settings."""

    def choice(name: str, label: str, hint: str = "", words: dict[Any, str] | None = None) -> dict[str, Any]:
        options = [[str(value), (words or {}).get(value, str(value))] for value in model.param[name].objects]
        return {"name": name, "label": label, "kind": "choice", "hint": hint, "options": options, "empty": ""}

    depth = "Micro-batches that each stage may hold: one number, or one for each stage, such as 8 7 6"
    pipelines = {r: f"pipeline {r}" for r in model.param.pipeline.objects if r is not None} | {None: "all ranks"}
    every = [
        choice("schedule", "Schedule", words=_SCHEDULES),
        choice("micro_batch", "Micro-batch", "Samples in a micro-batch; it divides the global batch"),
        choice("recompute", "Recompute", "Activations are computed again in the backward pass instead of kept"),
        choice("messages", "Between stages", "Codec of activations and of their gradients", _CODECS),
        choice("reductions", "Reductions", "Codec of weights' gradients between replicas", _CODECS),
        {"name": "ratio", "label": "Top-k ratio", "kind": "number", "hint": "Elements for one that is kept",
         "options": [], "empty": ""},
        {"name": "in_flight", "label": "In flight, by stage", "kind": "text", "hint": depth, "options": [],
         "empty": "8 7 6"},
        choice("pipeline", "", "Which ranks the chart shows", pipelines),
    ]  # fmt: skip
    return [field for field in every if field["name"] in names]
