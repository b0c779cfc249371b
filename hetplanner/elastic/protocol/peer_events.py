"""What happens inside a peer or trainer and what its machine wants done; tensors never pass through the machines.

A `key` names the data that the work is about: at a peer the caller's address and number, at a trainer the lease.
"""

from __future__ import annotations

from hetplanner.elastic.protocol.identity import Member, Record, Replica, Stamp, Token, Version
from hetplanner.elastic.protocol.messages import Send, Work, Worked

CallKey = tuple[str, int]

# Events.


class CallLost(Record, frozen=True):
    """A call to the next stage ended with an error of the connection."""

    call: int


class Unreachable(Record, frozen=True):
    """No process answers at an address: a connection broke, or there is none to be had."""

    address: str


class ForwardDone(Record, frozen=True):
    """The activation of a call is there; computing took `seconds` (None: all the time since it was asked for)."""

    key: CallKey
    seconds: float | None = None


class BackwardDone(Record, frozen=True):
    """The gradients of a call are there; not finite ones were thrown away. `seconds`: as of ForwardDone."""

    key: CallKey
    is_finite: bool = True
    seconds: float | None = None


class StateLoaded(Record, frozen=True):
    """The state asked for by an incarnation is there, as `version`; None: it could not be got."""

    member: Member
    version: Version | None


class FoldDone(Record, frozen=True):
    """An all-reduce ended with a sum over `count` contributions; None: with an error. The rest: as of Reduced."""

    attempt: Stamp
    count: int | None
    loss_sum: float | None = None
    grad_square: float | None = None
    samples: int | None = None


class UpdateApplied(Record, frozen=True):
    """The optimizer has stepped."""

    attempt: Stamp


class CheckpointDone(Record, frozen=True):
    """A checkpoint is durable."""

    stage: int
    version: Version


class LeaveAsked(Record, frozen=True):
    """This peer is to leave gracefully."""


# Actions.


class SendWork(Record, frozen=True):
    """Send work together with the output that belongs to `key`."""

    address: str
    work: Work
    key: CallKey | Stamp


class CancelWork(Record, frozen=True):
    """No process waits for this call any more."""

    address: str
    call: int


class Reply(Record, frozen=True):
    """Answer a call together with the gradient of its input."""

    address: str
    worked: Worked
    key: CallKey


class RunForward(Record, frozen=True):
    """Compute the activation of a call, then say ForwardDone."""

    key: CallKey


class RunBackward(Record, frozen=True):
    """Compute the gradients of a call, keep the weights' as `token` (None: not at all), then say BackwardDone."""

    key: CallKey
    token: Token | None


class FetchState(Record, frozen=True):
    """Get the state of a stage from a peer, as it is there, then say StateLoaded."""

    member: Member
    stage: int
    source: Replica


class LoadCheckpoint(Record, frozen=True):
    """Load the checkpoint written as `saved`; it counts as `version` now. Then say StateLoaded."""

    member: Member
    stage: int
    saved: Version
    version: Version


class InitState(Record, frozen=True):
    """Make the initial state of a stage (from the run's seed), then say StateLoaded."""

    member: Member
    stage: int
    version: Version


class SaveCheckpoint(Record, frozen=True):
    """Write the state durably, then say CheckpointDone."""

    stage: int
    version: Version


class FoldAndReduce(Record, frozen=True):
    """Sum the contributions of these tokens, all-reduce [sum, count] over the group, then say FoldDone.

    `stages`: as of Reduce.
    """

    attempt: Stamp
    tokens: tuple[Token, ...]
    group: tuple[Replica, ...]
    stages: tuple[tuple[Replica, ...], ...] = ()


class DropSum(Record, frozen=True):
    """Stop the all-reduce of an attempt or forget its result; contributions stay."""

    attempt: Stamp


class DropContributions(Record, frozen=True):
    """Forget every contribution and whatever calls are under way: their step or incarnation is over."""


class ApplyUpdate(Record, frozen=True):
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
