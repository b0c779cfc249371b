"""What the kernel knows of a living process: whether it computes, sleeps, is stopped, or is held by a debugger."""

import re
import sys
from dataclasses import dataclass

import psutil

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
        return ProcessFacts(UNKNOWN, 0, 0) if psutil.pid_exists(pid) else None
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
    """The process that holds another one as a debugger does; None where none does, or that cannot be told."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^TracerPid:\s+(\d+)$", file.read(), re.MULTILINE)
    except OSError:
        return None
    return (int(found[1]) or None) if found else None


def describe(pid: int, facts: ProcessFacts) -> str:
    """Says what a process does: `process 12 sleeps`."""
    words = {
        "T": "is stopped",
        "t": f"is held by a debugger (process {tracer_of(pid) or 'unknown'})",
        "D": "waits for a disk or a network file system",
        "S": "sleeps",
        "R": "runs, or waits for a core",
    }
    return f"process {pid} {words.get(facts.state, 'does nothing')}"


def _stat(path: str) -> list[str]:
    """Fields of a `stat` file from the third on: the second is a name, which may hold anything."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
