"""The film of a search, as plain data and outlines: what a page without a server draws of each improvement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetplanner.cluster.model import Cluster
from hetplanner.cost.terms import term_label
from hetplanner.plan.estimate import Estimate
from hetplanner.planners.search.moments import Moment
from hetplanner.plots.coastline import WORLD_WIDTH_M, Ring
from hetplanner.plots.data.curves import EARLIEST_S, thinned, value_range
from hetplanner.plots.data.maps.labels import CHAR_PX, LINE_PX, Block, named_sites, placed_blocks
from hetplanner.plots.data.maps.maps import fitted, site_columns, view_box
from hetplanner.plots.data.search.fronts import log_ticks
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.theme import ink_on, term_colours
from hetplanner.units import short_seconds

WIDTH = 560
MAP_HEIGHT = 330
CURVE_HEIGHT = 220
CURVE_BOX = (64, 546, 14, 180)
"""Left, right, top, bottom of the curve's frame."""
BAR_BOX = (104, 470, 8, 28)
"""Left and right of the bars, and in a row top and height."""
PACE_MS = (30, 500, 6000)
"""A moment is shown for at least and at most so long, and all of them together for about so long."""
MOST_CELLS = 60_000
"""Cells of the grid over all moments; of more, moments are left out evenly."""
MOST_CHARS = 24
"""Of a device's or a site's name."""
LONGEST_BAR = 3.0
"""The axis of the bars ends at most at so many times the plan's own step."""
MOST_CROWDED = 16
"""Of more sites only those are named whose names do not cover others."""
STAGES_CHARS = 16
"""Room under a site's name for the stages there."""

Said = Callable[[float], str]


@dataclass(frozen=True)
class View:
    """A piece of the world on the map's pixels, y downwards."""

    west: float
    north: float
    metres_per_px: float

    @staticmethod
    def of(cluster: Cluster) -> "View":
        """All sites with room around them."""
        sites = site_columns(cluster)
        west, east, _, north = fitted(view_box(sites["x"], sites["y"]), WIDTH, MAP_HEIGHT)
        return View(west, north, (east - west) / WIDTH)

    def place(self, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of points in Mercator metres."""
        return (np.asarray(x) - self.west) / self.metres_per_px, (self.north - np.asarray(y)) / self.metres_per_px

    @property
    def world_px(self) -> float:
        """Width of the whole world."""
        return float(WORLD_WIDTH_M / self.metres_per_px)


def shown_moments(moments: Sequence[Moment]) -> list[Moment]:
    """All of them, or as many, evenly chosen, as make no more than `MOST_CELLS`; the first and the last are kept."""
    largest = max((sum(map(len, moment.stages)) for moment in moments), default=1)
    return [moments[i] for i in thinned(len(moments), max(2, MOST_CELLS // max(largest, 1)))]


def moment_texts(moments: Sequence[Moment], said: Said, offset_s: float = 0.0) -> list[str]:
    """'Moment 3 of 57: 12.3 s after 1.2 s of search, 1,234 placements' for each.

    Args:
        moments: in order.
        said: a value of the objective in words.
        offset_s: seconds of search before, where it was resumed.
    """
    return [
        f"Moment {i} of {len(moments)}: {said(m.value)} after {short_seconds(m.searched_s + offset_s)} of search,"
        f" {m.evaluations:,} placements"
        for i, m in enumerate(moments, 1)
    ]


# -- what the script reads ------------------------------------------------------------------------------


def film_data(
    moments: Sequence[Moment], cluster: Cluster, estimates: Mapping[str, Estimate], said: Said, offset_s: float = 0.0
) -> dict[str, Any]:
    """Everything that changes from moment to moment, and the names that go with it.

    Args:
        moments: device indices are those of `cluster`.
        cluster: of the problem.
        estimates: of what the bars are held against, by label.
        said, offset_s: see :func:`moment_texts`.
    """
    served = sorted({device for m in moments for row in m.stages for device in row})
    row_of = {device: row for row, device in enumerate(served)}
    kinds = list(dict.fromkeys(cluster.devices[d].kind for d in served))
    curve = CurveFrame.of(moments, offset_s)
    terms, known = bar_terms(moments, estimates), known_terms(moments)
    return {
        "ids": [shortened(cluster.device_ids[d], MOST_CHARS) for d in served],
        "kinds": [shortened(kind, MOST_CHARS) for kind in kinds],
        "kind": [kinds.index(cluster.devices[d].kind) for d in served],
        "site": [int(cluster.site_index_D[d]) for d in served],
        "sites": site_rows(cluster),
        "world": round(View.of(cluster).world_px, 1),
        "terms": [{"label": term_label(t), "colour": c, "ink": ink_on(c)} for t, c in term_colours(terms).items()],
        "scale": bar_scale_s(moments, estimates),
        "bars": [[float(f"{seconds.get(t, 0.0):.6g}") for t in terms] for seconds in known],
        "said": [[short_seconds(seconds.get(t, 0.0)) for t in terms] for seconds in known],
        "totals": [short_seconds(sum(seconds.values())) for seconds in known],
        "stages": [[[row_of[d] for d in row] for row in m.stages] for m in moments],
        "texts": moment_texts(moments, said, offset_s),
        "marks": [curve.place(m.searched_s + offset_s, m.value) for m in moments],
    }


def known_terms(moments: Sequence[Moment]) -> list[Mapping[str, float]]:
    """The terms of every moment; where they were not computed, those of the last before that has some."""
    found: list[Mapping[str, float]] = []
    for moment in moments:
        found.append(moment.terms or (found[-1] if found else {}))
    return found


def bar_terms(moments: Sequence[Moment], estimates: Mapping[str, Estimate]) -> list[str]:
    """All terms, in the order in which they first come."""
    every = [*(m.terms for m in moments), *(e.terms for e in estimates.values())]
    return list(dict.fromkeys(term for terms in every for term in terms))


def bar_scale_s(moments: Sequence[Moment], estimates: Mapping[str, Estimate]) -> float:
    """Seconds at the right end of the bars: the longest, but no more than `LONGEST_BAR` times the last moment's."""
    totals = [sum(terms.values()) for terms in known_terms(moments)]
    longest = max([*totals, *(sum(e.terms.values()) for e in estimates.values())], default=0.0)
    last = totals[-1] if totals else 0.0
    return (min(longest, LONGEST_BAR * last) if last else longest) or 1.0


def site_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Marker and label of every site on the map's pixels; what is not named there has no label."""
    sites, view = site_columns(cluster), View.of(cluster)
    x_S, y_S = view.place(sites["x"], sites["y"])
    rows: list[dict[str, Any]] = [
        {"name": name, "x": round(float(x), 1), "y": round(float(y), 1), "size": size, "colour": c, "ink": ink_on(c)}
        for name, x, y, size, c in zip(sites["name"], x_S, y_S, sites["size"], sites["colour"], strict=True)
    ]
    named = named_sites(sites["size"])
    labels = [shortened(sites["label"][i], MOST_CHARS) for i in named]
    sizes = [(CHAR_PX * max(len(label), STAGES_CHARS), 2 * LINE_PX) for label in labels]
    radii = [sites["size"][i] / 2 for i in named]
    blocks = placed_blocks(
        [float(x_S[i]) for i in named], [float(y_S[i]) for i in named], radii, sizes, (WIDTH, MAP_HEIGHT)
    )
    taken: list[Block] = []
    for i, label, block in zip(named, labels, blocks, strict=True):
        here = Block(float(x_S[i]) + block.left, float(y_S[i]) + block.top, block.width, block.height)
        if len(named) > MOST_CROWDED and any(_overlap(here, other) for other in taken):
            continue
        taken.append(here)
        # Words stand at the side of the block that is nearer the marker.
        middle = block.left + block.width / 2
        anchor, dx = ("middle", middle) if abs(middle) < 1 else ("start", block.left)
        if middle < -1:
            anchor, dx = "end", block.left + block.width
        rows[i] |= {"label": label, "anchor": anchor, "dx": round(dx, 1), "dy": round(block.top + 11.0, 1)}
    return rows


def _overlap(one: Block, other: Block) -> bool:
    across = min(one.left + one.width, other.left + other.width) > max(one.left, other.left)
    return across and min(one.top + one.height, other.top + other.height) > max(one.top, other.top)


# -- the curve --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveFrame:
    """Seconds of search and values on the curve's pixels, both logarithmic."""

    seconds: tuple[float, float]
    values: tuple[float, float]

    @staticmethod
    def of(moments: Sequence[Moment], offset_s: float = 0.0) -> "CurveFrame":
        """A frame in which every moment fits."""
        seconds = [max(m.searched_s + offset_s, EARLIEST_S) for m in moments] or [EARLIEST_S]
        values = [m.value for m in moments] or [1.0]
        low, high = value_range(values, [], [], most=max(values) / min(values) if min(values) > 0 else 3.0)
        return CurveFrame((min(seconds) * 0.9, max(seconds) * 1.15), (max(low, min(values) * 0.9), high))

    def place(self, seconds: float, value: float) -> tuple[float, float]:
        """Pixels of a point, cut at the frame."""
        left, right, top, bottom = CURVE_BOX
        across = _share(max(seconds, EARLIEST_S), *self.seconds)
        return round(left + across * (right - left), 1), round(bottom - _share(value, *self.values) * (bottom - top), 1)

    def ticks(self) -> tuple[list[float], list[float]]:
        """Round seconds and round values inside the frame."""
        return log_ticks(*self.seconds), log_ticks(*self.values)

    def stairs(self, moments: Sequence[Moment], offset_s: float = 0.0) -> str:
        """The best value over time as an SVG path."""
        places = [self.place(m.searched_s + offset_s, m.value) for m in moments]
        steps = "".join(f"H{x:g}V{y:g}" for x, y in places[1:])
        return f"M{places[0][0]:g} {places[0][1]:g}{steps}H{CURVE_BOX[1]}" if places else ""


def _share(value: float, low: float, high: float) -> float:
    """Where a value lies between two others on a logarithmic axis, from 0 to 1."""
    if not 0 < low < high or value <= 0:
        return 0.0
    return float(np.clip(np.log(value / low) / np.log(high / low), 0.0, 1.0))


# -- the map ----------------------------------------------------------------------------------------------

STEPS_PER_PX = 2
BEYOND_PX = 12.0
"""Outlines are cut so far beyond the frame."""


def outline(rings: Sequence[Ring], view: View, *, closed: bool) -> str:
    """Coasts or borders inside the view as an SVG path, in steps of 1/`STEPS_PER_PX` pixel; closer points are left out.

    Args:
        rings: see :mod:`hetplanner.plots.coastline`.
        view: what is shown.
        closed: whether a ring ends where it begins.
    """
    parts = []
    for ring in rings:
        x, y = view.place(*ring)
        if x.max() < 0 or x.min() > WIDTH or y.max() < 0 or y.min() > MAP_HEIGHT:
            continue
        x = np.clip(x, -BEYOND_PX, WIDTH + BEYOND_PX)
        y = np.clip(y, -BEYOND_PX, MAP_HEIGHT + BEYOND_PX)
        points = np.rint(STEPS_PER_PX * np.stack([x, y], axis=1)).astype(int)
        parts.append(_path(points, closed))
    return "".join(parts)


def _path(points: np.ndarray, closed: bool) -> str:
    """A ring in whole steps, relative to the point before; empty if it is too small to be seen."""
    kept = [points[0]]
    for point in points[1:]:
        if np.abs(point - kept[-1]).sum() > STEPS_PER_PX:
            kept.append(point)
    if len(kept) < (3 if closed else 2):
        return ""
    moves = np.diff(np.array(kept), axis=0)
    begin = f"M{kept[0][0]} {kept[0][1]}l"
    return begin + " ".join(f"{dx} {dy}" for dx, dy in moves.tolist()) + ("z" if closed else "")
