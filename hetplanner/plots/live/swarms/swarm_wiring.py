"""The wiring of a swarm as it is: trainers and stages as columns, peers as nodes, micro-batches as lines between."""

from collections.abc import Collection, Mapping, Sequence

from hetplanner.plots.data.swarms.swarm_wiring import (
    LINE_NAMES,
    NODE_NAMES,
    TRAINER_X,
    line_columns,
    node_columns,
    node_spots,
    shown_nodes,
    trainer_columns,
    trainer_spots,
)
from hetplanner.plots.live.base import TEXT_FONT, LiveFigure, empty_source, put, set_range
from hetplanner.runs.reading.swarm_flow import SwarmFlow

LABEL_NAMES = ("x", "y", "label")
MOST_LABELS = 8
"""Peers of a stage, and stages, beyond which names would cover each other; they are in the hover then."""
LABEL_GAP_PX = 25


class SwarmWiring(LiveFigure):
    """A column for every stage; peers that have left since are pale."""

    def __init__(self, *, dark: bool = False, height: int = 380) -> None:
        super().__init__(dark=dark, height=height, x_range=(-0.5, 0.5), y_range=(-1, 1))
        self.line_source, self.node_source = empty_source(*LINE_NAMES), empty_source(*NODE_NAMES)
        self.label_source = empty_source(*LABEL_NAMES)
        self._lines = self.figure.multi_line(
            "xs", "ys", source=self.line_source, line_width="width", line_color="colour", line_alpha=0.45,
            line_cap="round",
        )  # fmt: skip
        self._lines.hover_glyph = None
        self._nodes = self.figure.scatter(
            "x", "y", size="size", source=self.node_source, fill_color="colour", fill_alpha="alpha", line_width=1.5
        )
        self._labels = self.figure.text(
            "x", "y", text="label", source=self.label_source, y_offset=-LABEL_GAP_PX, text_align="center",
            text_baseline="middle", text_font=TEXT_FONT, text_font_size="12px", background_fill_alpha=0.75,
            padding=1,
        )  # fmt: skip
        self._add_hovers()
        self.figure.grid.visible = False
        self.figure.yaxis.visible = False
        self._label_axis(self.figure.xaxis[0], [], [])
        self._recolour()
        self.update(None)

    def _add_hovers(self) -> None:
        node = [("", "@peer, @stage"), ("measured", "@speed"), ("by the plan", "@expected"),
                ("micro-batches", "@done")]  # fmt: skip
        line = [("", "@pair"), ("micro-batches", "@count, @share of the sender's")]
        for renderer, tooltips in ((self._nodes, node), (self._lines, line)):
            self._add_tips([renderer], tooltips)

    def _recolour(self) -> None:
        super()._recolour()
        self._nodes.glyph.line_color = self.look.paper
        self._labels.glyph.update(text_color=self.look.text, background_fill_color=self.look.paper)

    def update(
        self,
        flow: SwarmFlow | None,
        num_stages: int = 0,
        present: Collection[tuple[str, int]] | None = None,
        expected: Mapping[str, Sequence[float]] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Shows what went which way in some steps; None empties the figure.

        Args:
            flow: of the run's last steps.
            num_stages: of the plan.
            present: (peer, stage) pairs present now; other peers are pale. None: all peers are present.
            expected: by peer of the plan, micro-batches per second in each stage.
            names: by peer, where it is shown by another name.
        """
        if flow is None or not flow.peers:
            for source in (self.line_source, self.node_source, self.label_source):
                put(source, {name: [] for name in source.data})
            self._say("comes with the first committed step")
            return
        spots, trainers = node_spots(flow, shown_nodes(flow)), trainer_spots(flow)
        put(self.line_source, line_columns(flow, spots, trainers, names))
        peers, senders = node_columns(flow, spots, present, expected, names), trainer_columns(flow, trainers)
        nodes = {name: [*peers[name], *senders[name]] for name in NODE_NAMES}
        put(self.node_source, nodes)
        stages = max(num_stages, *(peer.stage + 1 for peer in flow.peers))
        tallest = max(abs(y) for _, y in (*spots.values(), *trainers.values()))
        has_room = stages <= MOST_LABELS and 2 * tallest < MOST_LABELS
        put(self.label_source, {name: nodes[name] if has_room else [] for name in LABEL_NAMES})
        columns = {TRAINER_X: "trainers"} if trainers else {}
        columns |= {float(s): f"stage {s}" for s in range(stages)}
        self._label_axis(self.figure.xaxis[0], list(columns), list(columns.values()))
        set_range(self.figure.x_range, min(columns) - 0.5, stages - 0.5)
        set_range(self.figure.y_range, -tallest - 0.6, tallest + 0.8)
        self._say("")
