"""What every rank does when."""

import holoviews as hv

from hetplanner.plan.trace import Trace
from hetplanner.plots.data.steps.spans import MAX_SPANS, chosen_spans, span_columns
from hetplanner.plots.notebook.backend import FRAME, LEGEND, boxes, ready, tooltips
from hetplanner.plots.theme import FILL_ALPHA, KIND_COLOURS

FACTS = ("rank", "role", "micro_batch", "step", "milliseconds", "bytes", "peer")


def gantt(trace: Trace, step: int | None = None) -> hv.Overlay:
    """A row for every rank: compute above, transfers and reductions below; hover for the facts, drag to pan.

    Args:
        trace: simulated or measured.
        step: one step, in seconds from its start; None: the newest steps.
    """
    ready()
    spans, origin = chosen_spans(trace, step, MAX_SPANS)
    layers = []
    for kind, columns in span_columns(spans, trace.rank_labels, origin).items():
        if len(columns["y"]):
            edges = columns["y"] - columns["height"] / 2, columns["y"] + columns["height"] / 2
            facts = {fact: columns[fact] for fact in FACTS}
            hover = tooltips(
                (kind, "@role micro-batch @micro_batch, step @step"),
                ("rank", "@rank"),
                ("takes", "@milliseconds{0,0.000} ms"),
                ("peer", "@peer, @bytes{0,0} bytes"),
            )
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
