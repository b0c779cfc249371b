"""What a search tells at its end: the shapes that it tried, and where its best placement comes from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from hetplanner.planners.interface import OBJECTIVE_UNITS
from hetplanner.plots.live import Ancestry, TriedShapes
from hetplanner.ui.jobs.jobs import ENDED
from hetplanner.ui.plan.models.plan import PlanModel
from hetplanner.ui.widgets.cards import Words, card, chart


class HistoryCard(ABC):
    """A card that is filled when a search has ended; its figure is made with the first that tells something.

    Args:
        model: has the search.
        height: of the figure.
    """

    title: ClassVar[str]
    empty: ClassVar[str]
    figure_type: ClassVar[type[TriedShapes | Ancestry]]

    def __init__(self, model: PlanModel, height: int) -> None:
        self.model, self.height = model, height
        self.figure: Any = None
        self.is_dark = False
        self._words = Words(self.empty, margin=(2, 14, 8, 14))
        self.card = card(self.title, self._words.view)
        self._is_due = True
        model.param.watch(self._put_off, ["state", "job_id"])

    @abstractmethod
    def rows(self) -> Sequence[Any]:
        """What the current search tells; empty before its end."""

    @abstractmethod
    def nothing(self, rows: Sequence[Any]) -> str:
        """Why a search that has ended leaves nothing to draw."""

    @abstractmethod
    def draw(self, rows: Sequence[Any]) -> str:
        """Shows them; returns words for below the figure."""

    def _put_off(self, *_: Any) -> None:
        self._is_due = True

    def beat(self) -> None:
        """Shows the current search, if it is another or has ended since; the page is in sight by then."""
        if not self._is_due:
            return
        self._is_due = False
        rows = self.rows()
        if len(rows) > 1:
            if self.figure is None:
                self.figure = self.figure_type(dark=self.is_dark, height=self.height)
                self.card.insert(1, chart(self.figure))
            self._words.set(self.draw(rows))
            return
        if self.figure is not None:
            self.figure.update([])
        self._words.set(self.nothing(rows) if self.model.state in ENDED else self.empty)

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        self.is_dark = dark
        if self.figure is not None:
            self.figure.set_dark(dark)


class TriedCard(HistoryCard):
    """Shapes against value."""

    title = "Shapes tried"
    empty = "After a search of several shapes this shows the best plan of each."
    figure_type = TriedShapes

    def rows(self) -> Sequence[Any]:
        """See `HistoryCard`."""
        return self.model.tried

    def nothing(self, rows: Sequence[Any]) -> str:
        """See `HistoryCard`."""
        return "This search tried one shape only." if rows else "This search has told of no shapes."

    def draw(self, rows: Sequence[Any]) -> str:
        """See `HistoryCard`."""
        left_out = self.figure.update(rows, OBJECTIVE_UNITS[self.model.objective])
        more = f" {left_out:,} more are far slower or do not fit." if left_out else ""
        return f"{len(rows):,} shapes (stages × replicas) were tried.{more}"


class AncestryCard(HistoryCard):
    """Parents and children on the way to the best placement."""

    title = "Where the best placement comes from"
    empty = "When an evolutionary search has ended, this shows the parents of its best placement, and theirs."
    figure_type = Ancestry

    def rows(self) -> Sequence[Any]:
        """See `HistoryCard`."""
        return self.model.ancestry

    def nothing(self, rows: Sequence[Any]) -> str:
        """See `HistoryCard`."""
        if rows:
            return "The best placement is a first layout: it has no parents."
        return (
            "This search has told of no parents: only the planner evolution does, and once it has layouts of its own."
        )

    def draw(self, rows: Sequence[Any]) -> str:
        """See `HistoryCard`."""
        self.figure.update(rows, self.model.objective)
        words = {"seed": "first layout", "crossed": "crossing", "annealed": "annealing run"}
        counts = {way: sum(one.way == way for one in rows) for way in words}
        seeds, crossings, runs = (f"{n} {words[way]}{'s' * (n != 1)}" for way, n in counts.items())
        return f"{seeds}, {crossings} and {runs} led to it."
