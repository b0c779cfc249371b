"""The life of a swarm as its coordinator tells it: who served which stage when, who came, moved and went."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.reading import DAMAGED
from hetplanner.runs.reading.swarm_flow import (
    MAX_STAGES,
    MAX_TEXT,
    StepParts,
    SwarmFlow,
    WorkSum,
    flow_over,
    parts_of,
    seconds_of,
)
from hetplanner.runs.reading.tail import LineTail

EVENTS_FILE, PROCESSES_FILE = "events.jsonl", "processes.jsonl"
"""What its coordinator tells, and what the process that started them all tells of its processes."""
STATES = ("waiting", "joining", "serving")
MAX_STAYS = MAX_MARKS = 4000
"""Of a swarm that lives long the newest are kept."""
MAX_COMMITS = 20_000
MAX_ATTEMPTS = 4000
MAX_REASONS = 100
POLL_BYTES = 2 * 2**20
KEPT_STEPS = 128
"""Of whose parts the flow can be summed up."""
CLOSING_PHASES = tuple(phase.value for phase in Phase if phase is not Phase.RUN)
WAYS_TO_GO = ("left", "lost", "cut off")
"""As its coordinator tells them; an older one only says `gone`."""
SAME_LOOK_S = 0.1
"""A coordinator counts a failure and tells who went with it at one look."""
OF_THE_SWARM = {
    "set back": "set back",
    "refused": "refused",
    "trainer lost": "trainer lost",
    "not saved": "trouble",
    "disk": "trouble",
    "not closed": "not closed",
    "restarted": "restarted",
    "ended": "not restarted",
    "preempted": "preempted",
}
"""Kind of event -> kind of mark, of what happens to no peer in particular."""


@dataclass(slots=True)
class Stay:
    """A peer in one state at one stage; unix times. `end_s` None: it is there still. Peer '': a pause of the swarm."""

    peer: str
    stage: int
    state: str
    start_s: float
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment, to a peer or (peer '') to the swarm."""

    time_s: float
    kind: str
    peer: str
    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed step: its number from 1, mean loss if it was told, and seconds since the commit before."""

    time_s: float
    step: int
    loss: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to close a step that is over: the seconds of its phases, and whether the step was committed."""

    time_s: float
    seconds: Mapping[str, float]
    closed: bool


class SwarmHistory:
    """Reads a run's events while they are written. What does not look like one is counted and passed over.

    Attributes:
        now: by peer, its stay that goes on; first come first.
        draining: peers of these that want to leave.
        steps: parts of the last committed steps, of a coordinator that tells them.
        work: the sum of the parts of all of them.
        attempts: to close a step, the last ones.
        failures: how often peers were lost, by reason, over all coordinators.
        boots: coordinators so far.
        address: where the last one was reached; None before it is.
        is_over: the last one has told the end.
        ended: processes that are not started again, since the launcher was started last.
        counts: of marks by kind, also of those that are not kept any more.
        damaged: lines that could not be read.
    """

    def __init__(self, run_dir: Path) -> None:
        """A history at the start of its file, which may not exist yet."""
        self._tails = [LineTail(Path(run_dir) / name) for name in (EVENTS_FILE, PROCESSES_FILE)]
        self.stays: deque[Stay] = deque(maxlen=MAX_STAYS)
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.commits: deque[Commit] = deque(maxlen=MAX_COMMITS)
        self.steps: deque[StepParts] = deque(maxlen=KEPT_STEPS)
        self.work = WorkSum()
        self.attempts: deque[Attempt] = deque(maxlen=MAX_ATTEMPTS)
        self.failures: Counter[str] = Counter()
        self.now: dict[str, Stay] = {}
        self.draining: set[str] = set()
        self.pauses: deque[Stay] = deque(maxlen=MAX_STAYS)
        self.counts: dict[str, int] = {}
        self.first_s: float | None = None
        self.last_s = 0.0
        self.boots = self.damaged = 0
        self.address: str | None = None
        self.is_over = False
        self.ended: set[str] = set()
        self._failures: dict[str, int] = {}
        self._reason = (0.0, "")

    def poll(self, max_bytes: int = POLL_BYTES) -> bool:
        """Reads on; returns whether anything was new."""
        before = [tail.offset for tail in self._tails]
        for line in (line for tail in self._tails for line in tail.lines(max_bytes)):
            try:
                self._take(json.loads(line))
            except DAMAGED:
                self.damaged += 1  # a coordinator was killed inside a line, or another process wrote there
        return [tail.offset for tail in self._tails] != before

    def read_all(self) -> SwarmHistory:
        """Reads everything written so far; returns itself."""
        while self.poll():
            pass
        return self

    @property
    def paused(self) -> bool:
        """Whether the swarm waits for a stage that no peer serves."""
        return bool(self.pauses) and self.pauses[-1].end_s is None

    def flow(self, last: int = 20) -> SwarmFlow:
        """Speeds and ways of the last so many steps, at most KEPT_STEPS. Raises InvalidInput."""
        return flow_over(self.steps, last)

    def _take(self, event: Any) -> None:
        """Learns an event. What is none raises some error of its first wrong part."""
        time_s, kind = float(event["time_s"]), event["kind"]
        if not math.isfinite(time_s) or not isinstance(kind, str):
            raise ValueError("no event")
        if kind in (*STATES, "move", "gone"):
            self._take_assignment(time_s, kind, _text(event["peer"]), _stage(event["stage"]), event)
        elif kind == "draining":
            self._take_wish(time_s, _text(event["peer"]))
        elif kind == "commit":
            self._take_commit(time_s, event)
        elif kind == "failures":
            self._take_failures(time_s, event["counts"])
        elif kind in ("garbage", "accused"):
            self._mark(time_s, "garbage", _text(event["peer"]), f"{kind}: {_text(event['text'])}")
        elif kind == "closed":
            self._take_attempt(time_s, event, closed=True)
        elif kind in OF_THE_SWARM:
            if kind == "not closed":
                self._take_attempt(time_s, event, closed=False)
            if kind == "ended":
                self.ended.add(_text(event["peer"]))
            self._mark(time_s, OF_THE_SWARM[kind], "", _words(kind, event))
        elif kind == "started":
            self.ended.clear()
        else:
            self._take_state(time_s, kind, event)
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.last_s = max(self.last_s, time_s)

    def _take_assignment(self, time_s: float, kind: str, peer: str, stage: int, event: dict[str, Any]) -> None:
        before = self.now.pop(peer, None)
        if before is not None:
            before.end_s = time_s
        if kind == "gone":
            self.draining.discard(peer)
            self._take_farewell(time_s, peer, event)
            return
        if kind == "move":
            origin = f"from stage {before.stage} " if before is not None else ""
            self._mark(time_s, "move", peer, f"moves {origin}to stage {stage}")
        elif before is None:
            self._mark(time_s, "join", peer, f"comes to stage {stage}")
        # A peer that moves joins its new stage first, and says so again only when it serves.
        stay = Stay(peer, stage, "joining" if kind == "move" else kind, time_s)
        self.now[peer] = stay
        self.stays.append(stay)

    def _take_farewell(self, time_s: float, peer: str, event: dict[str, Any]) -> None:
        how = event.get("how")
        if how in WAYS_TO_GO:
            reason = _text(event.get("reason", ""))
            self._mark(time_s, how, peer, f"{how}: {reason}" if reason else how)
            return
        near = time_s - self._reason[0] < SAME_LOOK_S
        self._mark(time_s, "gone", peer, f"gone: {self._reason[1]}" if near and self._reason[1] else "gone")

    def _take_wish(self, time_s: float, peer: str) -> None:
        if peer in self.now:
            self.draining.add(peer)
            self._mark(
                time_s, "leaves", peer, "asks to leave: it goes between two steps, once another serves its stage"
            )

    def _take_commit(self, time_s: float, event: dict[str, Any]) -> None:
        loss = event["loss"]
        step, seconds = int(event["version"][1]), float(event["seconds"])
        if not math.isfinite(seconds):
            raise ValueError("no duration")
        parts = parts_of(step, seconds, event)
        if parts is not None:
            self.steps.append(parts)
            self.work.add(parts)
        self.commits.append(Commit(time_s, step, None if loss is None else float(loss), seconds))

    def _take_attempt(self, time_s: float, event: dict[str, Any], *, closed: bool) -> None:
        told = event.get("seconds", {})
        seconds = {phase: seconds_of(told[phase]) for phase in CLOSING_PHASES if phase in told}
        self.attempts.append(Attempt(time_s, seconds, closed))

    def _take_failures(self, time_s: float, counts: dict[str, int]) -> None:
        rises = {_text(reason): count - self._failures.get(reason, 0) for reason, count in counts.items()}
        rose = {reason: rise for reason, rise in rises.items() if rise > 0}
        for reason, rise in rose.items():
            if reason in self.failures or len(self.failures) < MAX_REASONS:
                self.failures[reason] += int(rise)
        self._failures = dict(list(counts.items())[:MAX_REASONS])
        self._reason = time_s, ", ".join(rose)[:MAX_TEXT]

    def _take_state(self, time_s: float, kind: str, event: dict[str, Any]) -> None:
        if kind in ("paused", "resumed"):
            self._end_pause(time_s)
            if kind == "paused":
                self.pauses.append(Stay("", _stage(event["stages"][0]), "paused", time_s))
        elif kind == "boot":
            self.boots, self.is_over, self._failures = self.boots + 1, False, {}
            self.address = _text(event["address"]) if "address" in event else None
            self._end_all(time_s)
            if self.boots > 1:
                self._mark(time_s, "restart", "", "the coordinator is back")
        elif kind == "end":
            self.is_over = True
            self._end_all(time_s)
        elif kind == "cut":
            peer = _text(event["peer"])
            self._mark(time_s, "cut", peer, f"{peer}: {_text(event['by'])} cannot reach it")
        elif kind == "local work lost":
            text = (
                f"stage {_stage(event['stage'])} averaged without {int(event['micro_batches'])} of {int(event['of'])}"
            )
            self._mark(time_s, "work lost", "", f"{text} micro-batches of the round: their peers are lost")
        elif kind == "digests" and event["different"] != 1:
            self._mark(time_s, "trouble", "", f"replicas of stage {_stage(event['stage'])} differ")

    def _end_all(self, time_s: float) -> None:
        """No peer is known to be there: live peers tell a new coordinator anew."""
        self._end_pause(time_s)
        for stay in self.now.values():
            stay.end_s = time_s
        self.now.clear()
        self.draining.clear()

    def _end_pause(self, time_s: float) -> None:
        if self.paused:
            self.pauses[-1].end_s = time_s

    def _mark(self, time_s: float, kind: str, peer: str, text: str) -> None:
        self.marks.append(Mark(time_s, kind, peer, text[:MAX_TEXT]))
        self.counts[kind] = self.counts.get(kind, 0) + 1


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:MAX_TEXT]


def _stage(value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_STAGES:
        raise ValueError("no stage")
    return value


def _words(kind: str, event: dict[str, Any]) -> str:
    if kind == "not closed":
        return "an attempt to close the step was given up"
    who = f"{_text(event['peer'])}: " if "peer" in event else ""
    return f"{kind}: {who}{_text(event['text'])}"
