"""Logs of a run: a line a step, or the end of a rank's own, as they grow; or the lines that hold some words."""

import time
from collections import deque
from typing import Any

import param

from hetplanner.runs.reading.log_search import LogHit, search_logs
from hetplanner.runs.reading.reader import RunReader, StepSummary
from hetplanner.ui.shell.models.texts import count_text, seconds_text

MAX_LOG_LINES = 400
STEPS_LOG, LAUNCHER_LOG = "steps", "launcher"


class LogModel(param.Parameterized):
    """Follows the log of `rank`; with `words` it searches instead, in that log or in all."""

    rank = param.String(default=STEPS_LOG, doc="A line a step of the whole run, or whose log: a rank, or 'launcher'.")
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
        return [STEPS_LOG, *map(str, range(ranks)), LAUNCHER_LOG]

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
        names = self.choices if self.everywhere or self.rank == STEPS_LOG else [self.rank]
        files = [
            (n, directory.launcher_log if n == LAUNCHER_LOG else directory.log_file(int(n)))
            for n in names
            if n != STEPS_LOG
        ]
        return search_logs(files, self.words.strip())

    def read(self) -> None:
        """Reads on in the chosen log."""
        if self.reader is None or self.rank not in self.choices:
            return
        if self.rank == STEPS_LOG:
            self._read_steps(self.reader)
            return
        text, cursor = self.reader.log(None if self.rank == LAUNCHER_LOG else int(self.rank), self._cursor)
        if text:
            if self.lines and self._cursor > 0 and not self._ends_line:
                text = self.lines.pop() + text
            self._ends_line = text.endswith("\n")
            self.lines.extend(line[:2000] for line in text.splitlines())
            self.param.trigger("changed")
        self._cursor = cursor

    def _read_steps(self, reader: RunReader) -> None:
        steps = reader.steps(self._cursor)
        if steps:
            self._cursor = steps[-1].step
            origin_s = next((t.origin_unix_s for t in reader.ranks if t.origin_unix_s is not None), None)
            word = reader.any_plan.problem.workload.token_word
            self.lines.extend(step_line(s, origin_s, word) for s in steps[-MAX_LOG_LINES:])
            self.param.trigger("changed")


def step_line(s: StepSummary, origin_unix_s: float | None, word: str = "tokens") -> str:
    """'09:34:12  step 57  loss 4.1234  213 ms  1.2k tokens/s'; steps count from 1, as on the page."""
    parts = [f"step {s.step + 1}"]
    if origin_unix_s is not None:
        parts.insert(0, time.strftime("%H:%M:%S", time.localtime(origin_unix_s + s.end_s)))
    parts.append(f"loss {s.loss:.4f}" if s.loss is not None else "no loss")
    if s.step_s:
        parts += [seconds_text(s.step_s), f"{count_text(s.num_tokens / s.step_s)} {word}/s"]
    return "  ".join(parts)
