"""A swarm over a preemption trace, and the square-cube law."""

from collections.abc import Mapping, Sequence

import holoviews as hv

from hetplanner.cost.square_cube import SquareCubePoint
from hetplanner.elastic.forecast.forecast import Forecast
from hetplanner.elastic.forecast.swarm_run import SwarmRun
from hetplanner.errors import InvalidInput
from hetplanner.plots.data.swarms.swarms import (
    forecast_columns,
    policy_columns,
    square_cube_columns,
    trace_columns,
    utilisation_columns,
)
from hetplanner.plots.notebook.backend import FRAME, LEGEND, boxes, ready, tooltips
from hetplanner.plots.theme import LIGHT, LINE_COLOURS
from hetplanner.runs.reports.utilisation import Utilisation


def swarm_throughput(runs: SwarmRun | Mapping[str, SwarmRun]) -> hv.Overlay:
    """Throughput over a trace, a curve for every policy, below the optimum of the peers that are there.

    Args:
        runs: of `hetplanner.simulate_swarm`; several of the same trace by label, the last on top.

    Raises:
        InvalidInput: no run, or runs of unlike traces.
    """
    ready()
    named: dict[str, SwarmRun] = {str(runs.settings.policy): runs} if isinstance(runs, SwarmRun) else dict(runs)
    traces = {run.trace for run in named.values()}
    if len(traces) != 1:
        raise InvalidInput(f"runs: must be at least one, all of the same trace, got {len(traces)} traces")
    labels = policy_columns(named)["text"]
    columns = [trace_columns(run) for run in named.values()]
    layers: list[hv.Element] = [
        hv.Curve((columns[0]["hours"], columns[0]["optimal"]), "hours", "throughput", label="optimal").opts(
            color=LIGHT.text, line_dash="dotted", line_width=1.5, interpolation="steps-post"
        )
    ]
    hover = tooltips(
        ("time", "@hours{0.00} h"),
        ("throughput", "@throughput{0.00} micro-batches/s"),
        ("of the optimal", "@share{0.0%}"),
        ("peers", "@peers{0}"),
    )
    for i, (label, rows) in enumerate(zip(labels, columns, strict=True)):
        curve = hv.Curve(rows, "hours", ["throughput", "share", "peers"], label=label)
        colour = LINE_COLOURS[i % len(LINE_COLOURS)]
        layers.append(curve.opts(color=colour, line_width=1.5, interpolation="steps-post", tools=[hover]))
    top = max(max(rows["optimal"]) for rows in columns)
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"width": 960},
            ylim=(0.0, 1.08 * top or 1.0),
            xlabel="hours",
            ylabel="micro-batches/s",
            title=next(iter(traces)),
        )
    )


def swarm_forecast(found: Mapping[str, Forecast]) -> hv.Overlay:
    """Expected throughput of an elastic plan by policy: a dot for every seed, a bar from 5 % to 95 %, the mean.

    Args:
        found: of `hetplanner.forecast`.

    Raises:
        InvalidInput: there is nothing to draw.
    """
    ready()
    if not found:
        raise InvalidInput("found: must hold at least one forecast")
    rows = forecast_columns(found)
    steady = max(each.steady_tokens_per_s for each in found.values())
    hover = tooltips(("", "@text"), ("this seed", "@tokens{0,0} tokens/s"), ("of the optimal", "@share{0.0%}"))
    labels, spreads = list(found), [each.tokens_per_s for each in found.values()]
    y = [-float(i) for i in range(len(labels))]
    edges = [v - 0.16 for v in y], [v + 0.16 for v in y]
    bars = boxes(([s.p05 for s in spreads], [s.p95 for s in spreads]), edges, {}, color=LINE_COLOURS[0], alpha=0.3)
    means = hv.Segments(
        ([s.mean for s in spreads], [v - 0.3 for v in y], [s.mean for s in spreads], [v + 0.3 for v in y])
    )
    dots = hv.Points(rows, ["tokens", "y"], ["text", "share"])
    still = hv.Segments(([steady], [y[-1] - 0.5], [steady], [0.5]))
    low, high = min(rows["tokens"]), max(*rows["tokens"], steady)
    room = 0.08 * (high - low) or 0.08 * high
    layers: list[hv.Element] = [
        still.relabel("steady").opts(color=LIGHT.text, line_dash="dotted", line_width=1.5),
        bars,
        means.opts(color=LINE_COLOURS[0], line_width=3),
        dots.opts(color=LINE_COLOURS[0], size=6, alpha=0.7, tools=[hover]),
    ]
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": 130 + 55 * len(labels)},
            xlim=(low - room, high + room),
            ylim=(y[-1] - 0.6, 0.6),
            yticks=list(zip(y, labels, strict=True)),
            xlabel="tokens/s",
            ylabel="",
            title=f"Expected throughput, {len(spreads[0].shares)} seeds of {next(iter(found.values())).runs[0].trace}",
        )
    )


def square_cube(points: Sequence[SquareCubePoint]) -> hv.Overlay:
    """Compute and transfer time of a stage over its width: where compute is above a transfer, the network keeps up.

    Args:
        points: of `hetplanner.square_cube_law`.

    Raises:
        InvalidInput: there are no points.
    """
    ready()
    if not points:
        raise InvalidInput("points: must hold at least one")
    lines = square_cube_columns(points)
    compute = lines.pop("compute")
    layers: list[hv.Element] = [
        hv.Curve(compute, "hidden", "seconds", label="compute").opts(color=LIGHT.text, line_width=3)
    ]
    hover = tooltips(
        ("hidden", "@hidden{0,0}"), ("transfer", "@seconds{0.0000} s"), ("device computes", "@utilisation{0%}")
    )
    for i, (label, rows) in enumerate(lines.items()):
        colour = LINE_COLOURS[i % len(LINE_COLOURS)]
        layers.append(hv.Curve(rows, "hidden", ["seconds", "utilisation"], label=label).opts(color=colour))
        marks = hv.Points(rows, ["hidden", "seconds"], ["utilisation"], label=label)
        layers.append(marks.opts(color=colour, size=7, tools=[hover]))
    ticks = sorted(set(compute["hidden"]))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            logx=True,
            logy=True,
            xticks=ticks,
            xlim=(ticks[0] / 1.15, ticks[-1] * 1.15),
            xlabel="hidden size",
            ylabel="seconds a micro-batch",
            title="Square-cube law: compute outgrows traffic with the model's width",
        )
    )


def utilisation(points: Sequence[Utilisation]) -> hv.Overlay:
    """Share of a step in which devices compute, over the model's width on one network: predicted line, measured points.

    Args:
        points: of `hetplanner.utilisation_of_run`, of runs that differ in their hidden size.

    Raises:
        InvalidInput: there are no points.
    """
    ready()
    if not points:
        raise InvalidInput("points: must hold at least one")
    rows = utilisation_columns(points)
    hover = tooltips(
        ("hidden", "@hidden{0,0}"), ("measured", "@measured{0.0%}"), ("predicted", "@predicted{0.0%}"),
        ("predicted over measured", "@error{+0.0%}"),
    )  # fmt: skip
    line = hv.Curve(rows, "hidden", "predicted", label="predicted").opts(color=LIGHT.text, line_width=2)
    steps = hv.Segments(rows, ["hidden", "least", "hidden", "most"]).opts(color=LINE_COLOURS[0], line_width=2)
    marks = hv.Points(rows, ["hidden", "measured"], ["predicted", "error"], label="measured")
    top = max(*rows["most"], *rows["predicted"])
    return hv.Overlay([line, steps, marks.opts(color=LINE_COLOURS[0], size=8, tools=[hover])]).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            logx=True,
            xticks=rows["hidden"],
            xlim=(rows["hidden"][0] / 1.15, rows["hidden"][-1] * 1.15),
            ylim=(0.0, min(1.0, 1.15 * top)),
            xlabel="hidden size",
            ylabel="share of a step spent computing",
            title="Square-cube law: wider models wait less for the same network",
        )
    )
