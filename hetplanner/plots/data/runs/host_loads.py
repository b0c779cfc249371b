"""How busy a run's hosts were, as lines over time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.telemetry import HostSample

MEGABIT = 1e6 / 8
MOST_POINTS = 8_000
"""Of a figure's lines, over all hosts: a page gets them again with every step."""
Lines = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class HostLines:
    """One figure: solid lines and dashed ones of the same hosts.

    Every line has xs (seconds since the first sample of any host), ys (float64 arrays), colour, host, label.
    """

    solid: Lines
    dashed: Lines


def busy_lines(run: RunReader) -> HostLines:
    """Shares in use, 0 to 1: processors solid, GPUs (their mean) dashed."""
    return HostLines(
        _lines(run, lambda s: s.cpu),
        _lines(run, lambda s: sum(busy for busy, _ in s.gpus) / len(s.gpus) if s.gpus else None),
    )


def traffic_lines(run: RunReader) -> HostLines:
    """Mbit/s through a host's network cards: sent solid, received dashed; of a single host over loopback."""
    if len(_hosts(run)) == 1:
        return HostLines(_lines(run, lambda s: (s.sent + s.loopback) / MEGABIT), [])
    return HostLines(_lines(run, lambda s: s.sent / MEGABIT), _lines(run, lambda s: s.received / MEGABIT))


def _hosts(run: RunReader) -> list[list[HostSample]]:
    return [telemetry.loads for telemetry in run.ranks if telemetry.loads]


def _lines(run: RunReader, of: Callable[[HostSample], float | None]) -> Lines:
    hosts, lines = _hosts(run), []
    every = 1 + sum(map(len, hosts)) // MOST_POINTS
    start_s = min((samples[0].time_s for samples in hosts), default=0.0)
    for number, samples in enumerate(hosts):
        points = [(s.time_s - start_s, y) for s in samples if (y := of(s)) is not None]
        if not points:
            continue
        xs, ys = np.array(points[::-every][::-1], dtype=np.float64).T  # the newest stays
        host = samples[-1].host
        lines.append({"xs": xs, "ys": ys, "colour": line_colour(number), "host": host, "label": host})
    return lines
