"""Kept plans: a table to name, open and delete them, and two to four of them side by side."""

from html import escape
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from panel_material_ui.theme import MaterialDesign

from hetplanner.plots.live import CostBars, DeviceMap
from hetplanner.ui.plan.models.kept import MOST_COMPARED, Metric, comparison
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import (
    BORDER,
    COLOURS,
    FONT,
    Words,
    card,
    chart,
    colour_all,
    html_pane,
    set_html,
    show_if,
)

MAP_HEIGHT = 260
COLUMNS = ("name", "problem", "shape", "step", "throughput", "kept")
EMPTY = "No kept plans yet. Keep the current plan to compare it with later ones; it is stored as a plan file."
CHOOSE = "Tick two to four plans to compare them side by side. A name can be edited in its cell."


def comparison_table(names: list[str], metrics: list[Metric]) -> str:
    """Plans side by side, the best of each row marked; HTML."""
    cell = "padding:5px 12px;text-align:left;vertical-align:top;overflow-wrap:anywhere"
    head = "".join(f'<th scope="col" style="{cell};font-weight:700">{escape(name)}</th>' for name in names)
    rows = "".join(_row(metric, cell) for metric in metrics)
    return (
        f'<div style="overflow-x:auto"><table data-comparison style="{FONT}font-size:13px;border-collapse:collapse;'
        f'width:100%;color:var(--panel-on-surface-color)"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(metric: Metric, cell: str) -> str:
    cells = ""
    for i, text in enumerate(metric.texts):
        best = f";font-weight:700;color:{COLOURS['good']}" if i in metric.best else ""
        mark = " ✓" if i in metric.best else ""  # not by colour alone
        cells += f'<td style="{cell}{best}">{escape(text)}{mark}</td>'
    name = f'<th scope="row" style="{cell};font-weight:400;opacity:.75;white-space:nowrap">{escape(metric.name)}</th>'
    return f'<tr style="border-top:{BORDER}">{name}{cells}</tr>'


class KeptCards:
    """The table of kept plans, and the comparison below it."""

    def __init__(self, app: PlannerApp) -> None:
        self.app, self.model = app, app.explain.kept
        self._dark = False
        self._selecting = False
        self.name = pmui.TextInput(
            label="Name (optional)", max_length=60, size="small", width=260, margin=(6, 6), placeholder="a name"
        )
        self.keep = Button(label="Keep this plan", icon="bookmark_add", variant="contained", margin=(8, 6))
        self.undo = Button(label="Undo delete", icon="undo", variant="outlined", margin=(8, 6))
        self.complaint = html_pane(margin=(0, 14, 4, 14))
        self.hint = Words(EMPTY, margin=(0, 14, 6, 14))
        self.table = self._make_table()
        self.bars = CostBars(height=240)
        self.maps: list[DeviceMap] = []
        self.metrics = html_pane(margin=(4, 14, 8, 14))
        self._map_cards: list[pn.Column] = []
        self._map_titles: list[pn.pane.HTML] = []
        # Plain rows: a flex box that holds figures when the page is drawn never tells the browser that it is done.
        self.atlas = [pn.Row(sizing_mode="stretch_width", margin=(0, 8)) for _ in range(MOST_COMPARED // 2)]
        self.card = card(
            "Kept plans",
            pn.FlexBox(self.name, self.keep, self.undo, align_items="center", margin=(0, 8)),
            self.complaint,
            self.hint.view,
            self.table,
        )
        self.comparison = card("Side by side", self.metrics, chart(self.bars), *self.atlas)
        self._wire()

    def _make_table(self) -> Any:
        return pn.widgets.Tabulator(
            pd.DataFrame(columns=COLUMNS),
            show_index=False,
            design=MaterialDesign,
            selectable="checkbox",
            editors={name: ({"type": "input"} if name == "name" else None) for name in COLUMNS},
            buttons={
                "open": "<span title='Show this plan'>open</span>",
                "delete": "<span title='Delete'>delete</span>",
            },
            titles={"open": "", "delete": ""},
            layout="fit_data_stretch",
            sizing_mode="stretch_width",
            sortable=False,
            margin=(4, 12, 12, 12),
            visible=False,
        )

    def _wire(self) -> None:
        model, explain = self.model, self.app.explain
        self.name.param.watch(lambda e: setattr(model, "typed", e.new or ""), "value_input")
        on_click(self.keep, lambda _: explain.keep())
        on_click(self.undo, lambda _: model.undo_delete())
        self.table.on_click(self._clicked)
        self.table.on_edit(self._edited)
        self.table.param.watch(self._selected, "selection")
        model.param.watch(self.show_rows, "kept", onlychanged=False)
        model.param.watch(self.show_comparison, ["chosen", "kept"], onlychanged=False)
        model.param.watch(self.show_name, ["typed", "name_error", "deleted"])
        self.app.plan.param.watch(self.show_name, ["plan", "state"])
        for show in (self.show_rows, self.show_comparison, self.show_name):
            show()

    # -- what a person does -----------------------------------------------------------------------

    def _clicked(self, event: Any) -> None:
        name = self._name_at(event.row)
        if name and event.column in ("open", "delete"):
            with pn.io.hold():
                (self.app.explain.open if event.column == "open" else self.model.delete)(name)

    def _edited(self, event: Any) -> None:
        if event.column == "name" and event.old and event.value != event.old:
            with pn.io.hold():
                self.model.rename(str(event.old), str(event.value))

    def _selected(self, event: Any) -> None:
        if not self._selecting:
            with pn.io.hold():
                self.model.choose([name for name in map(self._name_at, event.new) if name])

    def _name_at(self, row: int | None) -> str:
        names = self.model.names
        return names[row] if row is not None and 0 <= row < len(names) else ""

    # -- redrawing --------------------------------------------------------------------------------

    def show_name(self, *_: Any) -> None:
        """The field and its complaint."""
        model = self.model
        self.keep.disabled = not self.app.explain.can_keep
        if self.name.value_input != model.typed:
            self.name.param.update(value=model.typed, value_input=model.typed)
        show_if(self.complaint, bool(model.name_error))
        style = f"{FONT}font-size:13px;color:{COLOURS['bad']}"
        set_html(self.complaint, f'<div role="alert" style="{style}">{escape(model.name_error)}</div>')
        show_if(self.undo, bool(model.deleted))
        self.undo.label = f"Undo delete of {model.deleted}" if model.deleted else "Undo delete"

    def show_rows(self, *_: Any) -> None:
        """The table."""
        rows = self.model.rows()
        self.hint.set(CHOOSE if rows else EMPTY)
        self._selecting = True
        self.table.value = pd.DataFrame(rows, columns=COLUMNS)
        self.table.visible = bool(rows)
        self._selecting = False
        self._show_selection()

    def _show_selection(self) -> None:
        names = self.model.names
        wanted = sorted(names.index(name) for name in self.model.chosen if name in names)
        if sorted(self.table.selection) != wanted:
            self._selecting = True
            self.table.selection = wanted
            self._selecting = False

    def show_comparison(self, *_: Any) -> None:
        """The chosen plans side by side."""
        self._show_selection()
        plans = self.model.compared()
        self.comparison.visible = bool(plans)
        if not plans:
            return
        set_html(self.metrics, comparison_table(list(plans), comparison(plans)))
        self.bars.update({name: plan.estimate for name, plan in plans.items() if plan.estimate is not None})
        while len(self.maps) < min(len(plans), MOST_COMPARED):
            self._add_map()
        for world, title, (name, plan) in zip(self.maps, self._map_titles, plans.items(), strict=False):
            set_html(title, f'<div style="{FONT}font-size:13px;font-weight:600">{escape(name)}</div>')
            world.update(None, plan)
        for i, row in enumerate(self.atlas):
            shown = self._map_cards[2 * i : min(2 * i + 2, len(plans))]
            if row.objects != shown:
                row.objects = shown

    def _add_map(self) -> None:
        world, title = DeviceMap(height=MAP_HEIGHT, dark=self._dark), html_pane(margin=(2, 4))
        self.maps.append(world)
        self._map_titles.append(title)
        styles = {"color": "var(--panel-on-surface-color)"}
        self._map_cards.append(pn.Column(title, chart(world), styles=styles, sizing_mode="stretch_width", margin=0))

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page, also of maps that are still to be made."""
        self._dark = dark
        colour_all([self.bars, *self.maps], dark)
