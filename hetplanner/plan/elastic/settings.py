"""How a swarm wires its micro-batches, and its limits in time: what an elastic plan says of both."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from hetplanner.schema import Noun, Seconds

Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]

WiringRule = Literal["soonest", "round-robin"]
WIRING_RULES: tuple[WiringRule, ...] = get_args(WiringRule)


class WiringSettings(Noun):
    """How senders choose among the peers of the next stage, and how much may be under way.

    Attributes:
        rule: `soonest` (ours): who is expected to be through first, by measured speed and by what the sender has under
            way there. `round-robin` (the paper's): interleaved, weighted by measured speed.
        trainers: that lease micro-batches.
        slots: micro-batches that a trainer has under way at once; trainers times slots bound what is in flight.
        ema_alpha: weight of the newest measurement of a peer's speed.
        unmeasured: seconds per micro-batch assumed while no peer of a stage has been measured.
        ban: a peer whose call failed is left out so long by the caller.
        hop_share: of the time that is left, what a caller gives the next hop, so that it can try another in the rest.
    """

    rule: WiringRule = "soonest"
    trainers: Count = 1
    slots: Count = 16
    ema_alpha: Share = 0.1
    unmeasured: Seconds = 1.0
    ban: Seconds = 3.0
    hop_share: Share = 0.7


class ElasticTimes(Noun):
    """How long coordinator, peers and trainers wait for one another.

    Attributes:
        ping: between a peer's or trainer's signs of life.
        silence: without a sign of life for so long, a peer or trainer is dead.
        lease: a trainer has so long for a micro-batch.
        answer: a peer has so long to answer Prepare and Decide; then it is dead.
        reduce: an all-reduce has so long; then it is aborted and tried again.
        resend: unanswered messages of the step transaction are sent again.
        settle: a new coordinator closes no step before, so that the peers that are there can announce themselves.
        join_hold: a step is held open so long for a joiner that missed an earlier one while it downloaded.
        restore: a stage without any live copy waits so long for a peer that returns with one before all stages are
            set back to a checkpoint.
    """

    ping: Annotated[Seconds, Field(gt=0)] = 0.4
    silence: Annotated[Seconds, Field(gt=0)] = 1.5
    lease: Annotated[Seconds, Field(gt=0)] = 30.0
    answer: Annotated[Seconds, Field(gt=0)] = 4.0
    reduce: Annotated[Seconds, Field(gt=0)] = 10.0
    resend: Annotated[Seconds, Field(gt=0)] = 1.0
    settle: Seconds = 1.0
    join_hold: Seconds = 10.0
    restore: Seconds = 10.0

    @model_validator(mode="after")
    def _silence_outlasts_a_ping(self) -> Self:
        if self.silence <= self.ping:
            raise ValueError(f"silence: must be longer than ping, {self.ping:g} s, got {self.silence:g} s; raise it")
        return self


def check_updates(*, delayed: bool, local: bool, crossing_ties: bool) -> None:
    """Refuses ways to step that do not go together.

    Args:
        delayed: delayed updates.
        local: local steps.
        crossing_ties: whether several stages hold the same weight.

    Raises:
        ValueError: with the remedy.
    """
    if local and delayed:
        raise ValueError(
            "delayed_updates: do not go with local steps, which have no commit to wait for; take one of them"
        )
    if local and crossing_ties:
        raise ValueError(
            "local_steps: must be 1, without outer, where stages share a weight (such as a tied embedding): between two"
            " averagings its copies would part; untie it, or cut the model so that one stage holds it"
        )
