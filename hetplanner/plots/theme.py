"""One palette with meaning: a site, a route, a stage, a cost term keep their colour in every plot.

The colours are Paul Tol's colour-blind-safe schemes ("bright" for lines, "light" for cells that carry dark text);
https://personal.sron.nl/~pault/.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from hetplanner.cluster.catalog import find_kind, kind_names

LINE_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE8866", "#44BB99")
"""Strong colours: routes on the map, curves."""

CELL_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00", "#DDDDDD")
"""Light colours that dark text is readable on: sites, stages."""

TERM_COLOURS = {
    "compute": "#4477AA",
    "pipeline": "#EE6677",
    "data_parallel": "#228833",
    "bubble": "#CCBB44",
    "optimizer": "#AA3377",
}
"""Terms of the cost model."""

MEMORY_COLOURS = {
    "parameters": "#4477AA",
    "gradients": "#228833",
    "optimizer": "#AA3377",
    "activations": "#EEDD88",
    "buffers": "#99DDFF",
}
"""What memory holds; gradients and optimizer states have the hues of `data_parallel` and `optimizer`."""

OP_COLOURS = {
    "embedding": "#AA3377",
    "attention": "#4477AA",
    "mlp": "#228833",
    "convolution": "#66CCEE",
    "linear": "#44BB99",
    "norm": "#CCBB44",
    "activation": "#BBCC33",
    "pooling": "#FFAABB",
    "dropout": "#DDDDDD",
    "parameter": "#77AADD",
    "function": "#999999",
    "narrow": "#EEDD88",
    "widen": "#99DDFF",
    "head": "#EE8866",
    "loss": "#EE6677",
}
"""Kinds of operators."""

KIND_COLOURS = {
    "forward": "#4477AA",
    "backward": "#66CCEE",
    "send": "#EE6677",
    "recv": "#FFAABB",
    "reduce": "#228833",
    "step": "#AA3377",
    "wait": "#BBBBBB",
}
"""Kinds of spans; a transfer has the hue of `pipeline`, a reduction that of `data_parallel`."""

PHASE_COLOURS = {
    "importing": "#DDDDDD",
    "connecting": "#99DDFF",
    "building": "#77AADD",
    "profiling": "#EEDD88",
    "predicting": "#CCBB44",
    "training": "#44BB99",
    "saving": "#AA3377",
}
"""Stages of a worker's life."""

SOURCE_COLOURS = {"measured": "#4477AA", "specified": "#CCBB44", "assumed": "#BBBBBB"}
"""How a link's numbers are known."""

FILL_ALPHA = {"recv": 0.5, "wait": 0.45}
"""Spans that wait for others are paler than work."""

OTHER_COLOUR = "#999999"
DARK_INK = "#1a1d21"
LIGHT_INK = "#ffffff"


@dataclass(frozen=True)
class Look:
    """Colours of what is not data."""

    text: str
    muted: str
    axis: str
    grid: str
    ocean: str
    land: str
    coast: str
    outline: str
    paper: str
    is_dark: bool


LIGHT = Look("#20242a", "#5b6570", "#7a838d", "#e3e6ea", "#e4edf5", "#f6f4ee", "#c9ccc9", "#ffffff", "#ffffff", False)
DARK = Look("#e6e9ed", "#a6afb9", "#7b8691", "#333b44", "#141a20", "#2a323c", "#43505c", "#1b2028", "#1b2028", True)


def look_of(dark: bool) -> Look:
    """Colours for a light or a dark page."""
    return DARK if dark else LIGHT


def _blend(colour: str, other: str, share: float) -> str:
    pairs = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def _cycled(colours: tuple[str, ...], index: int) -> str:
    lap, place = divmod(index, len(colours))
    # Every lap is a shade darker; the third lap starts over: by then labels, not colours, tell things apart.
    return _blend(colours[place], "#556070", (0.0, 0.4, 0.7)[lap % 3])


def line_colour(index: int) -> str:
    """Strong colour of route or curve `index`."""
    return _cycled(LINE_COLOURS, index)


def site_colour(index: int) -> str:
    """Colour of the site in row `index` of the cluster's sites."""
    return _cycled(CELL_COLOURS, index)


@cache
def kind_colour(kind: str) -> str:
    """Colour of a device kind: by its row in the catalog, so that it is the same in every cluster."""
    known = find_kind(kind)
    return line_colour(kind_names().index(known.name)) if known else OTHER_COLOUR


def term_colours(terms: Iterable[str]) -> dict[str, str]:
    """Colour of every cost term; names the cost model does not know get colours no known term has."""
    unknown = 0
    colours: dict[str, str] = {}
    for term in terms:
        word = term.lower().replace("-", "_").replace(" ", "_")
        known = next((c for name, c in TERM_COLOURS.items() if name in word), None)
        colours[term] = known or (OTHER_COLOUR, "#66CCEE", "#EE8866", "#44BB99")[unknown % 4]
        unknown += known is None
    return colours


def ink_on(colour: str) -> str:
    """Dark or light text, whichever is readable on `colour` (relative luminance of sRGB)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return DARK_INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else LIGHT_INK
