"""The links part of the Cluster page: heat map, form, region × region tables, filling from distance."""

from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui
from bokeh.events import Tap

from hetplanner.plots.live import LinkHeatmap
from hetplanner.plots.theme import SOURCE_COLOURS
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.link_tables import MAX_TABLE_SITES
from hetplanner.ui.models.links import PER, SCOPES, SOURCES, formula_fields
from hetplanner.ui.views.binding import bind, on_click
from hetplanner.ui.views.cards import (
    COLOURS,
    FONT,
    Coloured,
    Words,
    card,
    chart,
    full_width,
    html_pane,
    set_html,
    side_by_side,
)
from hetplanner.ui.views.site_table import SiteTable

HEIGHT = 500
QUANTITIES = {"Bandwidth": "bandwidth", "Latency": "latency", "How known": "known"}
_FIELD: dict[str, Any] = {"size": "small", "sizing_mode": "stretch_width", "margin": (6, 12)}
_SWITCH: dict[str, Any] = {
    "size": "small",
    "margin": (6, 12),
    "sx": {"& .MuiToggleButton-root": {"whiteSpace": "nowrap", "padding": "3px 12px"}},
}
_BUTTON: dict[str, Any] = {"size": "small", "margin": (4, 4)}


class LinksPart:
    """Cards for the Cluster page (`rows`) and their figures. Drawn while the page is in view, else when it comes."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self.links, self.tables = app.links, app.link_tables
        self.heat = LinkHeatmap(height=HEIGHT)
        self.figures: list[Coloured] = [self.heat]
        self._legend = html_pane(margin=(0, 14, 6, 14))
        self._tables = {
            "bandwidth": SiteTable(
                lambda *cell: self.tables.write("bandwidth", *cell),
                self.tables.choose,
                label="bandwidth",
                sizing_mode="stretch_width",
                margin=(0, 12, 8, 12),
            ),
            "latency": SiteTable(
                lambda *cell: self.tables.write("latency", *cell),
                self.tables.choose,
                label="latency",
                sizing_mode="stretch_width",
                margin=(0, 12, 8, 12),
            ),
        }
        self._table_error = ErrorWords()
        self._form = _Form(app)
        self._stale = False
        beside = pn.Column(self._form.view, _filling(app), sizing_mode="stretch_width")
        self.rows = [side_by_side(self._heat_card(), beside, least=400), full_width(self._tables_card())]
        app.cluster.editor.param.watch(self._show, "cluster")
        app.links.param.watch(self._show_chosen, ["selected", "errors"])
        app.link_tables.param.watch(self._show_tables, "errors")
        app.session.param.watch(self._page_opened, "page")
        self._show()

    def _heat_card(self) -> pn.Column:
        what = pmui.RadioButtonGroup(options=QUANTITIES, value="bandwidth", **_SWITCH)

        def show(event: Any) -> None:
            with pn.io.hold():
                self.heat.show(event.new)

        what.param.watch(show, "value")
        self.heat.figure.on_event(Tap, self._tapped)
        return card("Links, row to column: click one to edit it", what, chart(self.heat))

    def _tapped(self, event: Tap) -> None:
        with pn.io.hold():
            if event.x is not None and event.y is not None:
                pair = self.heat.pair_at(event.x, event.y)
                if pair is not None:
                    self.links.choose_devices(*pair)

    def _tables_card(self) -> pn.Column:
        hint = Words(
            "A number, or one with a unit; blank is no link; the diagonal is between hosts of a site. Blocks can be"
            " pasted from a spreadsheet.",
            margin=(0, 14, 4, 14),
            size=12,
        )
        self._too_many = Words(
            f"Tables are shown for up to {MAX_TABLE_SITES} sites: use the heat map and the form.", margin=(0, 14, 8, 14)
        )
        self._pair = side_by_side(
            pn.Column(_caption("Bandwidth, Gbit/s"), self._tables["bandwidth"], sizing_mode="stretch_width"),
            pn.Column(_caption("One-way latency, ms"), self._tables["latency"], sizing_mode="stretch_width"),
            least=430,
        )
        self._pair.margin = 0
        return card("Between sites", hint.view, self._too_many.view, self._pair, self._table_error.view, self._legend)

    # -- what changed -----------------------------------------------------------------------------

    def _page_opened(self, *_: Any) -> None:
        if self._stale and self.app.session.page == "cluster":
            self._show()

    def _show(self, *_: Any) -> None:
        self._stale = self.app.session.page != "cluster"
        if self._stale:
            return
        self.heat.update(self.links.cluster)
        self._show_tables()
        self._show_chosen()
        set_html(self._legend, _counted(self.links.counts))

    def _show_tables(self, *_: Any) -> None:
        for quantity, table in self._tables.items():
            content = self.tables.content(quantity)  # type: ignore[arg-type]
            if table.content != content:
                table.content = content
        cluster = self.links.cluster
        many = cluster is not None and len(cluster.sites) > MAX_TABLE_SITES
        self._too_many.view.visible, self._pair.visible = many, not many
        self._table_error.set(self.tables.error_text)

    def _show_chosen(self, *_: Any) -> None:
        self.heat.mark(self.links.selected)
        self._form.show()
        for table in self._tables.values():
            chosen = self.tables.chosen
            if table.content["names"] and table.content["chosen"] != chosen:
                table.content = {**table.content, "chosen": chosen}


class ErrorWords:
    """What was refused, in red; nothing where nothing was."""

    def __init__(self, margin: Any = (0, 14, 6, 14)) -> None:
        self.view = html_pane(margin=margin, visible=False)

    def set(self, text: str) -> None:
        """New text; '' hides it."""
        style = f"{FONT}font-size:12.5px;line-height:1.4;color:{COLOURS['bad']};overflow-wrap:anywhere"
        set_html(self.view, f'<div role="alert" style="{style}">{escape(text).replace(chr(10), "<br>")}</div>')
        self.view.visible = bool(text)


class _Form:
    """The chosen link: its ends, its numbers, what can be done with it."""

    def __init__(self, app: PlannerApp) -> None:
        links, session = app.links, app.session
        self.links = links
        per = bind(pmui.RadioButtonGroup(options=PER, **_SWITCH), links, "per", session)
        ends = {"label": "From", "restrict": True, "min_characters": 0, "search_strategy": "includes"}
        self._start = bind(pmui.AutocompleteInput(**ends | _FIELD), links, "start", session)
        self._end = bind(pmui.AutocompleteInput(**ends | _FIELD | {"label": "To"}), links, "end", session)
        self._numbers = {
            "bandwidth": bind(pmui.TextInput(label="Bandwidth (Gbit/s)", **_FIELD), links, "bandwidth", session),
            "latency": bind(pmui.TextInput(label="One-way latency (ms)", **_FIELD), links, "latency", session),
        }
        source = bind(pmui.Select(label="Known as", options=list(SOURCES), **_FIELD), links, "source", session)
        both = bind(pmui.Checkbox(label="Both directions", size="small", margin=(8, 12)), links, "symmetric", session)
        apply = pmui.Button(label="Set link", variant="contained", **_BUTTON)
        self._remove = pmui.Button(label="Remove link", variant="outlined", **_BUTTON)
        self._singles = pmui.Button(label="Remove links of single devices", variant="outlined", **_BUTTON)
        on_click(apply, lambda _: links.submit())
        on_click(self._remove, lambda _: links.remove())
        on_click(self._singles, lambda _: links.remove_overrides())
        self._awaited: Any = None
        for widget in self._numbers.values():
            widget.param.watch(self._entered, "enter_pressed")
            widget.param.watch(self._typed, "value")
        self._about = Words(margin=(6, 14, 2, 14))
        self._error = ErrorWords()
        self.view = card(
            "Link",
            per,
            pn.Row(self._start, self._end, sizing_mode="stretch_width", margin=0),
            pn.Row(*self._numbers.values(), sizing_mode="stretch_width", margin=0),
            pn.Row(source, both, sizing_mode="stretch_width", margin=0),
            pn.FlexBox(apply, self._remove, self._singles, margin=(2, 8), sizing_mode="stretch_width"),
            self._error.view,
            self._about.view,
        )
        self.show()

    def _entered(self, event: Any) -> None:
        # The key arrives before the text it ends.
        self._awaited = event.obj
        if event.obj.value_input == event.obj.value:
            self._typed(event)

    def _typed(self, event: Any) -> None:
        if self._awaited is event.obj:
            self._awaited = None
            with pn.io.hold():
                self.links.submit()

    def show(self) -> None:
        """What is chosen, and what was refused."""
        links = self.links
        names = links.names(links.per)
        for widget in (self._start, self._end):
            if widget.options != names:
                widget.options = names
        self._end.disabled = links.per == "host"
        for field, widget in self._numbers.items():
            why = links.errors.get(field, "")
            widget.param.update(error_state=bool(why), helper_text=why)
        self._error.set(links.errors.get("ends") or links.errors.get("link") or "")
        self._remove.disabled = not links.is_own
        self._singles.visible = links.num_overrides > 0
        self._about.set(links.about)


def _filling(app: PlannerApp) -> pn.Column:
    """Links from the distance between sites, and both directions alike."""
    links, session = app.links, app.session
    labels = {
        "ends_s": "Both ends (ms)",
        "s_per_km": "Per 1000 km (ms)",
        "in_flight_bytes": "On the way (Mbit)",
        "most_bytes_per_s": "At most (Gbit/s)",
    }
    constants = {name: pmui.FloatInput(label=label, start=0, **_FIELD) for name, label in labels.items()}
    scope = bind(
        pmui.Select(label="For", options=SCOPES, size="small", width=250, margin=(6, 4)), links, "scope", session
    )
    fill = pmui.Button(label="Fill from distance", variant="contained", **_BUTTON)
    fit = pmui.Button(label="Constants from measured links", variant="outlined", **_BUTTON)
    alike = pmui.Button(
        label="Make symmetric",
        variant="outlined",
        description="Both directions get the lower bandwidth and the higher latency.",
        **_BUTTON,
    )
    on_click(fill, lambda _: links.fill())
    on_click(fit, lambda _: links.fit_formula())
    on_click(alike, lambda _: links.make_symmetric())
    words, error = Words(margin=(2, 14)), ErrorWords()

    def typed(event: Any) -> None:
        name = next(name for name, widget in constants.items() if widget is event.obj)
        if event.new is not None and event.new != formula_fields(links.formula)[name]:
            links.set_formula(**{name: event.new})

    def show(*_: Any) -> None:
        for name, value in formula_fields(links.formula).items():
            if constants[name].value != value:
                constants[name].value = value
        words.set(f"{links.formula.text}.", "Assumed over the great circle:")
        error.set(links.errors.get("formula", ""))

    for widget in constants.values():
        widget.param.watch(typed, "value")
    links.param.watch(show, ["formula", "errors"])
    show()
    return card(
        "Links from distance",
        words.view,
        *(
            pn.Row(constants[one], constants[two], sizing_mode="stretch_width", margin=0)
            for one, two in (("ends_s", "s_per_km"), ("in_flight_bytes", "most_bytes_per_s"))
        ),
        pn.FlexBox(scope, fill, fit, alike, margin=(0, 8, 8, 8), align_items="center", sizing_mode="stretch_width"),
        error.view,
        margin=(12, 0, 0, 0),
    )


def _caption(text: str) -> pn.pane.HTML:
    style = f"{FONT}font-size:12.5px;font-weight:500;color:var(--panel-on-surface-color);opacity:.85"
    return html_pane(f'<div style="{style}">{escape(text)}</div>', margin=(4, 14))


def _counted(counts: dict[str, int]) -> str:
    """'▂ measured 56 · …': the colours of the tables' lower edges."""
    items = "".join(
        f'<span style="margin-right:16px"><span style="display:inline-block;width:16px;height:4px;border-radius:2px;'
        f'vertical-align:middle;margin-right:6px;background:{SOURCE_COLOURS[source]}"></span>{source} {n:,}</span>'
        for source, n in counts.items()
    )
    return f'<div style="{FONT}font-size:12px;color:var(--panel-on-surface-color)">{items}</div>'
