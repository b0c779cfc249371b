"""The page's map in a notebook's cell: a cluster is drawn on it, and is a value of the kernel."""

from collections.abc import Callable
from html import escape
from typing import Any

from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.plots.data.maps.gestures import Gesture
from hetplanner.plots.live import EditableMap
from hetplanner.plots.notebook.backend import ready
from hetplanner.ui.cluster.models.drafts import DraftStore
from hetplanner.ui.cluster.models.drawing import COUNTS, MODES, DrawingModel
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.cluster.models.links import LinksModel
from hetplanner.ui.notebook.cells import words_html
from hetplanner.ui.security.access import LaunchGuard, new_token
from hetplanner.ui.shell.models.session import Session

_EXTRA = "draw: a cell needs ipywidgets and jupyter_bokeh; install hetplanner with the extra `notebook`"
BUTTONS = (
    ("undo", "Undo", "undo"),
    ("redo", "Redo", "repeat"),
    ("delete", "Delete", "trash"),
    ("empty", "New map", "file-o"),
)


class Drawing:
    """A map in a cell. Every gesture reaches the kernel as soon as it is idle.

    Attributes:
        widget: what the cell shows.
    """

    def __init__(self, cluster: Cluster | None = None, height: int = 440) -> None:
        """A map of `cluster`, or an empty one, which then adds. Raises InvalidInput without the extra `notebook`."""
        try:
            import ipywidgets as widgets
            from jupyter_bokeh import BokehModel
        except ImportError:
            raise InvalidInput(_EXTRA) from None
        ready()
        self._session = Session(LaunchGuard(new_token()))  # of a page; nothing is launched from here
        self._editor = Editor(DraftStore())
        self._links = LinksModel(self._session, self._editor)
        self._model = DrawingModel(self._session, self._editor, self._links)
        self._editor.begin(cluster)
        if cluster is None:
            self._model.mode = "add"
        self._map = EditableMap(self._heard, height=height, keys=False)
        self._map.let_be()

        def choice(options: Any, width: str) -> Any:
            return widgets.Dropdown(options=options, layout={"width": width})

        def field(text: str, width: str = "130px") -> Any:
            return widgets.Text(placeholder=text, continuous_update=False, layout={"width": width})

        self._choices = {
            "mode": widgets.ToggleButtons(
                options=[(name.capitalize(), name) for name in MODES], style={"button_width": "64px"}
            ),
            "count": choice([(f"{n} ×", n) for n in COUNTS], "64px"),
            "kind": choice(list(self._model.param.kind.objects), "150px"),
            "per_host": choice([(f"{n} a host", n) for n in COUNTS], "96px"),
        }
        self._buttons = {
            name: widgets.Button(description=label, icon=icon, layout={"width": "96px"})
            for name, label, icon in BUTTONS
        }
        self._place = widgets.Combobox(
            placeholder="Place: a city, region or 'latitude, longitude'",
            options=self._model.place_choices,
            layout={"width": "330px"},
        )
        self._add = widgets.Button(description="Add site", icon="plus", layout={"width": "96px"})
        self._fields = {"bandwidth": field("Bandwidth, such as 2 Gbit/s"), "latency": field("Latency, such as 40 ms")}
        self._ends, self._set = widgets.HTML(), widgets.Button(description="Set link", layout={"width": "96px"})
        self._words = widgets.HTML()
        row = {"width": "100%", "flex_flow": "row wrap"}
        self._link_row = widgets.HBox([self._ends, *self._fields.values(), self._set], layout=row)
        self.widget = widgets.VBox(
            [
                widgets.HBox([*self._choices.values(), *self._buttons.values()], layout=row),
                BokehModel(self._map.figure, layout={"width": "100%"}),
                self._words,
                self._link_row,
                widgets.HBox([self._place, self._add], layout=row),
            ],
            layout={"width": "100%"},
        )
        self._wire()

    @property
    def cluster(self) -> Cluster:
        """What is drawn. Raises InvalidInput where nothing is."""
        if self._editor.cluster is None:
            raise InvalidInput("draw: nothing is drawn yet; click on the map")
        return self._editor.cluster

    @property
    def excluded(self) -> tuple[str, ...]:
        """Devices that were clicked away, for `hp.Constraints(excluded=…)`."""
        return tuple(self._editor.excluded)

    def _wire(self) -> None:
        for name, widget in self._choices.items():
            widget.value = getattr(self._model, name)
            widget.observe(self._setter(name), "value")
        acts: dict[str, Callable[[], None]] = {
            "undo": lambda: self._model.act(Gesture("key", "undo")),
            "redo": lambda: self._model.act(Gesture("key", "redo")),
            "delete": self._model.delete_selected,
            "empty": self._model.begin_empty,
        }
        for name, button in self._buttons.items():
            button.on_click(self._presser(acts[name]))
        self._add.on_click(self._presser(self._add_site))
        self._set.on_click(self._presser(self._set_link))
        for parameters in (self._editor, self._model, self._links, self._session):
            parameters.param.watch(self._show, [name for name in parameters.param if name != "name"])
        self._show()

    def _setter(self, name: str) -> Callable[[Any], None]:
        return lambda change: setattr(self._model, name, change["new"])

    def _presser(self, act: Callable[[], object]) -> Callable[[Any], None]:
        def press(_: Any) -> None:
            self._session.notice = ("info", "")
            act()

        return press

    def _add_site(self) -> None:
        model = self._model
        if model.add_site(self._place.value, model.kind, float(model.count), float(model.per_host)):
            self._place.value = ""

    def _set_link(self) -> None:
        self._model.set_link(*(field.value for field in self._fields.values()))

    def _heard(self, gesture: Gesture) -> None:
        before = self._editor.cluster
        self._session.notice = ("info", "")
        self._model.act(gesture)
        if gesture.kind == "drag" and self._editor.cluster is before:
            self._map.put_back()

    def _show(self, *_: Any) -> None:
        model, editor, links = self._model, self._editor, self._links
        self._map.show(editor.cluster, editor.excluded, model.selected, model.ends, model.mode)
        for name, widget in self._choices.items():
            widget.value = getattr(model, name)
        self._buttons["undo"].disabled = not editor.undo_words
        self._buttons["redo"].disabled = not editor.redo_words
        self._buttons["delete"].disabled = not (model.selected or model.line)
        self._link_row.layout.display = "" if model.ends else "none"
        self._ends.value = f"Link {escape(' ↔ '.join(model.ends))}&emsp;"
        for name, field in self._fields.items():
            field.value = getattr(links, name)
        kind, notice = self._session.notice
        wrong = [notice if kind == "error" else "", *links.errors.values(), *model.site_errors.values()]
        said = "; ".join(filter(None, wrong))
        hint = model.hint.removesuffix(" Esc ends adding.")  # keys are the notebook's
        lines = [escape(hint), escape(self._about()), f'<b style="color:#b3261e">{escape(said)}</b>']
        self._words.value = words_html("".join(f"<div>{line}</div>" for line in lines))

    def _about(self) -> str:
        cluster = self._editor.cluster
        if cluster is None:
            return ""
        return f"{len(cluster.devices)} devices at {len(cluster.sites)} sites. {self._map.left_out}".strip()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        shown: dict[str, Any] = self.widget._repr_mimebundle_(**options)
        return shown | {"text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Drawing({self._about() or 'nothing yet'})"
