"""Times and sizes of an elastic run, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.settings import WIRING_RULES, WiringRule


@dataclass(frozen=True)
class ElasticSettings:
    """What coordinator, peers and trainers agree on.

    Attributes:
        stages: of the model.
        micro_batches: of a step.
        ping_s: between a peer's or trainer's signs of life.
        silence_s: without a sign of life for so long, a peer or trainer is dead.
        lease_s: a trainer has so long for a micro-batch.
        answer_s: a peer has so long to answer Prepare and Decide; then it is dead.
        reduce_s: an all-reduce has so long; then it is aborted and tried again.
        resend_s: unanswered messages of the step transaction are sent again.
        ban_s: a peer whose call failed is left out so long by the caller.
        hop_share: of the time that is left, what a caller gives the next hop, so that it can try another in the rest.
        ema_alpha: weight of the newest measurement of a peer's speed.
        unmeasured_s: assumed seconds per micro-batch while no peer of a stage has been measured.
        settle_s: a new coordinator closes no step before, so that the peers that are there can announce themselves.
        join_hold_s: a step is held open so long for a joiner that missed an earlier one while it downloaded.
        restore_s: a stage without any live copy waits so long for a peer that returns with one before all stages are
            set back to a checkpoint.
        checkpoint_steps: committed steps between checkpoints; 0: none.
        all_save: every peer of a stage writes its checkpoints, since they are on several disks; else one does.
        round_steps: steps of a round of local steps; peers of a stage average in its last. 0: in every step.
        wiring: how senders choose among the peers of the next stage; see `hetplanner.elastic.peer.wiring`.

    Raises:
        InvalidInput: a value outside its range.
    """

    stages: int
    micro_batches: int
    ping_s: float = 0.4
    silence_s: float = 1.5
    lease_s: float = 30.0
    answer_s: float = 4.0
    reduce_s: float = 10.0
    resend_s: float = 1.0
    ban_s: float = 3.0
    hop_share: float = 0.7
    ema_alpha: float = 0.1
    unmeasured_s: float = 1.0
    settle_s: float = 1.0
    join_hold_s: float = 10.0
    restore_s: float = 10.0
    checkpoint_steps: int = 0
    all_save: bool = False
    round_steps: int = 0
    wiring: WiringRule = "soonest"

    def ends_round(self, step: int) -> bool:
        """Whether the peers of a stage are equal again after a step (counted from 0); without local steps always."""
        return not self.round_steps or (step + 1) % self.round_steps == 0

    def __post_init__(self) -> None:
        if self.wiring not in WIRING_RULES:
            raise InvalidInput(f"elastic settings: wiring: must be one of {', '.join(WIRING_RULES)}")
        for field in fields(self):
            if field.name == "wiring":
                continue
            value = getattr(self, field.name)
            least = 1 if field.name in ("stages", "micro_batches") else 0
            if not (value >= least and value < float("inf")):
                raise InvalidInput(f"elastic settings: {field.name}: must be at least {least}, not {value}")
        if self.silence_s <= self.ping_s:
            raise InvalidInput(
                f"elastic settings: silence_s: {self.silence_s} s must exceed ping_s, {self.ping_s} s; raise it"
            )
        for name in ("hop_share", "ema_alpha"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInput(
                    f"elastic settings: {name}: must be above 0 and at most 1, not {getattr(self, name)}"
                )


def settings_of(plan: ElasticPlan, *, checkpoint_steps: int = 0) -> ElasticSettings:
    """What an elastic plan says, as coordinator, peers and trainers read it.

    Args:
        plan: the plan.
        checkpoint_steps: committed steps between checkpoints, which the run's settings say; 0: none.

    Raises:
        InvalidInput: a value outside its range.
    """
    wiring, times = plan.wiring, plan.times
    return ElasticSettings(
        stages=len(plan.stages),
        micro_batches=plan.num_micro_batches,
        ping_s=times.ping,
        silence_s=times.silence,
        lease_s=times.lease,
        answer_s=times.answer,
        reduce_s=times.reduce,
        resend_s=times.resend,
        settle_s=times.settle,
        join_hold_s=times.join_hold,
        restore_s=times.restore,
        ban_s=wiring.ban,
        hop_share=wiring.hop_share,
        ema_alpha=wiring.ema_alpha,
        unmeasured_s=wiring.unmeasured,
        checkpoint_steps=checkpoint_steps,
        round_steps=plan.local_steps if plan.is_local else 0,
        wiring=wiring.rule,
    )
