"""The card of time against cost: the front, its search, and the plan on it that one takes."""

from typing import Any

import panel as pn

from hetplanner.plots.data.curves import left_out_of
from hetplanner.plots.live import FrontCurve
from hetplanner.ui.models.front import FrontModel
from hetplanner.ui.views.binding import on_click
from hetplanner.ui.views.buttons import Button
from hetplanner.ui.views.cards import Words, card, chart, toolbar

_BUTTON: dict[str, Any] = {"variant": "outlined", "margin": (4, 5)}


class FrontCard:
    """Watches the model's signals; a click on a point, or the two arrows, choose a plan."""

    def __init__(self, model: FrontModel, height: int) -> None:
        self.model = model
        self.figure = FrontCurve(height=height)
        self.words, self.chosen = Words(margin=(4, 8)), Words(margin=(0, 14, 6, 14))
        self.search = Button(label="Find the front", icon="show_chart", **_BUTTON)
        self.stop = Button(label="Stop the front", icon="stop", color="error", **_BUTTON)
        self.faster = Button(label="Faster", icon="chevron_left", **_BUTTON)
        self.cheaper = Button(label="Cheaper", end_icon="chevron_right", **_BUTTON)
        self.take = Button(label="Take this plan", icon="check", **_BUTTON)
        self._wire()
        self.words.view.styles = {"flex": "1 1 380px", "min-width": "0"}
        tools = pn.Row(self.search, self.stop, self.faster, self.cheaper, self.take, margin=0)
        self.card = card("Time against cost", toolbar(self.words.view, tools), chart(self.figure), self.chosen.view)

    def _wire(self) -> None:
        model = self.model
        on_click(self.search, lambda _: model.start())
        on_click(self.stop, lambda _: model.stop())
        on_click(self.faster, lambda _: model.step(-1))
        on_click(self.cheaper, lambda _: model.step(1))
        on_click(self.take, lambda _: model.take())
        self.figure.figure.on_event("tap", self._tapped)
        model.param.watch(self.show, ["changed", "state"])
        model.param.watch(self._say, ["clock_changed", "state"])
        model.plan.param.watch(self.show, ["plan", "state"])
        self.show()
        self._say()

    def _tapped(self, event: Any) -> None:
        with pn.io.hold():
            number = self.figure.nearest(event.x, event.y)
            if number is not None:
                self.model.choose(number)

    def show(self, *_: Any) -> None:
        """The figure, the chosen plan, and which buttons make sense."""
        model = self.model
        left_out = left_out_of("cost", model.plan.cluster)
        own = self._own_point()
        self.figure.update(model.points, model.rows, model.least, model.chosen, own, left_out=left_out)
        self.chosen.set(model.chosen_text)
        self.search.visible, self.stop.visible = not model.searching, model.searching
        for button in (self.faster, self.cheaper):
            button.visible = len(model.rows) > 1
        self.take.visible = model.chosen is not None
        self.take.disabled = model.plan.searching

    def _own_point(self) -> tuple[float, float] | None:
        estimate = self.model.plan.estimate
        if not self.model.points or estimate is None or not estimate.usd_per_mtoken:
            return None
        return estimate.step_s, estimate.usd_per_mtoken

    def _say(self, *_: Any) -> None:
        self.words.set(self.model.text)
