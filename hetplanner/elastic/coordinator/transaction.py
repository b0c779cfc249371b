"""The step transaction: prepare, reduce, a durable decision, commit only if every stage counted every micro-batch.

One attempt at a time. It asks every serving peer, also those without a contribution: all replicas of a stage take the
same step. Nothing but a durable decision commits; a peer in doubt keeps both its contributions and the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hetplanner.elastic.protocol.identity import Member, Replica, Stamp, Token, Version, View
from hetplanner.elastic.protocol.messages import Decide, Message, Prepare, Reduce, Reduced, Send
from hetplanner.elastic.protocol.settings import ElasticSettings


class Phase(Enum):
    """Where an attempt stands."""

    RUN = "run"  # no attempt
    PREPARE = "prepare"
    REDUCE = "reduce"
    PERSIST = "persist"  # the decision to commit is on its way to the disk
    COMMIT = "commit"
    ABORT = "abort"


class Verdict(Enum):
    """What an event made of the attempt; the coordinator acts on it."""

    NOTHING = "nothing"
    BACK = "back"  # to RUN, contributions kept
    DECIDED = "decided"  # every stage counted every micro-batch: make it durable
    CLOSED = "closed"  # all peers stepped


@dataclass(frozen=True)
class Participant:
    """A peer in an attempt."""

    replica: Replica
    stage: int
    tokens: tuple[Token, ...]


class StepTransaction:
    """State machine of the attempts of one coordinator."""

    def __init__(self, settings: ElasticSettings) -> None:
        self._settings = settings
        self.phase = Phase.RUN
        self.attempt = Stamp(0, 0)
        self.version = Version(0, 0)
        self.loss_sum: float | None = None
        self.grad_norm: float | None = None
        self._squares: dict[int, float] = {}
        self._samples: dict[int, set[int]] = {}
        self._group: dict[Member, Participant] = {}
        self._waiting: set[Member] = set()
        self._counts: list[list[int]] = []
        self._since_s = self._sent_s = 0.0

    @property
    def takes_part(self) -> set[Member]:
        """Members of the current attempt that are still counted on."""
        return set(self._group)

    def begin(
        self, attempt: Stamp, version: Version, view: View, tokens: Mapping[Member, tuple[Token, ...]], now_s: float
    ) -> list[Send]:
        """RUN to PREPARE: asks all peers in the view for their tokens at `version`."""
        self.attempt, self.version = attempt, version
        self._group = {
            replica.member: Participant(replica, stage, tokens.get(replica.member, ()))
            for stage, replicas in enumerate(view.stages)
            for replica in replicas
        }
        self._counts = [[] for _ in view.stages]
        self.loss_sum = self.grad_norm = None
        self._squares, self._samples = {}, {}
        return self._enter(Phase.PREPARE, now_s)

    def prepared(self, member: Member, attempt: Stamp, is_whole: bool, now_s: float) -> tuple[Verdict, list[Send]]:
        """A peer holds all of its tokens, or not: then back to RUN."""
        if not self._awaits(Phase.PREPARE, member, attempt):
            return Verdict.NOTHING, []
        if not is_whole:
            self._leave()
            return Verdict.BACK, []
        self._waiting.discard(member)
        return Verdict.NOTHING, [] if self._waiting else self._enter(Phase.REDUCE, now_s)

    def reduced(self, answer: Reduced, now_s: float) -> tuple[Verdict, list[Send]]:
        """A peer's all-reduce ended; DECIDED if it was the last and every micro-batch of the step is counted once."""
        if not self._awaits(Phase.REDUCE, answer.member, answer.attempt):
            return Verdict.NOTHING, []
        if answer.count is None:
            return Verdict.NOTHING, self._enter(Phase.ABORT, now_s)
        self._waiting.discard(answer.member)
        self._take(self._group[answer.member].stage, answer, answer.count)
        if self._waiting:
            return Verdict.NOTHING, []
        if not self._is_exact():
            return Verdict.NOTHING, self._enter(Phase.ABORT, now_s)
        if len(self._squares) == len(self._counts):
            self.grad_norm = math.sqrt(sum(self._squares[stage] for stage in range(len(self._counts))))
        self._enter(Phase.PERSIST, now_s)
        return Verdict.DECIDED, []

    def _take(self, stage: int, answer: Reduced, count: int) -> None:
        """All members of a stage hold the same sum, so that one speaks for its losses and its squared norm.

        Between two averagings of local steps each holds its own.
        """
        self._counts[stage].append(count)
        if answer.loss_sum is not None:
            others = self.loss_sum if self._settings.round_steps and self.loss_sum is not None else 0.0
            self.loss_sum = others + answer.loss_sum
        if answer.grad_square is not None:
            self._squares[stage] = answer.grad_square
        if answer.samples is not None:
            self._samples.setdefault(stage, set()).add(answer.samples)

    def _is_exact(self) -> bool:
        """Every member of every stage counted every micro-batch: kept although the journal says so already.

        With local steps all of them together did, and at the end of a round they averaged the same.
        """
        settings = self._settings
        if not settings.round_steps:
            return all(counts and {*counts} == {settings.micro_batches} for counts in self._counts)
        if any(sum(counts) != settings.micro_batches for counts in self._counts):
            return False
        if not settings.ends_round(self.version.step):
            return True
        possible = range(settings.micro_batches, settings.round_steps * settings.micro_batches + 1)
        stages = [self._samples.get(stage, set()) for stage in range(settings.stages)]
        return all(len(samples) == 1 and samples <= set(possible) for samples in stages)

    @property
    def lost_samples(self) -> list[int]:
        """By stage: micro-batches of the round whose local steps died with their peer; nothing inside a round."""
        whole = self._settings.round_steps * self._settings.micro_batches
        return [whole - max(self._samples[stage]) for stage in sorted(self._samples)]

    def persisted(self, version: Version, now_s: float) -> list[Send]:
        """The decision is durable: PERSIST to COMMIT."""
        self.version = version
        return self._enter(Phase.COMMIT, now_s)

    def decided(self, member: Member, attempt: Stamp, version: Version) -> Verdict:
        """A peer carried the decision out; CLOSED or BACK when it was the last. A wrong version is no answer."""
        if attempt != self.attempt or member not in self._waiting:
            return Verdict.NOTHING
        if self.phase not in (Phase.COMMIT, Phase.ABORT) or version != self.version:
            return Verdict.NOTHING
        self._waiting.discard(member)
        return self.end_if_answered()

    def member_lost(self, member: Member, now_s: float) -> tuple[Verdict, list[Send]]:
        """A peer died: before the decision the attempt ends, after it the others go on."""
        if self._group.pop(member, None) is None:
            return Verdict.NOTHING, []
        self._waiting.discard(member)
        match self.phase:
            case Phase.PREPARE:
                self._leave()
                return Verdict.BACK, []
            case Phase.REDUCE:
                sends = self._enter(Phase.ABORT, now_s)
                return self.end_if_answered(), sends
            case Phase.COMMIT | Phase.ABORT:
                return self.end_if_answered(), []
        return Verdict.NOTHING, []

    def tick(self, now_s: float) -> tuple[list[Member], list[Send]]:
        """Who has not answered in time and is dead; and what is to be sent again.

        An all-reduce that hangs says nothing about who hangs: it is aborted, and who does not answer that is dead.
        """
        if self.phase in (Phase.RUN, Phase.PERSIST):
            return [], []
        if self.phase is Phase.REDUCE and now_s - self._since_s > self._settings.reduce_s:
            return [], self._enter(Phase.ABORT, now_s)
        if self.phase is not Phase.REDUCE and now_s - self._since_s > self._settings.answer_s:
            return sorted(self._waiting), []
        if now_s - self._sent_s > self._settings.resend_s:
            return [], self._send(now_s)
        return [], []

    def end_if_answered(self) -> Verdict:
        """CLOSED or BACK if no peer's answer to the decision is waited for (any longer)."""
        if self._waiting or self.phase not in (Phase.COMMIT, Phase.ABORT):
            return Verdict.NOTHING
        was_commit = self.phase is Phase.COMMIT
        self._leave()
        return Verdict.CLOSED if was_commit else Verdict.BACK

    def give_up(self) -> None:
        """Forgets the attempt (the swarm is set back)."""
        self._leave()

    def _awaits(self, phase: Phase, member: Member, attempt: Stamp) -> bool:
        return self.phase is phase and attempt == self.attempt and member in self._waiting

    def _enter(self, phase: Phase, now_s: float) -> list[Send]:
        self.phase, self._since_s = phase, now_s
        self._waiting = set(self._group)
        return self._send(now_s)

    def _send(self, now_s: float) -> list[Send]:
        self._sent_s = now_s
        waiting = [p for m, p in self._group.items() if m in self._waiting]
        return [Send(p.replica.address, message) for p in waiting if (message := self._message(p)) is not None]

    def _message(self, to: Participant) -> Message | None:
        match self.phase:
            case Phase.PREPARE:
                return Prepare(to.replica.member, self.attempt, self.version, to.tokens)
            case Phase.REDUCE:
                everyone = self._group.values()
                stages = tuple(tuple(p.replica for p in everyone if p.stage == s) for s in range(self._settings.stages))
                return Reduce(to.replica.member, self.attempt, stages[to.stage], stages)
            case Phase.COMMIT | Phase.ABORT:
                return Decide(self.attempt, self.phase is Phase.COMMIT, self.version, self.grad_norm)
        return None

    def _leave(self) -> None:
        self.phase, self._group, self._waiting = Phase.RUN, {}, set()
