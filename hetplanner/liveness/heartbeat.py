"""What every rank does now, in memory shared with the agent: it needs no disk space, no network, and outlives both.

The agent makes the file (in /dev/shm where there is one) and names it in the environment. A rank writes only its own
record: a thread counts heartbeats; the training loop says what it does, which costs it some 50 ns. No torch.
"""

import contextlib
import errno
import logging
import mmap
import os
import secrets
import stat
import statistics
import struct
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from hetplanner.errors import InvalidInput

log = logging.getLogger(__name__)

HEARTBEAT_VARIABLE = "HETPLANNER_HEARTBEATS"
"""Environment variable with the file's path; a run that is started by hand has none."""
ACTIVITIES = (
    "starting",
    "importing",
    "connecting",
    "building",
    "profiling",
    "predicting",
    "restoring",
    "training",
    "checkpointing",
    "validating",
    "saving",
    "done",
)
"""What a rank can be at, in the order of its life (training and checkpointing take turns)."""
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "hetplanner-"
"""Of the file's name."""
BEAT_S = 0.1
VERSION = 1
EVERYONE = 0xFFFF_FFFF
"""Stands for all other ranks where one waits for them."""
_HEADER = struct.Struct("<16sII40x")
_MAGIC = b"hetplanner/beats"
_NUM_FIELDS = 16
_RECORD_BYTES = 8 * _NUM_FIELDS
_RECORD = struct.Struct(f"<{_NUM_FIELDS}Q")
_KNOWN_STEPS, _MIN_STEPS = 9, 3
# Fields of a record, each 8 bytes and written by itself.
_PID, _BORN, _ATTEMPT, _BEATS, _ACTIVITY, _PROGRESS, _STEPS, _WAITS_FOR, _STEP_NS, _ENDED, _SIGNAL, _SENDER = range(12)


class Heartbeat:
    """One rank's record. Without a file it is written to memory that no process reads."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._row = memory if memory is not None else memoryview(bytearray(_RECORD_BYTES)).cast("Q")
        self._seconds: deque[float] = deque(maxlen=_KNOWN_STEPS)
        self._closed = threading.Event()

    @classmethod
    def of_rank(cls, rank: int, attempt: int) -> "Heartbeat":
        """The record of a rank in the file that the environment names; heartbeats are counted from now on."""
        path = os.environ.get(HEARTBEAT_VARIABLE)
        if path is None:
            return cls()
        try:
            beat = cls(_mapped(Path(path), rank))
        except (OSError, InvalidInput) as error:
            log.warning("the agent cannot see what this rank does: %s", error)
            return cls()
        row = beat._row
        row[_PID], row[_BORN], row[_ATTEMPT] = os.getpid(), born_ticks("self") or 0, attempt
        threading.Thread(target=beat._run, name="heartbeat", daemon=True).start()
        return beat

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._row[_BEATS] += 1

    # -- what the rank is at ----------------------------------------------------------------------

    def enter(self, activity: str) -> None:
        """Says what the rank begins to do."""
        self._row[_ACTIVITY] = ACTIVITIES.index(activity)
        self.advance()

    def advance(self) -> None:
        """A piece of work is done, and the rank waits for no other any more."""
        self._row[_WAITS_FOR] = 0
        self._row[_PROGRESS] += 1

    def wait_for(self, rank: int) -> None:
        """The rank can go on only when another one (or EVERYONE) has; until `advance`."""
        self._row[_WAITS_FOR] = rank + 1

    def end_step(self, completed_steps: int, seconds: float | None = None) -> None:
        """So many steps are done; the last one took so long."""
        self._row[_STEPS] = completed_steps
        if seconds is not None:
            self._seconds.append(seconds)
            if len(self._seconds) >= _MIN_STEPS:
                self._row[_STEP_NS] = int(statistics.median(self._seconds) * 1e9)

    def note_signal(self, signum: int, sender: int) -> None:
        """The rank was told to end: by a signal, and from whom (0: not known)."""
        self._row[_SENDER] = sender
        self._row[_SIGNAL] = signum

    def end(self, exit_code: int) -> None:
        """The process ends now, by itself."""
        self._row[_ENDED] = exit_code + 1
        self._closed.set()


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's record, as read.

    Attributes:
        pid, born_ticks: of its process; 0 before it has begun.
        attempt: how often the run had been started again.
        beats, progress: counters; only their change means something.
        activity: one of ACTIVITIES.
        steps: optimiser steps done.
        waits_for: a rank, EVERYONE, or None.
        step_s: median of its last steps; None before there are a few.
        exit_code: with which it says it ended; None while it lives, or was killed.
        signum, sender: of the signal that told it to end (0: none), and the process that sent it (0: not known).
    """

    pid: int
    born_ticks: int
    attempt: int
    beats: int
    activity: str
    progress: int
    steps: int
    waits_for: int | None
    step_s: float | None
    exit_code: int | None
    signum: int
    sender: int


def new_heartbeats(run_dir: Path) -> str:
    """A random path for a run's heartbeats: in shared memory where the system has some."""
    folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else run_dir
    return str(folder / f"{PREFIX}{secrets.token_hex(8)}")


def remove_heartbeats(path: Path) -> None:
    """Removes a file of heartbeats, and nothing else that may be there."""
    with contextlib.suppress(OSError):
        info = path.lstat()
        ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid()
        if ours and path.name.startswith(PREFIX):
            path.unlink()


def create_heartbeats(path: Path, num_ranks: int) -> None:
    """Makes the file, or clears it: its whole size is taken now, so that writing to it never fails. Raises OSError."""
    data = _HEADER.pack(_MAGIC, VERSION, num_ranks) + bytes(_RECORD_BYTES * num_ranks)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "is another user's")
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_heartbeats(path: Path) -> list[Beat]:
    """All ranks' records, as they are now. Raises InvalidInput: there are none, or the file is damaged."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEADER.size + 2**24)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    num_ranks = _checked_ranks(data[: _HEADER.size], len(data), path)
    rows = [_RECORD.unpack_from(data, _HEADER.size + _RECORD_BYTES * rank) for rank in range(num_ranks)]
    return [_beat(row, path) for row in rows]


def born_ticks(pid: int | str) -> int | None:
    """When a process began, in clock ticks since the machine did; with the pid it names one process for good."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _beat(row: tuple[int, ...], path: Path) -> Beat:
    if row[_ACTIVITY] >= len(ACTIVITIES):
        raise InvalidInput(f"{path}: is damaged, it names activity {row[_ACTIVITY]}")
    return Beat(
        pid=row[_PID],
        born_ticks=row[_BORN],
        attempt=row[_ATTEMPT],
        beats=row[_BEATS],
        activity=ACTIVITIES[row[_ACTIVITY]],
        progress=row[_PROGRESS],
        steps=row[_STEPS],
        waits_for=row[_WAITS_FOR] - 1 if row[_WAITS_FOR] else None,
        step_s=row[_STEP_NS] / 1e9 or None,
        exit_code=row[_ENDED] - 1 if row[_ENDED] else None,
        signum=row[_SIGNAL],
        sender=row[_SENDER],
    )


def _mapped(path: Path, rank: int) -> memoryview:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        num_ranks = _checked_ranks(os.pread(handle, _HEADER.size, 0), os.fstat(handle).st_size, path)
        if rank >= num_ranks:
            raise InvalidInput(f"{path}: is of {num_ranks} ranks, this is rank {rank}")
        begin = _HEADER.size + _RECORD_BYTES * rank
        return memoryview(mmap.mmap(handle, 0))[begin : begin + _RECORD_BYTES].cast("Q")
    finally:
        os.close(handle)


def _checked_ranks(header: bytes, size: int, path: Path) -> int:
    """Number of ranks. Raises InvalidInput."""
    if len(header) < _HEADER.size:
        raise InvalidInput(f"{path}: is cut off")
    magic, version, num_ranks = _HEADER.unpack(header)
    if magic != _MAGIC or version != VERSION:
        raise InvalidInput(f"{path}: holds no heartbeats that this hetplanner reads")
    if size != _HEADER.size + _RECORD_BYTES * num_ranks:
        raise InvalidInput(f"{path}: has {size} bytes, not those of {num_ranks} ranks")
    return int(num_ranks)
