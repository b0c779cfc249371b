"""What every rank does when: a Gantt chart of a simulated or measured run."""

from bokeh.models import BasicTickFormatter, CustomJSHover, HoverTool, PanTool, ResetTool, WheelZoomTool

from hetplanner.plan.trace import Trace
from hetplanner.plots.data.search.grid import shortened
from hetplanner.plots.data.steps.spans import KINDS, MAX_SPANS, NUMBERS, WORDS, chosen_spans, span_columns
from hetplanner.plots.live.base import LiveFigure, empty_source, put, set_range
from hetplanner.plots.theme import FILL_ALPHA, KIND_COLOURS

WINDOW_STEPS = 3
"""Steps that are in view while the newest are followed."""
LABEL_PX = 14
"""Height of a rank's label; where rows are lower, every second or third is labelled."""


PEER = {
    "send": [("to", "@peer, @bytes{0,0} bytes")],
    "recv": [("from", "@peer")],
    "reduce": [("moves", "@bytes{0,0} bytes")],
}


class Timeline(LiveFigure):
    """A row for every rank: compute above, transfers and reductions below; at most `max_spans` bars."""

    def __init__(self, *, dark: bool = False, height: int = 360, max_spans: int = MAX_SPANS) -> None:
        super().__init__(
            dark=dark,
            height=height,
            y_range=(-0.5, 0.5),
            x_axis_label="seconds",
            toolbar_location="right",
            toolbar_inner=True,
        )
        self.figure.xaxis[0].formatter = BasicTickFormatter(use_scientific=False)  # a step may take milliseconds
        self.max_spans = max_spans
        self.sources = {kind: empty_source(*NUMBERS, *WORDS) for kind in KINDS}
        self._bars = {
            kind: self.figure.hbar(
                y="y", left="left", right="right", height="height", source=source, line_width=0.5,
                color=KIND_COLOURS[kind], alpha=FILL_ALPHA.get(kind, 1.0),
            )
            for kind, source in self.sources.items()
        }  # fmt: skip
        swatches = {kind: self._swatch(KIND_COLOURS[kind], fill_alpha=FILL_ALPHA.get(kind, 1.0)) for kind in KINDS}
        self._add_legend([(kind, [swatches[kind], self._bars[kind]]) for kind in KINDS], click_policy="hide")
        self._add_tools()
        self.figure.ygrid.visible = False
        self._recolour()
        self.update(None)

    def _add_tools(self) -> None:
        pan = PanTool(dimensions="width")
        self.figure.add_tools(
            pan,
            WheelZoomTool(dimensions="width", modifiers={"ctrl": True}),
            ResetTool(),
            *(
                HoverTool(
                    renderers=[bars],
                    tooltips=self._tooltips(kind),
                    formatters=self._formatters,
                    visible=False,
                )
                for kind, bars in self._bars.items()
            ),
        )
        self.figure.toolbar.active_drag = pan
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True

    @property
    def _formatters(self) -> dict[str, CustomJSHover]:
        """For columns that hold no words."""
        return {}

    def _tooltips(self, kind: str) -> list[tuple[str, str]]:
        return [
            (kind, "@role micro-batch @micro_batch, step @step"),
            ("rank", "@rank"),
            ("takes", "@milliseconds{0,0.000} ms, from @left{0,0.0000} s"),
            *PEER.get(kind, []),
        ]

    def update(self, trace: Trace | None, step: int | None = None, follow: bool = True) -> None:
        """Shows a trace.

        Args:
            trace: None or empty: nothing to show.
            step: one step, in seconds from its start; None: the newest steps, in seconds of the run.
            follow: move the view to what is shown (without `step`: to the newest steps); False leaves it where
                the user put it.
        """
        spans, origin = chosen_spans(trace, step, self.max_spans) if trace else ([], 0.0)
        labels = trace.rank_labels if trace else ()
        for kind, columns in span_columns(spans, labels, origin).items():
            put(self.sources[kind], columns)
        self._label_ranks(labels)
        self._say("" if spans else "no spans yet: simulate a plan or start a run")
        if follow and spans:
            shown = spans
            if step is None:
                newest = max(s.step for s in spans)
                shown = [s for s in spans if s.step > newest - WINDOW_STEPS]
            start = min(s.start_s for s in shown) - origin
            end = max(s.end_s for s in shown) - origin
            set_range(self.figure.x_range, start, end + 0.01 * (end - start or 1.0))

    def _label_ranks(self, labels: tuple[str, ...]) -> None:
        room = max((self.figure.height - 90) // LABEL_PX, 1)
        every = -(-len(labels) // room) or 1
        rows = [float(-rank) for rank in range(0, len(labels), every)]
        self._label_axis(self.figure.yaxis[0], rows, [shortened(label, 18) for label in labels[::every]])
        set_range(self.figure.y_range, 0.5 - max(len(labels), 1), 0.5)
