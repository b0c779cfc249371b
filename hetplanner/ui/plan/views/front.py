"""The card of time against cost: the front, its search, and the plan on it that one takes."""

from typing import Any

import panel as pn

from hetplanner.plots.data.curves import left_out_of
from hetplanner.plots.live import FrontCurve
from hetplanner.ui.plan.models.front import FrontModel
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import Words, card, chart

_BUTTON: dict[str, Any] = {"variant": "outlined", "margin": (4, 5)}


class FrontCard:
    """Watches the model's signals; a click on a point, or the two arrows, choose a plan."""

    def __init__(self, model: FrontModel, height: int) -> None:
        self.model = model
        self.figure = FrontCurve(height=height)
        self.words, self.chosen = Words(margin=(4, 14)), Words(margin=(0, 14, 6, 14))
        self.search = Button(label="Find the front", icon="show_chart", **_BUTTON)
        self.stop = Button(label="Stop the front", icon="stop", color="error", **_BUTTON)
        self.faster = Button(label="Faster", icon="chevron_left", **_BUTTON)
        self.cheaper = Button(label="Cheaper", end_icon="chevron_right", **_BUTTON)
        self.take = Button(label="Take this plan", icon="check", **_BUTTON)
        self._wire()
        buttons = (self.search, self.stop, self.faster, self.cheaper, self.take)
        tools = pn.FlexBox(*buttons, gap="0", sizing_mode="stretch_width", margin=(2, 6))
        self.words.view.styles = {"min-height": "40px"}  # two lines: what it says grows
        self.card = card("Time against cost", tools, self.words.view, chart(self.figure), self.chosen.view)

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
        self.figure.update(model.points, model.rows, model.least, model.chosen, own, left_out=left_out, word=model.word)
        self.chosen.set(model.chosen_text)
        # All are there all the time: one that came or went would move the others under the pointer.
        self.search.disabled, self.stop.disabled = model.searching, not model.searching
        for button in (self.faster, self.cheaper):
            button.disabled = len(model.rows) < 2
        self.take.disabled = model.chosen is None or model.plan.searching

    def _own_point(self) -> tuple[float, float] | None:
        estimate = self.model.plan.estimate
        if not self.model.points or estimate is None or not estimate.usd_per_mtoken:
            return None
        return estimate.step_s, estimate.usd_per_mtoken

    def _say(self, *_: Any) -> None:
        self.words.set(self.model.text)
