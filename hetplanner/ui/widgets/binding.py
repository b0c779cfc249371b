"""Two-way links between widgets and view-models that survive what a person may type."""

import re
from collections.abc import Callable
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from hetplanner.ui.shell.models.session import Session
from hetplanner.units import short_bytes

MAX_UPLOAD_BYTES = 16 * 2**20
MAX_FILES = 8
TOO_LARGE = f"nothing was read: all files together must be at most {short_bytes(MAX_UPLOAD_BYTES)}, {{}} at a time"
EMPTY = "the file is empty; save it again and choose it again"


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
    """A file input that answers whatever it does not take: neither silence nor a tick stands for a refusal.

    Attributes:
        most_files: at a time.
        refused: why nothing of the last files was taken; '' if they were.
        over_limit: what the browser or the size limit stopped, so that nothing came.
        empty: files without a byte came.
    """

    over_limit = param.Event()
    empty = param.Event()

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.refused, self.most_files = "", MAX_FILES

    def _handle_msg(self, msg: Any) -> None:
        """The widget's protocol. Its own handler raises at an error of the browser's, and ticks whatever was sent."""
        status = msg.get("status") if isinstance(msg, dict) else None
        if status == "initializing":
            self._drop()
            self.refused = ""
        elif status == "error":  # too large, or not to be read: nothing is sent
            self.param.trigger("over_limit")
        elif status == "upload_event":
            self._process_chunk(msg)
        elif status == "finished":
            self._finish()

    def _process_chunk(self, msg: dict[str, Any]) -> None:
        """A piece of a file. The limits also hold here, whatever the browser lets through."""
        if self.refused:
            return
        held = sum(len(c) for f in self._file_buffer.values() for c in f["chunks"].values())
        held += sum(len(f["value"]) for f in self._buffer)
        if held + len(msg["data"]) > MAX_UPLOAD_BYTES or len(self._buffer) >= self.most_files:
            self._drop()
            self.param.trigger("over_limit")
            return
        super()._process_chunk(msg)

    def _finish(self) -> None:
        if self._buffer:
            self._flush_buffer()  # a watcher of `value` reads the files, and sets `refused` if they are bad
        elif not self.refused:
            self.param.trigger("empty")
        self._send_msg({"status": "error", "error": self.refused} if self.refused else {"status": "finished"})

    def _drop(self) -> None:
        self._file_buffer.clear()
        self._buffer.clear()


def upload_button(
    text: str,
    on_files: Callable[[dict[str, bytes]], bool],
    on_refused: Callable[[str], object],
    *,
    multiple: bool = False,
    most: int = MAX_FILES,
    larger: str = "is it the right file?",
) -> Upload:
    """A button that takes files (also dropped onto it); no path is involved.

    It takes files of any name: one of a wrong kind is then told what is wrong with it, not passed over.

    Args:
        text: on the button.
        on_files: gets contents by name, and says whether it took them.
        on_refused: gets a line about files that did not come at all, to be shown beside the button.
        multiple: several at once.
        most: how many.
        larger: what to do with a file beyond the limit.
    """
    button = Upload(
        label=text,
        multiple=multiple,
        max_file_size=MAX_UPLOAD_BYTES,
        max_total_file_size=MAX_UPLOAD_BYTES,
        uploaded_label=text,
        variant="outlined",
        size="small",
        margin=(5, 10),
    )
    button.most_files = most

    def take(event: param.parameterized.Event) -> None:
        if not event.new:
            return
        values = event.new if isinstance(event.new, list) else [event.new]
        names = button.filename if isinstance(button.filename, list) else [button.filename]
        files = {re.split(r"[\\/]", str(name))[-1][:120]: bytes(v) for name, v in zip(names, values, strict=False)}
        button.clear()  # the same file may be given again after it was corrected
        if sum(map(len, files.values())) > MAX_UPLOAD_BYTES:
            button.param.trigger("over_limit")
            return
        with pn.io.hold():  # what is sent unheld overtakes what Panel is still sending, such as the parts it changes
            if not on_files(files):
                button.refused = "not accepted; the reason is next to this button"

    def refuse(words: str) -> None:
        button.refused = words
        with pn.io.hold():
            on_refused(words)

    button.param.watch(take, "value")
    button.param.watch(lambda _: refuse(f"{TOO_LARGE.format(most)}; {larger}"), "over_limit")
    button.param.watch(lambda _: refuse(EMPTY), "empty")
    return button
