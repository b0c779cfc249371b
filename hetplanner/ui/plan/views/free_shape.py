"""The line that says what a fixed shape costs, and the button that takes the better plan."""

from typing import Any

import panel as pn

from hetplanner.ui.plan.models.free_shape import FreeShapeModel
from hetplanner.ui.widgets.binding import on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import Words, show_if


class FreeShapeLine:
    """Watches the model; nothing is shown while there is nothing to compare."""

    def __init__(self, model: FreeShapeModel) -> None:
        self.model = model
        self._words = Words(margin=(6, 14))
        self._take = Button(label="Take it", icon="check", variant="outlined", margin=(2, 6))
        self.view = pn.Row(self._words.view, self._take, margin=0, height=40)  # with and without the button
        on_click(self._take, lambda _: model.take())
        model.param.watch(self.show, "changed")
        self.show()

    def show(self, *_: Any) -> None:
        """The comparison as it stands."""
        text = self.model.text
        self._words.set(text)
        show_if(self._take, bool(text) and self.model.can_take)
