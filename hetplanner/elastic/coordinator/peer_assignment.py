"""Which stage a peer gets, where its state comes from, and when it begins to serve.

A stage whose state no peer can give never starts from fresh weights: its joiners wait for a peer that returns with a
copy, for a checkpoint of the current version, or until all stages are set back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hetplanner.elastic.coordinator.decisions import Ledger
from hetplanner.elastic.coordinator.membership import Membership, PeerRecord, PeerState
from hetplanner.elastic.protocol.identity import Member, Stamp, Version
from hetplanner.elastic.protocol.messages import (
    AlreadyHeld,
    AssignStage,
    FromCheckpoint,
    FromPeer,
    FromSeed,
    Hello,
    Refused,
    Send,
    Source,
)
from hetplanner.elastic.protocol.settings import ElasticSettings

MAX_FETCHES = 6
"""A joiner that is behind after so many fetches, each with twice the patience, is too slow to ever serve."""


class PeerAssignment:
    """Joining, returning and moving peers of a coordinator."""

    def __init__(
        self,
        settings: ElasticSettings,
        ledger: Ledger,
        membership: Membership,
        stamp: Callable[[], Stamp],
        places: Mapping[str, int],
    ) -> None:
        self._places: Mapping[str, int] = places
        self._settings = settings
        self._ledger = ledger
        self._members = membership
        self._stamp = stamp
        self._unread: dict[tuple[int, Version], set[str]] = {}  # checkpoints -> peers that could not read them

    def on_hello(self, address: str, hello: Hello) -> list[Send]:
        """A peer joins or returns; one that is joining already gets its order again."""
        record = self._members.get(hello.peer)
        if record is not None:
            return [Send(record.address, record.assignment)] if record.assignment is not None else []
        held, stage, source = hello.holding, self._stage_for(hello.peer), None
        if held is not None and held.version == self._ledger.version and 0 <= held.stage < self._settings.stages:
            stage, source = held.stage, AlreadyHeld()
        member = Member(hello.peer, self._stamp())
        record = PeerRecord(member, address, hello.process, hello.speed, stage, PeerState.WAITING)
        self._members.put(record)
        return self._assign(record, stage, source or self._find_source(stage, member))

    def _stage_for(self, peer: str) -> int:
        """Where it was planned to be as long as all begin together, later where it is needed most."""
        planned = self._places.get(peer)
        return self._members.neediest_stage() if planned is None else planned

    def ready(self, record: PeerRecord, version: Version | None, now_s: float) -> list[Send]:
        """A joiner has its stage's state, of some version; or could not get it and is assigned again."""
        if record.state is not PeerState.JOINING:
            return []
        if version is None:
            source = record.assignment.source if record.assignment is not None else None
            if isinstance(source, FromCheckpoint):
                self._unread.setdefault((record.stage, source.version), set()).add(record.member.peer)
            return self._assign(record, record.stage, self._find_source(record.stage, record.member))
        record.held = version
        return []

    def lost_checkpoints(self) -> list[tuple[int, Version]]:
        """Stages and versions of checkpoints that no peer of the stage could read.

        A peer that was planned there and has not come yet may be the one that has it on its host's disk.
        """
        known = {(stage, v) for by_stage in self._ledger.checkpoints.values() for stage, v in by_stage.items()}
        self._unread = {saved: peers for saved, peers in self._unread.items() if saved in known}
        at = [(r.stage, r.member.peer) for r in self._members.all_records()]
        here_already = {peer for _, peer in at}
        at += [(stage, peer) for peer, stage in self._places.items() if peer not in here_already]
        return [
            (stage, version)
            for (stage, version), peers in self._unread.items()
            if (here := {peer for s, peer in at if s == stage}) and here <= peers
        ]

    def forget_places(self) -> None:
        """From the first step on, or the first set-back, a newcomer goes where it is needed most."""
        self._places = {}

    def admit(self, is_running: bool, now_s: float) -> list[Send]:
        """Lets joiners with the current version serve, the others fetch again; assigns those who wait for a source.

        Args:
            is_running: no attempt to close the step is under way, so that the group of it does not change.
            now_s: the coordinator's clock.
        """
        sends: list[Send] = []
        for record in self._members.in_state(PeerState.JOINING):
            if record.held is None:
                continue
            if record.held != self._ledger.version:
                sends += self._fetch_again(record, now_s)
            elif is_running:
                self._members.serve(record)
        for record in self._members.in_state(PeerState.WAITING):
            source = self._find_source(record.stage, record.member)
            sends += self._assign(record, record.stage, source) if source is not None else []
        return sends

    def holds_step(self, now_s: float) -> bool:
        """Whether a joiner that was too late once deserves that the step stays open for it."""
        joining = self._members.in_state(PeerState.JOINING)
        return any(r.hold_until_s is not None and now_s < r.hold_until_s for r in joining)

    def move(self, peer: str, to_stage: int) -> list[Send]:
        """A peer goes to another stage, at a step boundary; nothing happens where a guard forbids it."""
        record = self._members.get(peer)
        if record is None or record.state is not PeerState.SERVING or record.draining or to_stage == record.stage:
            return []
        source = self._find_source(to_stage, record.member) if 0 <= to_stage < self._settings.stages else None
        others = [r for r in self._members.in_state(PeerState.SERVING, record.stage) if r.member != record.member]
        if source is None or all(other.draining for other in others):
            return []
        return self._assign(record, to_stage, source)

    def is_last(self, record: PeerRecord) -> bool:
        """Whether no other peer serves the peer's stage; such a peer never leaves it."""
        return len(self._members.in_state(PeerState.SERVING, record.stage)) == 1

    def source_lost(self, member: Member) -> list[Send]:
        """Joiners that fetch from a dead or departed peer fetch elsewhere."""
        sends = []
        for record in self._members.in_state(PeerState.JOINING):
            source = record.assignment.source if record.assignment is not None else None
            if record.held is None and isinstance(source, FromPeer) and source.replica.member == member:
                sends += self._assign(record, record.stage, self._find_source(record.stage, record.member))
        return sends

    def reassign_all(self) -> list[Send]:
        """All stages were set back: every peer loads the checkpoint, and a stage without a peer gets one."""
        records = self._members.all_records()
        at = {s: [r for r in records if r.stage == s] for s in range(self._settings.stages)}
        for stage in [s for s, here in at.items() if not here]:
            richest = max(at.values(), key=len)
            if len(richest) > 1:
                at[stage].append(richest.pop())
        return [
            send
            for stage, here in at.items()
            for record in here
            for send in self._assign(record, stage, self._saved_source(stage))
        ]

    def _saved_source(self, stage: int) -> Source | None:
        """What needs no other peer."""
        if self._ledger.version.step == 0:
            return FromSeed()
        saved = self._ledger.checkpoints.get(self._ledger.version.step, {})
        return FromCheckpoint(saved[stage]) if stage in saved else None

    def _find_source(self, stage: int, joiner: Member) -> Source | None:
        serving = [r for r in self._members.in_state(PeerState.SERVING, stage) if r.member.peer != joiner.peer]
        if serving and self._ledger.version.step > 0:
            return FromPeer(max(serving, key=lambda r: (not r.draining, r.speed)).replica)
        source = self._saved_source(stage)
        if isinstance(source, FromCheckpoint) and joiner.peer in self._unread.get((stage, source.version), ()):
            return None  # it has tried; another peer may be able to read it
        return source

    def _fetch_again(self, record: PeerRecord, now_s: float) -> list[Send]:
        if record.fetches >= MAX_FETCHES:
            self._members.remove(record.member.peer)
            reason = f"peer {record.member.peer}: the swarm went on {record.fetches} times while it fetched its state"
            return [Send(record.address, Refused(f"{reason}; raise join_hold_s or use a faster link"))]
        hold_s = self._settings.join_hold_s * 2 ** (record.fetches - 1)
        return self._assign(
            replace(record, hold_until_s=now_s + hold_s, fetches=record.fetches + 1),
            record.stage,
            self._find_source(record.stage, record.member),
        )

    def _assign(self, record: PeerRecord, stage: int, source: Source | None) -> list[Send]:
        """Gives a peer a new incarnation and an order; without a source it waits for one."""
        member = Member(record.member.peer, self._stamp())
        if source is None:
            self._members.put(
                replace(record, member=member, stage=stage, state=PeerState.WAITING, assignment=None, held=None)
            )
            return []
        assignment = AssignStage(member, stage, self._ledger.version, source)
        self._members.put(
            replace(record, member=member, stage=stage, state=PeerState.JOINING, assignment=assignment, held=None)
        )
        return [Send(record.address, assignment)]
