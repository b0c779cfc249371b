"""The newest runs of a home in a few words each, for lists; reads only the end of each run's telemetry."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from hetplanner.errors import HetplannerError
from hetplanner.runs.annotations import known_annotations
from hetplanner.runs.directory import RunDirectory, list_run_ids
from hetplanner.runs.home import runs_directory
from hetplanner.runs.reading.reader import RECENT_STEPS, RunReader
from hetplanner.runs.reading.tail import LineTail
from hetplanner.runs.reading.telemetry import RankTelemetry
from hetplanner.runs.run import true_status
from hetplanner.runs.status import read_status

END_BYTES = 2**17


@dataclass(frozen=True, slots=True)
class RecentRun:
    """A run in a list.

    Attributes:
        run: its id.
        name: as a person called it, else its id.
        state: `RunStatus.word`, or `unknown` where its status cannot be read.
        started_unix_s: when it was launched, else submitted; None where that is not known.
        steps: done so far, as rank 0 tells.
        is_live: it is not over.
    """

    run: str
    name: str
    state: str
    started_unix_s: float | None
    steps: int
    is_live: bool
    tags: tuple[str, ...] = ()


def recent(home: Path | None = None, limit: int = 8) -> list[RecentRun]:
    """The newest `limit` runs, newest first; damaged ones are listed, as unknown."""
    return [_recent(home, run_id) for run_id in list_run_ids(home)[::-1][:limit]]


def _recent(home: Path | None, run_id: str) -> RecentRun:
    directory = RunDirectory((runs_directory(home) / run_id).resolve())
    said = known_annotations(directory.path)
    name, steps = said.name or run_id, steps_done(directory)
    try:
        status = true_status(read_status(directory.status_file), home)
    except HetplannerError:
        return RecentRun(run_id, name, "unknown", None, steps, False, said.tags)
    started_s = status.started_unix_s or status.created_unix_s
    return RecentRun(run_id, name, status.word, started_s, steps, not status.is_over, said.tags)


def steps_done(directory: RunDirectory) -> int:
    """Steps that rank 0 has reported, from the end of its file."""
    return next(reversed(_end_of(directory).steps), -1) + 1


def recent_step_s(directory: RunDirectory) -> tuple[float | None, float | None]:
    """Seconds of a step: the median of rank 0's last RECENT_STEPS, and as predicted; None where that is not known."""
    steps = list(_end_of(directory).steps.values())[-RECENT_STEPS - 1 :]
    pairs = [(before, after) for before, after in pairwise(steps) if after.step == before.step + 1]
    times = [after.end_s - before.end_s for before, after in pairs if after.attempt == before.attempt]
    return median(times) if times else None, RunReader(directory.path).predicted_step_s()


def _end_of(directory: RunDirectory) -> RankTelemetry:
    telemetry = RankTelemetry(0, directory.telemetry_file(0))
    telemetry.tail = LineTail(telemetry.path, END_BYTES)
    telemetry.poll(END_BYTES)
    return telemetry
