"""Which processes of a swarm live and do nothing: each counts heartbeats in memory that their launcher reads.

A thread of a process counts as long as the process runs at all, its event loop as long as it turns. Only what the
launcher sees itself counts: one that was stopped or starved finds old counts, which say nothing about the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetplanner.errors import InvalidInput
from hetplanner.runtime.heartbeat import Beat, read_heartbeats

STOPPED_S = 2.0
"""A process that the system says is stopped (SIGSTOP, a debugger) is lost after so long without a heartbeat."""
SILENT_S = 10.0
"""One that could run, but does not: on a machine with too few cores many wait."""
STARTING_S = 120.0
"""From its start to the first heartbeat of its event loop: torch may have to be read from a slow disk."""
GAP_S = 1.0
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass
class _Seen:
    """Counters of a process, and when each of them changed last."""

    pid: int
    since_s: float
    beats: int = 0
    beats_s: float = 0.0
    progress: int = 0
    progress_s: float = 0.0


class Liveness:
    """Of processes that write their heartbeats to one file.

    Args:
        path: of the file.
        clock: seconds that never jump.
        state_of: what the system says of a process, in psutil's words.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, state_of: Callable[[int], str] | None = None
    ) -> None:
        self._path, self._clock = path, clock
        self._state_of = state_of or _state_of
        self._seen: dict[str, _Seen] = {}
        self._looked_s: float | None = None

    def find_hung(self, processes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Words about those that hang, by name; to be called often.

        Args:
            processes: that are alive: place in the file and process id, by name.
        """
        now_s = self._clock()
        starved = self._looked_s is None or now_s - self._looked_s > GAP_S
        self._looked_s = now_s
        try:
            beats = read_heartbeats(self._path)
        except InvalidInput:  # somebody has removed it: nobody is accused
            return {}
        if starved:
            self._seen.clear()
        self._seen = {name: seen for name, seen in self._seen.items() if name in processes}
        return {
            name: why
            for name, (place, pid) in processes.items()
            if place < len(beats) and (why := self._judge(name, pid, beats[place], now_s)) is not None
        }

    def _judge(self, name: str, pid: int, beat: Beat, now_s: float) -> str | None:
        seen = self._seen.get(name)
        if seen is None or seen.pid != pid:
            seen = self._seen[name] = _Seen(pid, now_s, beats_s=now_s, progress_s=now_s)
        if beat.pid == pid and beat.beats != seen.beats:
            seen.beats, seen.beats_s = beat.beats, now_s
        if beat.pid == pid and beat.progress != seen.progress:
            seen.progress, seen.progress_s = beat.progress, now_s
        silent_s = now_s - seen.beats_s
        if silent_s > STOPPED_S and self._state_of(pid) in STOPPED:
            return f"has been stopped for {silent_s:.1f} s (by SIGSTOP or a debugger)"
        is_up = beat.pid == pid and beat.activity == "training"
        if silent_s > (SILENT_S if is_up else STARTING_S):
            return f"has given no sign of life for {silent_s:.1f} s, though it is not stopped"
        stuck_s = now_s - seen.progress_s
        if stuck_s > (SILENT_S if is_up else STARTING_S):
            return f"lives, but has taken no message for {stuck_s:.1f} s"
        return None


def _state_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""
