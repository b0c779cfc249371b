"""How widgets call view-models."""

import panel as pn
import panel_material_ui as pmui
import param
from bokeh.document import Document
from panel.io.state import set_curdoc

from hetplanner.ui.access import LaunchGuard
from hetplanner.ui.models.session import Session
from hetplanner.ui.views.binding import bind, on_click, upload_button
from hetplanner.ui.views.buttons import Button


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


def test_a_file_is_taken_while_the_document_is_held():
    document, seen = Document(), []

    def take(files):
        seen.append((files, document.callbacks.hold_value))

    button = upload_button("Import", ".csv", Session(LaunchGuard("a-launch-token")), take)
    with set_curdoc(document):
        button.param.update(filename="folder/links.csv", value=b"a,b")
    assert seen == [({"links.csv": b"a,b"}, "combine")]
