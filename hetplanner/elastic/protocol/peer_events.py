"""What happens inside a peer or trainer and what its machine wants done; tensors never pass through the machines.

A `key` names the data that the work is about: at a peer the caller's address and number, at a trainer the lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetplanner.elastic.protocol.identity import Member, Seat, Stamp, Token, Version
from hetplanner.elastic.protocol.messages import Send, Work, Worked

CallKey = tuple[str, int]

# Events.


@dataclass(frozen=True, slots=True)
class CallLost:
    """A call to the next stage ended with an error of the connection."""

    call: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nobody answers at an address: a connection broke, or there is none to be had."""

    address: str


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """The activation of a call is there; computing took `seconds` (None: all the time since it was asked for)."""

    key: CallKey
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BackwardDone:
    """The gradients of a call are there; not finite ones were thrown away. `seconds`: as of ForwardDone."""

    key: CallKey
    is_finite: bool = True
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """The state asked for by an incarnation is there, as `version`; None: it could not be got."""

    member: Member
    version: Version | None


@dataclass(frozen=True, slots=True)
class FoldDone:
    """An all-reduce ended with a sum over `count` contributions; None: with an error. The rest: as of Reduced."""

    attempt: Stamp
    count: int | None
    loss_sum: float | None = None
    grad_square: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateApplied:
    """The optimizer has stepped."""

    attempt: Stamp


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is durable."""

    stage: int
    version: Version


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """This peer is to leave gracefully."""


# Actions.


@dataclass(frozen=True, slots=True)
class SendWork:
    """Send work together with the output that belongs to `key`."""

    address: str
    work: Work
    key: CallKey | Stamp


@dataclass(frozen=True, slots=True)
class CancelWork:
    """Nobody waits for this call any more."""

    address: str
    call: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a call together with the gradient of its input."""

    address: str
    worked: Worked
    key: CallKey


@dataclass(frozen=True, slots=True)
class RunForward:
    """Compute the activation of a call, then say ForwardDone."""

    key: CallKey


@dataclass(frozen=True, slots=True)
class RunBackward:
    """Compute the gradients of a call, keep the weights' as `token` (None: not at all), then say BackwardDone."""

    key: CallKey
    token: Token | None


@dataclass(frozen=True, slots=True)
class FetchState:
    """Get the state of a stage from a peer, as it is there, then say StateLoaded."""

    member: Member
    stage: int
    source: Seat


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Load the checkpoint written as `saved`; it counts as `version` now. Then say StateLoaded."""

    member: Member
    stage: int
    saved: Version
    version: Version


@dataclass(frozen=True, slots=True)
class InitState:
    """Make the initial state of a stage (from the run's seed), then say StateLoaded."""

    member: Member
    stage: int
    version: Version


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write the state durably, then say CheckpointDone."""

    stage: int
    version: Version


@dataclass(frozen=True, slots=True)
class FoldAndReduce:
    """Sum the contributions of these tokens, all-reduce [sum, count] over the group, then say FoldDone.

    `stages`: as of Reduce.
    """

    attempt: Stamp
    tokens: tuple[Token, ...]
    group: tuple[Seat, ...]
    stages: tuple[tuple[Seat, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DropSum:
    """Stop the all-reduce of an attempt or forget its result; contributions stay."""

    attempt: Stamp


@dataclass(frozen=True, slots=True)
class DropContributions:
    """Forget every contribution and whatever calls are under way: their step or incarnation is over."""


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Step the optimizer with the sum of an attempt divided by its count, then say UpdateApplied.

    `grad_norm`: as of Decide.
    """

    attempt: Stamp
    version: Version
    grad_norm: float | None = None


PeerAction = (
    Send
    | SendWork
    | CancelWork
    | Reply
    | RunForward
    | RunBackward
    | FetchState
    | LoadCheckpoint
    | InitState
    | SaveCheckpoint
    | FoldAndReduce
    | DropSum
    | DropContributions
    | ApplyUpdate
)
