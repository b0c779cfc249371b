"""How busy the hosts of a run are, and what goes through their network cards."""

from collections.abc import Iterable

from bokeh.models import LegendItem, NumeralTickFormatter

from hetplanner.arrays import FloatArray
from hetplanner.plots.data.runs.host_loads import HostLines, busy_lines, traffic_lines
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.runs.reading.reader import RunReader

LINE_NAMES = ("xs", "ys", "colour", "host", "label")
MOST_LEGENDS = 16


class _HostCurves(LiveFigure):
    """A solid line for every host over time, and a dashed one of something else."""

    def __init__(self, words: tuple[str, str], unit: str, axis: str, *, dark: bool, height: int) -> None:
        super().__init__(dark=dark, height=height, x_axis_label="seconds", y_axis_label=axis)
        self.sources = [empty_source(*LINE_NAMES) for _ in words]
        lines = [
            self.figure.multi_line("xs", "ys", source=source, line_color="colour", line_width=1.6, line_dash=dash)
            for source, dash in zip(self.sources, ("solid", "dashed"), strict=True)
        ]
        for renderer, word in zip(lines, words, strict=True):
            self._add_tips([renderer], [("host", "@host"), (word, f"$y{unit} at $x{{0,0}} s")], line_policy="nearest")
        self._labels = LegendItem(label={"field": "label"}, renderers=[lines[0]], visible=False)
        self._add_legend([]).items = [self._labels]

    def _show(self, found: HostLines, top: float | None) -> None:
        for source, rows in zip(self.sources, (found.solid, found.dashed), strict=True):
            put(source, {name: [row[name] for row in rows] for name in LINE_NAMES})
        rows = [*found.solid, *found.dashed]
        self._labels.visible = 0 < len(found.solid) <= MOST_LEGENDS
        set_range(self.figure.x_range, 0.0, _most(row["xs"] for row in rows) or 1.0)
        set_range(self.figure.y_range, 0.0, top or 1.1 * _most(row["ys"] for row in rows) or 1.0)
        self._say("" if rows else "comes a second after the ranks start")


class HostLoads(_HostCurves):
    """Share of a host's processors in use (solid), and of its GPUs' time (dashed), by everything that runs there."""

    def __init__(self, *, dark: bool = False, height: int = 260) -> None:
        super().__init__(("processors", "GPUs, mean"), "{0 %}", "share in use", dark=dark, height=height)
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0 %")
        self._recolour()
        self.update(None)

    def update(self, run: RunReader | None) -> None:
        """Shows a run as far as it was polled."""
        self._show(busy_lines(run) if run is not None else HostLines([], []), 1.05)


class HostTraffic(_HostCurves):
    """What a host sends (solid) and receives (dashed) through its network cards; one host alone over loopback."""

    def __init__(self, *, dark: bool = False, height: int = 260) -> None:
        super().__init__(("sent", "received"), "{0.0} Mbit/s", "Mbit/s", dark=dark, height=height)
        self._recolour()
        self.update(None)

    def update(self, run: RunReader | None) -> None:
        """Shows a run as far as it was polled."""
        self._show(traffic_lines(run) if run is not None else HostLines([], []), None)


def _most(arrays: Iterable[FloatArray]) -> float:
    return max((float(values.max()) for values in arrays), default=0.0)
