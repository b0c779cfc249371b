"""A run's report as bars: seconds of every term, by where they come from."""

from typing import Any

from hetplanner.plots.theme import term_colours
from hetplanner.runs.reports.comparison import WORDS, Comparison
from hetplanner.runs.reports.report import RunReport
from hetplanner.units import short_seconds

Columns = dict[str, list[Any]]
SOURCES = {"catalog": "from the catalog", "predicted": "predicted", "measured": "measured", "refitted": "re-fitted"}


def report_columns(found: RunReport) -> dict[str, Columns]:
    """For every source that the report knows, one row a term: term, x (its place), value (seconds), text."""
    columns: dict[str, Columns] = {}
    for source, label in SOURCES.items():
        if source not in found.terms:
            continue
        terms = found.terms[source].to_dict()
        columns[label] = {
            "term": [WORDS[name] for name in terms],
            "x": list(range(len(terms))),
            "value": list(terms.values()),
            "text": [short_seconds(seconds) for seconds in terms.values()],
        }
    return columns


def term_pairs(found: Comparison | RunReport) -> dict[str, Columns]:
    """Predicted and measured, one row a term: x, middle (of the pair), top (seconds), colour (of the term), term,
    text, source, difference.

    A source that is not known is left out.
    """
    pairs: dict[str, Columns] = {}
    colours = list(term_colours(WORDS).values())
    predicted, measured = found.terms.get("predicted"), found.terms.get("measured")
    differences = [
        f"{short_seconds(abs(getattr(measured, name) - getattr(predicted, name)))}"
        f" {'more' if getattr(measured, name) >= getattr(predicted, name) else 'less'} than predicted"
        if predicted and measured
        else "not compared yet"
        for name in WORDS
    ]
    for source, terms, shift in (("predicted", predicted, -0.2), ("measured", measured, 0.2)):
        if terms is None:
            continue
        seconds = list(terms.to_dict().values())
        pairs[source] = {
            "x": [i + shift for i in range(len(seconds))],
            "middle": list(range(len(seconds))),
            "top": seconds,
            "colour": colours,
            "term": list(WORDS.values()),
            "text": [short_seconds(value) for value in seconds],
            "source": [source] * len(seconds),
            "difference": differences,
        }
    return pairs
