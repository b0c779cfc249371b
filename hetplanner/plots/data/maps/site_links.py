"""Links between sites as lines on the map: which are drawn, how wide, and where their numbers stand."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetplanner.cluster.model import Cluster, SiteLink
from hetplanner.plots.coastline import mercator
from hetplanner.plots.data.maps.labels import block_size
from hetplanner.plots.data.maps.maps import Box, arc, shorter_way
from hetplanner.units import short_rate, short_seconds

Columns = dict[str, list[Any]]
LINE_NAMES = (
    "xs", "ys", "x0", "y0", "x1", "y1", "start", "end", "width", "there", "back", "source", "chosen",
)  # fmt: skip
LABEL_NAMES = ("x", "y", "text", "start", "end")
MAX_LINES = 15
"""Lines that are drawn of more: a map of seven sites and 21 links is read no more."""
MAX_CHOSEN = 64
"""Lines of selected sites that are drawn."""
MAX_LABELS = 15
SLOW_BYTES_PER_S = 1e6 / 8
"""A link as slow as this is drawn as thin as can be."""
BOW = 0.08
"""How far a line bows to the north, as a share of its length: lines along one latitude stay apart."""
_ALONG = (0.5, 0.38, 0.62, 0.28, 0.72)


class Pair(NamedTuple):
    """Both directions between two sites; `back` may be missing."""

    start: str
    end: str
    there: SiteLink
    back: SiteLink | None

    @property
    def bandwidth(self) -> float:
        """Of the slower direction, bytes per second."""
        return min(link.bandwidth for link in (self.there, self.back) if link is not None)

    @property
    def latency(self) -> float:
        """Of the longer direction, seconds."""
        return max(link.latency for link in (self.there, self.back) if link is not None)

    @property
    def source(self) -> str:
        """How it is known: as that direction which is known worse."""
        sources = {link.source for link in (self.there, self.back) if link is not None}
        return next(s for s in ("assumed", "specified", "measured") if s in sources)

    @property
    def text(self) -> str:
        """'45 ms · 1 Gbit/s'."""
        return f"{short_seconds(self.latency)} · {short_rate(self.bandwidth)}"


def site_pairs(cluster: Cluster) -> list[Pair]:
    """All pairs of sites with a link between them; the later of two entries holds."""
    by_ends = {(k.from_site, k.to_site): k for k in cluster.site_links if k.from_site != k.to_site}
    pairs = []
    for (start, end), link in by_ends.items():
        back = by_ends.get((end, start))
        if back is None or start < end:
            pairs.append(Pair(start, end, link, back))
    return pairs


def drawn_pairs(cluster: Cluster, selected: Collection[str] = (), line: Sequence[str] = ()) -> tuple[list[Pair], str]:
    """The pairs whose lines are drawn, and a sentence about those that are not ('' if all are).

    Up to `MAX_LINES` all are. Of more, the links of the selected sites are, else those that a person set, then the
    slowest. The chosen line always is.
    """
    pairs = site_pairs(cluster)
    chosen = [pair for pair in pairs if {pair.start, pair.end} == set(line)]
    if len(pairs) <= MAX_LINES:
        return pairs, ""
    if selected:
        shown = [pair for pair in pairs if not {pair.start, pair.end}.isdisjoint(selected)]
        most, which = MAX_CHOSEN, "those of the selected sites"
    else:
        shown, most, which = pairs, MAX_LINES, "those set by hand, then the slowest; click a site for its own"
    shown = sorted(shown, key=lambda pair: (pair.source != "specified", pair.bandwidth))[:most]
    shown += [pair for pair in chosen if pair not in shown]
    return shown, f"{len(shown)} of {len(pairs)} links are drawn: {which}."


def line_columns(cluster: Cluster, pairs: Sequence[Pair], line: Sequence[str] = ()) -> Columns:
    """One arc for every pair, two across the antimeridian: xs, ys and the ends x0, y0, x1, y1 (Mercator metres), start,
    end, width (pixels, by the logarithm of the bandwidth), there and back in words, source, chosen.
    """
    at = _places(cluster)
    columns: Columns = {name: [] for name in LINE_NAMES}
    for pair in pairs:
        (x0, y0), (x1, y1) = at[pair.start], at[pair.end]
        near = shorter_way(x0, x1)
        facts = {
            "start": pair.start,
            "end": pair.end,
            "width": line_width(pair.bandwidth),
            "there": _words(pair.start, pair.end, pair.there),
            "back": _words(pair.end, pair.start, pair.back),
            "source": pair.source,
            "chosen": {pair.start, pair.end} == set(line),
        }
        for shift in (0.0,) if near == x1 else (0.0, x1 - near):
            xs, ys = arc((x0 + shift, near + shift), (y0, y1), BOW)
            row = {"xs": xs, "ys": ys, "x0": x0 + shift, "y0": y0, "x1": near + shift, "y1": y1} | facts
            for name, value in row.items():
                columns[name].append(value)
    return columns


def _words(start: str, end: str, link: SiteLink | None) -> str:
    if link is None:
        return f"{start} → {end}: no link"
    return f"{start} → {end}: {short_seconds(link.latency)}, {short_rate(link.bandwidth)}, {link.source}"


def line_width(bandwidth_bytes_per_s: float) -> float:
    """Pixels: 1 for a Mbit/s and slower, one more for every ten times as much, at most 6."""
    decades = np.log10(max(bandwidth_bytes_per_s, SLOW_BYTES_PER_S) / SLOW_BYTES_PER_S)
    return round(float(1.0 + min(decades, 5.0)), 2)


PixelBox = tuple[float, float, float, float]
"""Left, top, right, bottom on the screen."""


def label_columns(
    cluster: Cluster, pairs: Sequence[Pair], box: Box, frame_px: tuple[float, float], taken: Sequence[PixelBox]
) -> Columns:
    """Latency and bandwidth on the lines, as many as stand inside the map and clear of each other.

    Args:
        cluster: whose sites the pairs name.
        pairs: the most important first.
        box: what is looked at, in Mercator metres.
        frame_px: width and height of the map.
        taken: where the sites and their names stand.
    """
    at = _places(cluster)
    west, east, south, north = box
    full = list(taken)
    columns: Columns = {name: [] for name in LABEL_NAMES}
    for pair in pairs[:MAX_LABELS]:
        (x0, y0), (x1, y1) = at[pair.start], at[pair.end]
        xs, ys = arc((x0, shorter_way(x0, x1)), (y0, y1), BOW)
        wide, high = block_size(pair.text, ())
        for share in _ALONG:
            point = round(share * (len(xs) - 1))
            x_px = (xs[point] - west) / (east - west) * frame_px[0]
            y_px = (north - ys[point]) / (north - south) * frame_px[1]
            block = (x_px - wide / 2, y_px - high / 2, x_px + wide / 2, y_px + high / 2)
            inside = block[0] >= 0 and block[1] >= 0 and block[2] <= frame_px[0] and block[3] <= frame_px[1]
            if inside and not any(_meet(block, other) for other in full):
                full.append(block)
                row = (float(xs[point]), float(ys[point]), pair.text, pair.start, pair.end)
                for name, value in zip(LABEL_NAMES, row, strict=True):
                    columns[name].append(value)
                break
    return columns


def _meet(one: PixelBox, two: PixelBox) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def _places(cluster: Cluster) -> dict[str, tuple[float, float]]:
    x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
    return {s.name: (float(x), float(y)) for s, x, y in zip(cluster.sites, x_S, y_S, strict=True)}
