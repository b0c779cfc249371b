"""What the page changes in Bokeh and Panel as published: a list, and a switch for each.

`HETPLANNER_PATCHES` names those to apply, with commas between; "none" applies none. The page works without all of them:
it is slower, and shows the faults that they mend. A patch that does not fit the Bokeh or Panel at hand changes nothing
and says so on the browser's console.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from hetplanner.errors import InvalidInput

PATCHES_VARIABLE = "HETPLANNER_PATCHES"


class Patch(NamedTuple):
    """One change.

    Attributes:
        what: the page's behaviour with it, in a sentence.
        versions: of the library that it was tried with.
        upstream: the public issue nearest to it; '' where none is known.
    """

    what: str
    versions: str
    upstream: str = ""


PATCHES = {
    "style_updates": Patch(
        "Bokeh writes style sheets and measures figures again only where something has changed",
        "Bokeh 3.9",
        "https://github.com/bokeh/bokeh/issues/14558",
    ),
    "mounted_state": Patch(
        "Panel's React widgets show what changed between their first drawing and their mounting", "Panel 1.9"
    ),
    "colour_bar": Patch("Bokeh's colour bar may change its colours before it is laid out", "Bokeh 3.9"),
    "island": Patch("Panel marks the models of a part once, not again at every level of the page", "Panel 1.9"),
}
"""All patches; each is a script of this folder, but for `island`, which is in `hetplanner.ui.widgets.island`."""


def applied_patches(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the patches that are switched on. Raises InvalidInput."""
    asked = environ.get(PATCHES_VARIABLE)
    if asked is None:
        return tuple(PATCHES)
    names = tuple(name.strip() for name in asked.split(",") if name.strip() not in ("", "none"))
    for name in names:
        if name not in PATCHES:
            known = ", ".join(PATCHES)
            raise InvalidInput(f"{PATCHES_VARIABLE}: there is no patch {name!r:.40}; there are {known}, or none")
    return names


def patch_scripts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Scripts of the patches that are switched on, by name, as addresses that need no route. Raises InvalidInput."""
    files = {name: Path(__file__).with_name(f"{name}.js") for name in applied_patches(environ) if name != "island"}
    return {name: "data:text/javascript," + quote(path.read_text(encoding="utf-8")) for name, path in files.items()}
