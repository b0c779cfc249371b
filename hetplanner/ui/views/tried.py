"""The card of the shapes that a search tried."""

from typing import Any

from hetplanner.planners.interface import OBJECTIVE_UNITS
from hetplanner.plots.live import TriedShapes
from hetplanner.ui.models.plan import PlanModel
from hetplanner.ui.views.cards import Words, card, chart

EMPTY = "When a search of several shapes has ended, this shows what the best plan of each was worth."


class TriedCard:
    """Shapes against value; the figure is made once a search has told of shapes.

    Args:
        model: has the search.
        height: of the figure.
    """

    def __init__(self, model: PlanModel, height: int) -> None:
        self._model, self._height = model, height
        self._figure: TriedShapes | None = None
        self._is_dark = False
        self._words = Words(EMPTY, margin=(2, 14, 8, 14))
        self.card = card("Shapes tried", self._words.view)
        self._is_due = True
        model.param.watch(self._put_off, ["state", "job_id"])

    def _put_off(self, *_: Any) -> None:
        self._is_due = True

    def beat(self) -> None:
        """Shows the search in hand, if it is another or has ended since; the page is in sight by then."""
        if not self._is_due:
            return
        self._is_due = False
        if len(self._model.tried) > 1:
            self._show()
        elif self._figure is not None:
            self._figure.update([])
            self._words.set(EMPTY)

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        self._is_dark = dark
        if self._figure is not None:
            self._figure.set_dark(dark)

    def _show(self) -> None:
        model = self._model
        if self._figure is None:
            self._figure = TriedShapes(dark=self._is_dark, height=self._height)
            self.card.insert(1, chart(self._figure))
        left_out = self._figure.update(model.tried, OBJECTIVE_UNITS[model.objective])
        more = f" {left_out:,} more are far slower or do not fit." if left_out else ""
        self._words.set(f"{len(model.tried):,} shapes (stages × replicas) were tried.{more}")
