"""What happens to a coordinator and what it wants done, beside the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hetplanner.elastic.coordinator.decisions import Decision
from hetplanner.elastic.protocol.identity import Member, Record
from hetplanner.elastic.protocol.messages import Message, Send


class Received(Record, frozen=True):
    """A message has come from `address`."""

    address: str
    message: Message


class Tick(Record, frozen=True):
    """Time has passed; to be told several times per `ping_s`."""


class Persisted(Record, frozen=True):
    """The decision is on the disk."""

    decision: Decision


class PersistFailed(Record, frozen=True):
    """The decision could not be written (a full disk); it may have been in part."""

    decision: Decision


class PeerFailed(Record, frozen=True):
    """A call to the peer ended with an error that says it is gone, or it sent garbage; `reason` is counted."""

    member: Member
    reason: str


class TrainerFailed(Record, frozen=True):
    """A call to the trainer ended with an error that says it is gone."""

    trainer: str


CoordinatorEvent = Received | Tick | Persisted | PersistFailed | PeerFailed | TrainerFailed


class Persist(Record, frozen=True):
    """Action: write the decision, flush it to the disk, then say Persisted."""

    decision: Decision


CoordinatorAction = Send | Persist


class SwarmPeer(Record, frozen=True):
    """What a rebalancing policy is told of a live peer; `speed` in micro-batches per second."""

    peer: str
    stage: int
    speed: float
    serving: bool
    draining: bool


class ProposedMove(Protocol):
    """What a policy wants: a peer serves another stage."""

    @property
    def peer(self) -> str:
        """Its id."""
        ...

    @property
    def to_stage(self) -> int:
        """Where it is to go."""
        ...


ProposeMove = Callable[[tuple[SwarmPeer, ...], float], ProposedMove | None]
"""A rebalancing policy: from the live peers and the time in seconds to a move, asked at every step boundary."""
