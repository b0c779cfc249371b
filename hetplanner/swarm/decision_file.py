"""The coordinator's decision log on a disk: a line counts once it is flushed there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hetplanner.elastic.coordinator.decisions import Decision, cut_torn_line, decode_decisions, encode_decision
from hetplanner.errors import RunError
from hetplanner.line_files import append_lines

DECISIONS_FILE = "decisions.log"


class DecisionFile:
    """An append-only file that one process holds.

    Args:
        path: made if missing.

    Attributes:
        decisions: that were there.

    Raises:
        RunError: another coordinator holds it, or a whole line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{path}: another coordinator holds the decision log; end it first") from None
        data = path.read_bytes()
        whole = cut_torn_line(data)
        self._end = len(whole)
        os.ftruncate(self._file, self._end)
        self.decisions: list[Decision] = decode_decisions(whole)

    def append(self, decision: Decision) -> None:
        """Writes a decision and flushes it. Raises OSError, after which the file is as before."""
        line = encode_decision(decision)
        written, error = append_lines(self._file, self._end, line)
        if error is not None:
            raise error
        try:
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += written

    def close(self) -> None:
        """Lets the file go."""
        os.close(self._file)
