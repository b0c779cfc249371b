"""Traces: the spans of a simulated or measured run, in one form for every plot and export."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """One thing a rank did.

    Attributes:
        kind: a word of `hetplanner.plan.action.Kind`, or `wait`.
        step: optimiser step, from 0.
        micro_batch: -1 where it has none.
        start_s, end_s: seconds since the trace's origin.
        bytes: on the wire (send, recv, reduce).
        peer: the other rank of a transfer, -1 where there is none.
        role: `activation`, `gradient` or ''.
    """

    rank: int
    kind: str
    step: int
    micro_batch: int
    start_s: float
    end_s: float
    bytes: int = 0
    peer: int = -1
    stage: int = -1
    role: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as written to JSONL."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """A number that a rank had at a moment: a queue's depth, bytes of memory.

    Attributes:
        name: what it counts; one curve for every name.
        time_s: seconds since the trace's origin.
    """

    rank: int
    name: str
    time_s: float
    value: float


@dataclass(frozen=True)
class Trace:
    """Spans, a label for every rank (the device's id), and of a measured run what was counted beside them."""

    spans: tuple[Span, ...]
    rank_labels: tuple[str, ...]
    origin: str = "simulated"
    samples: tuple[Sample, ...] = ()

    @property
    def end_s(self) -> float:
        """When the last span ends."""
        return max((s.end_s for s in self.spans), default=0.0)

    def of_step(self, step: int) -> "Trace":
        """The spans of one step."""
        return Trace(tuple(s for s in self.spans if s.step == step), self.rank_labels, self.origin)

    def busy_s(self, kinds: Iterable[str] = ("forward", "backward", "step")) -> list[float]:
        """Seconds that every rank spends in spans of these kinds."""
        wanted = set(kinds)
        total = [0.0] * len(self.rank_labels)
        for span in self.spans:
            if span.kind in wanted:
                total[span.rank] += span.end_s - span.start_s
        return total

    def to_perfetto(self) -> dict[str, Any]:
        """Chrome trace-event JSON, which Perfetto opens: one process a rank, one thread for compute, out and in.

        Samples become counter tracks.
        """
        thread = {"send": 1, "recv": 2, "reduce": 3}
        names = {0: "compute", 1: "send", 2: "receive", 3: "reduce"}
        events: list[dict[str, Any]] = []
        for rank, label in enumerate(self.rank_labels):
            events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} · {label}"}})
            events += [
                {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}
                for tid, name in names.items()
            ]
        for s in self.spans:
            label = f"{s.kind} {s.role} {s.micro_batch}" if s.micro_batch >= 0 else s.kind
            events.append(
                {
                    "ph": "X",
                    "name": " ".join(label.split()),
                    "cat": s.kind,
                    "pid": s.rank,
                    "tid": thread.get(s.kind, 0),
                    "ts": s.start_s * 1e6,
                    "dur": (s.end_s - s.start_s) * 1e6,
                    "args": {
                        "step": s.step,
                        "micro_batch": s.micro_batch,
                        "bytes": s.bytes,
                        "peer": s.peer,
                        "stage": s.stage,
                        "role": s.role,
                    },
                }
            )
        events += [
            {"ph": "C", "name": s.name, "pid": s.rank, "ts": s.time_s * 1e6, "args": {"value": s.value}}
            for s in self.samples
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}
