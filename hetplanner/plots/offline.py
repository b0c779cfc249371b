"""Notebook plots that load nothing from elsewhere."""

import re
from typing import Any

import holoviews as hv
from holoviews.plotting.bokeh import BokehRenderer

_LINKED_SHEET = re.compile(r'"url":"https://cdn\.[^"]*"')


class OfflineRenderer(BokehRenderer):
    """HoloViews' renderer, less the style sheets that it links from a content-delivery network.

    HoloViews renders through Panel; with inline resources Panel still links the sheet of its loading spinner
    (only its own displays replace it). A static plot shows no spinner, so an empty sheet stands in.
    """

    def components(self, obj: Any, fmt: str | None = None, comm: bool = True, **kwargs: Any) -> Any:
        """HTML and metadata of a plot, as HoloViews asks for."""
        data, metadata = super().components(obj, fmt, comm, **kwargs)
        return {kind: _without_links(content) for kind, content in data.items()}, metadata


def _without_links(content: Any) -> Any:
    return _LINKED_SHEET.sub('"url":"data:text/css,"', content) if isinstance(content, str) else content


def load_offline_extension() -> None:
    """Loads HoloViews with Bokeh into a notebook, all resources inline."""
    hv.extension("bokeh", inline=True)
    hv.Store.renderers["bokeh"] = OfflineRenderer.instance()
