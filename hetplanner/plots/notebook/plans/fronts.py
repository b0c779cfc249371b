"""The front of step time and dollars."""

import math
from collections.abc import Sequence

import holoviews as hv

from hetplanner.plan.estimate import left_out_text
from hetplanner.planners.step_time.pareto import ParetoFront
from hetplanner.plots.data.search.fronts import front_axis, front_columns, named_points
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, table, texts, tooltips
from hetplanner.plots.theme import LINE_COLOURS

BOUND_COLOUR = "#228833"


def pareto(found: ParetoFront) -> hv.Overlay:
    """Every plan of a front at its step time and dollars; no plan lies below and left of the bounds.

    Args:
        found: of `hetplanner.pareto`.
    """
    ready()
    word = found.problem.workload.token_word
    columns = front_columns(found.to_rows(), word)
    xs, ys = columns["step_s"], columns["usd_per_mtoken"]
    x_low, x_high, x_log = front_axis(xs, words=0.16)
    y_low, y_high, y_log = front_axis(ys)
    hover = tooltips(
        ("step", "@step, @tokens_per_s{0,0} " + f"{word}/s"),
        ("price", "@price, @tokens_per_usd{0,0} " + f"{word} per $"),
        ("egress", "@egress{0.0%} of the price"),
        ("left out", "@left_out"),
        ("plan", "@stages stages, @pipelines pipelines, @devices devices"),
        ("bottleneck", "@bottleneck"),
    )
    left_out = left_out_text(found.unpriced_egress_bytes)
    facts = [name for name in columns if name not in ("step_s", "usd_per_mtoken", "text")]
    points = hv.Points(table(columns, ["step_s", "usd_per_mtoken", *facts]), ["step_s", "usd_per_mtoken"], facts)
    named = named_points(_scaled(xs, x_log), _scaled(ys, y_log))
    beside = ["  " + columns["text"][i] for i in named]
    layers: list[hv.Element] = [
        # Between two plans nothing is both as fast as the left and as cheap as the right one.
        hv.Curve((xs, ys), "step_s", "usd_per_mtoken", label="nothing better found").opts(
            color=LINE_COLOURS[0], alpha=0.5, line_width=2, interpolation="steps-post"
        ),
        points.relabel("plans").opts(color=LINE_COLOURS[0], size=8, tools=[hover]),
        texts([xs[i] for i in named], [ys[i] for i in named], beside, text_align="left", text_baseline="bottom"),
    ]
    if x_low <= found.least_step_s <= x_high:
        layers.append(_bound(([found.least_step_s], [y_low], [found.least_step_s], [y_high])))
    if y_low <= found.least_usd_per_mtoken <= y_high:
        layers.append(_bound(([x_low], [found.least_usd_per_mtoken], [x_high], [found.least_usd_per_mtoken])))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            logx=x_log,
            logy=y_log,
            xlim=(x_low, x_high),
            ylim=(y_low, y_high),
            xlabel=f"step time (s); bound {found.least_step_s:.4g}",
            ylabel=f"$ per million {word}; bound {found.least_usd_per_mtoken:.4g}",
            title=f"Step time against dollars: {len(xs)} plans, none beaten in both"
            + (f"\n{left_out}" if left_out else ""),
        )
    )


def _bound(ends: tuple[list[float], list[float], list[float], list[float]]) -> hv.Segments:
    return hv.Segments(ends, label="lower bound").opts(color=BOUND_COLOUR, line_dash="dotted", line_width=1.5)


def _scaled(values: Sequence[float], log: bool) -> list[float]:
    return [math.log(v) for v in values] if log else list(values)
