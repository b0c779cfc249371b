"""Which processes of a swarm hang, judged by their launcher: from their heartbeats and from what the kernel knows.

A thread of each process counts heartbeats; its event loop counts progress whenever it turns. Waiting for a peer does
not stop the loop. `look` of `ranks` takes in both, so that a process that waits for a core is slow and not silent.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import Beat, read_heartbeats
from hetplanner.liveness.process_facts import ProcessFacts, describe, process_facts
from hetplanner.liveness.ranks import DISK_WAIT_S, MAX_COUNTED_S, MAX_GAP_S, SILENT_S, STOPPED_S, Seen, look

SLOW_S = 10.0
"""An event loop that computes, or waits for a thread that does, and does not turn."""
STARTING_S = 120.0
"""From its start to the first turn of its event loop: torch may have to be read from a slow disk."""


class SwarmLiveness:
    """Of processes that write their heartbeats to one file.

    Args:
        path: of the file.
        timer: seconds that never jump.
        facts_of: what the kernel knows of a process.
    """

    def __init__(
        self,
        path: Path,
        timer: Callable[[], float] = time.monotonic,
        facts_of: Callable[[int], ProcessFacts | None] = process_facts,
    ) -> None:
        self._path, self._timer, self._facts_of = path, timer, facts_of
        self._seen: dict[str, Seen] = {}
        self._looked_s = timer()

    def find_hung(self, processes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Words about those that hang, by name; to be called often.

        Args:
            processes: that are alive: place in the file and process id, by name.
        """
        now_s = self._timer()
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        try:
            beats = read_heartbeats(self._path)
        except InvalidInput:  # the file was removed: no process is accused
            return {}
        if gap_s > MAX_GAP_S:  # the launcher itself was stopped: all begin anew
            self._seen.clear()
        seen = {}
        for name, (place, pid) in processes.items():
            facts = self._facts_of(pid)
            if place < len(beats) and facts is not None:
                seen[name] = self._look(name, pid, beats[place], facts, min(gap_s, MAX_COUNTED_S))
        self._seen = seen
        return {name: why for name, one in seen.items() if (why := _why_hung(one))}

    def _look(self, name: str, pid: int, beat: Beat, facts: ProcessFacts, elapsed_s: float) -> Seen:
        if beat.pid != pid:  # the record of the process that had the place before
            beat = replace(beat, pid=pid, activity="starting", beats=0, progress=0)
        # The loop may wait for any of the process's threads.
        return look(self._seen.get(name), beat, replace(facts, main_ticks=facts.ticks), elapsed_s)


def _why_hung(seen: Seen) -> str:
    beat, facts = seen.beat, seen.facts
    assert facts is not None
    state = describe(beat.pid, facts)
    if facts.is_stopped and seen.silent_s > STOPPED_S:
        return f"has been silent for {seen.silent_s:.1f} s: {state}"
    limit_s = STARTING_S if beat.activity != "training" else DISK_WAIT_S if facts.waits_for_disk else SILENT_S
    if seen.silent_s > limit_s:
        return f"has been silent for {seen.silent_s:.1f} s: {state}"
    if seen.still_s > limit_s:
        return f"has taken no message for {seen.still_s:.1f} s, though its heartbeat goes on: {state}"
    if beat.activity == "training" and seen.slow_s > SLOW_S:
        return f"has computed for {seen.slow_s:.1f} s without taking a message"
    return ""
