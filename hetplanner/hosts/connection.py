"""A connection to a host: a command here, such as ssh, with our program at its other end."""

import logging
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.framing import PIECE_BYTES, FrameError, FrameWriter, read_frame, read_greeting
from hetplanner.hosts.transport import Transport, Unfit, Unreachable
from hetplanner.launchers.hosts_file import PlacedHost

log = logging.getLogger(__name__)

MAX_WORDS = 40
END_S = 2.0
ANSWER_S = 40.0
"""Longest wait for a host's first words, and for an answer to most questions."""


class Connection:
    """An open connection to a host.

    Args:
        host: which.
        transport: the way there.

    Raises:
        Unreachable: the transport does not get there.
        Unfit: it refuses, or our program does not begin there.
    """

    def __init__(self, host: PlacedHost, transport: Transport) -> None:
        self.host, self._transport, self._said = host, transport, deque[str](maxlen=MAX_WORDS)
        argv = transport.argv(host)
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise Unfit(f"{argv[0]} cannot be started here ({error.strerror}); install it") from None
        self._source = cast(BinaryIO, self._process.stdout)
        self._writer = FrameWriter(cast(BinaryIO, self._process.stdin))
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        try:
            with self._limited():
                greeting = read_greeting(self._source)
        except FrameError as error:
            self.close()
            raise Unfit(f"{error}; keep its shell's start files silent") from None
        if greeting is None:
            raise self._why_closed()

    def _read_errors(self) -> None:
        for line in cast(BinaryIO, self._process.stderr):
            self._said.append(line.decode(errors="replace").strip()[:300])

    # -- talking ----------------------------------------------------------------------------------

    def send(self, do: str, body: bytes = b"", **header: Any) -> None:
        """Asks for something. Raises Unreachable."""
        try:
            self._writer.write({"do": do, **header}, body)
        except (OSError, ValueError):
            raise Unreachable("the connection is lost") from None

    def ask(self, do: str, body: bytes = b"", *, answer_s: float = ANSWER_S, **header: Any) -> dict[str, Any]:
        """Asks for something and waits for the answer.

        Raises:
            Unreachable: the connection is lost, or there is no answer after `answer_s`.
            Unfit: the host refuses it.
        """
        with self._limited(answer_s):
            self.send(do, body, **header)
            answer, _ = self.receive()
            while "pong" in answer and (do, answer["pong"]) != ("ping", header.get("id")):  # of another thread's
                answer, _ = self.receive()
        if "refused" in answer:
            raise Unfit(str(answer["refused"])[:1000])
        return answer

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises Unreachable: the connection has ended, or says what is no frame."""
        try:
            frame = read_frame(self._source, PIECE_BYTES)
        except FrameError as error:
            raise Unreachable(str(error)) from None
        except (OSError, ValueError):
            frame = None
        if frame is None:
            raise Unreachable(self._last_words() or "the connection has ended")
        return frame

    def follow(self, take: Callable[[dict[str, Any], bytes], None]) -> None:
        """Hands over frames until the connection ends. Raises Unreachable then."""
        while True:
            take(*self.receive())

    def close(self) -> None:
        """Ends the command, and with it our program at its other end; a thread that waits for a frame goes on then."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            cast(BinaryIO, self._process.stdin).close()

    @contextmanager
    def _limited(self, seconds: float = ANSWER_S) -> Iterator[None]:
        """Calls inside that wait for the host end after so many seconds."""
        timer = threading.Timer(seconds, self._give_up, [seconds])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self, seconds: float) -> None:
        self._said.append(f"no answer for {seconds:g} s")
        self._process.kill()

    # -- why it ended -----------------------------------------------------------------------------

    def _why_closed(self) -> RunError | InvalidInput:
        code = self._process.wait()
        self._errors.join(END_S)
        return self._transport.why_closed(code, list(self._said), self.host)

    def _last_words(self) -> str:
        self._errors.join(END_S if self._process.poll() is not None else 0.0)
        return next((line for line in reversed(self._said) if line), "")
