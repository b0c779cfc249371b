"""A run as its directory tells it, while it grows: a page, a terminal and a notebook read with the same class.

Nothing here imports torch, needs the agent, or writes. Reading is incremental; one poll reads a bounded part.
"""

import math
import statistics
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from hetplanner.cluster.measured import LINKS_FILE, Measured, differences, load_measured
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan, rank_labels
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.model import Plan
from hetplanner.plan.trace import Sample, Trace
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import reader
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.rank_status import status_of_ranks
from hetplanner.runs.reading.tail import text_from
from hetplanner.runs.reading.telemetry import PHASES, RankTelemetry, StepRecord
from hetplanner.runs.status import RunStatus, read_status
from hetplanner.schema import parse_json, read_text

MAX_AHEAD = 200
"""Steps that one rank may be read ahead of the slowest while there is more to read of that."""
MAX_SHARE = 256 * 2**10
"""Most bytes of one rank that are read before the others': about a thousand steps, fewer than are kept."""
POLL_BYTES = 8 * 2**20
"""Most bytes that one poll reads, over all ranks: under 0.1 s, so a page stays live while it catches up."""
MAX_TRACES = 4
"""Of the newest questions for spans, the answers are kept."""
MAX_PREDICTION_BYTES = 16 * 2**20
MOST_NATS = 88.0
"""The exponential of more is no number of 32 bits, as some sinks keep them."""
RECENT_STEPS = 20


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step over all ranks.

    Attributes:
        loss: mean nats per token over the whole global batch, of tokens whose targets count.
        step_s: end of this step minus end of the one before, on rank 0, without an evaluation between them; None for
            the first one after a (re)start.
        end_s: seconds since the run's origin at which rank 0 ended it.
        boundary_bytes, reduce_bytes: sent on the wire by all ranks.
        late: deliveries that the emulator handed over after their time; late_s their seconds in all.
        grad_norm: of the whole gradient, before clipping.
        memory_bytes: resident, all ranks; device_bytes: held on accelerators.
        in_flight, held: most micro-batches in flight and most sent messages kept, of any rank.
    """

    step: int
    loss: float | None
    num_tokens: int
    step_s: float | None
    end_s: float
    boundary_bytes: int
    reduce_bytes: int
    late: int
    late_s: float
    grad_norm: float | None
    memory_bytes: int
    device_bytes: int = 0
    in_flight: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model on held-out data.

    Attributes:
        step: the last one before it.
        loss: mean nats per token, of tokens whose targets count.
        accuracy: share of these that the model would have said; None where it does not tell.
    """

    step: int
    loss: float
    accuracy: float | None

    @property
    def perplexity(self) -> float | None:
        """e to the loss; None where that is too large for a number of 32 bits."""
        return math.exp(self.loss) if self.loss < MOST_NATS else None

    def __str__(self) -> str:
        perplexity = "" if self.perplexity is None else f"perplexity {self.perplexity:.4g}"
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        more = ", ".join(part for part in (perplexity, accuracy) if part)
        return f"{self.loss:.4f}" + (f" ({more})" if more else "")

    def to_data(self) -> dict[str, float | None]:
        """Plain data."""
        return {"step": self.step, "loss": self.loss, "perplexity": self.perplexity, "accuracy": self.accuracy}


class RunReader:
    """Reads the telemetry of all ranks of one run directory.

    Call `poll` from time to time (a page does it periodically), or `read_all` once; then ask.
    """

    def __init__(self, path: Path) -> None:
        """A reader at the start of every file. `path` is the run directory; its files may not exist yet."""
        self.directory = RunDirectory(Path(path))
        self._ranks: tuple[RankTelemetry, ...] | None = None
        self._steps: list[StepSummary] = []
        self._version = 0  # counts the polls that found something
        self._traces: OrderedDict[tuple[int, int], tuple[int, Trace]] = OrderedDict()

    @cached_property
    def plan(self) -> Plan:
        """The plan being run; an elastic one refuses what only static ones have, in one line. Raises InvalidInput."""
        return cast(Plan, self.any_plan)

    @cached_property
    def any_plan(self) -> AnyPlan:
        """The plan being run, of whatever mode. Raises InvalidInput."""
        return load_any_plan(self.directory.plan_file)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The writers of telemetry, by rank: devices, or the coordinator of a swarm."""
        return rank_labels(self.any_plan)

    @cached_property
    def config(self) -> TrainConfig:
        """How it is trained. Raises InvalidInput."""
        return load_config(self.directory.config_file)

    def status(self) -> RunStatus:
        """The status now. Raises InvalidInput."""
        if self.has_agent or not isinstance(self.any_plan, Plan):
            return read_status(self.directory.status_file)
        self.read_all()
        return status_of_ranks(self.directory.path, self.ranks, self.config.steps)

    @property
    def has_agent(self) -> bool:
        """Whether an agent keeps, or kept, its status; else its ranks were started in another way."""
        return self.directory.status_file.exists()

    @property
    def ranks(self) -> tuple[RankTelemetry, ...]:
        """Telemetry by rank, as far as it has been read."""
        if self._ranks is None:
            files = [(rank, self.directory.telemetry_file(rank)) for rank in range(len(self.labels))]
            self._ranks = tuple(RankTelemetry(rank, path, len(files)) for rank, path in files)
        return self._ranks

    @reader("run folder", at="self.directory.path")
    def poll(self, max_bytes: int = POLL_BYTES) -> bool:
        """Reads on in every rank's file, `max_bytes` in all at most; returns whether anything was new."""
        share = min(max(max_bytes // len(self.ranks), 65536), MAX_SHARE)
        last = [next(reversed(t.steps), -1) for t in self.ranks]
        # A rank that is read far ahead of the others would forget steps before they have reported them.
        near = [t for t, step in zip(self.ranks, last, strict=True) if step <= min(last) + MAX_AHEAD]
        news = _poll(near, share) or _poll(self.ranks, share)
        self._version += news
        self._summarise_new_steps()
        return news

    def read_all(self) -> "RunReader":
        """Reads everything written so far; returns itself."""
        while self.poll():
            pass
        return self

    # -- steps ------------------------------------------------------------------------------------

    def _summarise_new_steps(self) -> None:
        """Appends the steps that every rank has reported, in order, so that readers can keep a cursor."""
        first = self.ranks[0]
        after = self._steps[-1].step if self._steps else -1
        ready = min(next(reversed(t.steps), -1) for t in self.ranks)
        for step in _newer_keys(first.steps, after):
            if step > ready:
                break
            records = [t.steps[step] for t in self.ranks if step in t.steps]
            if len(records) == len(self.ranks):  # a rank whose line was damaged takes its step out of the curve
                self._steps.append(_summary_of(step, records, first.steps.get(step - 1)))

    def steps(self, after: int = -1) -> list[StepSummary]:
        """Whole steps (reported by every rank) later than step `after`, in order."""
        count = 0
        for summary in reversed(self._steps):
            if summary.step <= after:
                break
            count += 1
        return self._steps[len(self._steps) - count :]

    def losses(self, after: int = -1) -> list[tuple[int, float]]:
        """(step, mean nats per token over the global batch) of steps later than `after`."""
        return [(s.step, s.loss) for s in self.steps(after) if s.loss is not None]

    def validation_losses(self) -> list[tuple[int, float]]:
        """(step, mean nats per token on held-out text)."""
        return [(found.step, found.loss) for found in self.evaluations()]

    def evaluations(self) -> list[Evaluation]:
        """Every evaluation on held-out data, in order."""
        by_step: dict[int, list[tuple[float, int, int | None]]] = defaultdict(list)
        for telemetry in self.ranks:
            for step, (loss_sum, num_tokens) in telemetry.validation.items():
                by_step[step].append((loss_sum, num_tokens, telemetry.correct.get(step)))
        found = []
        for step, parts in sorted(by_step.items()):
            count = sum(num_tokens for _, num_tokens, _ in parts)
            correct = [number for _, _, number in parts if number is not None]
            accuracy = sum(correct) / count if count and len(correct) == len(parts) else None
            if count:
                found.append(Evaluation(step, sum(loss for loss, _, _ in parts) / count, accuracy))
        return found

    def _last_evaluation(self) -> dict[str, float | None]:
        found = self.evaluations()
        return found[-1].to_data() if found else dict.fromkeys(("loss", "perplexity", "accuracy"))

    def step_times_s(self) -> list[float]:
        """Seconds of every step but step 0, on rank 0."""
        return [s.step_s for s in self._steps if s.step_s is not None]

    def measured_step_s(self) -> float | None:
        """Median of the step times without step 0; None before two steps are over."""
        times = self.step_times_s()
        return statistics.median(times) if times else None

    def tokens_per_s(self, recent: int = RECENT_STEPS) -> float | None:
        """Tokens per second over the last `recent` steps."""
        last = [s for s in self._steps[-recent:] if s.step_s is not None]
        seconds = sum(s.step_s or 0.0 for s in last)
        return sum(s.num_tokens for s in last) / seconds if seconds > 0 else None

    # -- totals -----------------------------------------------------------------------------------

    @property
    def bytes_boundary(self) -> int:
        """Bytes that crossed stage boundaries so far, on the wire, all ranks."""
        return sum(t.boundary_bytes for t in self.ranks)

    @property
    def bytes_reduce(self) -> int:
        """Bytes sent to reduce gradients so far, on the wire, all ranks."""
        return sum(t.reduce_bytes for t in self.ranks)

    @property
    def late(self) -> tuple[int, float]:
        """Late deliveries of the emulator: how many, and their seconds in all."""
        return sum(t.late for t in self.ranks), sum(t.late_s for t in self.ranks)

    @property
    def corrupted_lines(self) -> int:
        """Telemetry lines that could not be read."""
        return sum(t.corrupted + t.tail.long_lines for t in self.ranks)

    @property
    def lost_lines(self) -> int:
        """Telemetry lines that the ranks could not write."""
        return sum(t.lost for t in self.ranks)

    @property
    def restarts(self) -> int:
        """How often the run was started again."""
        return max(t.attempt for t in self.ranks)

    def resumed(self) -> tuple[int, str | None, tuple[str, ...]] | None:
        """Steps done when it went on, the run directory that held them, and checkpoints that could not be read.

        None where nothing was resumed.
        """
        known = [t for t in self.ranks if t.resumed_step is not None]
        if not known:
            return None
        skipped = dict.fromkeys(text for t in known for text in t.skipped)
        return known[0].resumed_step or 0, known[0].resumed_from, tuple(skipped)

    # -- stages of starting, trace, prediction, logs ----------------------------------------------

    def phases(self) -> dict[str, dict[int, float]]:
        """Stage of life -> rank -> unix time at which the rank entered it; in the order of PHASES."""
        return {
            name: {t.rank: t.phases[name] for t in self.ranks if name in t.phases}
            for name in PHASES
            if any(name in t.phases for t in self.ranks)
        }

    def phase(self) -> str | None:
        """The stage of life of the rank that is least far; None before all have begun."""
        names = [t.phase for t in self.ranks]
        known = [name for name in names if name is not None]
        return min(known, key=PHASES.index) if known and len(known) == len(names) else None

    @reader("run folder", at="self.directory.path")
    def trace(self, last_steps: int = 3, until: int | None = None) -> Trace:
        """Measured spans of the last `last_steps` whole steps that left any, with queue depths and memory.

        Several pages may watch one run: who asks again before anything new was read gets the same trace.

        Args:
            last_steps: how many.
            until: the latest step wanted; None takes the newest. Far back the ranks' files are looked through.
        """
        last = self._steps[-1].step if self._steps else 0
        if until is not None:
            last = min(last, until)
        version, trace = self._traces.get((last_steps, last), (-1, None))
        if trace is None or version != self._version:
            trace = self._trace(last_steps, last)
            self._traces[last_steps, last] = self._version, trace
            while len(self._traces) > MAX_TRACES:
                self._traces.popitem(last=False)
        return trace

    def _trace(self, last_steps: int, last: int) -> Trace:
        parts = [t.spans(last, last_steps) for t in self.ranks]
        spans = [span for found, _ in parts for span in found]
        spans.sort(key=lambda span: (span.start_s, span.rank))
        steps = {span.step for span in spans}
        samples = [sample for _, found in parts for sample in found]
        samples += [s for t in self.ranks for step in sorted(steps & t.steps.keys()) for s in _memory_samples(t, step)]
        return Trace(tuple(spans), self.labels, origin="measured", samples=tuple(samples))

    def expert_loads(self) -> dict[str, list[int]]:
        """By op of a mixture of experts, tokens that each expert took, over all ranks and all counted steps."""
        total: dict[str, list[int]] = {}
        for telemetry in self.ranks:
            for op, tokens in telemetry.experts.items():
                known = total.get(op, [0] * len(tokens))
                if len(known) == len(tokens):
                    total[op] = [a + b for a, b in zip(known, tokens, strict=True)]
        return total

    def profiles(self) -> list[dict[str, Any]]:
        """What every rank measured of its own stage before step 0."""
        return [t.profile for t in self.ranks]

    def prediction(self) -> dict[str, Any] | None:
        """The prediction written before step 0; None when there is none yet."""
        try:
            data = parse_json(read_text(self.directory.prediction_file, MAX_PREDICTION_BYTES), "prediction.json")
        except InvalidInput:
            return None
        return data if isinstance(data, dict) else None

    def cluster_corrections(self) -> tuple[str, ...]:
        """What the ranks measured of their links before step 0 and the cluster file says otherwise, in sentences."""
        measured = self.measured_links()
        return () if measured is None else differences(self.any_plan.problem.cluster, measured)

    def measured_links(self) -> Measured | None:
        """What the ranks measured of the links between their hosts; None of a run on one machine."""
        try:
            return load_measured(self.directory.path / LINKS_FILE)
        except InvalidInput:
            return None

    def predicted_step_s(self) -> float | None:
        """Seconds of one step as predicted from the ranks' own profile."""
        value = (self.prediction() or {}).get("step_s")
        return float(value) if isinstance(value, int | float) else None

    def log(self, rank: int | None, cursor: int = 0, max_bytes: int = 65536) -> tuple[str, int]:
        """Text of a rank's log (None: the launcher's) from a byte cursor on, and the next cursor.

        Args:
            rank: whose log.
            cursor: bytes already seen; -1 asks for the end of the log.
            max_bytes: most bytes of one answer.
        """
        path = self.directory.launcher_log if rank is None else self.directory.log_file(rank)
        return text_from(path, cursor, max_bytes)

    @reader("run folder", at="self.directory.path")
    def summary(self) -> dict[str, Any]:
        """The run in one line, as `train --json` prints it last; reads what is new first."""
        self.read_all()
        losses = self.losses()
        late, late_s = self.late
        resumed = self.resumed()
        return {
            "status": self.status().state,
            # First to last: telemetry that was cut lacks lines of steps that were done.
            "steps": 1 + self._steps[-1].step - self._steps[0].step if self._steps else 0,
            "final_loss": losses[-1][1] if losses else None,
            **{f"validation_{name}": value for name, value in self._last_evaluation().items() if name != "step"},
            "measured_step_s": self.measured_step_s(),
            "predicted_step_s": self.predicted_step_s(),
            "bytes_boundary": self.bytes_boundary,
            "bytes_reduce": self.bytes_reduce,
            "tokens_per_s": self.tokens_per_s(),
            "catalog_step_s": (self.prediction() or {}).get("catalog_step_s"),
            "late": late,
            "late_s": late_s,
            "lost_lines": self.lost_lines,
            "restarts": self.restarts,
            "resumed_step": resumed[0] if resumed else None,
            "checkpoints_skipped": list(resumed[2]) if resumed else [],
            "cluster_corrections": list(self.cluster_corrections()),
        }


def _poll(ranks: Iterable[RankTelemetry], max_bytes: int) -> bool:
    """Reads on in all of them; whether any had news."""
    return sum(telemetry.poll(max_bytes) for telemetry in ranks) > 0


def _newer_keys(steps: dict[int, StepRecord], after: int) -> list[int]:
    newer = []
    for step in reversed(steps):
        if step <= after:
            break
        newer.append(step)
    return newer[::-1]


def _seconds(record: StepRecord, before: StepRecord | None) -> float | None:
    if before is None or before.attempt != record.attempt:
        return None
    return max(0.0, record.end_s - before.end_s - record.paused_s)


def _summary_of(step: int, records: list[StepRecord], before: StepRecord | None) -> StepSummary:
    scored = [r for r in records if r.loss_sum is not None]
    num_labels = sum(r.num_tokens if r.num_labels is None else r.num_labels for r in scored)
    return StepSummary(
        step=step,
        loss=sum(r.loss_sum or 0.0 for r in scored) / num_labels if num_labels else None,
        num_tokens=sum(r.num_tokens for r in scored),
        step_s=_seconds(records[0], before),
        end_s=records[0].end_s,
        boundary_bytes=sum(r.boundary_bytes for r in records),
        reduce_bytes=sum(r.reduce_bytes for r in records),
        late=sum(r.late for r in records),
        late_s=sum(r.late_s for r in records),
        grad_norm=_grad_norm(records),
        memory_bytes=sum(r.memory_bytes for r in records),
        device_bytes=sum(r.device_bytes for r in records),
        in_flight=max(r.in_flight for r in records),
        held=max(r.held for r in records),
    )


def _grad_norm(records: list[StepRecord]) -> float | None:
    """As the ranks agreed on it where they clip, else from every rank's share."""
    norms = [r.grad_norm for r in records if r.grad_norm is not None]
    squares = [r.grad_square for r in records if r.grad_square is not None]
    if norms:
        return max(norms)
    return math.sqrt(sum(squares)) if len(squares) == len(records) else None


def _memory_samples(telemetry: RankTelemetry, step: int) -> list[Sample]:
    record = telemetry.steps[step]
    found = [Sample(telemetry.rank, "memory (MB)", record.end_s, record.memory_bytes / 1e6)]
    if record.device_bytes:
        found.append(Sample(telemetry.rank, "accelerator memory (MB)", record.end_s, record.device_bytes / 1e6))
    return found
