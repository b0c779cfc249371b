"""Material buttons, chips and bars that tell the server nothing but that they were pressed.

As they come, each tells every change of the theme by a message of its own, and the server takes those forty messages
before it answers the one that matters.
"""

from typing import Any

import panel_material_ui as pmui
from bokeh.model import Model


class Button(pmui.Button):
    """A button."""

    def _get_model(self, *args: Any, **kwargs: Any) -> Model:
        return _quiet(super()._get_model(*args, **kwargs))


class FileDownload(pmui.FileDownload):
    """A button that saves a file."""

    def _get_model(self, *args: Any, **kwargs: Any) -> Model:
        return _quiet(super()._get_model(*args, **kwargs))


class Chip(pmui.Chip):
    """A word in a frame."""

    def _get_model(self, *args: Any, **kwargs: Any) -> Model:
        return _quiet(super()._get_model(*args, **kwargs))


class LinearProgress(pmui.LinearProgress):
    """A bar that fills."""

    def _get_model(self, *args: Any, **kwargs: Any) -> Model:
        return _quiet(super()._get_model(*args, **kwargs))


def _quiet(model: Model) -> Model:
    """Lets properties go to the browser only; presses are events and come back as ever."""
    model.data.syncable = False
    return model
