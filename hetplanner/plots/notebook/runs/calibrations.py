"""Predictions against measurements."""

import holoviews as hv

from hetplanner.calibration.dtfm_rows import PublishedFit
from hetplanner.calibration.model import Calibration
from hetplanner.plots.data.runs.calibrations import check_columns, published_columns, seconds_range
from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, table, texts, tooltips
from hetplanner.plots.theme import LIGHT, LINE_COLOURS


def calibration(found: Calibration) -> hv.Overlay:
    """Predicted against measured seconds before and after a calibration; on the diagonal they are equal.

    Args:
        found: of `hetplanner.calibrate`. From a trace: the step and its terms; from a table: every row.
    """
    ready()
    columns = check_columns(found)
    low, high = seconds_range(columns["measured"], columns["before"], columns["after"])
    layers: list[hv.Element] = [
        _diagonal(low, high),
        hv.Segments((columns["measured"], columns["before"], columns["measured"], columns["after"])).opts(
            color=LIGHT.grid, line_width=2
        ),
    ]
    errors = {"before": found.mean_error("before"), "after": found.mean_error("after")}
    for name, colour, marker in (("before", LINE_COLOURS[1], "circle"), ("after", LINE_COLOURS[0], "square")):
        facts = ["label", f"error_{name}"]
        hover = tooltips(
            ("@label", name),
            ("measured", "@measured{0.0000} s"),
            ("predicted", f"@{name}{{0.0000}} s"),
            ("error", f"@error_{name}{{+0.0%}}"),
        )
        axes = ["measured", name]
        points = hv.Points(table(columns, [*axes, *facts]), axes, facts, label=f"{name}: {errors[name]:.1%} off")
        layers.append(points.opts(color=colour, marker=marker, size=9, tools=[hover]))
    if found.source == "trace":
        words = [f"   {label}" for label in columns["label"]]
        layers.append(texts(columns["measured"], columns["after"], words, text_align="left", text_baseline="top"))
    return _framed(layers, low, high, found.description)


def published(found: PublishedFit) -> hv.Overlay:
    """Published seconds per iteration as predicted from two of them, against the measured ones.

    Args:
        found: of `hetplanner.fit_published`.
    """
    ready()
    columns = published_columns(found)
    low, high = seconds_range(columns["measured"], columns["predicted"])
    layers: list[hv.Element] = [_diagonal(low, high)]
    hover = tooltips(
        ("@use", "@label"), ("measured", "@measured s"), ("predicted", "@predicted{0.00} s"), ("error", "@error{+0.0%}")
    )
    for use, colour, marker in (
        ("fitted", LIGHT.text, "diamond"),
        ("predicted", LINE_COLOURS[0], "circle"),
        ("check", LINE_COLOURS[1], "triangle"),
    ):
        rows = [i for i, value in enumerate(columns["use"]) if value == use]
        part = {name: [values[i] for i in rows] for name, values in columns.items()}
        axes, facts = ["measured", "predicted"], ["label", "use", "error"]
        label = "Megatron, checked only" if use == "check" else use
        points = hv.Points(table(part, [*axes, *facts]), axes, facts, label=label)
        layers.append(points.opts(color=colour, marker=marker, size=9, tools=[hover]))
    title = f"one efficiency, one overlap: mean error of the predicted {found.mean_error:.1%}"
    ticks = [10, 20, 30, 50, 70, 100]
    return _framed(layers, low, high, title).opts(hv.opts.Overlay(xticks=ticks, yticks=ticks))


def _diagonal(low: float, high: float) -> hv.Curve:
    line = hv.Curve(([low, high], [low, high]), "measured", "predicted", label="equal")
    return line.opts(color=LIGHT.text, line_dash="dotted", line_width=1.5)


def _framed(layers: list[hv.Element], low: float, high: float, title: str) -> hv.Overlay:
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": 400},
            logx=True,
            logy=True,
            xlim=(low, high),
            ylim=(low, high),
            xlabel="measured (s)",
            ylabel="predicted (s)",
            title=title,
        )
    )
