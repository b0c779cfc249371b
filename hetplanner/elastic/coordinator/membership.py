"""Which peer serves which stage, in which incarnation. Every change of who serves is a new epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hetplanner.elastic.protocol.identity import Member, Replica, Stamp, Version, View
from hetplanner.elastic.protocol.messages import AssignStage


class PeerState(Enum):
    """Life of a peer as the coordinator sees it; the dead and gone are no longer there."""

    WAITING = "waiting"  # for a peer or checkpoint that can give the stage's state
    JOINING = "joining"
    SERVING = "serving"


@dataclass
class PeerRecord:
    """A live peer.

    Attributes:
        member: id and incarnation; a waiting peer's incarnation is not in force.
        process: tells it from another process with the same id.
        speed: micro-batches per second, as measured before it joined, then while it serves.
        assignment: the order it joins by, sent again when it asks again.
        held: the version it says to hold while joining.
        fetches: how often it has been sent for its stage's state.
        queue: micro-batches that wait or are worked on there, as it said last.
        hold_until_s: no step closes before, so that a joiner catches up; None: none is held for it.
    """

    member: Member
    address: str
    process: int
    speed: float
    stage: int
    state: PeerState
    draining: bool = False
    assignment: AssignStage | None = None
    held: Version | None = None
    fetches: int = 1
    queue: int = 0
    hold_until_s: float | None = None

    @property
    def replica(self) -> Replica:
        """As its callers see it."""
        return Replica(self.member, self.address, self.draining)


class Membership:
    """The live peers by id."""

    def __init__(self, stages: int, stamp: Callable[[], Stamp]) -> None:
        self.stages = stages
        self._stamp = stamp
        self._records: dict[str, PeerRecord] = {}
        self.view = View(stamp(), ((),) * stages)

    def get(self, peer: str) -> PeerRecord | None:
        """The record of a live peer, whatever its incarnation."""
        return self._records.get(peer)

    def find(self, member: Member) -> PeerRecord | None:
        """The record of exactly this incarnation, if it is live."""
        record = self._records.get(member.peer)
        return record if record is not None and record.member == member else None

    def all_records(self) -> list[PeerRecord]:
        """All live peers, first come first."""
        return list(self._records.values())

    def in_state(self, state: PeerState, stage: int | None = None) -> list[PeerRecord]:
        """Live peers in a state, of one stage or all."""
        return [r for r in self._records.values() if r.state is state and stage in (None, r.stage)]

    def put(self, record: PeerRecord) -> None:
        """Adds or replaces a peer: it waits or joins, so no view changes but where it served before."""
        before = self._records.get(record.member.peer)
        self._records[record.member.peer] = record
        if before is not None and before.state is PeerState.SERVING:
            self._renew()

    def serve(self, record: PeerRecord) -> None:
        """A joiner holds the current state: it serves from the next epoch on."""
        record.state = PeerState.SERVING
        record.hold_until_s, record.fetches = None, 1
        self._renew()

    def drain(self, record: PeerRecord) -> None:
        """Marks a peer that wants to leave."""
        record.draining = True
        self._renew()

    def remove(self, peer: str) -> None:
        """A peer is dead or gone."""
        if self._records.pop(peer).state is PeerState.SERVING:
            self._renew()

    def serves(self, member: Member, stage: int) -> bool:
        """Whether contributions of this incarnation at this stage count."""
        record = self.find(member)
        return record is not None and record.state is PeerState.SERVING and record.stage == stage

    def lost_stages(self) -> list[int]:
        """Stages that no peer serves."""
        return [s for s in range(self.stages) if not self.view.stages[s]]

    def neediest_stage(self) -> int:
        """Where a joiner goes: a stage no peer serves or waits for, else the one with the least capacity to come."""
        capacity = [0.0] * self.stages
        for record in self._records.values():
            if not record.draining:
                capacity[record.stage] += record.speed
        return min(range(self.stages), key=lambda s: (capacity[s], s))

    def _renew(self) -> None:
        serving = self.in_state(PeerState.SERVING)
        by_stage = tuple(tuple(r.replica for r in serving if r.stage == s) for s in range(self.stages))
        self.view = View(self._stamp(), by_stage)
