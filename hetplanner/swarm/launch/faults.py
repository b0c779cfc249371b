"""Scripted misfortune for rehearsals: each fault fires exactly once, at a step, drawn from a seed.

Whom it hits is drawn from the peers that are there, never the last one of its stage: the swarm promises that a
stage's state survives only while a peer has it.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hetplanner.errors import InvalidInput, RunError
from hetplanner.swarm.event_log import EVENTS_FILE, parse_events
from hetplanner.swarm.launch.network_proxy import NetworkProxy
from hetplanner.swarm.launch.rehearsal import Rehearsal, Speed

FaultKind = Literal["kill", "stop", "join", "leave", "cut", "kill trainer", "kill coordinator"]
POLL_S = 0.02
MATE = "mate"


@dataclass(frozen=True)
class Fault:
    """A fault, or a peer that joins.

    Attributes:
        step: fires once so many steps are committed,
        after_s: and so many seconds later.
        peer: whom it hits; empty: drawn. A joiner's name.
        lasts_s: of a stop, until the process goes on; of a cut link, until it is restored; of the coordinator and
            trainers, until another is started.
        other: the other end of a link that is cut: a process's name, or MATE: drawn from the peers of the same stage.
        speed: of a joiner, in micro-batches per second; one for all stages, or one for each.
    """

    step: int
    kind: FaultKind
    after_s: float = 0.0
    peer: str = ""
    lasts_s: float = 2.5
    speed: Speed | None = None
    other: str = "coordinator"


def draw_faults(
    seed: int, steps: int, kills: int, stops: int, joins: int, speeds: Sequence[Speed | None], spread_s: float = 1.0
) -> list[Fault]:
    """Kills, stops and joins spread evenly over the steps of a run, in a drawn order and at drawn moments."""
    rng = random.Random(seed)
    kinds: list[FaultKind] = ["kill"] * kills
    kinds += ["stop"] * stops
    rng.shuffle(kinds)
    # A joiner follows each of the first kills, so that the swarm neither dies out nor grows.
    faults, at = [], [1 + (steps - 3) * (i + rng.random()) / len(kinds) for i in range(len(kinds))]
    for when, kind in zip(at, kinds, strict=True):
        faults.append(Fault(int(when), kind, after_s=spread_s * rng.random(), lasts_s=rng.uniform(2.0, 3.5)))
    for number, fault in enumerate([f for f in faults if f.kind == "kill"][:joins]):
        speed = speeds[number % len(speeds)]
        after_s = fault.after_s + rng.uniform(0.2, 1.5)
        faults.append(Fault(fault.step, "join", after_s, f"joiner-{number}", speed=speed))
    return faults


@dataclass(frozen=True)
class Hit:
    """A peer was hit, at a unix time, when so many steps were committed; `other`: the far end of a cut link."""

    time_s: float
    kind: FaultKind
    peer: str
    step: int
    other: str = ""


@dataclass
class FaultInjector:
    """Plays faults on a rehearsal while it runs.

    Attributes:
        happened: faults that fired, by kind; `passed over`: no peer could be hit without losing a stage.
        events: the coordinator's, as read so far.
        hits: the processes that were hit, in order.
    """

    rehearsal: Rehearsal
    faults: Sequence[Fault]
    seed: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._left = sorted(self.faults, key=lambda fault: (fault.step, fault.after_s))
        self._later: list[tuple[float, str, str]] = []
        self._stage: dict[str, int] = {}  # of who serves
        self._stopped: set[str] = set()
        self._cut: dict[str, str] = {}
        self._read = 0
        self._step, self._step_s = 0, time.monotonic()

    def run(self, timeout_s: float) -> None:
        """Until the coordinator has ended well and nothing is left to do. Raises RunError."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._follow()
            self._fire()
            coordinator = self.rehearsal.processes["coordinator"]
            if coordinator.exitcode == 0:
                self._follow()
                return
            is_away = any(what == "coordinator" for _, what, _ in self._later)
            if time.monotonic() > until_s or (coordinator.exitcode is not None and not is_away):
                folder = self.rehearsal.run_dir
                raise RunError(f"storm: the coordinator ended with {coordinator.exitcode} or too late; see {folder}")
            time.sleep(POLL_S)

    def _follow(self) -> None:
        path = self.rehearsal.run_dir / EVENTS_FILE
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for event in parse_events(whole):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        match event["kind"]:
            case "serving":
                self._stage[event["peer"]] = event["stage"]
            case "gone" | "joining" | "waiting" | "move":
                self._stage.pop(event["peer"], None)
            case "boot":
                self._stage.clear()
            case "commit":
                self._step, self._step_s = event["version"][1], time.monotonic()

    def _fire(self) -> None:
        now = time.monotonic()
        for item in [item for item in self._later if item[0] <= now]:
            self._later.remove(item)
            self._recover(item[1], item[2])
        for fault in list(self._left):
            if self._step > fault.step or (self._step == fault.step and now - self._step_s >= fault.after_s):
                self._left.remove(fault)
                self._play(fault, now)

    def _play(self, fault: Fault, now: float) -> None:
        rehearsal = self.rehearsal
        match fault.kind:
            case "join":
                rehearsal.start_peer(fault.peer, fault.speed)
            case "kill coordinator":
                rehearsal.kill("coordinator")
                self._later.append((now + fault.lasts_s, "coordinator", ""))
            case "kill trainer":
                name = fault.peer or next(n for n, p in rehearsal.processes.items() if _is_trainer(n) and p.is_alive())
                rehearsal.kill(name)
                self._later.append((now + fault.lasts_s, "trainer", f"{name}-again"))
            case _:
                name = fault.peer or self._draw()
                if not name:
                    self.happened["passed over"] += 1
                    return
                self._hit(fault, name, now)
        self.happened[fault.kind] += 1

    @property
    def _board(self) -> NetworkProxy:
        if self.rehearsal.network_proxy is None:
            raise InvalidInput("fault: cut: the rehearsal has no network proxy; give it one")
        return self.rehearsal.network_proxy

    def _hit(self, fault: Fault, name: str, now: float) -> None:
        stage = self._stage.pop(name, None)
        other = ""
        if fault.kind == "cut":
            mates = sorted(n for n, s in self._stage.items() if s == stage)
            other = self._rng.choice(mates) if fault.other == MATE else fault.other
        self.hits.append(Hit(time.time(), fault.kind, name, self._step, other))
        match fault.kind:
            case "kill":
                self.rehearsal.kill(name)
            case "leave":
                self.rehearsal.signal(name, signal.SIGINT)
            case "cut":
                self._board.cut(name, other)
                self._cut[name] = other
                self._later.append((now + fault.lasts_s, "link", name))
            case "stop":
                self.rehearsal.signal(name, signal.SIGSTOP)
                self._stopped.add(name)
                self._later.append((now + fault.lasts_s, "peer", name))

    def _draw(self) -> str:
        """A peer whose stage has another one; empty if there is none."""
        counts = Counter(self._stage.values())
        free = sorted(n for n, s in self._stage.items() if counts[s] > 1 and n not in self._stopped)
        return self._rng.choice(free) if free else ""

    def _recover(self, what: str, name: str) -> None:
        match what:
            case "coordinator":
                self.rehearsal.start_coordinator()
            case "trainer":
                self.rehearsal.start_trainer(name)
            case "link":
                self._board.restore(name, self._cut.pop(name))
            case _:
                self._stopped.discard(name)
                self.rehearsal.signal(name, signal.SIGCONT)


def _is_trainer(name: str) -> bool:
    return name.startswith("trainer")
