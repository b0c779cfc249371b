"""The work of each peer in a committed step: contributions and own work by peer, and the ways of its micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hetplanner.elastic.protocol.identity import Member, Token, View


@dataclass
class Share:
    """A peer's part of a step.

    Attributes:
        stage: that it serves.
        micro_batches: whose gradients it contributed; work that was done again elsewhere, or twice, is not counted.
        worked_s: seconds of its own forward and backward of exactly these, without waiting.
    """

    stage: int
    micro_batches: int = 0
    worked_s: float = 0.0


@dataclass
class StepWork:
    """The parts of one step.

    Attributes:
        shares: by peer, of all peers that take the step, also without a contribution.
        flow: (peer, peer of the next stage) -> micro-batches that went from one to the other in one pass whose
            contributions of both count. One that was done again in part is in no pair where two passes meet.
        sent: (trainer, peer of the first stage) -> micro-batches that went from one to the other, all of the step.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    flow: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)

    def worked(self, peer: str, seconds: float) -> None:
        """A peer says how long it computed for its contributions; said again it counts once."""
        if (share := self.shares.get(peer)) is not None:
            share.worked_s = max(0.0, seconds)


def step_work(
    view: View,
    tokens: Mapping[Member, Iterable[Token]],
    flow: Mapping[tuple[str, str], int],
    sent: Mapping[tuple[str, str], int],
) -> StepWork:
    """The parts of a step whose contributions are complete."""
    shares = {replica.member.peer: Share(stage) for stage, replicas in enumerate(view.stages) for replica in replicas}
    for member, held in tokens.items():
        if member.peer in shares:
            shares[member.peer].micro_batches = len(tuple(held))
    return StepWork(shares, Counter(flow), Counter(sent))
