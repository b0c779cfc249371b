"""What a run's folder remembers of each sink: the last step that was sent, where to, and what went wrong."""

import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text

SINKS_FOLDER = "sinks"
RECORD_VERSION = 1
MAX_RECORD_BYTES = 2**16
MAX_ERROR = 400
_PASSWORD = re.compile(r"(?<=//)[^/@\s]+(?=@)")


class SinkRecord(Noun):
    """How far a sink has come.

    Attributes:
        sink: its name.
        step: the last step that was sent; -1 before the first one.
        place: where the points are.
        error: why sending does not get on; empty while it does.
    """

    sink: Name
    step: Annotated[int, Field(strict=True, ge=-1)] = -1
    place: Annotated[str, Field(max_length=4096)] = ""
    error: Annotated[str, Field(max_length=2 * MAX_ERROR)] = ""

    def __str__(self) -> str:
        sent = (
            f"{self.sink}: steps up to {self.step} are in {self.place}" if self.step >= 0 else f"{self.sink}: no step"
        )
        return f"{sent}; {self.error}" if self.error else sent


def record_path(run_dir: Path, sink: str) -> Path:
    """Of a sink of the run in `run_dir`."""
    return run_dir / SINKS_FOLDER / f"{sink}.json"


@reader("record of a sink", at="run_dir")
def read_record(run_dir: Path, sink: str) -> SinkRecord:
    """How far a sink has come; at the start where it has no record. Raises InvalidInput (damaged, newer)."""
    path, place = record_path(run_dir, sink), f"{run_dir.name}/{SINKS_FOLDER}/{sink}.json"
    if not path.exists():
        return SinkRecord(sink=sink)
    found = checked_json(SinkRecord, read_text(path, MAX_RECORD_BYTES), "sink", RECORD_VERSION, place)
    if found.sink != sink:
        raise InvalidInput(f"{place}: must be of sink {sink}, is of {found.sink!r:.60}")
    return found


def write_record(run_dir: Path, record: SinkRecord) -> None:
    """Replaces a sink's record. Raises OSError."""
    data = {"format": f"hetplanner/sink@{RECORD_VERSION}"} | record.model_dump(mode="json")
    write_whole(record_path(run_dir, record.sink), json.dumps(data, indent=1) + "\n", mode=0o600)


def words_of(error: BaseException) -> str:
    """A library's error as one line for a person: its kind and first line, without passwords of addresses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return one_line(_PASSWORD.sub("…", text))[:MAX_ERROR]
