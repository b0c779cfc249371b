"""How widgets call view-models."""

import panel as pn
import panel_material_ui as pmui
import param
import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.binding import MAX_FILES, MAX_UPLOAD_BYTES, bind, on_click, upload_button
from hetplanner.ui.widgets.buttons import Button


class Wish(param.Parameterized):
    rank = param.String(default="a")


def test_a_choice_that_is_not_offered_goes_back_once_in_the_model_too():
    wish, select = Wish(), pmui.Select(options=["a", "b"])
    bind(select, wish, "rank", Session(LaunchGuard("a-launch-token")))
    select.get_root()
    wish.rank = "b"
    assert select.value == "b"
    wish.rank = "c"
    assert (select.value, wish.rank) == ("a", "a")


def test_only_a_press_of_an_enabled_button_counts():
    button, seen = Button(label="<b>Go</b>", icon="stop"), []
    button.on_click(lambda event: seen.append(event.new))
    button._handle_msg("press")
    button._handle_msg({"press": "go"})
    button.disabled = True
    button._handle_msg("press")
    assert seen == [1]


def test_a_click_acts_while_the_document_is_held():
    document, seen = Document(), []
    button = Button(label="Go")
    on_click(button, lambda event: seen.append((event.name, pn.state.curdoc.callbacks.hold_value)))
    with set_curdoc(document):
        button.clicks += 1
    assert seen == [("clicks", "combine")]
    assert document.callbacks.hold_value is None


def upload(taken: bool = True):
    """A button with what it has given, what it has refused, and what the browser was told."""
    document, given, refused, told = Document(), [], [], []

    def take(files):
        given.append((files, document.callbacks.hold_value))
        return taken

    button = upload_button("Import", take, refused.append, multiple=True, larger="split it")
    button._send_msg = told.append
    return document, button, given, refused, told


def send(document, button, *messages):
    with set_curdoc(document):
        for message in messages:
            button._handle_msg(message | {"type": "status"})


def piece(name: str, data: bytes, chunk: int = 1, total: int = 1):
    return {
        "status": "upload_event",
        "name": name,
        "mime_type": "",
        "data": data,
        "chunk": chunk,
        "total_chunks": total,
    }


BEGIN, END = {"status": "initializing"}, {"status": "finished"}


def test_a_file_is_taken_while_the_document_is_held_and_ticked():
    document, button, given, refused, told = upload()
    send(document, button, BEGIN, piece("folder/links.csv", b"a,", 1, 2), piece("folder/links.csv", b"b", 2, 2), END)
    assert given == [({"links.csv": b"a,b"}, "combine")]
    assert (refused, told) == ([], [END])


def test_what_is_refused_gets_no_tick():
    document, button, given, _, told = upload(taken=False)
    send(document, button, BEGIN, piece("a.csv", b"?"), END)
    assert len(given) == 1
    assert [message["status"] for message in told] == ["error"]
    told.clear()
    send(document, button, BEGIN, piece("a.csv", b"?"), END)  # the same again
    assert len(given) == 2
    assert [message["status"] for message in told] == ["error"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        # 52 MB once ended in silence: the browser's own refusal raised in the server.
        ([{"status": "error", "error": "File 'a.npy' (52 MB) exceeds the limit"}], "at most 16.8 MB"),
        ([BEGIN, piece("a.npy", b"0" * (MAX_UPLOAD_BYTES + 1)), END], "split it"),
        ([BEGIN, *(piece(f"{i}.csv", b"1") for i in range(MAX_FILES + 1)), END], "nothing was read"),
        ([BEGIN, END], "the file is empty"),
    ],
)
def test_what_does_not_come_is_answered(messages, words):
    document, button, given, refused, told = upload()
    send(document, button, *messages)
    assert given == []
    assert len(refused) == 1
    assert words in refused[0]
    assert {"status": "finished"} not in told
    send(document, button, BEGIN, piece("a.csv", b"1"), END)
    assert len(given) == 1
    assert told[-1] == END
