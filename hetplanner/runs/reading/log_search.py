"""Finding words in the logs of a run's ranks, from the end backwards, at bounded cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hetplanner.runs.reading.tail import text_from

MAX_BYTES = 4 * 2**20
"""Of each log the end is searched: some milliseconds."""
MAX_HITS = 300
MAX_LINE = 2000


@dataclass(frozen=True, slots=True)
class LogHit:
    """A line that holds the words: whose log, its number (from 1; None where the log's beginning was not read)."""

    source: str
    number: int | None
    line: str


def search_logs(logs: Iterable[tuple[str, Path]], words: str) -> list[LogHit]:
    """Lines that hold `words`, capitals or not, in the order of the logs; of each log the last `MAX_HITS`.

    Args:
        logs: name and file of each.
        words: what to look for, as it is written.
    """
    wanted = words.casefold()
    hits: list[LogHit] = []
    for source, path in logs:
        text, end = text_from(path, -1, MAX_BYTES)
        is_whole = end <= MAX_BYTES
        found = [
            LogHit(source, number if is_whole else None, line[:MAX_LINE])
            for number, line in enumerate(text.splitlines(), start=1)
            if wanted in line.casefold()
        ]
        hits += found[-MAX_HITS:]
    return hits
