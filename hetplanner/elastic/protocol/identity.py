"""Who and what the swarm counts: incarnations, versions, tokens. Plain values, ordered and hashable."""

from __future__ import annotations

from typing import NamedTuple


class Stamp(NamedTuple):
    """A number no coordinator gives twice, later ones greater: of an incarnation, an epoch, an attempt, a lease.

    Attributes:
        boot: how often the coordinator has been started; from its decision log.
        number: counts up within a boot.
    """

    boot: int
    number: int


class Member(NamedTuple):
    """A peer in one life: every Become gives it a new incarnation, and what the old one held counts no more."""

    peer: str
    incarnation: Stamp


class Version(NamedTuple):
    """Weights and optimizer state of a stage.

    Attributes:
        lineage: how often the swarm has been set back to a checkpoint.
        step: committed steps.
    """

    lineage: int
    step: int


class Token(NamedTuple):
    """One gradient contribution, named by the peer that holds it; a redo of the same work has another nonce."""

    micro_batch: int
    stage: int
    nonce: int


class Entry(NamedTuple):
    """One line of a manifest: who holds which contribution."""

    member: Member
    token: Token


class Seat(NamedTuple):
    """A peer that serves a stage, as its callers see it.

    Attributes:
        address: where it is called.
        draining: it serves on, but is to be given work only if nobody else can do it.
    """

    member: Member
    address: str
    draining: bool


class View(NamedTuple):
    """Who serves which stage.

    Attributes:
        epoch: of the membership; a later view has a greater one.
        stages: seats by stage.
    """

    epoch: Stamp
    stages: tuple[tuple[Seat, ...], ...]


class Holding(NamedTuple):
    """State that a peer has at hand.

    Attributes:
        stage: whose state it is.
        version: of the weights.
        pending: the attempt whose reduced gradient it holds, undecided as far as it knows.
    """

    stage: int
    version: Version
    pending: Stamp | None
