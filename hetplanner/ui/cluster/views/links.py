"""The links part of the Cluster page: heat map, form, region × region tables, filling from distance."""

from typing import Any

import panel as pn
from bokeh.events import Tap

from hetplanner.plots.live import LinkHeatmap
from hetplanner.plots.theme import SOURCE_COLOURS
from hetplanner.ui.cluster.models.link_tables import MAX_TABLE_SITES
from hetplanner.ui.cluster.models.links import MAX_NAME, PER, SCOPES, SOURCES, formula_fields
from hetplanner.ui.cluster.views.site_table import SiteTable
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.cards import (
    FONT,
    Coloured,
    ErrorWords,
    Words,
    caption,
    card,
    chart,
    full_width,
    html_pane,
    set_html,
    show_if,
    side_by_side,
)
from hetplanner.ui.widgets.controls import Controls, Item, button, field, note
from hetplanner.ui.widgets.deferred import Deferred

HEIGHT = 500
LEAST_TABLE_PX = 430
QUANTITIES = {"Bandwidth": "bandwidth", "Latency": "latency", "How known": "known"}
WIDE = 205
"""Pixels: two fields in a line of a narrow page."""
MAX_LISTED = 60
"""Most names in a list to choose from."""


class LinksPart:
    """Cards for the Cluster page (`rows`) and their figures. Drawn while the page is in view, else when it comes."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self.links, self.tables = app.links, app.link_tables
        self.heat = LinkHeatmap(height=HEIGHT)
        self.figures: list[Coloured] = [self.heat]
        self._legend = html_pane(margin=(0, 14, 6, 14))
        self._tables = {
            name: SiteTable(
                lambda *cell, name=name: self.tables.write(name, *cell),
                self.tables.choose,
                label=name,
                sizing_mode="stretch_width",
                margin=(0, 12, 8, 12),
            )
            for name in ("bandwidth", "latency")
        }
        self._table_error = ErrorWords()
        self._form = _Form(app)
        self._what = Controls(self._choose_what, margin=(4, 14))
        self._stale = False
        self.filling = _Filling(app)
        beside = pn.Column(self._form.view, self.filling.view, sizing_mode="stretch_width")
        self._singles = _Singles(app)
        self.rows = [
            side_by_side(self._heat_card(), beside, least=400),
            full_width(self._tables_card()),
            full_width(self._singles.view),
        ]
        app.cluster.editor.param.watch(Deferred()(self._show), "cluster")
        app.links.param.watch(self._show_chosen, ["selected", "errors"])
        app.link_tables.param.watch(self._show_tables, "errors")
        app.session.param.watch(self._page_opened, "page")
        self._show()

    def _heat_card(self) -> pn.Column:
        self._show_what()
        self.heat.figure.on_event(Tap, self._tapped)
        return card("Links, row to column: click one to edit it", self._what, chart(self.heat))

    def _choose_what(self, name: str, _: dict[str, Any]) -> None:
        self.heat.show(name)  # type: ignore[arg-type]  # one of the buttons'
        self._show_what()

    def _show_what(self) -> None:
        self._what.put([button(what, label, pressed=self.heat.what == what) for label, what in QUANTITIES.items()])

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
        self._columns = [
            pn.Column(caption("Bandwidth, Gbit/s"), self._tables["bandwidth"], sizing_mode="stretch_width"),
            pn.Column(caption("One-way latency, ms"), self._tables["latency"], sizing_mode="stretch_width"),
        ]
        self._pair = side_by_side(*self._columns, least=LEAST_TABLE_PX)
        self._pair.margin = 0
        return card("Between sites", hint.view, self._too_many.view, self._pair, self._table_error.view, self._legend)

    # -- what changed -----------------------------------------------------------------------------

    def _page_opened(self, *_: Any) -> None:
        if self._stale:
            self._show()

    def _hidden(self) -> bool:
        """Whether the page is not in view; then it is drawn when it comes."""
        hidden: bool = self.app.session.page != "cluster"
        self._stale = self._stale or hidden
        return hidden

    def _show(self, *_: Any) -> None:
        if self._hidden():
            return
        self._stale = False
        self.heat.update(self.links.cluster)
        self._show_tables()
        self._show_chosen()
        set_html(self._legend, _counted(self.links.counts))

    def _show_tables(self, *_: Any) -> None:
        if self._hidden():
            return
        for quantity, table in self._tables.items():
            content = self.tables.content(quantity)  # type: ignore[arg-type]
            if table.content != content:
                table.content = content
        cluster = self.links.cluster
        sites = len(cluster.sites) if cluster is not None else 0
        show_if(self._too_many.view, sites > MAX_TABLE_SITES)
        show_if(self._pair, 0 < sites <= MAX_TABLE_SITES)
        # Wide tables stand below each other where the page is narrow.
        least = max(LEAST_TABLE_PX, 80 + 44 * min(sites, 20))
        for column in self._columns:
            if column.styles.get("flex") != f"1 1 {least}px":
                column.styles = {**column.styles, "flex": f"1 1 {least}px"}
        self._table_error.set(self.tables.error_text)

    def _show_chosen(self, *_: Any) -> None:
        if self._hidden():
            return
        self.heat.mark(self.links.selected)
        self._form.show()
        self._singles.show()
        for table in self._tables.values():
            chosen = self.tables.chosen
            if table.content["names"] and table.content["chosen"] != chosen:
                table.content = {**table.content, "chosen": chosen}


class _Form:
    """The chosen link: its ends, its numbers, what can be done with it."""

    def __init__(self, app: PlannerApp) -> None:
        self.links = app.links
        self._per = Controls(self._press, margin=(4, 14))
        self._fields = Controls(self._press, margin=(4, 14, 10, 14))
        self.view = card("Link", self._per, self._fields)
        app.links.param.watch(self.show, ["per", "source", "symmetric", "bandwidth", "latency"])
        self.show()

    def show(self, *_: Any) -> None:
        """What is chosen, and what was refused."""
        links = self.links
        wrong = links.errors
        self._per.put([button(per, label, pressed=links.per == per) for label, per in PER.items()])
        items = [
            self._end("start", "From", links.start),
            self._end("end", "To", links.end, disabled=links.per == "host"),
            field("text", "bandwidth", "Bandwidth (Gbit/s)", links.bandwidth, error=wrong.get("bandwidth"), width=WIDE),
            field("text", "latency", "One-way latency (ms)", links.latency, error=wrong.get("latency"), width=WIDE),
            field("select", "source", "Known as", links.source, options=list(SOURCES), width=104),
            field("check", "symmetric", "Both directions", links.symmetric),
            button("set", "Set link", "Enter in a field does the same", primary=True),
            button("remove", "Remove link", "What is weaker then holds", disabled=not links.is_own),
        ]
        if links.num_overrides:
            items.append(button("singles", "Remove links of single devices", "The link of their sites then holds"))
        items += [note("refused", wrong.get("ends") or wrong.get("link") or "", wrong=True), note("about", links.about)]
        self._fields.put(items)

    def _end(self, name: str, label: str, value: str, **more: Any) -> Item:
        """A list to choose from, or where it would be long a field that completes."""
        names = self.links.names(self.links.per)
        options = ["", *names] if len(names) <= MAX_LISTED else names
        kind = "select" if len(names) <= MAX_LISTED else "text"
        return field(kind, name, label, value, options=options, width=WIDE, **more)

    def _press(self, name: str, values: dict[str, Any]) -> None:
        links = self.links
        if name in PER.values():
            links.param.update(per=name, start="", end="")
        elif name == "source" and values.get("source") in SOURCES:
            links.source = values["source"]
        elif name == "symmetric":
            links.symmetric = bool(values.get("symmetric"))
        elif name in ("start", "end") and isinstance(values.get(name), str):
            setattr(links, name, values[name][:MAX_NAME])
        elif name in ("set", "bandwidth", "latency"):
            links.enter(*(str(values.get(key, "")) for key in ("start", "end", "bandwidth", "latency")))
        elif name in ("remove", "singles"):
            (links.remove if name == "remove" else links.remove_overrides)()


class _Singles:
    """Links of hosts and of single devices: a click puts one into the form. Not shown where there are none."""

    def __init__(self, app: PlannerApp) -> None:
        self.links = app.links
        self._words = Words(margin=(0, 14, 4, 14), size=12)
        self._rows = Controls(self._press, margin=(2, 14, 10, 14))
        self.view = card("Links of hosts and of single devices", self._words.view, self._rows)

    def show(self) -> None:
        """Those of the chosen sites, else all, as many as one reads."""
        links, total = self.links, self.links.num_singles
        singles = links.singles()
        more = f" The first {len(singles)} of {total:,}." if total > len(singles) else ""
        self._words.set(f"They stand above the link of their sites; click one to edit it.{more}")
        self._rows.put(
            [
                button(f"link-{i}", f"{ends.text}: {words}", pressed=ends == links.selected)
                for i, (ends, words) in enumerate(singles)
            ]
        )
        show_if(self.view, bool(singles))

    def _press(self, name: str, _: dict[str, Any]) -> None:
        singles, place = self.links.singles(), int(name.removeprefix("link-"))
        if place < len(singles):
            self.links.choose(singles[place][0])


class _Filling:
    """Links from the distance between sites, and both directions alike."""

    def __init__(self, app: PlannerApp) -> None:
        self.links = app.links
        self._formula = Words(margin=(2, 14))
        self._fields = Controls(self._press, margin=(4, 14, 10, 14))
        self.view = card("Links from distance", self._formula.view, self._fields, margin=(12, 0, 0, 0))
        app.links.param.watch(self._show, ["formula", "scope", "errors"])
        self._show()

    def _show(self, *_: Any) -> None:
        links = self.links
        constants = formula_fields(links.formula)
        chosen = next(label for label, scope in SCOPES.items() if scope == links.scope)
        self._formula.set(f"{links.formula.text}.", "Assumed over the great circle:")
        items = [field("number", name, _CONSTANTS[name], f"{value:g}", width=116) for name, value in constants.items()]
        items += [
            field("select", "scope", "For", chosen, options=list(SCOPES), width=200),
            button("fill", "Fill from distance", "Undo takes it back", primary=True),
            button("fit", "Constants from measured links", "Medians over this cluster's own measured links"),
            button("alike", "Make symmetric", "Both directions get the lower bandwidth and the higher latency"),
            note("refused", links.errors.get("formula", ""), wrong=True),
        ]
        self._fields.put(items)

    def _press(self, name: str, values: dict[str, Any]) -> None:
        links = self.links
        if name == "scope" and values.get("scope") in SCOPES:
            links.scope = SCOPES[values["scope"]]
        elif name == "fit":
            links.fit_formula()
        elif name == "alike":
            links.make_symmetric()
        elif name == "fill" or name in _CONSTANTS:
            typed = {key: str(values.get(key, "")) for key in _CONSTANTS}
            shown = {key: f"{value:g}" for key, value in formula_fields(links.formula).items()}
            changed = {key: text for key, text in typed.items() if text != shown[key]}
            if links.type_constants(changed) and name == "fill":
                links.fill()


_CONSTANTS = {
    "ends_s": "Both ends (ms)",
    "s_per_km": "Per 1000 km (ms)",
    "in_flight_bytes": "On the way (Mbit)",
    "most_bytes_per_s": "At most (Gbit/s)",
}


def _counted(counts: dict[str, int]) -> str:
    """'▂ measured 56 · …': the colours of the tables' lower edges."""
    items = "".join(
        f'<span style="margin-right:16px"><span style="display:inline-block;width:16px;height:4px;border-radius:2px;'
        f'vertical-align:middle;margin-right:6px;background:{SOURCE_COLOURS[source]}"></span>{source} {n:,}</span>'
        for source, n in counts.items()
    )
    return f'<div style="{FONT}font-size:12px;color:var(--panel-on-surface-color)">{items}</div>'
