"""Logs of a run: the end of one, as it grows, or the lines of all that hold some words."""

from collections import deque
from typing import Any

import param

from hetplanner.runs.log_search import LogHit, search_logs
from hetplanner.runs.reader import RunReader

MAX_LOG_LINES = 400
LAUNCHER_LOG = "launcher"


class LogModel(param.Parameterized):
    """Follows the log of `rank`; with `words` it searches instead, in that log or in all."""

    rank = param.String(default=LAUNCHER_LOG, doc="Whose log: a rank, or 'launcher'.")
    words = param.String(default="", doc="Searched for in whole logs; '' follows the log.")
    everywhere = param.Boolean(default=True, doc="Whether all logs are searched.")
    changed = param.Event()

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.reader: RunReader | None = None
        self.lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self.hits: list[LogHit] = []
        self._cursor = -1
        self._ends_line = True
        self.param.watch(self._chosen, "rank")
        self.param.watch(self._searched, ["words", "everywhere"])

    @property
    def choices(self) -> list[str]:
        """Whose logs there are."""
        ranks = len(self.reader.ranks) if self.reader is not None else 0
        return [*map(str, range(ranks)), LAUNCHER_LOG]

    def open(self, reader: RunReader | None) -> None:
        """Follows another run."""
        self.reader = reader
        first = self.choices[0]
        if self.rank != first:
            self.rank = first
        else:
            self._chosen()

    def _chosen(self, *_: Any) -> None:
        self.lines.clear()
        self._cursor, self._ends_line = -1, True
        self._searched()

    def _searched(self, *_: Any) -> None:
        self.hits = self._found() if self.words.strip() else []
        self.param.trigger("changed")

    def _found(self) -> list[LogHit]:
        if self.reader is None:
            return []
        directory = self.reader.directory
        names = self.choices if self.everywhere else [self.rank]
        files = [(n, directory.launcher_log if n == LAUNCHER_LOG else directory.log_file(int(n))) for n in names]
        return search_logs(files, self.words.strip())

    def read(self) -> None:
        """Reads on in the chosen log."""
        if self.reader is None or self.rank not in self.choices:
            return
        text, cursor = self.reader.log(None if self.rank == LAUNCHER_LOG else int(self.rank), self._cursor)
        if text:
            if self.lines and self._cursor > 0 and not self._ends_line:
                text = self.lines.pop() + text
            self._ends_line = text.endswith("\n")
            self.lines.extend(line[:2000] for line in text.splitlines())
            self.param.trigger("changed")
        self._cursor = cursor
