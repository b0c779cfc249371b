"""Processes of a run: started as a session of their own, found again, and ended, every one of them.

torchrun gives each worker a session of its own, so a process group is not enough: what belongs to a run is
its launcher's tree *and* every process that carries the run's mark in its environment (orphans included).
"""

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

RUN_MARK = "HETPLANNER_RUN"
"""Environment variable that names the run directory a process belongs to."""

_PR_SET_PDEATHSIG = 1
_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


def start_in_session(
    argv: Sequence[str], env: Mapping[str, str], run_dir: Path, log: Path, *, ends_with_parent: bool = False
) -> "subprocess.Popen[bytes]":
    """Starts a program, without a shell, as leader of a new session; its output is appended to `log`.

    Args:
        argv: program and arguments.
        env: variables on top of this process's own.
        run_dir: working directory, and the mark by which the run's processes are found.
        log: gets standard output and error.
        ends_with_parent: it is sent SIGTERM when the thread that calls this ends, which must be the only one (Linux).

    Raises:
        OSError: when the program cannot be started.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _TORCHRUN_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            env=inherited | dict(env) | {RUN_MARK: str(run_dir)},
            cwd=run_dir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            preexec_fn=end_with_parent if ends_with_parent else None,
        )


@contextlib.contextmanager
def killed_at_end(child: "subprocess.Popen[Any]") -> Iterator[None]:
    """Within it a leader of a session works; at its end the process and its children are dead."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def end_process(code: int) -> NoReturn:
    """Ends this process at once, its output written.

    The interpreter's own end takes 0.3 s with torch: it waits for gloo's threads and frees every tensor one by one.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk changes nothing of what was done
            stream.flush()
    os._exit(code)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In the new process: has the kernel send it a signal when its parent is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def created_unix_s(pid: int) -> float | None:
    """When a living process began; None when there is none. With the pid it names one process for good."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_same_process(pid: int | None, began_unix_s: float | None) -> bool:
    """Whether the process that began then still lives (the clock's step is 10 ms, and it may be adjusted)."""
    if pid is None or began_unix_s is None:
        return False
    now = created_unix_s(pid)
    return now is not None and abs(now - began_unix_s) < 1.0


def processes_of_run(run_dir: Path, launcher_pid: int | None = None) -> list[psutil.Process]:
    """All living processes of a run: the launcher, its descendants, and every process with the run's mark."""
    found: dict[int, psutil.Process] = {}
    if launcher_pid is not None:
        with contextlib.suppress(psutil.Error):
            launcher = psutil.Process(launcher_pid)
            found = {p.pid: p for p in (launcher, *launcher.children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _has_mark(process, str(run_dir)):
            found[process.pid] = process
    return [p for p in found.values() if _lives(p)]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.uids().real == os.getuid() and process.environ().get(RUN_MARK) == mark
    except (psutil.Error, OSError):
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def send_signal(processes: Iterable[psutil.Process], signum: signal.Signals) -> None:
    """Sends a signal to each; those that are gone are passed over (psutil compares creation times)."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(signum)
