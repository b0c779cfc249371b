"""What coordinator, peers and trainers tell one another. Small and without tensors; these travel beside them.

Durations only, never times of day: clocks of different hosts are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetplanner.elastic.protocol.identity import Entry, Holding, Member, Seat, Stamp, Token, Version, View

# From a peer to the coordinator.


@dataclass(frozen=True, slots=True)
class Hello:
    """Who I am and what I hold: to join, to return, to answer a coordinator that does not know me.

    Attributes:
        process: drawn at process start: tells two processes with one id apart.
        fingerprint: of version, model and plan; must equal the coordinator's.
        speed: micro-batches per second, measured while serving, else before joining.
        holding: None: no state.
    """

    peer: str
    process: int
    fingerprint: str
    speed: float
    holding: Holding | None


@dataclass(frozen=True, slots=True)
class Ping:
    """I live; the latest view I know is of `epoch`, and `queue` micro-batches wait here or are worked on.

    Attributes:
        speed: micro-batches per second, measured while serving this stage; None: not yet.
    """

    member: Member
    epoch: Stamp | None
    queue: int = 0
    speed: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """I hold my stage's state at `version`; None: fetching it failed."""

    member: Member
    version: Version | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer to Prepare: my version, and which of the tokens I do not hold.

    Attributes:
        worked_s: seconds of my own forward and backward for the tokens that I hold.
    """

    member: Member
    attempt: Stamp
    version: Version
    missing: tuple[Token, ...]
    worked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reduced:
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
    count: int | None
    loss_sum: float | None = None
    grad_square: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Answer to Decide: carried out; I am at `version` now."""

    member: Member
    attempt: Stamp
    version: Version


@dataclass(frozen=True, slots=True)
class Leave:
    """I want to leave: give me no new work and release me at a step boundary."""

    member: Member


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of my stage is durable."""

    member: Member
    stage: int
    version: Version


@dataclass(frozen=True, slots=True)
class Unreached:
    """I cannot reach another peer that I should; it may be dead, or the link between us is cut."""

    member: Member
    other: Member


# From the coordinator to a peer.


@dataclass(frozen=True, slots=True)
class FromPeer:
    """State comes from a live neighbour of the stage."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """State comes from the checkpoint written as `version`."""

    version: Version


@dataclass(frozen=True, slots=True)
class FromSeed:
    """State is the initial one; only before the first committed step."""


@dataclass(frozen=True, slots=True)
class Kept:
    """State is what the peer holds already."""


Source = FromPeer | FromCheckpoint | FromSeed | Kept


@dataclass(frozen=True, slots=True)
class Become:
    """Serve `stage` as a new incarnation; drop every contribution; get the state from `source`, then say Ready."""

    member: Member
    stage: int
    version: Version
    source: Source


@dataclass(frozen=True, slots=True)
class WhoAreYou:
    """This coordinator does not know you: say Hello."""

    boot: int


@dataclass(frozen=True, slots=True)
class Refused:
    """You cannot take part, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """You have left; nothing of yours is needed any more."""

    member: Member


@dataclass(frozen=True, slots=True)
class Ended:
    """The training is over, and why: peers and trainers may go."""

    reason: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Do you hold these tokens at `version`?"""

    member: Member
    attempt: Stamp
    version: Version
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Fold the prepared tokens and sum [gradients, count] over `group`, in this order.

    Attributes:
        stages: all members by stage: gradients of a weight that several stages hold are summed over all of theirs.
    """

    member: Member
    attempt: Stamp
    group: tuple[Seat, ...]
    stages: tuple[tuple[Seat, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Decide:
    """The attempt is committed (step, and be at `version`) or aborted (forget its sum, keep contributions).

    Attributes:
        grad_norm: of the whole mean gradient, to clip by; None where it is not clipped.
    """

    attempt: Stamp
    commit: bool
    version: Version
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint of your stage if it is at `version`, then say Saved."""

    member: Member
    version: Version


# Between trainers and the coordinator.


@dataclass(frozen=True, slots=True)
class Ask:
    """I live, can work on `slots` micro-batches at once and know of these leases; my latest view is of `epoch`.

    Attributes:
        trainer: unique to the process.
        leases: granted and not settled; what the coordinator granted beyond them got lost and is granted again.
    """

    trainer: str
    slots: int
    leases: frozenset[Stamp]
    epoch: Stamp | None


@dataclass(frozen=True, slots=True)
class Done:
    """The leased micro-batch went through every stage; these contributions are where the manifest says."""

    trainer: str
    lease: Stamp
    manifest: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The leased micro-batch did not get through."""

    trainer: str
    lease: Stamp


@dataclass(frozen=True, slots=True)
class Grant:
    """Send this micro-batch through; stages in `mask` (bit s: stage s) keep a gradient, the others only compute."""

    lease: Stamp
    micro_batch: int
    version: Version
    mask: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Your Done or GaveUp has arrived."""

    lease: Stamp


# Along the chain: from a trainer or peer to a peer, and back.


@dataclass(frozen=True, slots=True)
class Work:
    """Forward and, when the rest of the chain has answered, backward of a micro-batch at a stage.

    Attributes:
        call: the caller's number for it.
        budget_s: the caller gives up after it.
    """

    call: int
    stage: int
    micro_batch: int
    version: Version
    mask: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class Worked:
    """Answer to Work: where the contributions of this stage and all later ones are.

    Attributes:
        waited_s: of the time it took, what was spent waiting: for the next stage, and for the peer's own turn.
    """

    call: int
    manifest: tuple[Entry, ...]
    waited_s: float


FailureKind = Literal["stale", "deadline", "error"]


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Answer to Work: stale (versions differ), deadline (of somebody further on) or error."""

    call: int
    kind: FailureKind


@dataclass(frozen=True, slots=True)
class Accuse:
    """What came from the process at an address was garbage: of a wrong size or form, or no number."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """What this peer has put on the wire since it said so last: tensors over boundaries, and for averaging."""

    boundary_bytes: int
    reduce_bytes: int


PeerToCoordinator = Hello | Ping | Ready | Prepared | Reduced | Decided | Leave | Saved | Unreached | Accuse | Sent
TrainerToCoordinator = Ask | Done | GaveUp | Accuse
CoordinatorToPeer = Become | WhoAreYou | Refused | Released | Prepare | Reduce | Decide | Save | Ended | View
CoordinatorToTrainer = Grant | Settled | Ended | View
Message = (
    PeerToCoordinator | TrainerToCoordinator | CoordinatorToPeer | CoordinatorToTrainer | Work | Worked | WorkFailed
)


@dataclass(frozen=True, slots=True)
class Send:
    """Action of every machine: send `message` to `address`."""

    address: str
    message: Message
