"""Append-only files of whole lines that outlive a full disk.

A line that does not fit is cut off at once, so a file never ends inside a line. Lines wait in memory, up to a bound,
until there is space again; those dropped beyond it are counted, and the file says how many they were.
"""

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 16 * 2**20
BATCH_BYTES = 2**20
_BLOCK_BYTES = 2**16


class LineFile:
    """The one writer of a file; its methods must not run at the same time.

    Args:
        path: made if missing; of one that is there a torn last line is cut off, and it is gone on with.
        told: gives the line that says how many lines were lost before it.
        new: refuse a file that is there.
        mode: of a new file, less the umask.
        max_waiting_bytes: that lines may take in memory.

    Attributes:
        error: why lines wait; None while all can be written.
        lost: lines that were dropped and that the file does not tell of yet.

    Raises:
        FileExistsError: it is there and shall be new.
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        told: Callable[[int], bytes],
        *,
        new: bool = False,
        mode: int = 0o666,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.path = path
        self.error: OSError | None = None
        self.lost = 0
        self._told, self._max_waiting_bytes = told, max_waiting_bytes
        self._waiting: deque[tuple[bytes, bool]] = deque()
        self._waiting_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        self._file = os.open(path, flags, mode)
        self._is_open = True
        self._end = cut_torn_line(self._file)

    def add(self, line: bytes, *, may_be_lost: bool = False) -> None:
        """Queues a line, given without its end; those that may be lost are the first to be dropped."""
        self._waiting.append((line + b"\n", may_be_lost))
        self._waiting_bytes += len(line) + 1

    def flush(self) -> bool:
        """Writes what is queued, as far as it fits; raises nothing. Returns whether all of it is in the file."""
        while self._is_open and (self._waiting or self.lost):
            told = self._told(self.lost) + b"\n" if self.lost else b""
            batch, size = [told] if told else [], len(told)
            for line, _ in self._waiting:
                if size > BATCH_BYTES:
                    break
                batch.append(line)
                size += len(line)
            written = self._append(b"".join(batch))
            if told and written >= len(told):
                written -= len(told)
                self.lost = 0
            while written:  # whole lines
                line, _ = self._waiting.popleft()
                self._waiting_bytes -= len(line)
                written -= len(line)
            if self.error is not None:
                self._keep_the_bound()
                return False
        return not (self._waiting or self.lost)

    def close(self) -> None:
        """Writes what fits, without the lines that may be lost if not all do, and closes the file."""
        if not self._is_open:
            return
        if self.error is not None or not self.flush():  # the space that is left is for what counts
            self._drop_what_may_be_lost()
            self.flush()
            self.lost += len(self._waiting)
            if self.lost:
                log.warning("%s: %d lines are lost: %s", self.path.name, self.lost, self.error)
        self._is_open = False
        os.close(self._file)

    def _append(self, data: bytes) -> int:
        """How many bytes of `data` are in the file now: whole lines alone."""
        written, error = append_lines(self._file, self._end, data)
        self._end += written
        if error is not None and self.error is None:
            log.warning("%s cannot be written, its lines wait: %s", self.path.name, error)
        elif error is None and self.error is not None:
            log.warning("%s can be written again", self.path.name)
        self.error = error
        return written

    def _keep_the_bound(self) -> None:
        if self._waiting_bytes > self._max_waiting_bytes:
            self._drop_what_may_be_lost()
        if self._waiting_bytes > self._max_waiting_bytes:
            keep = len(self._waiting) // 2
            while len(self._waiting) > keep:
                self._waiting_bytes -= len(self._waiting.popleft()[0])
                self.lost += 1

    def _drop_what_may_be_lost(self) -> None:
        before = len(self._waiting)
        self._waiting = deque(item for item in self._waiting if not item[1])
        self._waiting_bytes = sum(len(line) for line, _ in self._waiting)
        self.lost += before - len(self._waiting)


def append_lines(file: int, end: int, data: bytes) -> tuple[int, OSError | None]:
    """Writes lines behind the first `end` bytes of an open file, as many as fit, and no part of one.

    Returns:
        Bytes written, and why they are not all; the file ends behind them.
    """
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, data[written:], end + written)
    except OSError as error:
        written = data.rfind(b"\n", 0, written) + 1
        with contextlib.suppress(OSError):  # takes no space
            os.ftruncate(file, end + written)
        return written, error
    return written, None


def append_line(path: Path, line: bytes, mode: int = 0o666) -> None:
    """Adds one line, given without its end, to a file, or nothing. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        _, error = append_lines(file, cut_torn_line(file), line + b"\n")
    finally:
        os.close(file)
    if error is not None:
        raise error


def cut_torn_line(file: int) -> int:
    """Cuts off what follows a file's last line end, as a killed writer leaves it. Returns the size then."""
    end = size = os.fstat(file).st_size
    while end > 0:
        first = max(0, end - _BLOCK_BYTES)
        found = os.pread(file, end - first, first).rfind(b"\n")
        end = first + found + 1
        if found >= 0:
            break
    if end != size:
        os.ftruncate(file, end)
    return end
