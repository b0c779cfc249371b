"""What a host does while links are measured: it answers pings, sends, and counts what arrives.

The receiver's clock counts: from the first byte on it takes so many seconds of a stream, and then resets the
connection, so that what the sender still holds does not disturb the next measurement. The rate is that of the later
part, when TCP has found its window. Runs on the host; imports no library.
"""

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from hetplanner.errors import RunError

CONNECT_S = 5.0
PIECE_BYTES = 2**18
MAX_STREAMS, MAX_SECONDS, MAX_PINGS = 256, 30.0, 1000
MAX_HELLO_BYTES = 1000
FIRST_SHARE = 0.4
"""Share of a stream's time that does not count: TCP looks for its window."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that is reset at its close."""


class Streams:
    """The measuring side of one host, from its first order until it is closed.

    Args:
        write: sends an answer to the head.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._token = secrets.token_hex(16)
        self._door: socket.socket | None = None
        self._counts: dict[str, dict[str, Any]] = {}
        self._counted = threading.Condition()
        self.orders: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            "stream-listen": self._listen,
            "stream-ping": self._ping,
            "stream-send": self._send,
            "stream-counts": self._told,
        }

    # -- the end that is spoken to ------------------------------------------------------------------

    def _listen(self, header: dict[str, Any], body: bytes) -> None:
        """Opens a port of an address; answers with it and the word that guests must say."""
        if self._door is None:
            try:
                self._door = socket.create_server((header["address"], 0), backlog=MAX_STREAMS)
            except OSError as error:
                text = f"its address {header['address']} is not assigned to this host ({_why(error)})"
                raise RunError(f"{text}; correct address in the hosts file") from None
            threading.Thread(target=self._take, args=(self._door,), daemon=True).start()
        self._write({"port": self._door.getsockname()[1], "token": self._token})

    def _take(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = door.accept()
                threading.Thread(target=self._serve, args=(guest,), daemon=True).start()

    def _serve(self, guest: socket.socket) -> None:
        with guest, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            guest.settimeout(CONNECT_S)
            said = json.loads(_line(guest))
            if not secrets.compare_digest(str(said["token"]), self._token):
                return
            guest.sendall(b"\n")
            if "count" in said:
                self._count(guest, str(said["count"])[:100], min(float(said["seconds"]), MAX_SECONDS))
            else:
                _echo(guest)

    def _count(self, guest: socket.socket, name: str, seconds: float) -> None:
        """Takes a stream's bytes, and keeps its rate under a name."""
        buffer = bytearray(PIECE_BYTES)
        guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        marks: list[tuple[float, int]] = []
        total = 0
        with contextlib.suppress(OSError):
            while count := guest.recv_into(buffer):
                total += count
                marks.append((time.monotonic(), total))
                if marks[-1][0] - marks[0][0] >= seconds:
                    break
        with self._counted:
            self._counts[name] = {"bytes_per_s": rate_of(marks, seconds), "bytes": total}
            self._counted.notify_all()

    def _told(self, header: dict[str, Any], body: bytes) -> None:
        """The counts of these names, once they are all there; None for one that never came."""
        names = [str(name) for name in header["names"]][:MAX_STREAMS]
        with self._counted:
            self._counted.wait_for(lambda: self._counts.keys() >= set(names), timeout=float(header["wait_s"]))
            found = {name: self._counts.pop(name, None) for name in names}
        self._write({"counts": found})

    # -- the end that speaks ------------------------------------------------------------------------

    def _ping(self, header: dict[str, Any], body: bytes) -> None:
        """Seconds that a byte takes there and back, each time."""
        times_s: list[float] = []
        try:
            with _connect(header, {}) as line:
                for _ in range(min(int(header["count"]), MAX_PINGS)):
                    began_s = time.monotonic()
                    line.sendall(b"x")
                    if not line.recv(1):
                        break
                    times_s.append(time.monotonic() - began_s)
        except OSError as error:
            self._write({"failed": _why(error)})
            return
        self._write({"round_trips_s": times_s})

    def _send(self, header: dict[str, Any], body: bytes) -> None:
        """Sends over all these connections at once, until each receiver has had enough."""
        lines: list[socket.socket] = []
        try:
            for row in header["streams"][:MAX_STREAMS]:
                lines.append(_connect(row, {"count": row["name"], "seconds": header["seconds"]}))
        except OSError as error:
            for line in lines:
                line.close()
            self._write({"failed": f"{row['address']}: {_why(error)}"})
            return
        deadline_s = time.monotonic() + 2 * float(header["seconds"]) + CONNECT_S
        threads = [threading.Thread(target=_push, args=(line, deadline_s), daemon=True) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._write({"sent": len(lines)})

    def close(self) -> None:
        """Closes the port."""
        if self._door is not None:
            self._door.close()


def rate_of(marks: list[tuple[float, int]], seconds: float) -> float | None:
    """Bytes per second of the later part of a stream; None where too little of it came.

    Args:
        marks: when so many bytes had come, in order.
        seconds: how long it was to be.
    """
    later = [mark for mark in marks if mark[0] - marks[0][0] >= FIRST_SHARE * seconds]
    if len(later) < 2 or later[-1][0] <= later[0][0]:
        return None
    return (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0])


def _connect(row: dict[str, Any], said: dict[str, Any]) -> socket.socket:
    """A connection to another host's port, whose guest has been let in. Raises OSError."""
    line = socket.create_connection((row["address"], int(row["port"])), CONNECT_S)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(json.dumps({"token": row["token"], **said}).encode() + b"\n")
        if line.recv(1) != b"\n":
            raise OSError("another program answers there")
    except OSError:
        line.close()
        raise
    return line


def _push(line: socket.socket, deadline_s: float) -> None:
    """Sends until the other end resets the connection."""
    piece = memoryview(bytes(PIECE_BYTES))
    with line, contextlib.suppress(OSError):
        while time.monotonic() < deadline_s:
            line.sendall(piece)


def _echo(guest: socket.socket) -> None:
    guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while byte := guest.recv(1):
        guest.sendall(byte)


def _line(guest: socket.socket) -> bytes:
    """A guest's first words, up to the end of the line."""
    said = b""
    while not said.endswith(b"\n") and len(said) < MAX_HELLO_BYTES:
        part = guest.recv(1)
        if not part:
            break
        said += part
    return said


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
