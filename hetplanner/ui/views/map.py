"""The map on which one draws a cluster, and beside it the forms for a site and for a link."""

from typing import Any

import panel as pn

from hetplanner.cluster.egress import provider_names
from hetplanner.plots.data.gestures import Gesture
from hetplanner.plots.live import EditableMap
from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.views.cards import Words, card, chart
from hetplanner.ui.views.controls import Controls, Item, button, field, note

MAP_HEIGHT = 440
NOTHING_SELECTED = "Nothing. Click a site to rename, copy or exclude it; shift-click a second one for their link."

USE_BUTTONS = (
    button("exclude", "Exclude", "Plans must not use the devices of what is selected"),
    button("include", "Include", "Plans may use all devices of what is selected"),
)


class MapView:
    """Map and forms; `view` is a row, `map` the figure."""

    def __init__(self, app: PlannerApp) -> None:
        self.app = app
        self.model = app.drawing
        self.map = EditableMap(self._heard, height=MAP_HEIGHT)
        self.tools = Controls(self._press)
        self.hint = Words(margin=(0, 14, 4, 14), size=12)
        self.hint.view.min_height = 38  # two lines: the map below stays where it is
        self.about = Words()
        self.site_form = Controls(self._press_site, margin=(2, 12, 10, 12))
        self.choice = Controls(self._press_choice, margin=(2, 12, 12, 12))
        self._typed: dict[str, str] = {}
        drawing = card("Sites and devices", self.about.view, self.tools, self.hint.view, chart(self.map))
        chosen = card("Selected", self.choice, margin=(12, 0, 0, 0))
        forms = pn.Column(card("Add a whole site", self.site_form), chosen, margin=0)
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
        self.model.param.watch(self._show_map, "selected")
        self.model.param.watch(self._show_tools, ["selected", "adding", "kind"])
        self.model.param.watch(self._show_site_form, "site_errors")
        editor.param.watch(self._show_site_form, "cluster")
        self.model.param.watch(self._show_choice, ["selected", "site_errors"])
        editor.param.watch(self._show_choice, ["cluster", "excluded"])
        links.param.watch(self._show_choice, ["bandwidth", "latency", "symmetric", "errors"])
        for show in (self._show_map, self._show_tools, self._show_site_form, self._show_choice):
            show()

    # -- the map ----------------------------------------------------------------------------------

    def _heard(self, gesture: Gesture) -> None:
        if gesture.kind == "key" and self.app.session.page != "cluster":
            return
        before = self.app.cluster.cluster
        with pn.io.hold():
            self.model.act(gesture)
            if gesture.kind == "drag" and self.app.cluster.cluster is before:
                self.map.put_back()

    def _show_map(self, *_: Any) -> None:
        editor = self.app.cluster.editor
        self.map.show(editor.cluster, editor.excluded, self.model.selected)
        self.about.set(self.app.cluster.summary)

    # -- the row of tools -------------------------------------------------------------------------

    def _show_tools(self, *_: Any) -> None:
        model, editor = self.model, self.app.cluster.editor
        undo, redo, chosen = editor.undo_words, editor.redo_words, bool(model.selected)
        self.tools.put(
            [
                button("add", "Add", "A click on the map adds a device of this kind", pressed=model.adding),
                field("select", "kind", "", model.kind, options=model.param.kind.objects, width=150,
                      title="Kind of device that a click adds"),
                button("undo", "Undo", f"Ctrl-Z: {undo}" if undo else "Nothing to undo", disabled=not undo),
                button("redo", "Redo", f"Ctrl-Y: {redo}" if redo else "Nothing to redo", disabled=not redo),
                button("delete", "Delete", "Del: the selected sites and their devices", disabled=not chosen),
                button("empty", "New map", "Begin with an empty map; Undo brings this one back"),
            ]
        )  # fmt: skip
        self.hint.set(model.hint, f"{editor.words[:1].upper()}{editor.words[1:]}." if editor.words else "")

    def _press(self, name: str, values: dict[str, Any]) -> None:
        model = self.model
        if name == "add":
            model.adding = not model.adding
        elif name == "kind" and values.get("kind") in model.param.kind.objects:
            model.kind, model.adding = values["kind"], True
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
        selected = self.model.selected
        items: list[Item] = []
        if len(selected) == 1:
            items = [
                note("about", f"{selected[0]}: {self.model.about_selected}"),
                field("text", "rename", "Name of the site", selected[0], width=150,
                      error=self.model.site_errors.get("rename")),
                button("rename_site", "Rename"),
                *USE_BUTTONS,
                button("copy", "Copy site", "A second site like this one beside it; drag it to its place"),
                *self._egress_items(),
            ]  # fmt: skip
        elif len(selected) == 2:
            items = self._link_items(*selected)
        self.choice.put(items or [note("about", NOTHING_SELECTED)])

    def _egress_items(self) -> list[Item]:
        shown, wrong = self.model.egress_fields, self.model.site_errors
        return [
            field("text", "provider", "Provider", shown["provider"], options=list(provider_names()), width=100,
                  error=wrong.get("provider"), title="Whose price list holds for traffic that leaves the site"),
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
            note("ends", f"Link {start} {'↔' if links.symmetric else '→'} {end}. {links.about}"),
            field("text", "bandwidth", "Bandwidth", links.bandwidth, error=wrong.get("bandwidth"), width=120),
            field("text", "latency", "One-way latency", links.latency, error=wrong.get("latency"), width=120),
            field("check", "symmetric", "Both ways", links.symmetric),
            button("link", "Set link", primary=True),
            note("refused", wrong.get("link") or wrong.get("ends") or ""),
            *USE_BUTTONS,
        ]

    def _press_choice(self, name: str, values: dict[str, Any]) -> None:
        if name in ("rename", "rename_site"):
            self.model.rename_selected(values.get("rename", "").strip())
        elif name in ("price", "provider", "region", "egress"):
            self.model.price_selected(*(values.get(key, "").strip() for key in ("provider", "region", "egress")))
        elif name in ("exclude", "include"):
            self.model.use_selected(name == "include")
        elif name == "copy":
            self.model.copy_selected()
        elif name == "symmetric":
            self.app.links.symmetric = bool(values.get("symmetric"))
        elif len(self.model.selected) == 2:
            self.model.set_link(values.get("bandwidth", ""), values.get("latency", ""))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return float("nan")
