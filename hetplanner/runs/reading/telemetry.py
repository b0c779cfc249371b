"""One rank's telemetry, read line by line as it grows: phases, steps, links, validation, load, spans, errors."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hetplanner.cluster.model import MAX_DEVICES
from hetplanner.plan.trace import Sample, Span
from hetplanner.plan.traffic import LinkTraffic
from hetplanner.reading import DAMAGED
from hetplanner.runs.reading.history import span_lines
from hetplanner.runs.reading.tail import LineTail
from hetplanner.units import short_bytes, short_seconds

PHASES = ("importing", "connecting", "building", "profiling", "predicting", "training", "saving", "done")
"""Stages of a worker's life, in order."""

MAX_STEPS = 2_000
"""Steps kept per rank; older ones only count in the totals and peaks."""
MAX_MEMORY_POINTS = 800
"""Points kept of a rank's memory over the whole run: every other one goes when they become more."""
MAX_LOADS = 800
"""Points kept of a host's load over the whole run, thinned the same way."""
MAX_GPUS = 64
MAX_SPANS = 20_000
"""Spans kept per rank, as text: a step of a small rehearsal has about 50."""
MOST_SECONDS = 1e12
"""Of any time, also of unix time: what is beyond is damaged."""
MAX_PROFILES = 64
MAX_EXPERTS = 1024
"""Of one op, and ops that have some."""
MAX_HAPPENINGS = 500
"""What a rank says of its life: phases, checkpoints, restarts. Older ones are forgotten."""
_SPAN_PREFIXES = (b'{"type":"span"', b'{"type": "span"')


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one rank. `start_s` and `end_s` are seconds since the run's origin; `loss_sum` is in nats.

    Attributes:
        paused_s: seconds of an evaluation between the step before and this one.
        num_labels: tokens whose targets count; None for all.
        grad_square: the rank's share of the squared gradient norm; None in runs that did not write it.
        memory_bytes, device_bytes: resident in main memory; most held on an accelerator.
        in_flight, held: most micro-batches in flight, most sent messages whose buffers were kept.
        attempt: how often the run had been started again.
    """

    step: int
    start_s: float
    end_s: float
    loss_sum: float | None
    num_tokens: int
    boundary_bytes: int
    reduce_bytes: int
    late: int
    late_s: float
    grad_norm: float | None
    memory_bytes: int
    grad_square: float | None = None
    device_bytes: int = 0
    in_flight: int = 0
    held: int = 0
    attempt: int = 0
    num_labels: int | None = None
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostSample:
    """How busy a host was at a moment, with all that runs on it.

    Attributes:
        time_s: unix time.
        host: its name, as the launcher or the host itself gives it.
        cpu, memory: shares in use, 0 to 1.
        sent, received: bytes per second through network cards; loopback: between processes of the host.
        gpus: share of time busy and share of memory in use of each GPU; empty where they were not looked at.
    """

    time_s: float
    host: str
    cpu: float
    memory: float
    sent: float
    received: float
    loopback: float
    gpus: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Happening:
    """Something a rank said that is no step.

    Attributes:
        kind: phase, checkpoint, restart, resumed, degraded (the run goes on without something), notice or error.
        time_s: unix time; of a run that did not write it, when the last step before it ended. None where that is not
            known either.
        text: the phase's name, or words for a person.
    """

    kind: str
    time_s: float | None
    text: str


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A worker's own last words."""

    text: str
    traceback: str


@dataclass
class RankTelemetry:
    """What one rank has written so far. `poll` reads on; everything else is plain data.

    Attributes:
        num_ranks: of the run: who else can be the other end of a message.
        phases: name -> unix time at which the rank entered it.
        steps: by step, ascending; the last MAX_STEPS of them.
        validation: step -> (loss_sum in nats, num_tokens).
        correct: step -> how many of these tokens the model would have said.
        profile: the rank's own measured durations, as written.
        corrupted: lines that could not be read.
        lost: lines that the rank says it could not write.
        boundary_bytes, reduce_bytes, late, late_s: totals over all steps.
        attempt: how often the run was started again; phases and error are those of the last attempt.
        resumed_step: steps that were done already when this attempt began to train; None where nothing was resumed.
        resumed_from: the run directory whose checkpoint it was.
        skipped: checkpoints that could not be read, and why.
        notice: why a cloud takes the rank's host away, in its words; empty without a notice.
        checkpoint_step: steps in the last checkpoint that this rank knows to be finished.
        peak_memory_bytes, peak_device_bytes, peak_bytes: most held in a step: resident, on the accelerator, both.
        memory: (step, resident bytes, bytes on the accelerator) of every so many steps, over the whole run.
        most_in_flight, most_held: of all steps.
        experts: by op of a mixture of experts, tokens that each expert took on this rank.
        links: by (other rank, role); the role is activation, gradient, reduce or norm.
        loads: of the rank's host, over the whole run; empty of ranks that do not tell it.
        links_steps: how many steps `links` counts; 0 in a run that did not write them.
        happenings: of all attempts, in the order they were written; the last MAX_HAPPENINGS.
    """

    rank: int
    path: Path
    num_ranks: int = MAX_DEVICES
    phases: dict[str, float] = field(default_factory=dict)
    steps: dict[int, StepRecord] = field(default_factory=dict)
    validation: dict[int, tuple[float, int]] = field(default_factory=dict)
    correct: dict[int, int] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    error: ErrorRecord | None = None
    origin_unix_s: float | None = None
    corrupted: int = 0
    lost: int = 0
    boundary_bytes: int = 0
    reduce_bytes: int = 0
    late: int = 0
    late_s: float = 0.0
    peak_memory_bytes: int = 0
    peak_device_bytes: int = 0
    peak_bytes: int = 0
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    loads: list[HostSample] = field(default_factory=list)
    most_in_flight: int = 0
    most_held: int = 0
    experts: dict[str, list[int]] = field(default_factory=dict)
    links: dict[tuple[int, str], LinkTraffic] = field(default_factory=dict)
    links_steps: int = 0
    attempt: int = 0
    resumed_step: int | None = None
    resumed_from: str | None = None
    skipped: tuple[str, ...] = ()
    notice: str = ""
    checkpoint_step: int | None = None
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=MAX_HAPPENINGS))

    def __post_init__(self) -> None:
        self.tail = LineTail(self.path)
        self._span_lines: deque[bytes] = deque(maxlen=MAX_SPANS)
        self._known_spans: dict[bytes, tuple[Span, list[Sample]] | None] = {}  # those that were asked for last
        self._forgotten = -1  # the last step that is no longer kept
        self._memory_every = 1
        self._loads_every, self._loads_read = 1, 0
        self._shift_s = 0.0  # from this attempt's origin to the first one's
        self._read: dict[str, Callable[[dict[str, Any]], None]] = {
            "phase": self._phase,
            "profile": self._profile,
            "origin": self._origin,
            "span": self._span,
            "step": self._step,
            "links": self._links,
            "load": self._load,
            "experts": self._experts,
            "validation": self._validation,
            "restart": self._restart,
            "resumed": self._resumed,
            "checkpoint": self._checkpoint,
            "copy": self._copy,
            "notice": self._notice,
            "error": self._error,
            "lost": self._lost,
        }

    def poll(self, max_bytes: int) -> bool:
        """Reads on, at most `max_bytes`; returns whether anything was new."""
        before = self.tail.offset
        for line in self.tail.lines(max_bytes):
            if line.startswith(_SPAN_PREFIXES):  # most lines are spans: parsed only when they are read
                self._span_lines.append(line)
            else:
                self._take(line)
        return self.tail.offset != before

    @property
    def phase(self) -> str | None:
        """The latest stage of its life that this rank has reached."""
        reached = [name for name in PHASES if name in self.phases]
        return reached[-1] if reached else None

    def spans(self, last_step: int, count: int) -> tuple[list[Span], list[Sample]]:
        """Spans of the last `count` steps that have any, up to `last_step`, and queue depths at their ends."""
        found, steps = self._gathered(self._span_lines, last_step, count)
        if len(steps) <= count and len(self._span_lines) == MAX_SPANS:  # steps are wanted that were forgotten
            found, steps = self._gathered(span_lines(self.path, last_step, count + 1), last_step, count)
        chosen = set(sorted(steps)[-count:])
        kept = [pair for pair in reversed(found) if pair[0].step in chosen]
        return [span for span, _ in kept], [sample for _, samples in kept for sample in samples]

    def _gathered(
        self, lines: Sequence[bytes], last_step: int, count: int
    ) -> tuple[list[tuple[Span, list[Sample]]], set[int]]:
        """Spans up to `last_step`, the latest first, of a step more than `count`; and which steps they are of."""
        found: list[tuple[Span, list[Sample]]] = []
        steps: set[int] = set()
        known, self._known_spans = self._known_spans, {}
        for line in reversed(lines):
            pair = self._known_spans[line] = known[line] if line in known else self._span_of(line)
            if pair is None or not 0 <= pair[0].step <= last_step:
                continue
            steps.add(pair[0].step)
            if len(steps) > count + 1:
                break  # spans are written in order of their end, so a step may overlap its neighbour, not more
            found.append(pair)
        return found, steps

    def _span_of(self, line: bytes) -> tuple[Span, list[Sample]] | None:
        """A span in the time of the first attempt, and the queue depths that came with it; None if it is damaged."""
        try:
            record = json.loads(line)
            values = {name: read(record[name]) for name, read in _SPAN_FIELDS.items() if name in record}
            values["start_s"] += self._shift_s
            values["end_s"] += self._shift_s
            span = Span(**values)
            # Readers look ranks up in lists: one that the run does not have must not get as far.
            if span.rank != self.rank or span.peer not in range(-1, self.num_ranks) or span.end_s < span.start_s:
                return None
            depths = [
                Sample(span.rank, name, span.end_s, _finite(record[key]))
                for key, name in _DEPTHS.items()
                if key in record
            ]
            return span, depths
        except DAMAGED:
            return None

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            self._read[record["type"]](record)
        except DAMAGED:
            self.corrupted += 1

    def _phase(self, record: dict[str, Any]) -> None:
        name, time_s = record["name"], _finite(record["time_s"])
        if name not in PHASES:
            raise ValueError(name)
        self.phases.setdefault(name, time_s)
        self.happenings.append(Happening("phase", time_s, name))

    def _happened(self, kind: str, record: dict[str, Any], text: str) -> None:
        time_s = record.get("time_s")
        if isinstance(time_s, bool) or not isinstance(time_s, int | float):
            last = next(reversed(self.steps.values()), None)
            time_s = None if last is None or self.origin_unix_s is None else self.origin_unix_s + last.end_s
        self.happenings.append(Happening(kind, time_s, text))

    def _profile(self, record: dict[str, Any]) -> None:
        self.profile = {k: v for k, v in list(record.items())[:MAX_PROFILES] if k != "type"}

    def _origin(self, record: dict[str, Any]) -> None:
        unix_s = _finite(record["unix_s"])
        if self.origin_unix_s is None:
            self.origin_unix_s = unix_s
        self._shift_s = unix_s - self.origin_unix_s

    def _restart(self, record: dict[str, Any]) -> None:
        """The run begins once more: what it said of its beginning and end holds no longer, its steps stay."""
        self.attempt = _whole(record["attempt"])
        self._happened("restart", record, f"started again, attempt {self.attempt + 1}")
        self.phases, self.error, self.notice = {}, None, ""
        self._span_lines.clear()
        self._known_spans.clear()

    def _resumed(self, record: dict[str, Any]) -> None:
        self.resumed_step = _whole(record["step"])
        self.resumed_from = None if record.get("source") is None else str(record["source"])
        self.skipped = tuple(str(text)[:500] for text in record.get("skipped", [])[:20])
        other = record.get("other_plan")
        under = f", which was trained under plan {other[:8]}" if isinstance(other, str) else ""
        self._happened("resumed", record, f"goes on from step {self.resumed_step}{under}")

    def _checkpoint(self, record: dict[str, Any]) -> None:
        step = _whole(record["step"])
        if "error" in record:
            self._happened("degraded", record, f"checkpoint of step {step}: {str(record['error'])[:200]}")
            return
        self.checkpoint_step = step
        self._happened("checkpoint", record, f"checkpoint of step {step}")

    def _copy(self, record: dict[str, Any]) -> None:
        step = _whole(record["step"])
        if "error" in record:
            self._happened(
                "degraded", record, f"the checkpoint of step {step} is not copied: {str(record['error'])[:300]}"
            )
            return
        size, seconds = short_bytes(_whole(record["bytes"])), short_seconds(_finite(record["seconds"]))
        self._happened("copied", record, f"copied the checkpoint of step {step}, {size} in {seconds}")

    def _experts(self, record: dict[str, Any]) -> None:
        op, tokens = str(record["op"])[:200], [_whole(count) for count in record["tokens"][:MAX_EXPERTS]]
        known = self.experts.get(op, [0] * len(tokens))
        if len(known) != len(tokens) or (op not in self.experts and len(self.experts) >= MAX_EXPERTS):
            raise ValueError("must have as many experts as before")
        self.experts[op] = [a + b for a, b in zip(known, tokens, strict=True)]

    def _notice(self, record: dict[str, Any]) -> None:
        self.notice = str(record["text"])[:500]
        self._happened("notice", record, self.notice)

    def _lost(self, record: dict[str, Any]) -> None:
        self.lost += _whole(record["lines"])
        text = f"{record['lines']} lines of rank {self.rank}'s telemetry lost: the disk did not take them"
        self._happened("degraded", record, text)

    def _span(self, record: dict[str, Any]) -> None:
        self._span_lines.append(json.dumps(record).encode())

    def _step(self, record: dict[str, Any]) -> None:
        loss_sum, grad_norm = record.get("loss_sum"), record.get("grad_norm")
        step = StepRecord(
            step=_whole(record["step"]),
            start_s=_finite(record["start_s"]) + self._shift_s,
            end_s=_finite(record["end_s"]) + self._shift_s,
            loss_sum=None if loss_sum is None else float(loss_sum),
            num_tokens=_whole(record["num_tokens"]),
            boundary_bytes=_whole(record["boundary_bytes"]),
            reduce_bytes=_whole(record["reduce_bytes"]),
            late=_whole(record.get("late", 0)),
            late_s=_finite(record.get("late_s", 0.0)),
            grad_norm=None if grad_norm is None else float(grad_norm),
            memory_bytes=_whole(record.get("memory_bytes", 0)),
            grad_square=None if record.get("grad_square") is None else abs(float(record["grad_square"])),
            device_bytes=_whole(record.get("device_bytes", 0)),
            in_flight=_whole(record.get("in_flight", 0)),
            held=_whole(record.get("held", 0)),
            attempt=self.attempt,
            num_labels=None if record.get("num_labels") is None else _whole(record["num_labels"]),
            paused_s=_finite(record.get("paused_s", 0.0)),
        )
        known = self.steps.get(step.step)
        if step.step <= self._forgotten and self.attempt:
            return
        if known is not None and known.attempt < self.attempt:
            return  # done once more after a restart, with the same numbers: the curve has it already
        if known is not None:
            raise ValueError("a step is reported once")
        self.steps[step.step] = step
        self.boundary_bytes += step.boundary_bytes
        self.reduce_bytes += step.reduce_bytes
        self.late += step.late
        self.late_s += step.late_s
        self.peak_memory_bytes = max(self.peak_memory_bytes, step.memory_bytes)
        self.peak_device_bytes = max(self.peak_device_bytes, step.device_bytes)
        self.peak_bytes = max(self.peak_bytes, step.memory_bytes + step.device_bytes)
        self._keep_memory(step)
        self.most_in_flight = max(self.most_in_flight, step.in_flight)
        self.most_held = max(self.most_held, step.held)
        if len(self.steps) > MAX_STEPS:
            self._forgotten = next(iter(self.steps))
            del self.steps[self._forgotten]

    def _keep_memory(self, step: StepRecord) -> None:
        if step.step % self._memory_every == 0:
            self.memory.append((step.step, step.memory_bytes, step.device_bytes))
        if len(self.memory) > MAX_MEMORY_POINTS:
            self._memory_every *= 2
            self.memory = [point for point in self.memory if point[0] % self._memory_every == 0]

    def _links(self, record: dict[str, Any]) -> None:
        steps, rows = _whole(record["steps"]), [_link_of(row) for row in record["links"]]
        for key, row in rows:
            if key[0] >= self.num_ranks:
                continue  # damaged: readers look ranks up in lists
            total = self.links.setdefault(key, LinkTraffic())
            for name, value in row.items():
                setattr(total, name, getattr(total, name) + value)
        self.links_steps += steps

    def _load(self, record: dict[str, Any]) -> None:
        sample = HostSample(
            time_s=_finite(record["time_s"]),
            host=str(record["host"])[:80],
            cpu=_share(record["cpu"]),
            memory=_share(record["memory"]),
            sent=_positive(record["sent"]),
            received=_positive(record["received"]),
            loopback=_positive(record["loopback"]),
            gpus=tuple((_share(busy), _share(used)) for busy, used in record.get("gpus", [])[:MAX_GPUS]),
        )
        # Few samples look at the GPUs: what a sample that is not kept saw of them goes to the one before.
        if self._loads_read % self._loads_every == 0:
            self.loads.append(sample)
        elif sample.gpus:
            self.loads[-1] = replace(self.loads[-1], gpus=sample.gpus)
        self._loads_read += 1
        if len(self.loads) > MAX_LOADS:
            self._loads_every *= 2
            self.loads = self.loads[::2]

    def _validation(self, record: dict[str, Any]) -> None:
        step = _whole(record["step"])
        self.validation[step] = (float(record["loss_sum"]), _whole(record["num_tokens"]))
        if record.get("num_correct") is not None:
            self.correct[step] = _whole(record["num_correct"])

    def _error(self, record: dict[str, Any]) -> None:
        if self.error is None:
            text, trace = str(record["text"])[:2000], str(record.get("traceback", ""))[:20_000]
            self.error = ErrorRecord(text, trace)
            self._happened("error", record, text)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"must be a whole number from 0, got {value!r:.40}")
    return value


def _positive(value: Any) -> float:
    number = _finite(value)
    if number < 0:
        raise ValueError(f"must be a number from 0, got {value!r:.40}")
    return number


def _share(value: Any) -> float:
    return min(_positive(value), 1.0)


def _index(value: Any) -> int:
    return -1 if value == -1 else _whole(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a word, got {value!r:.40}")
    return value[:20]


def _finite(value: Any, most: float = MOST_SECONDS) -> float:
    number = float(value)
    if not abs(number) <= most:
        raise ValueError(f"must be a number from {-most:g} to {most:g}, got {value!r:.40}")
    return number


_SPAN_FIELDS: dict[str, Callable[[Any], Any]] = {
    "rank": _whole,
    "kind": _word,
    "step": _whole,
    "micro_batch": _index,
    "start_s": _finite,
    "end_s": _finite,
    "bytes": _whole,
    "peer": _index,
    "stage": _index,
    "role": _word,
}


_DEPTHS = {"in_flight": "micro-batches in flight", "posted": "receives posted", "held": "messages held"}


def _link_of(row: dict[str, Any]) -> tuple[tuple[int, str], dict[str, int | float]]:
    """(other rank, role) and the counters of one row."""
    counters: dict[str, int | float] = {
        name: _whole(row.get(name, 0)) for name in ("sent", "sent_bytes", "taken", "taken_bytes", "late")
    }
    for name in ("wait_s", "late_s"):
        counters[name] = _finite(row.get(name, 0.0))
    return (_whole(row["peer"]), str(row["role"])[:20]), counters
