"""Cost terms, memory and compared traces as bars."""

from collections.abc import Mapping

import holoviews as hv
from bokeh.plotting import figure

from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Trace
from hetplanner.plots.data.search.costs import COMPARED_TERMS, cost_columns, step_terms, total_columns
from hetplanner.plots.live import MemoryBars
from hetplanner.plots.notebook.backend import FRAME, LEGEND, boxes, ready, texts, tooltips
from hetplanner.plots.notebook.stills import still
from hetplanner.units import short_seconds


def estimate_of(item: Plan | Estimate, label: str) -> Estimate:
    """Of a plan; an estimate is its own. Raises InvalidInput for a plan without one."""
    found = item if isinstance(item, Estimate) else item.estimate
    if found is None:
        raise InvalidInput(f"{label}: this plan has no estimate; give it one with hetplanner.estimate_plan(plan)")
    return found


def cost(plan: Plan | Estimate | Mapping[str, Plan | Estimate]) -> hv.Overlay:
    """Cost terms of one plan, or of several by name, as stacked bars in seconds a step.

    Raises:
        InvalidInput: a plan without an estimate.
    """
    ready()
    items = plan if isinstance(plan, Mapping) else {"plan": plan}
    estimates = {label: estimate_of(item, label) for label, item in items.items()}
    columns = cost_columns(estimates)
    totals = total_columns(estimates)
    hover = tooltips(("", "@label"), ("@term", "@value (@share of the step)"))
    layers: list[hv.Element] = []
    for term in dict.fromkeys(columns["term"]):
        rows = [i for i, name in enumerate(columns["term"]) if name == term]
        y = [columns["y"][i] for i in rows]
        facts = {name: [columns[name][i] for i in rows] for name in ("label", "term", "value", "share")}
        x = [columns["left"][i] for i in rows], [columns["right"][i] for i in rows]
        edges = [v - 0.31 for v in y], [v + 0.31 for v in y]
        layers.append(boxes(x, edges, facts, term, color=columns["colour"][rows[0]], tools=[hover]))
    longest = max(totals["total"])
    words = ["  " + text for text in totals["text"]]
    layers.append(texts(totals["total"], totals["y"], words, text_align="left"))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND | {"height": 130 + 55 * len(estimates)},
            xlim=(0, 1.25 * longest),
            ylim=(0.4 - len(estimates), 0.6),
            yticks=list(zip(totals["y"], totals["label"], strict=True)),
            xlabel="seconds a step",
            ylabel="",
            title="Where the step's time goes",
        )
    )


def memory(plan: Plan) -> figure:
    """What every device's memory holds at its peak, as stacked bars in GB against what it has.

    Parts: parameters, gradients, optimizer states, activations, buffers. A worker group has one bar. Of more than 64
    devices the fullest are shown.

    Raises:
        InvalidInput: the plan has no estimate.
    """
    estimate_of(plan, "plan")
    return still(MemoryBars(), plan)


def compare_traces(simulated: Trace, measured: Trace) -> hv.Overlay:
    """Where a step's time goes, simulated beside measured, as a mean over ranks."""
    ready()
    hover = tooltips(("@trace", "@term"), ("", "@text a step"))
    layers: list[hv.Element] = []
    for name, trace, left, colour in (
        ("simulated", simulated, -0.4, "#4477AA"),
        ("measured", measured, 0.02, "#EE6677"),
    ):
        terms = step_terms(trace)
        x = [i + left for i in range(len(terms))]
        seconds = list(terms.values())
        words = [short_seconds(s) for s in seconds]
        facts = {"trace": [name] * len(x), "term": list(terms), "text": words}
        edges = [0.0] * len(x), seconds
        layers.append(boxes((x, [v + 0.38 for v in x]), edges, facts, name, color=colour, tools=[hover]))
        layers.append(texts([v + 0.19 for v in x], seconds, words, text_baseline="bottom", text_font_size="8pt"))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            xlim=(-0.6, len(COMPARED_TERMS) - 0.4),
            xticks=list(enumerate(COMPARED_TERMS)),
            xlabel="",
            ylabel="seconds a step",
            title="Simulated against measured",
        )
    )
