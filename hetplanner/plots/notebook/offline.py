"""Notebook output without requests: Panel's style sheets travel inside it.

HoloViews shows plots through Panel, whose models link style sheets on a CDN even when scripts are inline. The files
are part of the installed Panel, so the links can carry them as data.
"""

import base64
import re
from functools import cache
from importlib.resources import files
from typing import Any

import holoviews as hv
from holoviews.plotting.bokeh import BokehRenderer
from holoviews.plotting.renderer import config

_LINK = re.compile(r'https://cdn\.holoviz\.org/panel/[^/"\\]+/dist/([\w./-]+\.css)(?:\?[^"\\]*)?')


@cache
def _as_data(path: str) -> str | None:
    file = files("panel") / "dist" / path
    if ".." in path or not file.is_file():
        return None
    return "data:text/css;base64," + base64.b64encode(file.read_bytes()).decode()


def without_links(html: str) -> str:
    """The same output with Panel's style sheets inside it; a file that is not installed keeps its link."""
    return _LINK.sub(lambda match: _as_data(match[1]) or match[0], html)


class OfflineRenderer(BokehRenderer):
    """HoloViews' Bokeh renderer for notebooks, with `without_links` applied."""

    def components(self, *args: Any, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Output of a notebook cell by MIME type, and its metadata."""
        # Another design, which some library of the kernel chose for its own widgets, would bring scripts of its own.
        with config.set(design=None):
            data, metadata = super().components(*args, **options)
        return {kind: without_links(v) if isinstance(v, str) else v for kind, v in data.items()}, metadata


def install() -> None:
    """Makes HoloViews show Bokeh plots with this renderer; its settings are kept."""
    current = hv.Store.renderers["bokeh"]
    if not isinstance(current, OfflineRenderer):
        settings = {name: value for name, value in current.param.values().items() if name != "name"}
        hv.Store.renderers["bokeh"] = OfflineRenderer.instance(**settings)
