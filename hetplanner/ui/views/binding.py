"""Two-way links between widgets and view-models that survive what a person may type."""

import re
from collections.abc import Callable
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from hetplanner.ui.models.session import Session

MAX_UPLOAD_BYTES = 16 * 2**20


def bind(widget: Any, model: param.Parameterized, name: str, session: Session) -> Any:
    """Links `widget.value` with `model.name`. What the model refuses becomes a notice, and the widget goes back."""
    widget.value = getattr(model, name)

    def to_model(event: param.parameterized.Event) -> None:
        if widget.value != event.new:
            return  # the widget went back by itself (a choice it does not offer), and that has been told already
        if event.new is None and not model.param[name].allow_None:
            widget.value = getattr(model, name)  # an emptied number field
            return
        try:
            with pn.io.hold():  # for the same reason as clicks, see `on_click`
                setattr(model, name, event.new)
        except ValueError as error:
            label = getattr(widget, "label", None) or widget.name
            session.notify("error", f"{label}: {error}")
            widget.value = getattr(model, name)

    def to_widget(event: param.parameterized.Event) -> None:
        if widget.value != event.new:
            widget.value = event.new

    widget.param.watch(to_model, "value")
    model.param.watch(to_widget, name)
    return widget


def at_once(widget: Any, name: str = "value") -> Any:
    """Has a widget's property told of as it comes: Panel otherwise waits 50 ms for others that may come with it."""
    # Material's widgets keep their properties in a model of their own.
    widget._priority_changes = [name, f"data.{name}"]
    return widget


def on_click(widget: Any, act: Callable[[Any], object]) -> None:
    """Calls `act(event)` at every click, with the document held.

    A click that comes right behind a typed value is handled by Panel without the document's lock, where a change of a
    figure's own Bokeh models raises. Held changes are sent by Panel itself, in order, with or without the lock.
    """

    def held(event: Any) -> None:
        with pn.io.hold():
            act(event)

    widget.on_click(held)


class Upload(pmui.FileInput):
    """A file input whose size limit also holds in the server: chunks beyond it are dropped, and said so."""

    over_limit = param.Event()

    def _process_chunk(self, msg: dict[str, Any]) -> None:
        held = sum(len(c) for f in self._file_buffer.values() for c in f["chunks"].values())
        held += sum(len(f["value"]) for f in self._buffer)
        if held + len(msg["data"]) > MAX_UPLOAD_BYTES or len(self._buffer) >= 8:
            self._file_buffer.clear()
            self._buffer.clear()
            self.param.trigger("over_limit")
            return
        super()._process_chunk(msg)


def upload_button(text: str, accept: str, session: Session, on_files: Any, *, multiple: bool = False) -> Upload:
    """A button that takes files (also dropped onto it) and calls `on_files({name: bytes})`; no path is involved."""
    button = Upload(
        label=text,
        accept=accept,
        multiple=multiple,
        max_file_size=MAX_UPLOAD_BYTES,
        max_total_file_size=MAX_UPLOAD_BYTES,
        uploaded_label=text,
        variant="outlined",
        size="small",
        margin=(5, 10),
    )

    def take(event: param.parameterized.Event) -> None:
        if not event.new:
            return
        values = event.new if isinstance(event.new, list) else [event.new]
        names = button.filename if isinstance(button.filename, list) else [button.filename]
        files = {re.split(r"[\\/]", str(name))[-1][:120]: bytes(v) for name, v in zip(names, values, strict=False)}
        button.clear()  # the same file may be given again after it was mended
        if sum(map(len, files.values())) > MAX_UPLOAD_BYTES:
            refuse()
            return
        with pn.io.hold():  # what is sent unheld overtakes what Panel is still sending, such as the parts it changes
            on_files(files)

    def refuse(*_: Any) -> None:
        session.notify("error", f"upload: must be at most {MAX_UPLOAD_BYTES >> 20} MiB in all; nothing was read")

    button.param.watch(take, "value")
    button.param.watch(refuse, "over_limit")
    return button
