"""Which ranks have fallen silent: what ranks tell in shared memory and what the kernel knows of their processes.

`look` takes in one look at a rank and `find_lost` decides; both are pure. Time counts only while the agent looked:
after a pause of the agent's own, or of the machine, every rank's count begins anew. A process that computes, or would
if it were given a core, is slow and not silent.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import BEAT_S, EVERYONE, Beat, read_heartbeats
from hetplanner.liveness.process_facts import ProcessFacts, describe, process_facts

log = logging.getLogger(__name__)

STOPPED_S, SILENT_S = 1.6, 2.6
"""A stopped process, and one that gives no sign of life or stands still, is lost after so long; later where steps are
long: after 2 and 3 of them."""
STOPPED_STEPS, SILENT_STEPS = 2, 3
DISK_WAIT_S, DISK_WAIT_STEPS = 10.0, 5
"""For one that waits for a disk or a network file system (state D)."""
FIRST_STEPS_S, FIRST_EACH_OTHER_S = 60.0, 600.0
"""Before the length of a step is known: for one rank, and for all that wait for each other (or for emulated links)."""
SLOW_S, SLOW_STEPS = 120.0, 50
"""One that computes without getting anywhere."""
EACH_OTHER_S, EACH_OTHER_STEPS = 30.0, 20
"""All ranks wait for others, none gets anywhere."""
TOLD_S, TOLD_SLOW_S = 1.0, 10.0
"""A rank that is not given up yet is told of after so long (later where steps are long: one step, ten)."""
GONE_S = 5.0
"""The launcher reports an ended rank much sooner."""
LIMITS_S = {
    "starting": 300.0,
    "importing": 300.0,
    "connecting": 300.0,
    "building": 600.0,
    "profiling": 600.0,
    "predicting": 600.0,
    "restoring": 600.0,
    "checkpointing": 600.0,
    "validating": 600.0,
    "saving": 1200.0,
    "done": 120.0,
}
"""Without any progress, and without computing anything, outside of training."""
MAX_COUNTED_S, MAX_GAP_S = 3 * BEAT_S, 1.0
"""Of the time between two looks so much counts; after a longer one every rank's count begins anew."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank as the last looks found it.

    Attributes:
        facts: of its process; None: it is gone.
        silent_s: since its last heartbeat.
        still_s: since it last got on or computed, without waiting for another rank.
        slow_s: computed meanwhile, without getting on.
        waits_s: waited for another rank, without getting on.
        gone_s: since its process has gone.
    """

    beat: Beat
    facts: ProcessFacts | None
    silent_s: float = 0.0
    still_s: float = 0.0
    slow_s: float = 0.0
    waits_s: float = 0.0
    gone_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank that is given up, and what is known of it. `rank` is None for the launcher, or where none can be named."""

    rank: int | None
    message: str


def look(before: Seen | None, beat: Beat, facts: ProcessFacts | None, elapsed_s: float) -> Seen:
    """A rank after one more look, `elapsed_s` after the one before."""
    if before is None or (before.beat.pid, before.beat.attempt) != (beat.pid, beat.attempt):
        return Seen(beat, facts)
    seen = replace(before, beat=beat, facts=facts)
    if facts is None:
        return replace(seen, gone_s=before.gone_s + elapsed_s)
    computes = before.facts is None or facts.is_ready or facts.main_ticks != before.facts.main_ticks
    alive = before.facts is None or facts.is_ready or facts.ticks != before.facts.ticks
    if beat.beats != before.beat.beats:
        seen = replace(seen, silent_s=0.0)
    elif not alive:
        seen = replace(seen, silent_s=before.silent_s + elapsed_s)
    if (beat.progress, beat.activity) != (before.beat.progress, before.beat.activity):
        return replace(seen, still_s=0.0, slow_s=0.0, waits_s=0.0)
    if beat.waits_for is not None:
        return replace(seen, waits_s=before.waits_s + elapsed_s)
    if computes:
        return replace(seen, still_s=0.0, slow_s=before.slow_s + elapsed_s)
    return replace(seen, still_s=before.still_s + elapsed_s)


def find_lost(ranks: Sequence[Seen], names: Sequence[str]) -> Lost | None:
    """The first rank that is lost, if one is; or that no rank gets on any more.

    Args:
        ranks: those of this attempt.
        names: of the ranks, for messages: device and host.
    """
    for rank, seen in _living(ranks):
        why = _why_lost(seen)
        if why:
            return Lost(rank, f"rank {rank} ({names[rank]}) {why}")
    words = stall_text(ranks)
    return Lost(None, f"no rank gets on any more, and none is known to be at fault: {words}") if words else None


def stall_text(ranks: Sequence[Seen]) -> str:
    """Where all living ranks stand, if none gets on any more; empty where one does, or there are none."""
    living = _living(ranks)
    if not living or not all(_is_stalled(seen) for _, seen in living):
        return ""
    return "; ".join(f"rank {rank} {_at(seen.beat)}" for rank, seen in living[:8])


def _living(ranks: Sequence[Seen]) -> list[tuple[int, Seen]]:
    return [(rank, seen) for rank, seen in enumerate(ranks) if seen.beat.pid and seen.beat.exit_code is None]


def warnings(ranks: Sequence[Seen | None], names: Sequence[str]) -> tuple[str, ...]:
    """A sentence for every rank that holds the run up and is not given up yet."""
    found = []
    for rank, seen in enumerate(ranks):
        if seen is None or seen.facts is None or seen.beat.exit_code is not None:
            continue
        step_s = seen.beat.step_s or 0.0
        is_training = seen.beat.activity == "training"
        if seen.silent_s > max(TOLD_S, step_s):
            what = "is silent"
        elif is_training and seen.still_s > max(TOLD_S, step_s):
            what = "stands still"
        elif is_training and seen.slow_s > max(TOLD_SLOW_S, 10 * step_s):
            what = "computes without getting on"
        else:
            continue
        found.append(f"rank {rank} ({names[rank]}) {what} {_at(seen.beat)}: {describe(seen.beat.pid, seen.facts)}")
    return tuple(found)


def _why_lost(seen: Seen) -> str:
    """What is wrong with a rank, for which it is given up; empty: nothing."""
    beat, facts, step_s = seen.beat, seen.facts, seen.beat.step_s or 0.0
    if facts is None:
        return f"ended without a word {_at(beat)}" if seen.gone_s > GONE_S else ""
    if facts.is_stopped and seen.silent_s > max(STOPPED_S, STOPPED_STEPS * step_s):
        return f"has been silent for {seen.silent_s:.1f} s {_at(beat)}: {describe(beat.pid, facts)}"
    limit_s = _limit_s(beat, facts)
    if seen.silent_s > limit_s:
        return f"has been silent for {seen.silent_s:.1f} s {_at(beat)}: {describe(beat.pid, facts)}"
    if beat.activity != "training":
        return ""  # it may wait for others without saying so
    if seen.still_s > limit_s:
        state = describe(beat.pid, facts)
        return f"has stood still for {seen.still_s:.1f} s {_at(beat)}, though its heartbeat goes on: {state}"
    if seen.slow_s > max(SLOW_S, SLOW_STEPS * step_s):
        return f"has computed for {seen.slow_s:.0f} s without getting on {_at(beat)}"
    return ""


def _limit_s(beat: Beat, facts: ProcessFacts) -> float:
    if beat.activity != "training":
        return LIMITS_S[beat.activity]
    if beat.step_s is None:
        return FIRST_STEPS_S
    if facts.waits_for_disk:
        return max(DISK_WAIT_S, DISK_WAIT_STEPS * beat.step_s)
    return max(SILENT_S, SILENT_STEPS * beat.step_s)


def _is_stalled(seen: Seen) -> bool:
    """Whether a rank has got nowhere for so long that it cannot be chance, whichever rank it waits for."""
    beat, idle_s = seen.beat, seen.still_s + seen.waits_s
    if beat.activity != "training":
        return idle_s > LIMITS_S[beat.activity]
    return idle_s > (max(EACH_OTHER_S, EACH_OTHER_STEPS * beat.step_s) if beat.step_s else FIRST_EACH_OTHER_S)


def _at(beat: Beat) -> str:
    """Where in its life a rank is."""
    step = f", step {beat.steps}" if beat.activity in ("training", "checkpointing") else ""
    who = {None: "", EVERYONE: ", waiting for the others"}.get(beat.waits_for, f", waiting for rank {beat.waits_for}")
    return f"in {beat.activity}{step}{who}"


class LivenessWatch:
    """Looks at all ranks of a run, and at its launcher, whenever it is asked.

    Args:
        path: the file of heartbeats.
        names: of the ranks: device and host.
        timer: seconds that never jump.
        knows_all: all ranks are this machine's; else those that stand may wait for one of another machine.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        timer: Callable[[], float] = time.monotonic,
        *,
        knows_all: bool = True,
    ) -> None:
        self.path, self.names, self._timer, self._knows_all = path, names, timer, knows_all
        self._looked_s: float | None = None
        self._seen: list[Seen | None] = [None] * len(names)
        self._launcher: tuple[ProcessFacts, float] | None = None
        self._told = False

    def find_lost(self, attempt: int, launcher_pid: int) -> Lost | None:
        """Whom this look gives up, if anyone."""
        now_s = self._timer()
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        elapsed_s = min(gap_s, MAX_COUNTED_S)
        if gap_s > MAX_GAP_S:
            self._seen, self._launcher, elapsed_s = [None] * len(self.names), None, 0.0
        beats = self.beats(attempt)
        for rank, beat in enumerate(beats):
            facts = process_facts(beat.pid, beat.born_ticks) if beat.pid else None
            self._seen[rank] = look(self._seen[rank], beat, facts, elapsed_s)
        lost = find_lost([seen for seen in self._seen if seen is not None], self.names) if beats else None
        if lost is not None and lost.rank is None and not self._knows_all:
            lost = None
        return lost or self._look_at_launcher(launcher_pid, elapsed_s)

    def stall_text(self) -> str:
        """Where this machine's ranks stand, if the last look found that none gets on; else empty."""
        return stall_text([seen for seen in self._seen if seen is not None])

    def warnings(self) -> tuple[str, ...]:
        """A sentence for every rank that the last look found silent or without progress."""
        return warnings(self._seen, self.names)

    def beats(self, attempt: int) -> list[Beat]:
        """What the ranks of this attempt tell now; empty where that cannot be read."""
        if not self.names:
            return []
        try:
            found = read_heartbeats(self.path)
        except InvalidInput as error:
            if not self._told:
                log.warning("ranks cannot be seen: %s", error)
            self._told = True
            return []
        if len(found) != len(self.names):
            return []
        return [beat if beat.attempt == attempt else replace(beat, pid=0, exit_code=None, signum=0) for beat in found]

    def _look_at_launcher(self, pid: int, elapsed_s: float) -> Lost | None:
        facts = process_facts(pid)
        if facts is None or not facts.is_stopped:
            self._launcher = None
            return None
        stopped_s = elapsed_s + (self._launcher[1] if self._launcher is not None else 0.0)
        self._launcher = facts, stopped_s
        if stopped_s <= STOPPED_S:
            return None
        return Lost(None, f"the launcher has been silent for {stopped_s:.1f} s: {describe(pid, facts)}")
