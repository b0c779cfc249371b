"""Ranks as forks of their torchrun, which has loaded torch already: a host loads it once, not once more for each rank.

Loading torch takes 1 to 2 s of a core and some 200 MB; forks share both. A rank has a session, an environment and
descriptors of its own, as if torchrun had started a Python for it. It is forked before anything asks for a GPU.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

WORKER_MODULE = "hetplanner.runtime.worker"
PRELOADED = ("hetplanner.runtime.session", "hetplanner.plan.files.plan_files", "hetplanner.plan.files.train_files")
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that torchrun handles itself; a rank has its own ways."""
POLL_S = 0.02
_UNBUFFERED = 2  # C's _IONBF


class ForkedProcess:
    """What torchrun asks of `subprocess.Popen`, for a fork.

    Args:
        arguments: of the worker.
        env: all its variables.

    Raises:
        OSError: there may be no more processes.
    """

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):  # else the fork writes what waits there, too
            stream.flush()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become_rank(arguments, env, held)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it ended.

        Args:
            timeout: seconds; None: for ever.

        Raises:
            TimeoutExpired: it did not, in that time.
        """
        deadline_s = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(WORKER_MODULE, timeout or 0.0)
            time.sleep(POLL_S)
        return code


class ForkHandler(SubprocessHandler):
    """Starts a rank as a fork, and any other program as torchrun does."""

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        _, *words = args
        is_rank = words[:3] == ["-u", "-m", WORKER_MODULE] and not (self._stdout or self._stderr)
        if not is_rank or torch.cuda.is_initialized():  # no fork could use a GPU then
            return super()._popen(args, env)
        return ForkedProcess(words[3:], env)


def fork_ranks() -> None:
    """Has the torchrun of this process fork its ranks, where the system can; what they need is loaded before."""
    if sys.platform != "linux":  # elsewhere system libraries do not survive a fork
        return
    api.get_subprocess_handler = ForkHandler  # type: ignore[assignment]  # it makes one of the same arguments
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # the rank says what is missing
            importlib.import_module(name)
    gc.freeze()  # pages of what is loaded stay shared


def _unbuffer() -> None:
    """As `python -u` does: what libraries write is in the log at once, however the process ends."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _UNBUFFERED, 0)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _become_rank(arguments: Sequence[str], env: Mapping[str, str], mask: Any) -> NoReturn:
    """In the fork: leaves all that is torchrun's, and runs a rank to its end."""
    code: object = 1
    try:
        os.setsid()
        for number in map(int, os.listdir("/proc/self/fd")):  # the store's port ends with torchrun
            if number > 2:
                with contextlib.suppress(OSError):
                    os.close(number)
        for signum in HANDLED:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        logging.getLogger().handlers.clear()  # a rank has its own
        _unbuffer()
        os.environ.clear()
        os.environ.update(env)
        from hetplanner.runtime.worker import run_to_exit

        run_to_exit(list(arguments))
    except SystemExit as end:  # of the command line
        code = end.code
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)
