"""The page's helper processes: fresh ones with pipes, one thread each, never a fork."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence

if sys.platform == "linux":
    import fcntl

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""With a library's default of a thread for every core, a click beside a busy helper takes several times as long."""

SWITCH_S = 0.001
"""The thread that reads an answer gets its turn from a busy main thread so soon; by default after five times that."""
PIPE_BYTES = 2**20
"""A simulated step has some megabytes; every read of a part waits for its turn beside the server's own thread."""


class Child:
    """A process that is spoken to in lines of text over its pipes, and the last lines of its complaints. What it says
    comes as bytes.
    """

    def __init__(self, command: Sequence[str]) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
            bufsize=PIPE_BYTES,
            start_new_session=True,  # Ctrl-C in the terminal stops the server; the helper then sees its pipe close
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = io.TextIOWrapper(self.process.stdin, encoding="utf-8"), self.process.stdout
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a user may have used up what pipes he may have
                fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.complaints: deque[str] = deque(maxlen=20)
        self._listener = threading.Thread(target=self._listen, daemon=True, name=f"stderr of {self.process.pid}")
        self._listener.start()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def kill(self) -> None:
        """Ends it at once."""
        if self.alive:
            self.process.kill()

    def last_words(self) -> str:
        """Exit code and last complaints of a process that ends; one that does not is killed."""
        try:
            code = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self.process.wait()
        self._listener.join(1.0)  # its last words may still be in the pipe
        return f"(exit code {code}): {'; '.join(list(self.complaints)[-3:]) or 'it left no message'}"

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints.append(line.decode(errors="replace").rstrip()[:300])
