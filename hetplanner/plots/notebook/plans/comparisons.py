"""Planners side by side."""

import holoviews as hv

from hetplanner.planners.comparison import Comparison
from hetplanner.plots.data.curves import axis_label, event_columns, left_out_of, value_range
from hetplanner.plots.data.search.comparisons import planner_columns, search_columns, value_axis
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, table, texts, tooltips
from hetplanner.plots.theme import LIGHT, LINE_COLOURS

BOUND_COLOUR = "#228833"


def comparison(found: Comparison) -> hv.Overlay:
    """A row for every planner, the best on top: a point for every seed, the span from best to worst, the median.

    Args:
        found: of `hetplanner.compare_planners`.
    """
    ready()
    searches, planners = search_columns(found), planner_columns(found)
    bound = found.lower_bound
    low, high, log = value_axis(searches["value"], bound)
    known = [i for i, value in enumerate(planners["median"]) if value == value]
    best, median, worst, y = ([planners[name][i] for i in known] for name in ("best", "median", "worst", "y"))
    hover = tooltips(
        ("@planner", "seed @seed"),
        ("value", f"@value {found.unit}"),
        ("gap", "@gap{0.0%}"),
        ("search", "@seconds{0.00} s, @evaluations{0,0} plans"),
    )
    facts = ["planner", "seed", "gap", "seconds", "evaluations"]
    points = hv.Points(table(searches, ["value", "y", *facts]), ["value", "y"], facts, label="a seed each")
    layers: list[hv.Element] = [
        hv.Segments((best, y, worst, y), ["x0", "y0", "x1", "y1"], label="best to worst").opts(
            color=LINE_COLOURS[0], alpha=0.35, line_width=9
        ),
        hv.Segments((median, [v - 0.32 for v in y], median, [v + 0.32 for v in y]), label="median").opts(
            color=LIGHT.text, line_width=2.5
        ),
        points.opts(color=LINE_COLOURS[0], size=7, alpha=0.8, tools=[hover]),
        texts(
            [w if w == w else low for w in planners["worst"]], planners["y"], _pad(planners["text"]), text_align="left"
        ),
    ]
    if bound is not None and bound >= low:
        line = hv.Segments(([bound], [0.6 - len(planners["y"])], [bound], [0.6]), label=f"lower bound {bound:.4g}")
        layers.append(line.opts(color=BOUND_COLOUR, line_dash="dotted", line_width=1.5))
    below = f"; lower bound {bound:.4g}, off the plot" if bound is not None and bound < low else ""
    left_out = left_out_of(found.problem.objective, found.problem.cluster)
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": 130 + 50 * len(planners["y"])},
            logx=log,
            xlim=(low, high),
            ylim=(0.4 - len(planners["y"]), 0.6),
            yticks=list(zip(planners["y"], planners["planner"], strict=True)),
            xlabel=f"{axis_label(found.unit, left_out)}, less is better{below}",
            ylabel="",
            title=f"{len(found.seeds)} seeds, {found.budget} each",
        )
    )


def convergences(found: Comparison, planner: str) -> hv.Overlay:
    """Best value over seconds of search of one planner, a curve for every seed, with the lower bound.

    Args:
        found: of `hetplanner.compare_planners`.
        planner: one of its planners.

    Raises:
        InvalidInput: if that planner has no plan in it.
    """
    ready()
    found.best_result(planner)
    curves = {seed: event_columns(result.events) for seed, result in found.results(planner).items()}
    bound = found.lower_bound
    ends = [max(c["seconds"], default=1.0) for c in curves.values()]
    bests = [v for c in curves.values() for v in c["best"]]
    low, high = value_range(bests, [], [bound] if bound is not None else [])
    layers: list[hv.Element] = [
        hv.Curve((c["seconds"], c["best"]), "seconds", "value", label=f"seed {seed}").opts(
            color=LINE_COLOURS[i % len(LINE_COLOURS)], line_width=2, interpolation="steps-post", tools=["hover"]
        )
        for i, (seed, c) in enumerate(curves.items())
    ]
    if bound is not None:
        line = hv.Curve(([0.01, max(ends)], [bound, bound]), "seconds", "value", label=f"lower bound {bound:.4g}")
        layers.append(line.opts(color=BOUND_COLOUR, line_dash="dotted", line_width=1.5))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            logx=True,
            xlim=(min(min(c["seconds"], default=0.01) for c in curves.values()), max(ends)),
            ylim=(low, high),
            xlabel="seconds of search",
            ylabel=axis_label(found.unit, left_out_of(found.problem.objective, found.problem.cluster)),
            title=f"Convergence of {planner}, {len(curves)} seeds",
        )
    )


def _pad(words: list[str]) -> list[str]:
    return ["   " + text for text in words]
