"""Import and export on the Cluster page: files in the top bar; pasted text and tables in a card of their own."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.cluster.formats.matrices import MAX_ROWS
from hetplanner.ui.cluster.models.exchange import FORMS, KINDS, MAX_PASTED, SOURCES
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.binding import upload_button
from hetplanner.ui.widgets.buttons import FileDownload
from hetplanner.ui.widgets.cards import ErrorWords, Words, card
from hetplanner.ui.widgets.controls import Controls, button, field

_DOWNLOAD: dict[str, Any] = {
    "size": "small",
    "margin": (5, 10),
    "align": "end",
}


class ExchangePart:
    """`bar` are the parts of the top bar, `view` is the card."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.exchange
        upload = upload_button(
            "Import files",
            self.model.take_files,
            self.model.refuse_files,
            multiple=True,
            larger=f"tables have at most {MAX_ROWS} rows; give a larger cluster as tables of sites, or as JSON",
        )
        whole = next(iter(FORMS))
        download = FileDownload(
            callback=lambda: self.model.download(whole),
            filename=self.model.file_name(whole),
            label="Download",
            **_DOWNLOAD,
        )
        self._file_error = ErrorWords(margin=(0, 12, 6, 12))
        self.bar = [upload, download]
        self._file_note = ErrorWords(margin=(0, 12, 6, 12), colour="warn")
        self.bar_words = [self._file_error.view, self._file_note.view]
        self._options = Controls(self._press, margin=(4, 12))
        self._text = pmui.TextAreaInput(
            label="Paste a file or a tool's output",
            placeholder="a cluster file, a graph, a table with names, or what nvidia-smi -L or iperf3 -J printed",
            rows=4,
            max_length=MAX_PASTED,
            size="small",
            sizing_mode="stretch_width",
            margin=(6, 14),
        )
        self._text_error, self._text_note = ErrorWords(), ErrorWords(colour="warn")
        self._form = whole
        self._forms = Controls(self._choose_form, width=240, sizing_mode="fixed", margin=(4, 12))
        self._tables = FileDownload(
            callback=lambda: self.model.download(self._form),
            filename=self.model.file_name(whole),
            label="Download tables",
            **_DOWNLOAD,
        )
        hint = Words(
            "JSON and GraphML files hold a cluster; CSV and NPY tables are recognised by their names: bandwidth,"
            " latency, devices, overrides. Tables of sites or devices of this cluster change only these; other names"
            " make a new cluster.",
            margin=(0, 14, 4, 14),
            size=12,
        )
        self.view = card(
            "Import and export",
            hint.view,
            self._options,
            self._text,
            self._text_error.view,
            self._text_note.view,
            pn.Row(self._forms, self._tables, margin=(0, 0, 8, 0)),
        )
        self.model.param.watch(self._show, ["kind", "source", "round_trip", "first", "second", "errors", "notes"])
        app.cluster.param.watch(self._show_forms, "cluster")
        self._show()
        self._show_forms()

    def _show(self, *_: Any) -> None:
        model = self.model
        kind = next(label for label, kind in KINDS.items() if kind == model.kind)
        self._options.put(
            [
                field("select", "source", "Numbers of tables are", model.source, options=list(SOURCES), width=150),
                field("check", "round_trip", "Latencies are round trips: halve them", model.round_trip),
                field("select", "kind", "A pasted table holds", kind, options=list(KINDS), width=170),
                field("text", "first", "Site or city of the GPUs; iperf3 from", model.first, width=230),
                field("text", "second", "The GPUs' host; iperf3 to", model.second, width=170),
                button("paste", "Import pasted text", primary=True),
            ]
        )
        self._file_error.set(model.errors.get("file", ""))
        self._file_note.set(model.notes.get("file", ""))
        self._text_note.set(model.notes.get("text", ""))
        self._text_error.set(model.errors.get("text") or model.errors.get("download") or "")

    def _press(self, name: str, values: dict[str, Any]) -> None:
        model = self.model
        if name == "source" and values.get("source") in SOURCES:
            model.source = values["source"]
        elif name == "kind" and values.get("kind") in KINDS:
            model.kind = KINDS[values["kind"]]
        elif name in ("first", "second"):
            setattr(model, name, str(values.get(name) or "")[:200])
        elif name == "round_trip":
            model.round_trip = bool(values.get("round_trip"))
        elif name == "paste":
            model.param.update({end: str(values.get(end) or "")[:200] for end in ("first", "second")})
            if model.take_text(self._text.value or self._text.value_input or ""):
                self._text.value = ""

    def _show_forms(self, *_: Any) -> None:
        forms = self.model.forms()
        if self._form not in forms:
            self._form = forms[0]
        self._forms.put([field("select", "form", "Download as", self._form, options=forms, width=220)])
        self._tables.filename = self.model.file_name(self._form)

    def _choose_form(self, _: str, values: dict[str, Any]) -> None:
        if values.get("form") in self.model.forms():
            self._form = values["form"]
            self._show_forms()
