"""What is told of an elastic run, in the run directory's formats: steps with their loss, and what happened to whom.

`rank-0.jsonl` holds phases and steps as a static run's rank 0 does, `events.jsonl` joins, deaths, moves and commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.coordinator.membership import PeerState
from hetplanner.elastic.coordinator.step_work import StepWork
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.protocol.identity import Member, Version
from hetplanner.line_files import LineFile
from hetplanner.reading import DAMAGED
from hetplanner.runtime.measure.telemetry import Telemetry

EVENTS_FILE = "events.jsonl"
MAX_TOLD_PEERS, MAX_TOLD_PAIRS = 512, 2048
"""Of a step's peers and pairs so many are told, those with the most micro-batches, so that a line stays short."""
CUT_OFF_REASONS = ("accused", "garbage")


class EventLog:
    """Writes the coordinator's telemetry and events.

    Args:
        run_dir: where.
        tokens_per_step: of the workload.
    """

    def __init__(self, run_dir: Path, tokens_per_step: int) -> None:
        self._tokens = tokens_per_step
        path = run_dir / "rank-0.jsonl"
        self._attempt = _attempts(path)
        self.telemetry = Telemetry(path, 0, self._attempt)
        self._path = run_dir / EVENTS_FILE
        self._events = LineFile(self._path, lambda lost: _line("lost", {"lines": lost}))
        self._replicas: dict[str, tuple[Member, int, PeerState]] = {}
        self._draining: set[str] = set()
        self._failures: dict[str, int] = {}
        self._paused: tuple[int, ...] = ()
        self._phase = (Phase.RUN, 0.0)
        self._phases_s: dict[str, float] = {}
        self._step_began_s = time.monotonic()
        self._boundary_bytes = self._reduce_bytes = 0

    def retry(self) -> None:
        """Writes events that a full disk did not take."""
        self._events.flush()

    def event(self, kind: str, **fields: Any) -> None:
        """One line of events.jsonl, in time."""
        self._events.add(_line(kind, fields))
        self._events.flush()

    def began(
        self, boot: int, version: Version, address: str, last: Committed | None, source: str | None = None
    ) -> None:
        """A coordinator is up. The last commit in its log may be one that was never told of.

        `source`: folder of the run that the version is of, where that is another one.
        """
        now = time.monotonic()
        self.telemetry.set_origin(now, time.time())
        self._trains_from(version.step, source)
        self._step_began_s = now
        if last is not None and not self._has_told(last.version):
            self.committed(last)
        if last is not None and last.version.step > version.step:
            self.event("set back", text=f"all stages to step {version.step}")
        self.event("boot", boot=boot, version=list(version), address=address)

    def set_back(self, version: Version) -> None:
        """All stages begin again with what they had after so many steps: those that follow are done once more."""
        self._attempt += 1
        self.telemetry.write("restart", attempt=self._attempt, time_s=time.time())
        self._trains_from(version.step, None)
        self.event("set back", text=f"all stages to step {version.step}")

    def _trains_from(self, step: int, source: str | None) -> None:
        if step or self._attempt:
            self.telemetry.write("resumed", step=step, source=source, time_s=time.time())
        self.telemetry.phase("training")

    def _has_told(self, version: Version) -> bool:
        """Whether a commit is among the events."""
        events = parse_events(self._path.read_bytes())
        return any(event["kind"] == "commit" and event["version"] == list(version) for event in events)

    def phase(self, phase: Phase) -> None:
        """An attempt to close the step got on; how long each phase took is told when it is over."""
        now = time.monotonic()
        before, since_s = self._phase
        if before is not Phase.RUN:
            self._phases_s[before.value] = round(now - since_s, 6)
        self._phase = (phase, now)
        if phase is Phase.RUN and self._phases_s:
            self.event("closed" if before is Phase.COMMIT else "not closed", seconds=self._phases_s)
            self._phases_s = {}

    def sent(self, boundary_bytes: int, reduce_bytes: int) -> None:
        """A peer put so much on the wire; it counts for the step that is committed next."""
        self._boundary_bytes += boundary_bytes
        self._reduce_bytes += reduce_bytes

    def committed(self, commit: Committed, work: StepWork | None = None) -> None:
        """A step is durable; `work`: who did what of it."""
        version, loss_sum = commit.version, commit.loss_sum
        now = time.monotonic()
        origin_s = self.telemetry.origin_s
        self.telemetry.write(
            "step",
            step=version.step - 1,
            start_s=round(self._step_began_s - origin_s, 6),
            end_s=round(now - origin_s, 6),
            loss_sum=loss_sum,
            num_tokens=self._tokens if loss_sum is not None else 0,
            boundary_bytes=self._boundary_bytes,
            reduce_bytes=self._reduce_bytes,
            late=0,
            late_s=0.0,
            grad_norm=commit.grad_norm,
            memory_bytes=0,
        )
        self.telemetry.flush()  # before the event, by which another coordinator sees what was told
        loss = None if loss_sum is None else loss_sum / self._tokens
        parts = {} if work is None else _parts_of(work)
        self.event("commit", version=list(version), loss=loss, seconds=round(now - self._step_began_s, 6), **parts)
        self._step_began_s = now
        self._boundary_bytes = self._reduce_bytes = 0

    def observe(self, machine: Coordinator) -> None:
        """Notes who came, went, moved or began to serve since the last look."""
        if machine.failures != self._failures:
            self._failures = dict(machine.failures)
            self.event("failures", counts=self._failures)
        for by, other in machine.cut_links.take_news():
            self.event("cut", peer=other.peer, by=by.peer)
        replicas = {r.member.peer: (r.member, r.stage, r.state) for r in machine.membership.all_records()}
        if replicas != self._replicas:
            self._tell_changes(replicas, machine.departed)
            self._replicas = replicas
        draining = {r.member.peer for r in machine.membership.all_records() if r.draining}
        for peer in sorted(draining - self._draining):
            self.event("draining", peer=peer, stage=replicas[peer][1])
        self._draining = draining
        paused = tuple(machine.paused)
        if paused != self._paused:
            self._paused = paused
            self.event("paused" if paused else "resumed", stages=list(paused))

    def _tell_changes(self, replicas: dict[str, tuple[Member, int, PeerState]], departed: Mapping[str, str]) -> None:
        for peer in self._replicas.keys() - replicas.keys():
            self.event("gone", peer=peer, stage=self._replicas[peer][1], **_leave_reason(departed.get(peer)))
        for peer, (member, stage, state) in replicas.items():
            before = self._replicas.get(peer)
            if before is None or before[2] is not state or before[1] != stage:
                kind = "move" if before is not None and before[1] != stage else state.value
                self.event(kind, peer=peer, stage=stage, incarnation=list(member.incarnation))

    def close(self, phase: str | None = "done") -> None:
        """The last line: `done` where the run is, none where only this coordinator ends."""
        if phase is not None:
            self.telemetry.phase(phase)
        self.telemetry.close()
        self._events.close()


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"time_s": time.time(), "kind": kind} | dict(fields)).encode()


def _leave_reason(reason: str | None) -> dict[str, str]:
    """How a peer went: it left as it wished to, was lost, or was cut off; nothing if it was only refused."""
    if reason is None:
        return {}
    how = "left" if not reason else "cut off" if reason in CUT_OFF_REASONS else "lost"
    return {"how": how, "reason": reason}


def _parts_of(work: StepWork) -> dict[str, Any]:
    """Shares as [peer, stage, micro-batches, seconds of own work]; the flow as [sender, receiver, micro-batches].

    Sender and receiver are places in the list of shares; what trainers sent is [trainer, receiver, micro-batches].
    """
    shares = sorted(work.shares.items(), key=lambda item: (-item[1].micro_batches, item[1].stage, item[0]))
    told = shares[:MAX_TOLD_PEERS]
    place = {peer: i for i, (peer, _) in enumerate(told)}
    pairs = [(n, place[a], place[b]) for (a, b), n in work.flow.items() if a in place and b in place]
    pairs.sort(key=lambda pair: (-pair[0], *pair[1:]))
    sent = sorted((-n, trainer, place[peer]) for (trainer, peer), n in work.sent.items() if peer in place)
    return {
        "peers": [[peer, s.stage, s.micro_batches, round(s.worked_s, 6)] for peer, s in told],
        "flow": [[a, b, n] for n, a, b in pairs[:MAX_TOLD_PAIRS]],
        "sent": [[trainer, peer, -n] for n, trainer, peer in sent[:MAX_TOLD_PAIRS]],
    }


def parse_events(data: bytes) -> list[dict[str, Any]]:
    """The events of whole lines; one that a killed coordinator left half written is passed over."""
    found = []
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except DAMAGED:
            continue
        if isinstance(event, dict) and "kind" in event:
            found.append(event)
    return found


def _attempts(path: Path) -> int:
    """How often a coordinator wrote there before."""
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        return 1 + sum(b'"type": "restart"' in line for line in lines)
