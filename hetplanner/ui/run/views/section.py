"""What every section of the Run page is: built when it is first opened, redrawn only while it is seen."""

from collections.abc import Sequence
from typing import Any, ClassVar

from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.cards import Coloured


class Section:
    """One of them. A subclass makes `view` and its `figures`, and says which signals of the model redraw it."""

    signals: ClassVar[tuple[str, ...]] = ()
    view: Any
    figures: Sequence[Coloured] = ()

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        self.model, self.session, self.dark = model, session, dark

    def show(self) -> None:
        """Draws what the model knows."""
