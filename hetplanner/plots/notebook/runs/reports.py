"""A run against its prediction."""

import holoviews as hv

from hetplanner.plots.data.runs.reports import report_columns
from hetplanner.plots.notebook.backend import FRAME, LEGEND, boxes, ready, texts, tooltips
from hetplanner.plots.theme import LIGHT, LINE_COLOURS
from hetplanner.runs.reports.comparison import WORDS
from hetplanner.runs.reports.report import RunReport

GROUP = 0.84
"""Width of a term's bars together."""
COLOURS = {
    "from the catalog": LIGHT.grid,
    "predicted": LINE_COLOURS[0],
    "measured": LINE_COLOURS[1],
    "re-fitted": LINE_COLOURS[2],
}


def report(found: RunReport) -> hv.Overlay:
    """Where a step's time goes, mean over ranks: the catalog's, predicted, measured, and as the re-fitted model says.

    Args:
        found: of `hetplanner.report_run(run)`.
    """
    ready()
    columns = report_columns(found)
    width = GROUP / max(1, len(columns))
    hover = tooltips(("@source", "@term"), ("", "@text a step"))
    layers: list[hv.Element] = []
    for place, (source, rows) in enumerate(columns.items()):
        left = [x - GROUP / 2 + place * width for x in rows["x"]]
        right = [x + 0.94 * width for x in left]
        facts = {"source": [source] * len(left), "term": rows["term"], "text": rows["text"]}
        edges = [0.0] * len(left), rows["value"]
        layers.append(boxes((left, right), edges, facts, source, color=COLOURS[source], tools=[hover]))
        if source == "measured":
            middle = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
            layers.append(texts(middle, rows["value"], rows["text"], text_baseline="bottom", text_font_size="8pt"))
    return hv.Overlay(layers).opts(
        hv.opts.Overlay(
            **FRAME | LEGEND,
            xlim=(-0.6, len(WORDS) - 0.4),
            xticks=list(enumerate(WORDS.values())),
            xlabel="",
            ylabel="seconds a step",
            title=found.difference.partition(". ")[0],
        )
    )
