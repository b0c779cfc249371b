"""The coordinator's decision log: what must survive it, as lines of JSON, and what a restarted one learns from them.

A line is written, and flushed to the disk, before any peer is told what it says.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.errors import RunError
from hetplanner.reading import DAMAGED


class LogLine(msgspec.Struct, frozen=True, tag_field="kind", tag=True, forbid_unknown_fields=True):
    """A decision; on the disk a JSON object with its class in `kind`."""


class Booted(LogLine, frozen=True):
    """A coordinator took over; whatever an earlier one writes after this line does not count."""

    boot: int


class Committed(LogLine, frozen=True):
    """An attempt is committed: every stage that counted every micro-batch is at `version` from now on.

    Attributes:
        loss_sum: of the step, in nats over all tokens; None: no last stage said it.
        grad_norm: of the whole mean gradient, before clipping; None: it is not clipped.
    """

    boot: int
    attempt: Stamp
    version: Version
    loss_sum: float | None = None
    grad_norm: float | None = None


class SetBack(LogLine, frozen=True):
    """Every stage starts again as `version`, from its checkpoint of as many steps."""

    boot: int
    version: Version


class CheckpointSaved(LogLine, frozen=True):
    """The state of one stage is durable outside the peers."""

    boot: int
    stage: int
    version: Version


class CheckpointLost(LogLine, frozen=True):
    """No peer can read this checkpoint of a stage any more."""

    boot: int
    stage: int
    version: Version


class Resumed(LogLine, frozen=True):
    """The swarm begins with the checkpoints of another run, which follow as CheckpointSaved: it has none of its own.

    Attributes:
        source: folder of that run.
    """

    boot: int
    version: Version
    source: str = ""


class Finished(LogLine, frozen=True):
    """The model of this version is saved: of a run of so many steps nothing is left to do."""

    boot: int
    version: Version


Decision = Booted | Committed | SetBack | CheckpointSaved | CheckpointLost | Resumed | Finished


@dataclass
class Ledger:
    """What the decisions so far say.

    Attributes:
        boot: of the latest coordinator.
        version: of all stages.
        last_attempt: that led to it; None before the first commit and after a set-back.
        last_norm: the gradient's in that attempt, for a peer that still has to step by it.
        checkpoints: versions by committed steps, then stage, of the current lineage's past.
        resumed: steps that another run had done, and that run's folder.
        finished: the version whose model is saved.
    """

    boot: int = 0
    version: Version = field(default_factory=lambda: Version(0, 0))
    last_attempt: Stamp | None = None
    last_norm: float | None = None
    checkpoints: dict[int, dict[int, Version]] = field(default_factory=dict)
    resumed: tuple[int, str] | None = None
    finished: Version | None = None

    def take(self, decision: Decision) -> None:
        """Learns a decision; one of a coordinator that had been replaced, or told twice, changes nothing."""
        if isinstance(decision, Booted):
            self.boot = max(self.boot, decision.boot)
            return
        if decision.boot < self.boot:
            return
        match decision:
            case Committed(attempt=attempt, version=version) if version.step == self.version.step + 1:
                self.version, self.last_attempt, self.last_norm = version, attempt, decision.grad_norm
            case SetBack(version=version) if version.lineage == self.version.lineage + 1:
                self.version, self.last_attempt, self.last_norm = version, None, None
                self.checkpoints = {k: v for k, v in self.checkpoints.items() if k <= version.step}
            case CheckpointSaved(stage=stage, version=version) if version.step <= self.version.step:
                self.checkpoints.setdefault(version.step, {})[stage] = version
            case CheckpointLost(stage=stage, version=version):
                by_stage = self.checkpoints.get(version.step, {})
                if by_stage.get(stage) == version:
                    del by_stage[stage]
            case Resumed(version=version):
                self.version, self.last_attempt, self.last_norm = version, None, None
                self.checkpoints, self.resumed = {}, (version.step, decision.source)
            case Finished(version=version):
                self.finished = version

    def is_finished(self, steps: int) -> bool:
        """Whether the model is saved and holds so many steps."""
        return self.finished == self.version and self.version.step >= steps

    def newest_checkpoint(self, stages: int) -> int | None:
        """Committed steps of the newest checkpoint that all stages have; None if there is none."""
        return max((step for step, by_stage in self.checkpoints.items() if len(by_stage) == stages), default=None)


def replay_decisions(decisions: Iterable[Decision]) -> Ledger:
    """What a restarted coordinator knows."""
    ledger = Ledger()
    for decision in decisions:
        ledger.take(decision)
    return ledger


def decisions_of_a_restart(
    ledger: Ledger, stages: int, is_whole: Callable[[int, Version], bool]
) -> list[CheckpointLost | SetBack]:
    """What to decide before all processes of a swarm are started again, when none is left that holds a state.

    All stages go back to the newest checkpoint that is whole; without one to the initial weights.

    Args:
        ledger: of the log; learns what is decided.
        stages: of the model.
        is_whole: whether the checkpoint of a stage that was saved as a version can still be read.
    """
    return [*lose_damaged(ledger, stages, is_whole), *set_back_to_saved(ledger, stages)]


def lose_damaged(ledger: Ledger, stages: int, is_whole: Callable[[int, Version], bool]) -> list[CheckpointLost]:
    """The first half of `decisions_of_a_restart`: the newest checkpoint is whole then."""
    found: list[CheckpointLost] = []
    while (step := ledger.newest_checkpoint(stages)) is not None:
        lost = [CheckpointLost(ledger.boot, s, v) for s, v in ledger.checkpoints[step].items() if not is_whole(s, v)]
        if not lost:
            break
        for decision in lost:
            ledger.take(decision)
        found += lost
    return found


def set_back_to_saved(ledger: Ledger, stages: int) -> list[SetBack]:
    """The second half: nothing where the last step is saved."""
    step = ledger.newest_checkpoint(stages) or 0
    if ledger.version.step == step:
        return []
    decision = SetBack(ledger.boot, Version(ledger.version.lineage + 1, step))
    ledger.take(decision)
    return [decision]


def encode_decision(decision: Decision) -> bytes:
    """One line: checksum, then JSON."""
    text = json.dumps(msgspec.to_builtins(decision), separators=(",", ":")).encode()  # a loss may be no number
    return b"%08x %s\n" % (zlib.crc32(text), text)


def cut_torn_line(data: bytes) -> bytes:
    """The whole lines of a log: a last one that a crash cut off was never acted on. Truncate to this before writing."""
    return data[: data.rfind(b"\n") + 1]


def decode_decisions(data: bytes) -> list[Decision]:
    """The decisions of a log; a last line that a crash cut off is left out.

    Raises:
        RunError: a whole line is damaged.
    """
    *lines, _ = cut_torn_line(data).split(b"\n")
    found = []
    for number, line in enumerate(lines, start=1):
        decision = _decode_line(line)
        if decision is None:
            raise RunError(f"decision log: line {number}: damaged (checksum); restore the file from a copy")
        found.append(decision)
    return found


def _decode_line(line: bytes) -> Decision | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return msgspec.convert(json.loads(text), Decision)
    except (msgspec.ValidationError, *DAMAGED):  # whole, but none of our decisions
        return None
