"""The invariants of a swarm, checked at every commit and every step of every peer of the event simulation.

I1: each (micro-batch, stage) is in a commit exactly once. I2: what is not journaled is never folded. I3: all replicas
of a stage are equal, and equal to a run that nothing disturbed. I4: every stage counted every micro-batch. I5: no peer
is at a version whose decision is not durable. I6: the parts of a step as they are told add up to its micro-batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import Committed, Decision, SetBack
from hetplanner.elastic.protocol.identity import Stamp, Token, Version
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation.model import UndisturbedRun

if TYPE_CHECKING:
    from hetplanner.elastic.simulation.hosts import PeerHost

KEPT_ATTEMPTS = 64


class Checks:
    """What has been folded and decided, and what of it breaks an invariant.

    Attributes:
        violations: one line each.
        commits: durable ones.
        stage_steps: commits times stages.
        wrong_stage_steps: of these, with a contribution lost, doubled or not journaled.
    """

    def __init__(self, settings: ElasticSettings) -> None:
        self._settings = settings
        self._reference = UndisturbedRun(settings.stages, settings.micro_batches)
        self._folded: dict[Stamp, dict[int, tuple[Token, ...]]] = defaultdict(dict)
        self._journaled: dict[Stamp, set[Token]] = {}
        self._durable = {Version(0, 0)}
        self.violations: list[str] = []
        self.commits = self.stage_steps = self.wrong_stage_steps = self.peer_steps = 0

    def folded(self, attempt: Stamp, stage: int, tokens: tuple[Token, ...]) -> None:
        """An all-reduce of a stage went through with these contributions."""
        self._folded[attempt][stage] = tokens
        for old in list(self._folded)[:-KEPT_ATTEMPTS]:
            del self._folded[old]

    def decided(self, coordinator: Coordinator) -> None:
        """The coordinator has decided to commit what is journaled now."""
        tokens = {t for held in coordinator.journal.tokens_by_member().values() for t in held}
        self._journaled[coordinator.transaction.attempt] = tokens
        for old in list(self._journaled)[:-KEPT_ATTEMPTS]:
            del self._journaled[old]
        self._check_parts(coordinator)

    def _check_parts(self, coordinator: Coordinator) -> None:
        """Every stage's shares are all micro-batches, as what trainers sent; no more cross a boundary, none a stage."""
        work, most = coordinator.work, self._settings.micro_batches
        done = Counter(dict.fromkeys(range(self._settings.stages), 0))
        crossed: Counter[int] = Counter()
        for share in work.shares.values():
            done[share.stage] += share.micro_batches
        for (sender, receiver), count in work.flow.items():
            stage = work.shares[sender].stage
            crossed[stage] += count
            if work.shares[receiver].stage != stage + 1:
                self.violations.append(f"I6: {count} went from stage {stage} to {work.shares[receiver].stage}")
        entered = sum(count for (_, peer), count in work.sent.items() if work.shares[peer].stage == 0)
        if entered != most or sum(work.sent.values()) != most:
            self.violations.append(f"I6: trainers sent {dict(work.sent)} into the first stage, of {most}")
        if set(done.values()) != {most} or any(count > most for count in crossed.values()):
            self.violations.append(f"I6: {dict(done)} were done and {dict(crossed)} crossed, of {most}")

    def durable(self, decision: Decision) -> None:
        """A decision is durable."""
        if isinstance(decision, Committed | SetBack):
            self._durable.add(decision.version)
        if not isinstance(decision, Committed):
            return
        self.commits += 1
        for stage in range(self._settings.stages):
            self.stage_steps += 1
            self._check_stage(decision, stage)

    def _check_stage(self, decision: Committed, stage: int) -> None:
        tokens = self._folded.get(decision.attempt, {}).get(stage, ())
        where = f"{decision.version}, stage {stage}"
        counts = Counter(token.micro_batch for token in tokens)
        is_exact = set(counts) == set(range(self._settings.micro_batches)) and set(counts.values()) == {1}
        foreign = set(tokens) - self._journaled.get(decision.attempt, set())
        if not is_exact:
            self.violations.append(f"I1: {where}: folded {dict(sorted(counts.items()))}")
        if foreign:
            self.violations.append(f"I2: {where}: folded {len(foreign)} not journaled")
        if len(tokens) != self._settings.micro_batches:
            self.violations.append(f"I4: {where}: counted {len(tokens)} of {self._settings.micro_batches}")
        self.wrong_stage_steps += bool(not is_exact or foreign)

    def stepped(self, peer: PeerHost) -> None:
        """A peer is at a version: after a step, or with state that it got."""
        version = peer.machine.version
        if version is None:
            return
        self.peer_steps += 1
        if version not in self._durable:
            self.violations.append(
                f"I5: {version}, stage {peer.machine.stage}: {peer.address} is at no durable version"
            )
        if peer.weights != self._reference.weights(peer.machine.stage, version.step):
            self.violations.append(f"I3: {version}, stage {peer.machine.stage}: {peer.address} differs")
