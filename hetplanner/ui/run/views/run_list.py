"""All runs of this home, filtered; name, notes and tags of the one that is shown; several of them in one figure."""

import io
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from panel_material_ui.theme import MaterialDesign

from hetplanner.plots.live import RunOverlay
from hetplanner.ui.run.models.overlay import MAX_OVERLAID
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import seconds_text
from hetplanner.ui.widgets.binding import bind, on_click
from hetplanner.ui.widgets.buttons import Button, FileDownload
from hetplanner.ui.widgets.cards import ErrorWords, Words, card, chart, full_width, page, side_by_side

_COLUMNS = {
    "": 40, "run": 300, "name": 180, "tags": 140, "state": 90, "kind": 90, "began": 150, "lasted": 80, "ranks": 75,
    "message": 320,
}  # fmt: skip
_SMALL: dict[str, Any] = {"size": "small", "margin": (6, 6)}


class RunList(Section):
    """A table; the run that is shown bears a mark."""

    signals = ("runs", "selected")

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.table = pn.widgets.Tabulator(
            pd.DataFrame(columns=list(_COLUMNS)),
            show_index=False,
            disabled=True,
            selectable=False,
            design=MaterialDesign,
            height=360,
            layout="fit_data_stretch",
            widths=_COLUMNS,
            sizing_mode="stretch_width",
            margin=(4, 12, 12, 12),
        )
        on_click(self.table, self._clicked)
        self.words = pmui.TextInput(label="Search name, notes, tags", width=240, **_SMALL)
        self.tag = pmui.Select(label="Tag", options={"any": ""}, value="", width=140, **_SMALL)
        self.state = pmui.Select(label="State", options={"any": ""}, value="", width=140, **_SMALL)
        for widget in (self.words, self.tag, self.state):
            widget.param.watch(self._filter, "value")
        self.overlay = Overlay(model, session, dark)
        self.figures = [self.overlay.figure]
        tools = pn.FlexBox(self.words, self.tag, self.state, flex_wrap="wrap", margin=(0, 6))
        self.view = page(
            full_width(card("Runs, the newest first (click one to see it)", tools, self.table)),
            side_by_side(annotations_card(model, session), self.overlay.view, least=420),
        )

    def _clicked(self, event: object) -> None:
        row, shown = getattr(event, "row", -1), self.model.found_runs()
        if 0 <= row < len(shown):
            self.model.select(shown[row].run)
            self.model.section = "progress"

    def _filter(self, *_: Any) -> None:
        with pn.io.hold():
            self.model.wanted = (self.words.value or "", self.tag.value or "", self.state.value or "")
            self.show()

    def show(self) -> None:
        """The list as it is."""
        rows = []
        for r in self.model.found_runs():
            mark = "▶" if r.run == self.model.selected else ""
            cells = {name: getattr(r, name) for name in _COLUMNS if hasattr(r, name)}
            rows.append({"": mark} | cells | {"tags": ", ".join(r.said.tags), "lasted": seconds_text(r.lasted_s)})
        self.table.value = pd.DataFrame(rows, columns=list(_COLUMNS))
        _offer(self.tag, sorted({tag for r in self.model.runs for tag in r.said.tags}))
        _offer(self.state, sorted({r.state for r in self.model.runs}))
        self.overlay.show_choices()


class Overlay:
    """Which runs, what of them over what, the figure, and the same as CSV."""

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        self._model = model
        overlay = model.overlay
        self.figure = RunOverlay(dark=dark)
        self.runs = pmui.MultiChoice(
            label=f"Runs (at most {MAX_OVERLAID})", options={}, max_items=MAX_OVERLAID,
            sizing_mode="stretch_width", margin=(8, 14),
        )  # fmt: skip
        self.value = bind(pmui.Select(label="Of them", options=_values(overlay, "value"), width=130, **_SMALL),
                          overlay, "value", session)  # fmt: skip
        self.over = bind(pmui.Select(label="Over", options=_values(overlay, "over"), width=130, **_SMALL),
                         overlay, "over", session)  # fmt: skip
        self.csv = FileDownload(
            callback=lambda: io.BytesIO(overlay.csv()), filename="runs.csv", label="CSV", size="small", margin=(10, 6)
        )
        self.words = Words()
        tools = pn.FlexBox(self.value, self.over, self.csv, flex_wrap="wrap", align_items="center", margin=(0, 6))
        self.view = card("Runs laid over each other", self.runs, tools, chart(self.figure), self.words.view)
        self.runs.param.watch(self._chosen, "value")
        overlay.param.watch(self._draw, "changed")
        self._draw()

    def _chosen(self, event: Any) -> None:
        with pn.io.hold():
            self._model.overlay.runs = list(event.new or [])

    def show_choices(self) -> None:
        """The runs of the list."""
        options = {f"{row.name} · {row.run}" if row.name else row.run: row.run for row in self._model.runs}
        if self.runs.options != options:
            kept = [run for run in self.runs.value or [] if run in options.values()]
            self.runs.param.update(options=options, value=kept)

    def _draw(self, *_: Any) -> None:
        overlay = self._model.overlay
        lines = overlay.lines()
        self.figure.update(lines, overlay.value, overlay.over, overlay.token_words())
        unpriced = [name for name, columns in lines if overlay.over == "dollars" and not columns["x"]]
        missing = f"No price is known, or no step yet: {', '.join(unpriced)}." if unpriced else ""
        self.words.set("\n".join(filter(None, (missing, overlay.words))))
        self.csv.disabled = not overlay.runs


def annotations_card(model: RunModel, session: Session) -> pn.Column:
    """Fields for the run that is shown."""
    said = model.said
    wide: dict[str, Any] = {"size": "small", "sizing_mode": "stretch_width", "margin": (8, 14)}
    name = bind(pmui.TextInput(label="Name", max_length=120, **wide), said, "name_text", session)
    tags = bind(pmui.TextInput(label="Tags, parted by commas", max_length=800, **wide), said, "tags_text", session)
    notes = bind(pmui.TextAreaInput(label="Notes", rows=5, max_length=4000, **wide), said, "notes", session)
    save, words, refusal = Button(label="Save", icon="save", variant="outlined", margin=(4, 14)), Words(), ErrorWords()

    def show(*_: Any) -> None:
        save.disabled = not model.selected or not session.unlocked
        locked = "" if session.unlocked else "Type the launch token above to save."
        words.set(said.words or locked, model.selected)
        refusal.set(said.refusal)

    on_click(save, lambda _: model.save_annotations())
    said.param.watch(show, ["words", "refusal"])
    model.param.watch(show, "selected")
    session.param.watch(show, "unlocked")
    show()
    return card("Name, notes and tags of the run shown", name, tags, notes, save, words.view, refusal.view)


def _values(model: Any, name: str) -> list[str]:
    return list(model.param[name].objects)


def _offer(widget: Any, values: list[str]) -> None:
    """New options for a choice; one that is not there any more becomes 'any'."""
    options = {"any": ""} | {value: value for value in values}
    if widget.options != options:
        widget.param.update(options=options, value=widget.value if widget.value in options.values() else "")
