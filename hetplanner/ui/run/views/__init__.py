"""The Run page, a file for each of its sections."""

from hetplanner.ui.run.views.page import RunView

__all__ = ["RunView"]
