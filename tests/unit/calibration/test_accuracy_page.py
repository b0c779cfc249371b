"""The page of the docs about accuracy has the numbers of its benchmark."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.prediction.bench_accuracy import page_table, predictions
from tests.benchmarks.prediction.bench_published import gh200_table, summary_table

PAGE = Path(__file__).parents[3] / "docs" / "results" / "accuracy.md"
NUMBER = re.compile(r"[-+]?\d+\.\d")
ROUNDING = 0.11
"""Of the last digit: other processors round otherwise."""


def dtfm_table() -> str:
    return page_table(predictions())


@pytest.mark.parametrize("make", [dtfm_table, summary_table, gh200_table])
def test_the_page_has_the_table_of_its_benchmark(make: Callable[[], str]) -> None:
    table = make()
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(table.splitlines()[0])
    there = "\n".join(lines[first : first + len(table.splitlines())])
    assert NUMBER.sub("N", there) == NUMBER.sub("N", table)
    told, made = ([float(number) for number in NUMBER.findall(text)] for text in (there, table))
    assert told == pytest.approx(made, abs=ROUNDING)
