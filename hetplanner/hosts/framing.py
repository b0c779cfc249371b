"""How head and host talk over the pipes of one ssh: frames, each a line of JSON and then so many bytes.

    {"file": "rank-0.jsonl", "at": 4096, "bytes": 311}\n<311 bytes>

A shell may greet before the host's program speaks: whatever comes before its first frame is passed over.
Imports nothing but the standard library.
"""

import json
import threading
from typing import Any, BinaryIO

from hetplanner.errors import RunError

HELLO = b"hetplanner-host-1 "
"""Begins the first line that a host sends."""
MAX_GREETING_BYTES = 2**16
MAX_HEADER_BYTES = 2**20
PIECE_BYTES = 2**18
"""Most bytes of a file in one frame: on a slow link other frames come in between."""
MAX_SENT_BYTES = 2**28
"""Of a plan with its settings, from head to host."""


class FrameError(RunError):
    """What came is no frame of ours, or ends inside one."""


class FrameWriter:
    """Writes frames to a pipe; threads may take turns."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._lock = file, threading.Lock()

    def greet(self, header: dict[str, Any]) -> None:
        """Writes a host's first frame."""
        with self._lock:
            self._file.write(HELLO + _line(header))
            self._file.flush()

    def write(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Writes a frame. Raises OSError (ValueError once the pipe is closed)."""
        line = _line(header | {"bytes": len(body)} if body else header)
        with self._lock:
            self._file.write(line + body)
            self._file.flush()


def _line(header: dict[str, Any]) -> bytes:
    return json.dumps(header).encode() + b"\n"


def read_greeting(file: BinaryIO) -> dict[str, Any] | None:
    """A host's first frame; None where it ends without one. Raises FrameError."""
    passed = 0
    while line := file.readline(MAX_GREETING_BYTES):
        place = line.find(HELLO)
        if place >= 0:
            return _header(line[place + len(HELLO) :])
        passed += len(line)
        if passed > MAX_GREETING_BYTES:
            raise FrameError(f"its shell says more than {MAX_GREETING_BYTES} bytes, and our program does not begin")
    return None


def read_frame(file: BinaryIO, max_bytes: int) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None at the end of the pipe.

    Args:
        file: what to read from.
        max_bytes: that may follow a header.

    Raises:
        FrameError: it is damaged, cut off, or longer.
    """
    line = file.readline(MAX_HEADER_BYTES + 1)
    if not line:
        return None
    header = _header(line)
    size = header.pop("bytes", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= max_bytes:
        raise FrameError(f"a frame of {size!r:.40} bytes, at most {max_bytes} are taken")
    body = file.read(size)
    if len(body) != size:
        raise FrameError(f"a frame ends after {len(body)} of {size} bytes")
    return header, body


def _header(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise FrameError(f"a frame's first line is cut off after {len(line)} bytes")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        raise FrameError(f"no frame: {line[:60]!r}") from None
    if not isinstance(header, dict):
        raise FrameError(f"no frame: {line[:60]!r}")
    return header
