"""What coordinator, peers and trainers tell one another. Small and without tensors; these travel beside them.

Durations only, never times of day: clocks of different hosts are not compared.
"""

from __future__ import annotations

from typing import Literal

from hetplanner.elastic.protocol.identity import (
    Entry,
    Holding,
    Integer,
    Member,
    Number,
    Record,
    Replica,
    Stamp,
    Text,
    Token,
    Version,
    View,
)

# From a peer to the coordinator.


class Hello(Record, frozen=True):
    """Who I am and what I hold: to join, to return, to answer a coordinator that does not know me.

    Attributes:
        process: drawn at process start: tells two processes with one id apart.
        fingerprint: of version, model and plan; must equal the coordinator's.
        speed: micro-batches per second, measured while serving, else before joining.
        holding: None: no state.
    """

    peer: Text
    process: Integer
    fingerprint: Text
    speed: Number
    holding: Holding | None


class Ping(Record, frozen=True):
    """I live; the latest view I know is of `epoch`, and `queue` micro-batches wait here or are worked on.

    Attributes:
        speed: micro-batches per second, measured while serving this stage; None: not yet.
    """

    member: Member
    epoch: Stamp | None
    queue: Integer = 0
    speed: Number | None = None


class Ready(Record, frozen=True):
    """I hold my stage's state at `version`; None: fetching it failed."""

    member: Member
    version: Version | None


class Prepared(Record, frozen=True):
    """Answer to Prepare: my version, and which of the tokens I do not hold.

    Attributes:
        worked_s: seconds of my own forward and backward for the tokens that I hold.
    """

    member: Member
    attempt: Stamp
    version: Version
    missing: tuple[Token, ...]
    worked_s: Number = 0.0


class Reduced(Record, frozen=True):
    """Answer to Reduce: contributions in the sum over the stage; None: the all-reduce failed.

    Attributes:
        loss_sum: of the contributions, in nats over all tokens; of the last stage alone.
        grad_square: squared norm of the stage's part of the mean gradient, weights of several stages counted in the
            first of them; only where gradients are clipped.
        samples: micro-batches of the round whose local steps are in the stage's mean, at the end of a round of these.
            With local steps `count` and `loss_sum` are this peer's own.
    """

    member: Member
    attempt: Stamp
    count: Integer | None
    loss_sum: Number | None = None
    grad_square: Number | None = None
    samples: Integer | None = None


class Decided(Record, frozen=True):
    """Answer to Decide: carried out; I am at `version` now."""

    member: Member
    attempt: Stamp
    version: Version


class Leave(Record, frozen=True):
    """I want to leave: give me no new work and release me at a step boundary."""

    member: Member


class Saved(Record, frozen=True):
    """A checkpoint of my stage is durable."""

    member: Member
    stage: Integer
    version: Version


class CannotReach(Record, frozen=True):
    """I cannot reach another peer that I should; it may be dead, or the link between us is cut."""

    member: Member
    other: Member


# From the coordinator to a peer.


class FromPeer(Record, frozen=True):
    """State comes from a live neighbour of the stage."""

    replica: Replica


class FromCheckpoint(Record, frozen=True):
    """State comes from the checkpoint written as `version`."""

    version: Version


class FromSeed(Record, frozen=True):
    """State is the initial one; only before the first committed step."""


class AlreadyHeld(Record, frozen=True):
    """State is what the peer holds already."""


Source = FromPeer | FromCheckpoint | FromSeed | AlreadyHeld


class AssignStage(Record, frozen=True):
    """Serve `stage` as a new incarnation; drop every contribution; get the state from `source`, then say Ready."""

    member: Member
    stage: Integer
    version: Version
    source: Source


class UnknownPeer(Record, frozen=True):
    """This coordinator does not know you: say Hello."""

    boot: Integer


class Refused(Record, frozen=True):
    """You cannot take part, and why."""

    reason: Text


class Released(Record, frozen=True):
    """You have left; nothing of yours is needed any more."""

    member: Member


class Ended(Record, frozen=True):
    """The training is over, and why: peers and trainers may go."""

    reason: Text


class Prepare(Record, frozen=True):
    """Do you hold these tokens at `version`?"""

    member: Member
    attempt: Stamp
    version: Version
    tokens: tuple[Token, ...]


class Reduce(Record, frozen=True):
    """Fold the prepared tokens and sum [gradients, count] over `group`, in this order.

    Attributes:
        stages: all members by stage: gradients of a weight that several stages hold are summed over all of theirs.
    """

    member: Member
    attempt: Stamp
    group: tuple[Replica, ...]
    stages: tuple[tuple[Replica, ...], ...] = ()


class Decide(Record, frozen=True):
    """The attempt is committed (step, and be at `version`) or aborted (forget its sum, keep contributions).

    Attributes:
        grad_norm: of the whole mean gradient, to clip by; None where it is not clipped.
    """

    attempt: Stamp
    commit: bool
    version: Version
    grad_norm: Number | None = None


class Save(Record, frozen=True):
    """Write a checkpoint of your stage if it is at `version`, then say Saved."""

    member: Member
    version: Version


# Between trainers and the coordinator.


class Ask(Record, frozen=True):
    """I live, can work on `slots` micro-batches at once and know of these leases; my latest view is of `epoch`.

    Attributes:
        trainer: unique to the process.
        leases: granted and not settled; what the coordinator granted beyond them got lost and is granted again.
    """

    trainer: Text
    slots: Integer
    leases: frozenset[Stamp]
    epoch: Stamp | None


class Done(Record, frozen=True):
    """The leased micro-batch went through every stage; these contributions are where the manifest says."""

    trainer: Text
    lease: Stamp
    manifest: tuple[Entry, ...]


class NotDone(Record, frozen=True):
    """The leased micro-batch did not get through."""

    trainer: Text
    lease: Stamp


class Grant(Record, frozen=True):
    """Send this micro-batch through; stages in `mask` (bit s: stage s) keep a gradient, the others only compute."""

    lease: Stamp
    micro_batch: Integer
    version: Version
    mask: Integer


class Settled(Record, frozen=True):
    """Your Done or NotDone has arrived."""

    lease: Stamp


# Along the chain: from a trainer or peer to a peer, and back.


class Work(Record, frozen=True):
    """Forward and, when the rest of the chain has answered, backward of a micro-batch at a stage.

    Attributes:
        call: the caller's number for it.
        budget_s: the caller gives up after it.
    """

    call: Integer
    stage: Integer
    micro_batch: Integer
    version: Version
    mask: Integer
    budget_s: Number


class Worked(Record, frozen=True):
    """Answer to Work: where the contributions of this stage and all later ones are.

    Attributes:
        waited_s: of the time it took, what was spent waiting: for the next stage, and for the peer's own turn.
    """

    call: Integer
    manifest: tuple[Entry, ...]
    waited_s: Number


FailureKind = Literal["stale", "deadline", "error"]


class WorkFailed(Record, frozen=True):
    """Answer to Work: stale (versions differ), deadline (of a peer further on) or error."""

    call: Integer
    kind: FailureKind


class ReportGarbage(Record, frozen=True):
    """What came from the process at an address was garbage: of a wrong size or form, or no number."""

    address: Text
    reason: Text


class Sent(Record, frozen=True):
    """What this peer has put on the wire since it said so last: tensors over boundaries, and for averaging."""

    boundary_bytes: Integer
    reduce_bytes: Integer


PeerToCoordinator = (
    Hello | Ping | Ready | Prepared | Reduced | Decided | Leave | Saved | CannotReach | ReportGarbage | Sent
)
TrainerToCoordinator = Ask | Done | NotDone | ReportGarbage
CoordinatorToPeer = AssignStage | UnknownPeer | Refused | Released | Prepare | Reduce | Decide | Save | Ended | View
CoordinatorToTrainer = Grant | Settled | Ended | View
Message = (
    PeerToCoordinator | TrainerToCoordinator | CoordinatorToPeer | CoordinatorToTrainer | Work | Worked | WorkFailed
)


class Send(Record, frozen=True):
    """Action of every machine: send `message` to `address`."""

    address: Text
    message: Message
