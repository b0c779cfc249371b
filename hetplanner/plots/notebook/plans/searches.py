"""A search as it converged."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import holoviews as hv

from hetplanner.plan.model import Plan
from hetplanner.plots.data.curves import (
    TRIED_NAMES,
    axis_label,
    event_columns,
    left_out_of,
    level_columns,
    stairs,
    tried_columns,
    value_range,
)
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, texts, tooltips
from hetplanner.plots.theme import LIGHT, LINE_COLOURS

UNITS = {"cost": "$ per million tokens"}


class Searched(Protocol):
    """What a search's result has; `lower_bound` and `baselines` are read too, if it has them."""

    @property
    def events(self) -> Sequence[Any]:
        """Objects or mappings with fields of :class:`hetplanner.planners.interface.SearchEvent`."""

    @property
    def plan(self) -> Plan:
        """The best plan."""


def objective_value(plan: Plan) -> float | None:
    """What the plan's objective makes of its estimate; None without one."""
    found = plan.estimate
    if found is None:
        return None
    if plan.problem.objective == "dtfm":
        return found.dtfm.total_s if found.dtfm else None
    return found.usd_per_mtoken if plan.problem.objective == "cost" else found.step_s


def convergence(result: Searched | Sequence[Any], baselines: Mapping[str, float | Plan] | None = None) -> hv.Overlay:
    """Best so far and quantiles of the population over seconds of search, against baselines and the lower bound.

    The curve begins at the first evaluation, and every value holds until the next; loading kernels is not on the axis.

    Args:
        result: of `hetplanner.search`, or its events alone while it is under way.
        baselines: name -> plan, or value of the objective; by default the result's own, if it has any.
    """
    ready()
    events = result if isinstance(result, Sequence) else result.events
    given = baselines if baselines is not None else getattr(result, "baselines", None) or {}
    values = {name: objective_value(item) if isinstance(item, Plan) else item for name, item in given.items()}
    levels = {name: value for name, value in values.items() if value is not None}
    bound = getattr(result, "lower_bound", None)
    columns = event_columns(events, bound)
    plan = getattr(result, "plan", None)
    unit = UNITS.get(plan.problem.objective, "s") if plan else ""
    left_out = left_out_of(plan.problem.objective, plan.problem.cluster) if plan else ""
    bounds = {"lower bound": float(bound)} if bound is not None else {}
    low, high = value_range(columns["best"], columns["high"], [*levels.values(), *bounds.values()])
    end = max([1.0, *columns["seconds"]])
    x, lower = stairs(columns["seconds"], columns["low"])
    upper = stairs(columns["seconds"], columns["high"])[1]
    best, median = (
        hv.Curve((columns["seconds"], columns[name]), "seconds", "value", label=label).opts(interpolation="steps-post")
        for name, label in (("best", "best"), ("median", "population: median, 10 to 90 %"))
    )
    layers = [
        hv.Area((x, lower, upper), "seconds", ["value", "upper"]).opts(color="#4477AA", alpha=0.15, line_alpha=0),
        median.opts(color="#7799BB", line_dash="dashed"),
        best.opts(color="#4477AA", line_width=2.5, tools=["hover"]),
        hv.Scatter((columns["seconds"][:1], columns["best"][:1]), "seconds", "value").opts(color="#4477AA", size=7),
        *_lines(levels, unit, low, high, end, LIGHT.muted, "dashed", "bottom"),
        *_lines(bounds, unit, low, high, end, "#228833", "dotted", "top"),
    ]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            logx=True,
            xlim=(0.9 * min([0.1, *columns["seconds"]]), end),
            ylim=(low, high),
            xlabel="seconds of search",
            ylabel=axis_label(unit, left_out),
            title="Convergence",
        )
    )


def tried(result: Any) -> hv.Overlay:
    """The shapes that a search tried: the value of each one's best plan over its number of stages.

    Args:
        result: of `hetplanner.search` with a planner that tells (`evolution`).
    """
    ready()
    unit = UNITS.get(result.plan.problem.objective, "s")
    columns, left_out = tried_columns(result.tried, unit)
    rows = list(zip(*columns.values(), strict=True))
    hover = tooltips(("stages × replicas", "@shape"), ("best", "@text"))
    looks: dict[str, dict[str, Any]] = {
        "scored": {"color": "#999999", "fill_alpha": 0.0},
        "annealed": {"color": LINE_COLOURS[0], "fill_alpha": 0.45},
        "best": {"color": LINE_COLOURS[1]},
    }
    facts = list(TRIED_NAMES[1:])
    layers: list[hv.Element] = [
        hv.Scatter([row for row in rows if row[3] == kind], "stages", facts, label=kind).opts(
            size="size", tools=[hover], **look
        )
        for kind, look in looks.items()
    ]
    names = [row for row in rows if row[3] == "best"]
    layers.append(texts([r[0] for r in names], [r[1] for r in names], ["  " + r[4] for r in names], text_align="left"))
    title = f"Shapes tried{f', {left_out} more are far slower or do not fit' if left_out else ''}"
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND, logy=True, xlabel="stages", ylabel="step time (s)" if unit == "s" else unit, title=title
        )
    )


def _lines(
    levels: Mapping[str, float], unit: str, low: float, high: float, end: float, colour: str, dash: str, side: str
) -> list[hv.Element]:
    columns = level_columns(levels, unit, high - 0.09 * (high - low), high - low)
    lines: list[hv.Element] = [hv.HLine(y).opts(color=colour, line_dash=dash, line_width=1.2) for y in columns["y"]]
    if lines:
        options = {"text_align": "right", "text_color": colour, "text_font_size": "8pt", "text_baseline": side}
        lines.append(texts([end] * len(lines), columns["label_y"], columns["text"], **options))
    return lines
