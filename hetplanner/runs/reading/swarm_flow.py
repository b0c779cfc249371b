"""What the peers of a swarm did in its last steps: measured speeds, and how many micro-batches went which way.

A step's parts come with its commit in events.jsonl; older files have none, and a swarm of theirs has no flow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetplanner.errors import InvalidInput

MAX_PEERS, MAX_PAIRS = 4096, 16_384
MAX_COUNT = 10**9
MAX_REPLICAS = 20_000
MAX_STAGES = 4096
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class PeerWork:
    """A peer's part of some steps.

    Attributes:
        micro_batches: whose gradients it contributed.
        worked_s: seconds of its own forward and backward of these, without waiting for others.
    """

    peer: str
    stage: int
    micro_batches: int
    worked_s: float

    @property
    def speed(self) -> float | None:
        """Measured micro-batches per second of its own work; None: it contributed nothing."""
        return self.micro_batches / self.worked_s if self.micro_batches and self.worked_s > 0 else None


@dataclass(frozen=True, slots=True)
class StepParts:
    """One committed step: who did what, and the micro-batches of each pair (places in `peers`).

    `sent`: by trainer and place of a peer of the first stage; nothing of a coordinator that does not tell.
    """

    step: int
    seconds: float
    peers: tuple[PeerWork, ...]
    pairs: tuple[tuple[int, int, int], ...]
    sent: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SwarmFlow:
    """The sum over some steps.

    Attributes:
        first_step, last_step: numbers from 1; both 0 where no step is told of.
        num_steps: that are in the sum.
        seconds: that the steps took.
        peers: by stage and name; who served two stages meanwhile is there twice.
        pairs: (place in `peers`, place in `peers`) -> micro-batches that went from one to the other in one pass;
            those that were done again in part are counted in no pair where two passes meet.
        sent: (trainer, place in `peers`) -> micro-batches that went from one to the other; nothing where none is told.
        redone: boundary behind stage s -> micro-batches whose two contributions are of two passes.
    """

    first_step: int
    last_step: int
    num_steps: int
    seconds: float
    peers: tuple[PeerWork, ...]
    pairs: Mapping[tuple[int, int], int]
    redone: Mapping[int, int]
    sent: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def share(self, place: int) -> float:
        """Of its stage's micro-batches, a peer's."""
        mine = self.peers[place]
        total = sum(p.micro_batches for p in self.peers if p.stage == mine.stage)
        return mine.micro_batches / total if total else 0.0


class WorkSum:
    """What peers contributed over all steps that were told of.

    Attributes:
        num_steps: told of.
        redone: micro-batches whose contributions to two neighbouring stages are of two passes, over all boundaries.
        is_partial: more peers came than are kept apart.
    """

    def __init__(self) -> None:
        self.num_steps = self.redone = 0
        self.is_partial = False
        self._parts: dict[tuple[int, str], tuple[int, float]] = {}

    def add(self, step: StepParts) -> None:
        """One more step."""
        self.num_steps += 1
        self.redone += sum(flow_over([step]).redone.values())
        for peer in step.peers:
            replica = (peer.stage, peer.peer)
            if replica not in self._parts and len(self._parts) >= MAX_REPLICAS:
                self.is_partial = True
                continue
            count, worked_s = self._parts.get(replica, (0, 0.0))
            self._parts[replica] = (count + peer.micro_batches, worked_s + peer.worked_s)

    @property
    def peers(self) -> tuple[PeerWork, ...]:
        """By stage and name; who served two stages is there twice."""
        return tuple(PeerWork(peer, stage, *self._parts[stage, peer]) for stage, peer in sorted(self._parts))


NO_FLOW = SwarmFlow(0, 0, 0, 0.0, (), {}, {})


def flow_over(steps: Iterable[StepParts], last: int = 20) -> SwarmFlow:
    """Sums up the last steps.

    Args:
        steps: oldest first.
        last: how many.

    Raises:
        InvalidInput: `last` is below 1.
    """
    if last < 1:
        raise InvalidInput(f"last: must be at least 1 step, got {last}")
    shown = list(steps)[-last:]
    if not shown:
        return NO_FLOW
    counts: Counter[tuple[int, str]] = Counter()
    worked_s: dict[tuple[int, str], float] = {}
    pairs: Counter[tuple[tuple[int, str], tuple[int, str]]] = Counter()
    sent: Counter[tuple[str, tuple[int, str]]] = Counter()
    for step in shown:
        replicas = [(peer.stage, peer.peer) for peer in step.peers]
        for replica, peer in zip(replicas, step.peers, strict=True):
            counts[replica] += peer.micro_batches
            worked_s[replica] = worked_s.get(replica, 0.0) + peer.worked_s
        for sender, receiver, count in step.pairs:
            pairs[replicas[sender], replicas[receiver]] += count
        for trainer, receiver, count in step.sent:
            sent[trainer, replicas[receiver]] += count
    order = sorted(worked_s)
    place = {replica: i for i, replica in enumerate(order)}
    return SwarmFlow(
        shown[0].step,
        shown[-1].step,
        len(shown),
        sum(step.seconds for step in shown),
        tuple(PeerWork(peer, stage, counts[stage, peer], worked_s[stage, peer]) for stage, peer in order),
        {(place[a], place[b]): count for (a, b), count in pairs.items()},
        _redone(counts, pairs),
        {(trainer, place[replica]): count for (trainer, replica), count in sent.items()},
    )


def _redone(
    counts: Mapping[tuple[int, str], int], pairs: Mapping[tuple[tuple[int, str], tuple[int, str]], int]
) -> dict[int, int]:
    through: Counter[int] = Counter()
    for (stage, _), count in counts.items():
        through[stage] += count
    told: Counter[int] = Counter()
    for (sender, _), count in pairs.items():
        told[sender[0]] += count
    return {s: most - told[s] for s in through if (most := min(through[s], through.get(s + 1, 0))) > told[s]}


def parts_of(step: int, seconds: float, event: Mapping[str, Any]) -> StepParts | None:
    """The parts that a commit tells; None for one of an older coordinator. What is none raises some error."""
    if "peers" not in event:
        return None
    peers = tuple(_peer(*entry) for entry in _many(event["peers"], MAX_PEERS))
    pairs = tuple(_pair(peers, *entry) for entry in _many(event["flow"], MAX_PAIRS))
    sent = tuple(_sent(peers, *entry) for entry in _many(event.get("sent", []), MAX_PAIRS))
    return StepParts(step, seconds, peers, pairs, sent)


def _many(value: object, most: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("no list")
    return value


def _peer(peer: object, stage: object, micro_batches: object, worked_s: object) -> PeerWork:
    if not isinstance(peer, str):
        raise TypeError("no peer")
    return PeerWork(peer[:MAX_TEXT], _whole(stage, MAX_STAGES), _whole(micro_batches, MAX_COUNT), seconds_of(worked_s))


def _pair(peers: Sequence[PeerWork], sender: object, receiver: object, count: object) -> tuple[int, int, int]:
    one, two = _whole(sender, len(peers)), _whole(receiver, len(peers))
    if peers[two].stage != peers[one].stage + 1:
        raise ValueError("no neighbours")
    return one, two, _whole(count, MAX_COUNT)


def _sent(peers: Sequence[PeerWork], trainer: object, receiver: object, count: object) -> tuple[str, int, int]:
    place = _whole(receiver, len(peers))
    if not isinstance(trainer, str) or peers[place].stage != 0:
        raise ValueError("no trainer, or none that sends to the first stage")
    return trainer[:MAX_TEXT], place, _whole(count, MAX_COUNT)


def _whole(value: object, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError("no whole number of the range")
    return value


def seconds_of(value: object) -> float:
    """A duration as a process told it. Raises ValueError: it is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("no duration")
    return float(value)
