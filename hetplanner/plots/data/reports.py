"""A run's report as bars: seconds of every term, by where they come from."""

from typing import Any

from hetplanner.runs.comparison import WORDS
from hetplanner.runs.report import RunReport
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
