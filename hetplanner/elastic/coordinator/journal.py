"""Micro-batches of the current step: who works on them under which lease, and where each contribution is.

A micro-batch is covered by a stage when exactly one token of a live incarnation is journaled for the two. Only what is
journaled is ever folded: whatever else a peer computed, late, twice or for an ended lease, is dropped at the commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hetplanner.elastic.protocol.identity import Entry, Member, Stamp, Token


@dataclass(frozen=True, slots=True)
class Lease:
    """A trainer's right to one micro-batch until `expires_s` on the coordinator's clock."""

    stamp: Stamp
    trainer: str
    micro_batch: int
    mask: int
    expires_s: float


class _Covered(NamedTuple):
    """A contribution that counts, the lease under which it was made, and whose that was."""

    entry: Entry
    lease: Stamp
    trainer: str


class Journal:
    """Leases and contributions of one step.

    Args:
        stages: of the model.
        micro_batches: of the step.
        lease_s: how long a lease lasts.
        serves: whether an incarnation is live at a stage.
    """

    def __init__(self, stages: int, micro_batches: int, lease_s: float, serves: Callable[[Member, int], bool]) -> None:
        self._stages = stages
        self._micro_batches = micro_batches
        self._lease_s = lease_s
        self._serves = serves
        self._covered: dict[tuple[int, int], _Covered] = {}
        self._leases: dict[Stamp, Lease] = {}

    def begin_step(self) -> None:
        """Nothing is covered, nothing leased."""
        self._covered.clear()
        self._leases.clear()

    def mask_of(self, micro_batch: int) -> int:
        """Stages that do not cover the micro-batch yet, as bits."""
        return sum(1 << s for s in range(self._stages) if (micro_batch, s) not in self._covered)

    def is_leased(self, stamp: Stamp) -> bool:
        """Whether a lease is in force."""
        return stamp in self._leases

    @property
    def is_complete(self) -> bool:
        """Every stage covers every micro-batch and no trainer works on one."""
        return not self._leases and len(self._covered) == self._stages * self._micro_batches

    def grant(self, trainer: str, stamp: Stamp, now_s: float) -> Lease | None:
        """Leases the first micro-batch that is neither covered nor leased; None if there is none."""
        if len(self._covered) == self._stages * self._micro_batches:
            return None
        taken = {lease.micro_batch for lease in self._leases.values()}
        for micro_batch in range(self._micro_batches):
            if micro_batch not in taken and (mask := self.mask_of(micro_batch)):
                lease = Lease(stamp, trainer, micro_batch, mask, now_s + self._lease_s)
                self._leases[stamp] = lease
                return lease
        return None

    def settle(self, trainer: str, stamp: Stamp, manifest: Iterable[Entry]) -> bool:
        """Takes the manifest of a lease's holder; a late or foreign one changes nothing.

        Entries of dead incarnations, of other micro-batches and for what is covered already are passed over.

        Returns:
            Whether the lease was in force.
        """
        lease = self._leases.get(stamp)
        if lease is None or lease.trainer != trainer:
            return False
        del self._leases[stamp]
        for entry in manifest:
            micro_batch, stage, _ = entry.token
            if micro_batch == lease.micro_batch and self._serves(entry.member, stage):
                self._covered.setdefault((micro_batch, stage), _Covered(entry, stamp, trainer))
        return True

    def give_up(self, trainer: str, stamp: Stamp) -> bool:
        """The holder of a lease returns it without a manifest."""
        return self.settle(trainer, stamp, ())

    def drop_trainer(self, trainer: str) -> None:
        """A trainer is dead: its leases end, and only these."""
        self._leases = {stamp: lease for stamp, lease in self._leases.items() if lease.trainer != trainer}

    def expire_leases(self, now_s: float) -> int:
        """Ends leases whose time is over and counts them."""
        over = [stamp for stamp, lease in self._leases.items() if lease.expires_s <= now_s]
        for stamp in over:
            del self._leases[stamp]
        return len(over)

    def drop_member(self, member: Member) -> int:
        """An incarnation is dead: what it held is to be done again. Counts the contributions."""
        return self._drop({key for key, covered in self._covered.items() if covered.entry.member == member})

    def drop_tokens(self, tokens: Iterable[Token]) -> int:
        """Tokens a peer turned out not to hold are to be done again. Counts them."""
        gone = set(tokens)
        return self._drop({key for key, covered in self._covered.items() if covered.entry.token in gone})

    def tokens_by_member(self) -> dict[Member, tuple[Token, ...]]:
        """What each incarnation has to fold."""
        found: defaultdict[Member, list[Token]] = defaultdict(list)
        for entry, _, _ in self._covered.values():
            found[entry.member].append(entry.token)
        return {member: tuple(tokens) for member, tokens in found.items()}

    def flow(self) -> Counter[tuple[str, str]]:
        """By peer and peer of the next stage, micro-batches that went from one to the other under one lease."""
        found: Counter[tuple[str, str]] = Counter()
        for (micro_batch, stage), (entry, lease, _) in self._covered.items():
            after = self._covered.get((micro_batch, stage + 1))
            if after is not None and after.lease == lease:
                found[entry.member.peer, after.entry.member.peer] += 1
        return found

    def sent(self) -> Counter[tuple[str, str]]:
        """By trainer and peer of the first stage, micro-batches that went from one to the other."""
        first = (covered for (_, stage), covered in self._covered.items() if stage == 0)
        return Counter((covered.trainer, covered.entry.member.peer) for covered in first)

    def _drop(self, keys: set[tuple[int, int]]) -> int:
        for key in keys:
            del self._covered[key]
        return len(keys)
