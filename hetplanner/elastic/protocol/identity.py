"""Who and what the swarm counts: incarnations, versions, tokens. Plain values, ordered and hashable."""

from __future__ import annotations

import sys
from typing import Annotated, NamedTuple

import msgspec

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Finite: JSON's 1e999 is read as infinity."""
Text = Annotated[str, msgspec.Meta(max_length=2000)]


class Record(msgspec.Struct, frozen=True, tag_field="type", tag=True, forbid_unknown_fields=True):
    """A value with named fields; in JSON an object with its class in `type`."""


class Stamp(NamedTuple):
    """A number no coordinator gives twice, later ones greater: of an incarnation, an epoch, an attempt, a lease.

    Attributes:
        boot: how often the coordinator has been started; from its decision log.
        number: counts up within a boot.
    """

    boot: Integer
    number: Integer


class Member(NamedTuple):
    """A peer in one life: every AssignStage gives it a new incarnation, and what the old one held counts no more."""

    peer: Text
    incarnation: Stamp


class Version(NamedTuple):
    """Weights and optimizer state of a stage.

    Attributes:
        lineage: how often the swarm has been set back to a checkpoint.
        step: committed steps.
    """

    lineage: Integer
    step: Integer


class Token(NamedTuple):
    """One gradient contribution, named by the peer that holds it; a redo of the same work has another nonce."""

    micro_batch: Integer
    stage: Integer
    nonce: Integer


class Entry(NamedTuple):
    """One line of a manifest: who holds which contribution."""

    member: Member
    token: Token


class Replica(NamedTuple):
    """A peer that serves a stage, as its callers see it.

    Attributes:
        address: where it is called.
        draining: it serves on, but is to be given work only if no other peer can do it.
    """

    member: Member
    address: Text
    draining: bool


class View(Record, frozen=True):
    """Which peers serve which stage.

    Attributes:
        epoch: of the membership; a later view has a greater one.
        stages: replicas by stage.
    """

    epoch: Stamp
    stages: tuple[tuple[Replica, ...], ...]


class Holding(NamedTuple):
    """State that a peer has at hand.

    Attributes:
        stage: whose state it is.
        version: of the weights.
        pending: the attempt whose reduced gradient it holds, undecided as far as it knows.
    """

    stage: Integer
    version: Version
    pending: Stamp | None
