"""The Run page, a file for each of its sections."""

from hetplanner.ui.views.run.page import RunView

__all__ = ["RunView"]
