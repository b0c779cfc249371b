"""Several runs in one figure: loss or throughput over steps, seconds, bytes or dollars."""

from collections.abc import Collection, Sequence

from hetplanner.plots.data.curves import Columns, padded_range
from hetplanner.plots.data.runs.run_overlays import AXES, value_label
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import line_colour

LABEL_CHARS = 48


class RunOverlay(LiveFigure):
    """A line a run, named in the legend."""

    def __init__(self, *, dark: bool = False, height: int = 300) -> None:
        super().__init__(dark=dark, height=height)
        self.source = empty_source("xs", "ys", "colour", "run")
        lines = self.figure.multi_line("xs", "ys", line_color="colour", line_width=2, source=self.source)
        self._add_legend([({"field": "run"}, [lines])])
        self._recolour()
        self.update([], "loss", "steps")

    def update(self, lines: Sequence[tuple[str, Columns]], value: str, over: str, words: Collection[str] = ()) -> None:
        """Shows runs.

        Args:
            lines: name, and columns x and y, of each.
            value, over: of VALUES and AXES, for the axes.
            words: what the runs' throughputs count.
        """
        shown = [(i, name, columns) for i, (name, columns) in enumerate(lines) if columns["x"]]
        named = [f"{i + 1}: {name[:LABEL_CHARS]}" for i, name, _ in shown]  # two runs may bear one name
        put(
            self.source,
            {
                "xs": [list(columns["x"]) for _, _, columns in shown],
                "ys": [list(columns["y"]) for _, _, columns in shown],
                "colour": [line_colour(i) for i, _, _ in shown],
                "run": named,
            },
        )
        x = [v for _, _, columns in shown for v in columns["x"]]
        y = [v for _, _, columns in shown for v in columns["y"]]
        set_range(self.figure.x_range, min(x, default=0.0), max(max(x, default=0.0), min(x, default=0.0) + 1e-9))
        set_range(self.figure.y_range, *padded_range(y, floor=0.0 if value == "throughput" else None))
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = AXES[over], value_label(value, words)
        nothing = "choose runs above" if not lines else "no step of these runs has both values"
        self._say("" if shown else nothing)
