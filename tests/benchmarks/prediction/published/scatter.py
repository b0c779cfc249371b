"""A picture of predicted against published seconds, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tests.benchmarks.prediction.published.layouts import Timed

COLOURS = ("#228833", "#4477AA", "#EE6677")
SIZE, LEFT, TOP = 400.0, 60.0, 40.0
LEAST_S, MOST_S = 1.0, 5.0
TICKS_S = (1, 1.5, 2, 3, 4, 5)
NEAR = 0.1
RADIUS = 4.0


def scatter(of: Mapping[str, Sequence[Timed]]) -> str:
    """Each run a point, fitted ones hollow; lines where they are equal and 10 % apart; both axes logarithmic.

    Args:
        of: runs by the words of the legend.
    """
    title = "Seconds of a step: predicted over published"
    width, height = LEFT + SIZE + 160, TOP + SIZE + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{title}" font-family="sans-serif" font-size="12" fill="#222">',
        f"<title>{title}</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#ffffff"/>',
        f'<rect x="{LEFT:g}" y="{TOP:g}" width="{SIZE:g}" height="{SIZE:g}" fill="none" stroke="#cbd5e0"/>',
    ]
    for factor, dashes in ((1.0, ""), (1.0 - NEAR, ' stroke-dasharray="4 4"'), (1.0 + NEAR, ' stroke-dasharray="4 4"')):
        start, end = max(LEAST_S, LEAST_S / factor), min(MOST_S, MOST_S / factor)
        parts.append(
            f'<line x1="{_x(start):.1f}" y1="{_y(start * factor):.1f}" x2="{_x(end):.1f}" y2="{_y(end * factor):.1f}"'
            f' stroke="#718096"{dashes}/>'
        )
    for tick in TICKS_S:
        parts.append(f'<text x="{_x(tick):.1f}" y="{TOP + SIZE + 16:g}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{LEFT - 8:g}" y="{_y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{LEFT + SIZE / 2:g}" y="{TOP + SIZE + 36:g}" text-anchor="middle">published, s</text>')
    middle = TOP + SIZE / 2
    parts.append(
        f'<text x="16" y="{middle:g}" text-anchor="middle" transform="rotate(-90 16 {middle:g})">predicted, s</text>'
    )
    parts.append(f'<text x="{LEFT:g}" y="{TOP - 14:g}" font-weight="bold" font-size="14">{title}</text>')
    for colour, (words, runs) in zip(COLOURS, of.items(), strict=True):
        row = TOP + 20 * (COLOURS.index(colour) + 1)
        parts.append(f'<circle cx="{LEFT + SIZE + 20:g}" cy="{row - 4:g}" r="{RADIUS:g}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + SIZE + 32:g}" y="{row:g}">{words}</text>')
        for run in runs:
            fill = "none" if run.is_fitted else colour
            place = f'cx="{_x(run.published_s):.1f}" cy="{_y(run.simulated_s):.1f}"'
            parts.append(f'<circle {place} r="{RADIUS:g}" fill="{fill}" stroke="{colour}" fill-opacity="0.7"/>')
    parts.append(f'<text x="{LEFT + SIZE + 14:g}" y="{TOP + 84:g}">hollow: fitted</text>')
    parts.append(f'<text x="{LEFT + SIZE + 14:g}" y="{TOP + 104:g}">dashed: 10 % apart</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _share(seconds: float) -> float:
    return math.log(seconds / LEAST_S) / math.log(MOST_S / LEAST_S)


def _x(seconds: float) -> float:
    return LEFT + SIZE * _share(seconds)


def _y(seconds: float) -> float:
    return TOP + SIZE * (1.0 - _share(seconds))
