"""What every rank does when."""

import holoviews as hv

from hetplanner.plan.trace import Trace
from hetplanner.plots.data.spans import MAX_SPANS, chosen_spans, span_columns
from hetplanner.plots.notebook.backend import FRAME, LEGEND, boxes, ready, tooltips
from hetplanner.plots.theme import FILL_ALPHA, KIND_COLOURS

FACTS = ["rank", "what", "step", "duration", "when", "bytes", "peer"]


def gantt(trace: Trace, step: int | None = None) -> hv.Overlay:
    """A row for every rank: compute above, transfers and reductions below; hover for the facts, drag to pan.

    Args:
        trace: simulated or measured.
        step: one step, in seconds from its start; None: the newest steps.
    """
    ready()
    spans, origin = chosen_spans(trace, step, MAX_SPANS)
    hover = tooltips(
        ("", "@what, step @step"), ("rank", "@rank"), ("takes", "@duration (@when)"), ("bytes, peer", "@bytes, @peer")
    )
    layers = []
    for kind, columns in span_columns(spans, trace.rank_labels, origin).items():
        if columns["y"]:
            edges = (
                [y - h / 2 for y, h in zip(columns["y"], columns["height"], strict=True)],
                [y + h / 2 for y, h in zip(columns["y"], columns["height"], strict=True)],
            )
            facts = {fact: columns[fact] for fact in FACTS}
            options = {"color": KIND_COLOURS[kind], "alpha": FILL_ALPHA.get(kind, 1.0), "tools": [hover]}
            layers.append(boxes((columns["left"], columns["right"]), edges, facts, kind, **options))
    ranks = len(trace.rank_labels)
    every = -(-ranks // 30) or 1
    return hv.Overlay(layers or [hv.Rectangles([])]).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": min(120 + 34 * ranks, 620), "active_tools": ["xpan"]},
            ylim=(0.5 - max(ranks, 1), 0.5),
            yticks=[(-r, trace.rank_labels[r]) for r in range(0, ranks, every)],
            xlabel="seconds" if step is None else f"seconds of step {step}",
            ylabel="",
            title=f"Timeline ({trace.origin})",
        )
    )
