"""TensorBoard: event files in the run's folder, written with tensorboard's own records."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hetplanner.runs.sinks.interface import Point, RunFacts


class TensorBoardSink:
    """One event file for each time that it is opened.

    A file begins with the step from which it counts, so a reader drops what an interrupted writer left of later steps.
    """

    modules: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, facts: RunFacts, folder: Path) -> None:
        """In `folder/tensorboard`."""
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self.place = str(self._folder)

    @classmethod
    def check(cls) -> None:
        """Nothing but its package is needed."""

    def held(self, sent: int) -> int:
        """As remembered, unless its files were removed."""
        return sent if any(self._folder.glob("events.out.tfevents.*")) else -1

    def write(self, points: Sequence[Point]) -> None:
        """Adds a scalar for each value. Raises OSError."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._open(points[0].step)
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._event(wall_time=point.time_s, step=point.step, summary=Summary(value=values))
        self._writer.flush()

    def close(self, state: str | None) -> None:
        """Closes its file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _open(self, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Files are read in the order of their names.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((self._folder / name).open("xb"))
        self._event(wall_time=time.time(), file_version="brain.Event:2")
        self._event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))

    def _event(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(**fields).SerializeToString())
