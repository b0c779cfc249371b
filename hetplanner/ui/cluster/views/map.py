"""The map on which one draws a cluster, and beside it the forms for a site and for a link."""

from typing import Any

import panel as pn

from hetplanner.cluster.egress import provider_names
from hetplanner.plots.data.maps.gestures import Gesture
from hetplanner.plots.live import EditableMap
from hetplanner.ui.cluster.models.drawing import COUNTS
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.cards import Words, card, chart
from hetplanner.ui.widgets.controls import Controls, Item, button, field, note

MAP_HEIGHT = 440
NOTHING_SELECTED = "Nothing. Click a site to rename, copy or exclude it; click a link for its bandwidth and latency."
NOTHING_DRAWN = "No devices yet."
MEASURED = "The map shows the measurements so far."
CHOICE_HEIGHT = 316
"""Of the card of what is selected: with a site or a link in it as without."""
MODES = (
    ("select", "Select", "A click selects a site or a link; Esc comes back to this"),
    ("add", "Add", "A click on the map adds devices of this kind"),
    ("link", "Link", "A drag from one site to another chooses their link"),
)

ALIGN_BUTTONS = (
    button("latitude", "One latitude", "All selected sites onto that of the first"),
    button("longitude", "One longitude", "All selected sites onto that of the first"),
)
USE_BUTTONS = (
    button("exclude", "Exclude", "Plans do not use the selected devices"),
    button("include", "Include", "Plans may use the selected devices"),
)


class MapView:
    """Map and forms; `view` is a row, `map` the figure."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self.model = app.drawing
        self.map = EditableMap(self._heard, height=MAP_HEIGHT)
        self.tools = Controls(self._press)
        self.hint = Words(margin=(0, 14, 2, 14), size=12)
        self.hint.view.min_height = 38  # two lines: nothing below moves
        self.about = Words()
        self.about.view.min_height = 60
        self.site_form = Controls(self._press_site, margin=(2, 12, 10, 12))
        self.choice = Controls(self._press_choice, margin=(2, 12, 12, 12))
        self._typed: dict[str, str] = {}
        self._drawn_links = 0
        # What changes while one draws stands below the map, which stays where it is.
        drawing = card("Sites and devices", self.tools, chart(self.map), self.hint.view, self.about.view)
        chosen = card("Selected", self.choice)
        chosen.min_height = CHOICE_HEIGHT
        forms = pn.Column(chosen, card("Add a whole site", self.site_form, margin=(12, 0, 0, 0)), margin=0)
        drawing.styles = {**drawing.styles, "flex": "3 1 520px", "min-width": "0"}
        forms.styles = {"flex": "1 1 250px", "min-width": "0"}
        self.view = pn.FlexBox(
            drawing, forms, gap="12px", sizing_mode="stretch_width", margin=(6, 10), align_items="stretch"
        )
        self._wire()

    def _wire(self) -> None:
        editor, links = self.app.cluster.editor, self.app.links
        editor.param.watch(self._show_map, ["cluster", "excluded"])
        editor.param.watch(self._show_tools, "words")
        self.model.param.watch(self._show_map, ["selected", "line", "mode"])
        self.model.param.watch(self._show_tools, ["selected", "line", "mode", "kind", "count", "per_host"])
        self.model.param.watch(self._show_site_form, "site_errors")
        editor.param.watch(self._show_site_form, "cluster")
        self.model.param.watch(self._show_choice, ["selected", "line", "site_errors"])
        editor.param.watch(self._show_choice, ["cluster", "excluded"])
        links.param.watch(self._show_choice, ["bandwidth", "latency", "symmetric", "errors"])
        self.app.probe.param.watch(self._show_map, "preview")
        for show in (self._show_map, self._show_tools, self._show_site_form, self._show_choice):
            show()

    # -- the map ----------------------------------------------------------------------------------

    def _heard(self, gesture: Gesture) -> None:
        if gesture.kind == "key" and self.app.session.page != "cluster":
            return
        before = self.app.cluster.cluster
        with pn.io.hold():
            self._drawn_links += gesture.kind == "link"
            self.model.act(gesture)
            if gesture.kind == "drag" and self.app.cluster.cluster is before:
                self.map.put_back()
            if gesture.kind == "link":  # also where the same link was drawn again
                self._show_choice()

    def _show_map(self, *_: Any) -> None:
        editor = self.app.cluster.editor
        model = self.model
        measured = self.app.probe.preview
        self.map.show(measured or editor.cluster, editor.excluded, model.selected, model.ends, model.mode)
        summary = self.app.cluster.summary or NOTHING_DRAWN
        stop = "" if summary.endswith(".") else "."
        self.about.set(f"{summary}{stop} {self.map.left_out}".strip(), MEASURED if measured is not None else "")

    # -- the row of tools -------------------------------------------------------------------------

    def _show_tools(self, *_: Any) -> None:
        model, editor = self.model, self.app.cluster.editor
        undo, redo, chosen = editor.undo_words, editor.redo_words, bool(model.selected or model.line)
        what = "the chosen link" if model.line else "the selected sites and their devices"
        self.tools.put(
            [
                *(button(name, label, title, pressed=model.mode == name) for name, label, title in MODES),
                field("select", "count", "", f"{model.count} ×", options=[f"{n} ×" for n in COUNTS], width=64,
                      title="How many devices a click adds"),
                field("select", "kind", "", model.kind, options=model.param.kind.objects, width=150,
                      title="Kind of device that a click adds"),
                field("select", "per_host", "", f"{model.per_host} a host", options=[f"{n} a host" for n in COUNTS],
                      width=96, title="How many devices a host holds: a click fills the site's newest host first"),
                button("undo", "Undo", f"Ctrl-Z: {undo}" if undo else "Nothing to undo", disabled=not undo),
                button("redo", "Redo", f"Ctrl-Y: {redo}" if redo else "Nothing to redo", disabled=not redo),
                button("delete", "Delete", f"Del: {what}", disabled=not chosen),
                button("empty", "New map", "Begin with an empty map, where a click adds; Undo brings this one back"),
            ]
        )  # fmt: skip
        self.hint.set(model.hint, f"{editor.words[:1].upper()}{editor.words[1:]}." if editor.words else "")

    def _press(self, name: str, values: dict[str, Any]) -> None:
        model = self.model
        if name in model.param.mode.objects:
            model.mode = name
        elif name == "kind" and values.get("kind") in model.param.kind.objects:
            model.param.update(kind=values["kind"], mode="add")
        elif name in ("count", "per_host") and (number := _first_number(values.get(name))) in COUNTS:
            model.param.update(**{name: number, "mode": "add"})
        elif name in ("undo", "redo"):
            model.act(Gesture("key", name))
        elif name == "delete":
            model.delete_selected()
        elif name == "empty":
            model.begin_empty()

    # -- a whole site -----------------------------------------------------------------------------

    def _show_site_form(self, *_: Any) -> None:
        wrong, typed = self.model.site_errors, self._typed
        self.site_form.put(
            [
                field("number", "count", "Devices", typed.get("count", "8"), error=wrong.get("count"), width=74),
                field("select", "site_kind", "Kind", typed.get("site_kind", self.model.kind),
                      options=self.model.param.kind.objects, error=wrong.get("kind"), width=140),
                field("text", "place", "Place", typed.get("place", ""), options=self.model.place_choices,
                      error=wrong.get("place"), hint="City, cloud region, own site, or 'latitude, longitude'",
                      width=222),
                field("number", "per_host", "Devices per host", typed.get("per_host", "8"),
                      error=wrong.get("per_host"), width=110),
                button("site", "Add site", "For example 8 × A100-80 in Frankfurt", primary=True),
            ]
        )  # fmt: skip

    def _press_site(self, name: str, values: dict[str, Any]) -> None:
        self._typed = {key: str(value) for key, value in values.items()}
        if name == "site_kind":
            return
        text = {key: values.get(key, "") for key in ("place", "site_kind", "count", "per_host")}
        if self.model.add_site(text["place"], text["site_kind"], _number(text["count"]), _number(text["per_host"])):
            self._typed["place"] = ""
        self._show_site_form()

    # -- what is selected -------------------------------------------------------------------------

    def _show_choice(self, *_: Any) -> None:
        selected, ends = self.model.selected, self.model.ends
        items: list[Item] = []
        if ends:
            items = self._link_items(*ends)
        elif len(selected) == 1:
            items = [
                field("text", "rename", "Name of the site", selected[0], width=150,
                      error=self.model.site_errors.get("rename")),
                button("rename_site", "Rename"),
                *self._egress_items(),
                note("about", f"{selected[0]}: {self.model.about_selected}"),
            ]  # fmt: skip
        elif selected:
            items = [note("about", f"{len(selected)} sites: {self.model.about_selected}")]
        if selected:
            items += [
                *USE_BUTTONS,
                button("copy", "Copy", "Copies the selection next to it; drag the copy to its place"),
            ]
        if len(selected) > 1:
            items += ALIGN_BUTTONS
        self.choice.put(items or [note("about", NOTHING_SELECTED)])

    def _egress_items(self) -> list[Item]:
        shown, wrong = self.model.egress_fields, self.model.site_errors
        return [
            field("text", "provider", "Provider", shown["provider"], options=list(provider_names()), width=100,
                  error=wrong.get("provider"), title="Cloud whose prices apply to traffic that leaves the site"),
            field("text", "region", "Region", shown["region"], width=130, error=wrong.get("region"),
                  title="As the provider calls it, such as eu-central-1"),
            field("text", "egress", "Egress, $/GB", shown["egress"], width=100, error=wrong.get("egress"),
                  title="A price of your own: 0 where the link is yours, blank for that of the provider's list"),
            button("price", "Set price", "Enter in a field does the same"),
            note("egress_about", shown["about"]),
        ]  # fmt: skip

    def _link_items(self, start: str, end: str) -> list[Item]:
        links = self.app.links
        wrong = links.errors
        return [
            note("ends", f"Link {start} {'↔' if links.symmetric else '→'} {end}"),
            field("text", "bandwidth", "Bandwidth", links.bandwidth, error=wrong.get("bandwidth"), width=120,
                  focus=self._drawn_links, title="A number alone is in Gbit/s"),
            field("text", "latency", "One-way latency", links.latency, error=wrong.get("latency"), width=120,
                  title="A number alone is in ms"),
            field("check", "symmetric", "Both ways", links.symmetric),
            button("link", "Set link", primary=True),
            note("known", links.about),
            note("refused", wrong.get("link") or wrong.get("ends") or "", wrong=True),
        ]  # fmt: skip

    def _press_choice(self, name: str, values: dict[str, Any]) -> None:
        if name in ("rename", "rename_site"):
            self.model.rename_selected(values.get("rename", "").strip())
        elif name in ("price", "provider", "region", "egress"):
            self.model.price_selected(*(values.get(key, "").strip() for key in ("provider", "region", "egress")))
        elif name in ("exclude", "include"):
            self.model.use_selected(name == "include")
        elif name == "copy":
            self.model.copy_selected()
        elif name in ("latitude", "longitude"):
            self.model.align_selected(name)
        elif name == "symmetric":
            self.app.links.symmetric = bool(values.get("symmetric"))
        elif self.model.ends:
            self.model.set_link(values.get("bandwidth", ""), values.get("latency", ""))


def _first_number(text: object) -> int:
    """Of '4 ×' or '8 a host'; 0 for anything else."""
    first = str(text).split(" ")[0]
    return int(first) if first.isdecimal() and len(first) < 5 else 0


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return float("nan")
