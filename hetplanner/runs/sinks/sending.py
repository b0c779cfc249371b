"""Sending a run's points to one sink, once each: what there is now, or until the run is over."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.runs.home import private_directory, refuse_others
from hetplanner.runs.run import Run
from hetplanner.runs.sinks.interface import Point, Sink
from hetplanner.runs.sinks.points import PointReader, facts_of
from hetplanner.runs.sinks.record import SINKS_FOLDER, SinkRecord, read_record, words_of, write_record
from hetplanner.runs.sinks.registry import SINKS, check_sinks

log = logging.getLogger(__name__)

POLL_S = 1.0
RETRY_S, MAX_RETRY_S = 2.0, 120.0
"""A sink that fails is opened again after so long, then after twice that, and so on."""
LAST_TRIES = 3
"""Of a sink that fails when the run is over."""
MAX_WAITING = 100_000
"""Points that wait for a sink that fails; more than these it gets by `hetplanner runs send`."""


def send(run: Run, name: str, *, follow: bool = False, sleep: Callable[[float], None] = time.sleep) -> SinkRecord:
    """Sends to a sink what it does not have yet. A sink that fails never harms the run.

    Args:
        run: ended or not.
        name: of the sink.
        follow: go on until the run is over, over failures of the sink too; else the first failure is raised.
        sleep: waits so many seconds.

    Returns:
        How far the sink has come, which the run's folder remembers as well.

    Raises:
        InvalidInput: the name is unknown or its package is missing; the run is not this user's, or cannot be read; or
            another process sends this run to this sink.
        RunError: the sink fails.
    """
    check_sinks([name])
    refuse_others(run.path, run.path.stat())
    folder = private_directory(run.path.resolve() / SINKS_FOLDER)
    with _alone(folder, run, name):
        sender = _Sender(run, name, folder)
        while not sender.look(retries=follow, sleep=sleep) and follow and run.path.is_dir():
            sleep(POLL_S)
        return sender.end()


@contextlib.contextmanager
def _alone(folder: Path, run: Run, name: str) -> Iterator[None]:
    lock = filelock.FileLock(folder / f"{name}.lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise InvalidInput(f"run {run.id}: another process sends it to {name} already; nothing is left to do") from None
    except OSError as error:
        raise RunError(f"run {run.id}: {folder} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


class _Sender:
    """A run, a sink, and the points that are between them."""

    def __init__(self, run: Run, name: str, folder: Path) -> None:
        self._run, self._name, self._folder = run, name, folder
        self._facts = facts_of(run, run.id)
        self._points = PointReader(run)
        self._waiting: list[Point] = []
        self._record = read_record(run.path, name)
        self._sink: Sink | None = None
        self._held = -1
        self._state: str | None = None

    def look(self, *, retries: bool, sleep: Callable[[float], None]) -> bool:
        """Sends what is new; whether the run is over. Raises RunError, InvalidInput."""
        status = self._run.status()  # first: what a run wrote before its end is then read
        self._state = status.word if status.is_over else None
        self._waiting += self._points.new(is_over=status.is_over)
        del self._waiting[:-MAX_WAITING]
        failures = 0
        while not self._try_to_write(last=status.is_over):
            failures += 1
            if not retries or (status.is_over and failures >= LAST_TRIES):
                raise RunError(f"run {self._run.id}: {self._record}")
            sleep(min(RETRY_S * 2**failures, MAX_RETRY_S))
            if not status.is_over:
                return False  # looks at the run again: it may be over, or gone
        return status.is_over

    def end(self) -> SinkRecord:
        """Closes the sink. Raises RunError."""
        if not self._close():
            raise RunError(f"run {self._run.id}: {self._record}")
        return self._record

    def _try_to_write(self, *, last: bool) -> bool:
        """Whether the sink has all points that were read."""
        try:
            if self._sink is None:
                self._sink = SINKS[self._name](self._facts, self._folder)
                self._held = self._sink.held(self._record.step)
            later = [point for point in self._waiting if point.step > self._held]
            if later:
                self._sink.write(later)
                self._held = later[-1].step
            self._waiting = []
            if later or last:
                self._remember(step=self._held, place=self._sink.place, error="")
        except Exception as error:  # of a library: any
            if isinstance(error, HetplannerError):
                raise
            self._fail(error)
            return False
        return True

    def _close(self) -> bool:
        sink, self._sink = self._sink, None
        if sink is None:
            return True
        try:
            sink.close(self._state)
        except Exception as error:  # of a library: any
            self._fail(error)
            return False
        self._remember(place=sink.place)
        return True

    def _fail(self, error: Exception) -> None:
        log.warning("%s: %s", self._name, words_of(error))
        sink, self._sink = self._sink, None
        self._remember(error=words_of(error))
        if sink is not None:
            with contextlib.suppress(Exception):
                sink.close(None)

    def _remember(self, **changes: object) -> None:
        record = self._record.replace(**changes)
        if record == self._record:
            return
        self._record = record
        try:
            write_record(self._run.path, record)
        except OSError as error:  # a full disk: a sink may get some points again, which none of them shows twice
            log.warning("%s: its record cannot be written: %s", self._name, error.strerror)
