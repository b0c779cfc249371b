"""Actions: what a rank does, in the order of the one global schedule."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an action does; spans of a trace use the same words."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND = "send"
    RECV = "recv"
    REDUCE = "reduce"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank.

    Attributes:
        stage: the rank's stage; for SEND and RECV the stage whose boundary (behind it) is crossed.
        micro_batch: index in the step's global batch; -1 for REDUCE and STEP.
        role: `activation` or `gradient` for SEND and RECV.
        peer: the other rank of a SEND or RECV, else -1.
        group: index of the reduction group of a REDUCE, else -1.
    """

    kind: Kind
    rank: int
    stage: int
    micro_batch: int = -1
    role: str = ""
    peer: int = -1
    group: int = -1


@dataclass(frozen=True, slots=True)
class Schedule:
    """All actions of one step in one global order; a rank performs its own in that order."""

    actions: tuple[Action, ...]
    num_ranks: int

    def of_rank(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank, in order."""
        return tuple(a for a in self.actions if a.rank == rank)
