"""What happened to a run and when: its life as the agent and the ranks tell it, in one order."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hetplanner.runs.agent.audit import AuditRecord
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.telemetry import Happening
from hetplanner.runs.status import RunStatus

MAX_EVENTS = 200
"""Of a run that restarts without end only the last are kept."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened.

    Attributes:
        time_s: unix time.
        kind: agent, phase, checkpoint, resumed, restart, degraded, notice, error or end.
        rank: whose; None where it is about the run.
        text: words for a person.
    """

    time_s: float
    kind: str
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class LifeSpan:
    """A rank's stay in one phase; unix times. `is_open`: it is there still, `end_s` is the last thing known of it."""

    rank: int
    phase: str
    start_s: float
    end_s: float
    is_open: bool


def run_events(run: RunReader, status: RunStatus, audit: Sequence[AuditRecord] = ()) -> list[RunEvent]:
    """The run's life, oldest first; what all ranks say alike is said once.

    Args:
        run: polled as far as it shall be told.
        status: of the same moment.
        audit: what the agent wrote about this run; without it the status has to do.
    """
    events = _agents(status, audit)
    gathered: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
    for telemetry in run.ranks:
        seen: dict[tuple[str, str], int] = defaultdict(int)
        for item in telemetry.happenings:
            time_s = _known(item, status)
            if item.kind == "error":
                events.append(RunEvent(time_s, "error", telemetry.rank, item.text))
                continue
            gathered[item.kind, item.text, seen[item.kind, item.text]].append((time_s, telemetry.rank))
            seen[item.kind, item.text] += 1
    num_ranks = len(run.ranks)
    for (kind, text, _), told in gathered.items():
        who = "" if len(told) == num_ranks else f" ({len(told)} of {num_ranks} ranks)"
        if kind != "restart" or not any(record.event == "restart" for record in audit):  # the agent says why, too
            events.append(RunEvent(max(time_s for time_s, _ in told), kind, None, text + who))
    return sorted(events, key=lambda event: (event.time_s, event.kind in ("error", "end")))[-MAX_EVENTS:]


def _agents(status: RunStatus, audit: Sequence[AuditRecord]) -> list[RunEvent]:
    if audit:
        kinds = {"restart": "restart", "end": "end", "copy": "copied", "copy failed": "degraded"}
        return [RunEvent(record.time_s, kinds.get(record.event, "agent"), None, record.text) for record in audit]
    events = [RunEvent(status.created_unix_s, "agent", None, "handed to the agent")]
    if status.started_unix_s is not None:
        events.append(RunEvent(status.started_unix_s, "agent", None, "started"))
    if status.ended_unix_s is not None:
        text = status.state if status.message in ("", status.state) else f"{status.state}: {status.message}"
        events.append(RunEvent(status.ended_unix_s, "end", None, text))
    return events


def _known(item: Happening, status: RunStatus) -> float:
    if item.time_s is not None and math.isfinite(item.time_s):
        return item.time_s
    return status.ended_unix_s or status.started_unix_s or status.created_unix_s


def life_spans(run: RunReader, status: RunStatus, now_s: float) -> list[LifeSpan]:
    """How long every rank was in every phase, over all attempts.

    Args:
        now_s: unix time until which a phase that goes on is drawn.
    """
    end_s = status.ended_unix_s if status.ended_unix_s is not None else now_s
    spans = []
    for telemetry in run.ranks:
        steps = [h for h in telemetry.happenings if h.kind in ("phase", "error", "restart") and h.time_s is not None]
        for i, item in enumerate(steps):
            if item.kind != "phase" or item.text == "done" or item.time_s is None:
                continue
            after = steps[i + 1].time_s if i + 1 < len(steps) else None
            until = max(item.time_s, end_s if after is None else after)
            spans.append(LifeSpan(telemetry.rank, item.text, item.time_s, until, after is None and not status.is_over))
    return spans
