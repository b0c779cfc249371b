"""The film of a search as a piece of HTML: it needs no server and no library, and draws names as text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from hetplanner.cluster.model import Cluster
from hetplanner.plan.estimate import Estimate
from hetplanner.planners.search.moments import Moment
from hetplanner.plots.coastline import border_lines, land_rings
from hetplanner.plots.data.search.costs import cost_columns, total_columns
from hetplanner.plots.data.search.films import (
    BAR_BOX,
    CURVE_BOX,
    CURVE_HEIGHT,
    MAP_HEIGHT,
    PACE_MS,
    STEPS_PER_PX,
    WIDTH,
    CurveFrame,
    Said,
    View,
    film_data,
    outline,
    shown_moments,
)
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.theme import LINE_COLOURS

ROW_PX = 44
LABEL_CHARS = 14
LEGEND_COLUMNS = 5
NUMBER_PX = 46
"""Room that a number inside a bar needs."""
MOST_LINES = 400
"""Of either kind on the map; more would be a tangle."""
HOW_TO_READ = (
    f"Arcs are routes, dotted lines gradient exchange; of more than {MOST_LINES} none is drawn."
    " Outlined cells changed since the moment before."
)


def film_html(
    moments: Sequence[Moment],
    cluster: Cluster,
    estimates: Mapping[str, Estimate],
    said: Said,
    *,
    offset_s: float = 0.0,
) -> str:
    """A play button, a slider, and of each moment map, grid, cost bars and its place on the curve.

    Of one moment there is nothing to play: it is drawn alone.

    Args:
        moments: of a search, in order, at least one; device indices are those of `cluster`.
        cluster: of the problem.
        estimates: what the bars are held against, by label.
        said: a value of the objective in words.
        offset_s: seconds of search before, where it was resumed.
    """
    shown = shown_moments(moments)
    data = film_data(shown, cluster, estimates, said, offset_s)
    data |= {
        "routes": LINE_COLOURS,
        "pace": PACE_MS,
        "size": (WIDTH, MAP_HEIGHT),
        "bar_box": BAR_BOX,
        "number": NUMBER_PX,
        "most_lines": MOST_LINES,
    }
    left_out = len(moments) - len(shown)
    note = HOW_TO_READ + (f" {left_out:,} moments are left out." if left_out else "")
    still = " film-still" if len(shown) < 2 else ""
    last = len(shown) - 1
    return f"""<style>{_file("film.css")}</style><div class="film card{still}">
<div class="film-controls"><button type="button" data-part="play">Play</button>
<input type="range" data-part="slider" min="0" max="{last}" value="{last}" aria-label="Moment of the search"></div>
<p class="film-words" data-part="words"></p><div class="film-two">
{_figure("Map", MAP_HEIGHT, _map(cluster))}
{_figure("Stage × replica", MAP_HEIGHT, _parts("heads", "cells"))}
{_figure("Best value over the seconds of search", CURVE_HEIGHT, _curve(shown, said, offset_s), "film-curve")}
{_figure("One step", _bars_height(estimates, data), _bars(shown, estimates, data))}
</div><p class="film-note muted">{note}</p><noscript><p>The film needs JavaScript.</p></noscript>
<script type="application/json">{_as_text(data)}</script><script>{_file("film.js")}</script></div>"""


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _as_text(data: Mapping[str, Any]) -> str:
    """JSON in which no name can end the script that holds it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _figure(title: str, height: float, content: str, kind: str = "") -> str:
    label = f'role="img" aria-label="{escape(title)}"'
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height:g}" {label}>{content}</svg></figure>'
    )


def _parts(*names: str) -> str:
    """What the script fills."""
    return "".join(f'<g class="{name}" data-part="{name}"></g>' for name in names)


def _map(cluster: Cluster) -> str:
    view, scale = View.of(cluster), 1 / STEPS_PER_PX
    layers = (("land", land_rings(), True), ("borders", border_lines(), False))
    drawn = "".join(f'<path class="{name}" d="{outline(r, view, closed=c)}"/>' for name, r, c in layers)
    ocean = f'<rect class="ocean" width="{WIDTH}" height="{MAP_HEIGHT}"/>'
    return f'{ocean}<g transform="scale({scale:g})">{drawn}</g>{_parts("arcs", "sites", "names")}'


def _curve(moments: Sequence[Moment], said: Said, offset_s: float) -> str:
    left, right, top, bottom = CURVE_BOX
    frame = CurveFrame.of(moments, offset_s)
    seconds, values = frame.ticks()
    x, y = [frame.place(s, moments[0].value)[0] for s in seconds], [frame.place(1.0, v)[1] for v in values]
    lines = "".join(f'<line x1="{at:g}" x2="{at:g}" y1="{top}" y2="{bottom}"/>' for at in x)
    lines += "".join(f'<line x1="{left}" x2="{right}" y1="{at:g}" y2="{at:g}"/>' for at in y)
    words = "".join(_text(at, bottom + 16, f"{s:g} s", "middle") for at, s in zip(x, seconds, strict=True))
    words += "".join(_text(left - 6, at + 4, said(v), "end") for at, v in zip(y, values, strict=True))
    mark = f'<line data-part="line" y1="{top}" y2="{bottom}"/><circle data-part="dot" r="5"/>'
    return (
        f'<g class="grid-lines">{lines}</g><g class="ticks">{words}</g>'
        f'<path class="stairs" d="{frame.stairs(moments, offset_s)}"/><g class="mark">{mark}</g>'
    )


def _text(x: float, y: float, text: str, kind: str = "", fill: str = "") -> str:
    colour = f' fill="{fill}"' if fill else ""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{colour}>{escape(text)}</text>'


def _bars_height(estimates: Mapping[str, Estimate], data: Mapping[str, Any]) -> float:
    return ROW_PX * (1 + len(estimates)) + 34 + 16 * ((len(data["terms"]) - 1) // LEGEND_COLUMNS)


def _bars(moments: Sequence[Moment], estimates: Mapping[str, Estimate], data: Mapping[str, Any]) -> str:
    """The row of the moment is drawn by the script; below it what it is held against, and the terms' colours."""
    left, right, top, height = BAR_BOX
    per_s = (right - left) / data["scale"]
    middle = top + height / 2 + 4
    rows = _text(left - 6, middle, "this moment" if len(moments) > 1 else "this plan", "end")
    rows += '<g data-part="bar"></g>'
    columns, totals = cost_columns(estimates), total_columns(estimates)
    for y, begin_s, end_s, colour, ink, text in _rows(columns, "y", "left", "right", "colour", "ink", "value"):
        begin, end = (min(left + per_s * s, right) for s in (begin_s, end_s))
        down = ROW_PX * (1 - y)
        rows += f'<rect x="{begin:.1f}" y="{down + top}" width="{end - begin:.1f}" height="{height}" fill="{colour}"/>'
        rows += _text((begin + end) / 2, down + middle, text, "inside", ink) if end - begin >= NUMBER_PX else ""
    for y, label, total_s, text in _rows(totals, "y", "label", "total", "text"):
        down, end = ROW_PX * (1 - y) + middle, left + per_s * total_s
        rows += _text(left - 6, down, shortened(label, LABEL_CHARS), "end")
        rows += _text(min(end, right) + 6, down, text.split("  ")[0] + (" →" if end > right + 0.5 else ""), "total")
    return rows + _legend(data, ROW_PX * (1 + len(estimates)) + 22)


def _rows(columns: Mapping[str, Sequence[Any]], *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[name] for name in names), strict=True)


def _legend(data: Mapping[str, Any], y: float) -> str:
    """The words of the terms, each behind its colour."""
    drawn = ""
    for i, term in enumerate(data["terms"]):
        x, top = BAR_BOX[0] + 88 * (i % LEGEND_COLUMNS), y + 16 * (i // LEGEND_COLUMNS)
        drawn += f'<rect x="{x}" y="{top - 9}" width="10" height="10" fill="{term["colour"]}"/>'
        drawn += _text(x + 14, top, term["label"])
    return drawn
