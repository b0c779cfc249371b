"""What the shell asks of a page."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hetplanner.ui.widgets.cards import Coloured, colour_all
from hetplanner.ui.widgets.deferred import Deferred

THEME_MS = 150
"""The browser is busy for so long with the new colours of everything that is no figure."""


class PageView:
    """A page of the dashboard: made at its first visit, or soon after the first page was drawn.

    A subclass makes `view` in its constructor and shows there what its models hold already.
    """

    view: Any
    figures: Sequence[Coloured] = ()

    def set_dark(self, dark: bool) -> None:
        """Colours for a dark or a light page."""
        colour_all(self.figures, dark)

    def change_theme(self, dark: bool) -> None:
        """The page is in sight: its first figure has the new colours at once, everything else a moment later."""
        colour_all(self.figures[:1], dark)
        Deferred(THEME_MS)(partial(self.set_dark, dark))()

    def beat(self) -> None:
        """Called a few times a second, also while another page is in sight."""
