"""One ssh to a host, with our program at its other end: plain OpenSSH, with the user's own configuration and keys."""

import logging
import shlex
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.framing import PIECE_BYTES, FrameError, FrameWriter, read_frame, read_greeting
from hetplanner.launchers.hosts_file import PlacedHost

log = logging.getLogger(__name__)

NODE_MODULE = "hetplanner.hosts.node"
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # it never asks for a password
    *("-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-o", "Compression=yes"),  # telemetry is text, and shares the link with the training
    *("-o", "ControlMaster=no"),  # a connection of the user's own may be used, none is left behind
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
)
SSH_FAILED = 255
"""ssh's own exit code; others are of the program at its other end."""
MAX_WORDS = 40
END_S = 2.0
ANSWER_S = 40.0
"""Longest wait for a host's first words, and for an answer."""


class Unreachable(RunError):
    """A host does not answer; another time it may."""


class Unfit(InvalidInput):
    """A host answers, and cannot be used as it is."""


def ssh_argv(host: PlacedHost, ssh_config: str | None) -> list[str]:
    """The command that starts our program on a host."""
    remote = shlex.join(["exec", "env", "PYTHONSAFEPATH=1", host.program, "-m", NODE_MODULE, "connect"])
    return ["ssh", *OPTIONS, *(["-F", ssh_config] if ssh_config else []), "--", host.ssh, remote]


class Connection:
    """An open connection to a host.

    Args:
        host: which.
        ssh_config: configuration for ssh; None: the user's own.

    Raises:
        Unreachable: ssh does not get there.
        Unfit: ssh refuses, or our program does not begin there.
    """

    def __init__(self, host: PlacedHost, ssh_config: str | None) -> None:
        self.host, self._said = host, deque[str](maxlen=MAX_WORDS)
        try:
            self._process = subprocess.Popen(
                ssh_argv(host, ssh_config), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise Unfit(f"ssh cannot be started here ({error.strerror}); install OpenSSH's client") from None
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
            raise Unreachable("the connection is gone") from None

    def ask(self, do: str, body: bytes = b"", **header: Any) -> dict[str, Any]:
        """Asks for something and waits for the answer. Raises Unreachable, Unfit (the host refuses it)."""
        with self._limited():
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
        """Ends ssh, and with it our program at its other end; a thread that waits for a frame goes on then."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            cast(BinaryIO, self._process.stdin).close()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """What waits inside for the host is ended after ANSWER_S."""
        timer = threading.Timer(ANSWER_S, self._give_up)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._said.append(f"no answer for {ANSWER_S:g} s")
        self._process.kill()

    # -- why it ended -----------------------------------------------------------------------------

    def _why_closed(self) -> RunError | InvalidInput:
        code = self._process.wait()
        self._errors.join(END_S)
        return why_closed(code, list(self._said), self.host)

    def _last_words(self) -> str:
        self._errors.join(END_S if self._process.poll() is not None else 0.0)
        return next((line for line in reversed(self._said) if line), "")


def why_closed(code: int, said: list[str], host: PlacedHost) -> RunError | InvalidInput:
    """Why our program did not begin on a host, with what to do.

    Args:
        code: ssh's exit code.
        said: what it and the host's shell wrote to stderr.
        host: which.
    """
    text = "\n".join(said)
    last = next((line for line in reversed(said) if line), f"exit code {code}")
    if code == SSH_FAILED or code < 0:
        return _why_ssh_failed(text, last, host)
    if "No module named" in text and "hetplanner" in text:
        return Unfit(f"{host.python} has no hetplanner; install it there, or name its python in the hosts file")
    if code in (126, 127) or "not found" in text or "No such file" in text:
        return Unfit(
            f"{host.python} cannot be run ({last:.200}); install Python, or name it in the hosts file (python)"
        )
    return Unfit(f"our program ends at once: {last:.300}")


def _why_ssh_failed(text: str, last: str, host: PlacedHost) -> RunError | InvalidInput:
    if "IDENTIFICATION HAS CHANGED" in text:
        return Unfit(
            f"its host key is another than the known one: the machine was set up anew, or somebody is in between; if it"
            f" was you, remove the old key with `ssh-keygen -R` and log in once: ssh {host.ssh}"
        )
    if "Host key verification failed" in text or "host key is known" in text:
        return Unfit(f"its host key is not known here; log in once and compare it: ssh {host.ssh}")
    if "Permission denied" in text or "Too many authentication failures" in text:
        return Unfit(
            f"ssh as {host.ssh} is refused ({last:.200}); it must log in without a password: add your key there, or to"
            " the ssh agent that the hetplanner agent was started with"
        )
    if "Bad configuration" in text or "terminating" in text or "Bad owner" in text:
        return Unfit(f"ssh refuses its configuration: {last:.300}; correct it")
    return Unreachable(f"cannot be reached: {last:.300}; try `ssh {host.ssh} true`")
