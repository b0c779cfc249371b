"""Processes of a run: started as a session of their own, found again, and ended, every one of them.

torchrun gives each worker a session of its own, so a process group is not enough: what belongs to a run is
its launcher's tree *and* every process that carries the run's mark in its environment (orphans included).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN_MARK = "HETPLANNER_RUN"
"""Environment variable that names the run directory a process belongs to."""

_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


def start_in_session(
    argv: Sequence[str], env: Mapping[str, str], run_dir: Path, log: Path
) -> "subprocess.Popen[bytes]":
    """Starts a program, without a shell, as leader of a new session; its output is appended to `log`.

    Args:
        argv: program and arguments.
        env: variables on top of this process's own.
        run_dir: working directory, and the mark by which the run's processes are found.
        log: gets standard output and error.

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
        )


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


UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the kernel knows of a living process.

    Attributes:
        state: of its main thread, as `ps` names it; UNKNOWN where the system has no /proc.
        ticks, main_ticks: of the clock that all its threads, and its main thread, have computed.
    """

    state: str
    ticks: int
    main_ticks: int

    @property
    def is_ready(self) -> bool:
        """Whether it computes, or would if it were given a core."""
        return self.state == "R"

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal or is held by a debugger."""
        return self.state in ("T", "t")

    @property
    def waits_for_disk(self) -> bool:
        """Whether it waits where no signal reaches it; so may one of which nothing is known."""
        return self.state in ("D", UNKNOWN)


def process_facts(pid: int, born_ticks: int | None = None) -> ProcessFacts | None:
    """Facts of a process; None where it is gone.

    Args:
        pid: of the process.
        born_ticks: when it began; another process of the same number is not it.
    """
    if sys.platform != "linux":
        return ProcessFacts(UNKNOWN, 0, 0) if created_unix_s(pid) is not None else None
    try:
        fields = _stat(f"/proc/{pid}/stat")
        main = _stat(f"/proc/{pid}/task/{pid}/stat")
        if fields[0] in ("Z", "X") or born_ticks not in (None, int(fields[19])):
            return None
        # A stopped process shows its state in every thread.
        return ProcessFacts(main[0], int(fields[11]) + int(fields[12]), int(main[11]) + int(main[12]))
    except (OSError, IndexError, ValueError):
        return None


def tracer_of(pid: int) -> int | None:
    """The process that holds another one as a debugger does; None where nobody does, or that cannot be told."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^TracerPid:\s+(\d+)$", file.read(), re.MULTILINE)
    except OSError:
        return None
    return (int(found[1]) or None) if found else None


def _stat(path: str) -> list[str]:
    """Fields of a `stat` file from the third on: the second is a name, which may hold anything."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
