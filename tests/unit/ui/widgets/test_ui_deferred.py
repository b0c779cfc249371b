"""What is said at once and drawn a moment later, and widgets that are answered at once."""

from types import SimpleNamespace

import panel as pn
import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from hetplanner.plots.live import CostBars
from hetplanner.ui.shell.views import page_view
from hetplanner.ui.widgets.binding import at_once
from hetplanner.ui.widgets.cards import chart
from hetplanner.ui.widgets.deferred import AFTER_MS, Deferred


class Served(Document):
    """A document of a session, whose timeouts are called by hand."""

    def __init__(self):
        super().__init__()
        request = SimpleNamespace(arguments={}, headers={}, cookies={})
        self._session_context = lambda: SimpleNamespace(destroyed=False, session=None, request=request)
        self.timeouts = []

    def add_timeout_callback(self, callback, timeout_milliseconds):
        self.timeouts.append((callback, timeout_milliseconds))

    def wait(self):
        due, self.timeouts = self.timeouts, []
        for callback, _ in due:
            callback()


@pytest.fixture
def served():
    document = Served()
    with set_curdoc(document):
        yield document


def test_what_is_put_off_is_drawn_once_in_the_order_of_asking_with_the_document_held(served):
    drawn, later = [], Deferred()

    def bars():
        drawn.append(("bars", served.callbacks.hold_value))

    def curve():
        drawn.append(("curve", served.callbacks.hold_value))

    show_bars, show_curve = later(bars), later(curve)
    show_curve("an event")
    show_bars("an event", "another")
    show_curve()
    assert not drawn
    assert [ms for _, ms in served.timeouts] == [AFTER_MS]
    served.wait()
    assert drawn == [("curve", "combine"), ("bars", "combine")]
    show_bars()
    served.wait()
    assert drawn[2:] == [("bars", "combine")]


def test_without_a_session_it_is_drawn_at_once():
    drawn = []
    Deferred()(lambda: drawn.append("bars"))()
    assert drawn == ["bars"]


def test_a_change_of_theme_reaches_the_first_figure_first_and_all_in_the_end(served):
    class View(page_view.PageView):
        def __init__(self):
            self.figures = [CostBars(height=100), CostBars(height=100)]

        @property
        def paper(self):
            return [live.look.paper for live in self.figures]

    view = View()
    light = view.paper
    view.change_theme(True)
    first, second = view.paper
    assert (first != light[0], second) == (True, light[1])
    view.change_theme(False)  # toggled back before the rest was drawn
    served.wait()
    assert view.paper == light
    view.change_theme(True)
    served.wait()
    assert view.paper == [first, first]


def test_a_figure_that_the_browser_has_resized_changes_while_the_document_is_held():
    document, live, held = Document(), CostBars(height=100), []
    chart(live)
    live._again = lambda: held.append(document.callbacks.hold_value)
    with set_curdoc(document):
        live._resized("inner_width", 0, 700.0)
    assert held == ["combine"]


@pytest.mark.parametrize("attr", ["value", "data.value"])
def test_a_widget_is_answered_without_the_wait_for_more(served, attr, monkeypatch):
    at_once_ran = []
    monkeypatch.setattr(pn.state, "execute", lambda callback, schedule: at_once_ran.append(schedule))
    patient, prompt = (pn.widgets.Select(options=["a", "b"], value="a") for _ in range(2))
    patient._server_change(served, "ref", None, attr, "a", "b")
    assert (len(served.timeouts), at_once_ran) == (1, [])
    at_once(prompt)._server_change(served, "ref", None, attr, "a", "b")
    assert (len(served.timeouts), at_once_ran) == (1, [True])
