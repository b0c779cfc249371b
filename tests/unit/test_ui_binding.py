"""How widgets call view-models."""

import panel as pn
import panel_material_ui as pmui
from bokeh.document import Document
from panel.io.state import set_curdoc

from hetplanner.ui.views.binding import on_click


def test_a_click_acts_while_the_document_is_held():
    document, seen = Document(), []
    button = pmui.Button(label="Go")
    on_click(button, lambda event: seen.append((event.name, pn.state.curdoc.callbacks.hold_value)))
    with set_curdoc(document):
        button.clicks += 1
    assert seen == [("clicks", "combine")]
    assert document.callbacks.hold_value is None
