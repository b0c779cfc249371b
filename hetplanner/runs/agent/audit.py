"""The agent's audit log: one line for everything it did to a run, so that others can tell what happened meanwhile."""

import json
import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.errors import RunError
from hetplanner.line_files import append_line
from hetplanner.reading import DAMAGED
from hetplanner.runs.home import agent_directory
from hetplanner.runs.reading.tail import text_from
from hetplanner.units import short_bytes

log = logging.getLogger(__name__)

AUDIT_FILE = "launches.jsonl"
MAX_WAITING = 10_000
MAX_BYTES = 512 * 1024
"""Only the end of the log is read: some hundred runs."""
_WORDS = {
    "submit": "handed to the agent",
    "launch": "started",
    "adopt": "taken over by a new agent",
    "stop": "asked to stop",
}
_ACTS = {"drain": "asked to leave: peer", "kill": "killed: peer", "rejoin": "asked to come back: peer"}


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One thing the agent did.

    Attributes:
        time_s: unix time.
        event: submit, launch, adopt, stop, drain, kill, rejoin, restart, copy, copy failed or end.
        text: words for a person.
    """

    time_s: float
    event: str
    run: str
    text: str


def audit_path(home: Path | None = None) -> Path:
    """The log of a home's agent."""
    return agent_directory(home) / AUDIT_FILE


class AuditLog:
    """The log's one writer. Lines that the disk does not take wait in memory; raises nothing."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._has_failed = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a line."""
        self._waiting.append(json.dumps(record).encode())
        self.retry()

    def retry(self) -> None:
        """Writes the lines that wait."""
        while self._waiting:
            try:
                append_line(audit_path(self._home), self._waiting[0], 0o600)
            except (OSError, RunError) as error:
                if not self._has_failed:
                    log.error("the audit log cannot be written, its lines wait: %s", error)
                self._has_failed = True
                return
            self._waiting.popleft()
            self._has_failed = False


def audit_records(home: Path | None = None, *, run: str | None = None, since_s: float = 0.0) -> list[AuditRecord]:
    """What the agent did, oldest first, as far as the end of its log tells; damaged lines are left out.

    Args:
        home: None takes `$HETPLANNER_HOME` or the platform's data directory.
        run: only of this run.
        since_s: only later than this (unix time).
    """
    text, _ = text_from(audit_path(home), -1, MAX_BYTES)
    found = [record for line in text.splitlines() if (record := _record_of(line)) is not None]
    return [record for record in found if record.time_s > since_s and run in (None, record.run)]


def _record_of(line: str) -> AuditRecord | None:
    try:
        fields = json.loads(line)
        time_s, event, run = float(fields["time_s"]), str(fields["event"])[:20], str(fields["run"])[:80]
        return AuditRecord(time_s, event, run, _words_of(event, fields)) if math.isfinite(time_s) else None
    except DAMAGED:
        return None


def _words_of(event: str, fields: dict[str, Any]) -> str:
    if event == "end":
        state, message = str(fields.get("state", "ended")), str(fields.get("message", ""))
        return state if message in ("", state) else f"{state}: {message}"[:2000]
    if event == "restart":
        return f"restarted, since {fields.get('why', 'a rank died')}"[:2000]
    if event in _ACTS:
        return f"{_ACTS[event]} {fields.get('peer', '')}"[:2000]
    if event == "copy failed":
        return f"the checkpoint of step {int(fields['step'])} is not copied: {fields['error']}"[:2000]
    if event == "copy":
        return f"copied the checkpoint of step {int(fields['step'])}, {short_bytes(float(fields['bytes']))}"
    return _WORDS.get(event, event)
