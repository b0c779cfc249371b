"""Step times of simulations with jitter."""

import holoviews as hv
import numpy as np

from hetplanner.plots.notebook.backend import FRAME, LEGEND, ready, tooltips
from hetplanner.plots.theme import LINE_COLOURS
from hetplanner.simulator.timing import Spread
from hetplanner.units import short_seconds


def spread(found: Spread) -> hv.Overlay:
    """Share of runs whose step was at most so long, and the step without jitter.

    Args:
        found: of `hetplanner.simulate_spread`.
    """
    ready()
    times = np.sort(found.step_s)
    share = np.arange(1, len(times) + 1) / len(times)
    hover = tooltips(("step", "@step_s{0.0000} s"), ("runs as fast or faster", "@share{0%}"))
    data = {"step_s": times, "share": share}
    steps = hv.Curve(data, "step_s", "share").opts(
        color=LINE_COLOURS[0], line_width=2, interpolation="steps-post", alpha=0.6
    )
    points = hv.Points(data, ["step_s", "share"]).opts(color=LINE_COLOURS[0], size=6, tools=[hover])
    still = hv.Segments(([found.still_s], [0.0], [found.still_s], [1.0]))
    low, high = min(found.still_s, times[0]), max(found.still_s, times[-1])
    room = 0.05 * (high - low) or 0.05 * high
    layers = [
        steps.relabel("with jitter"),
        points,
        still.relabel("without jitter").opts(color=LINE_COLOURS[1], line_width=2, line_dash="dashed"),
    ]
    middle = f"median {short_seconds(found.median_s)}, 5 % to 95 %"
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            xlabel="step time (s)",
            ylabel="share of runs",
            xlim=(low - room, high + room),
            ylim=(0.0, 1.05),
            title=f"{len(times)} runs: {middle} {short_seconds(found.p05_s)} to {short_seconds(found.p95_s)}",
        )
    )
