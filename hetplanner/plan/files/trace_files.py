"""Traces as files: the Chrome trace-event JSON that `Trace.to_perfetto` writes and Perfetto opens."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from hetplanner.cluster.model import MAX_DEVICES
from hetplanner.errors import InvalidInput
from hetplanner.plan.trace import Span, Trace
from hetplanner.reading import reader
from hetplanner.schema import Noun, checked, one_line, parse_json, read_text

Rank = Annotated[int, Field(strict=True, ge=0, lt=MAX_DEVICES)]
Micros = Annotated[float, Field(ge=0, le=1e15)]
Index = Annotated[int, Field(strict=True, ge=-1, le=10**9)]


class _Facts(Noun):
    """What an event says beside its time; a file from before stages and roles were written lacks those."""

    model_config = ConfigDict(extra="ignore")
    step: Annotated[int, Field(strict=True, ge=0, le=10**9)]
    micro_batch: Index
    bytes: Annotated[int, Field(strict=True, ge=0, le=10**15)]
    peer: Index
    stage: Index = -1
    role: Literal["", "activation", "gradient"] | None = None


class _Event(Noun):
    model_config = ConfigDict(extra="ignore")
    name: Annotated[str, Field(max_length=200)]
    cat: Literal["forward", "backward", "send", "recv", "reduce", "step", "wait"]
    pid: Rank
    ts: Micros
    dur: Micros
    args: _Facts

    def span(self) -> Span:
        """The event in seconds."""
        facts, words = self.args, self.name.split()
        role = facts.role
        if role is None:
            role = next((word for word in ("activation", "gradient") if word in words), "")
        start = self.ts * 1e-6
        return Span(
            self.pid, self.cat, facts.step, facts.micro_batch, start, start + self.dur * 1e-6, facts.bytes,
            facts.peer, facts.stage, role or "",
        )  # fmt: skip


@reader("trace", at="path")
def load_trace(path: str | os.PathLike[str]) -> Trace:
    """A trace from a file that `hetplanner simulate --trace` wrote. Raises InvalidInput."""
    return trace_from_json(read_text(path), Path(path).name)


@reader("trace", at="place")
def trace_from_json(text: str | bytes, place: str = "trace") -> Trace:
    """A trace from the text of such a file.

    Raises:
        InvalidInput: naming the event inside `place`; or if it holds no events of ranks.
    """
    place = one_line(place)
    data = parse_json(text, place)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise InvalidInput(f"{place}: traceEvents: must be a list; give a file of hetplanner simulate --trace")
    labels: dict[int, str] = {}
    spans = []
    for i, event in enumerate(events):
        where = f"{place}: traceEvents[{i}]"
        if not isinstance(event, dict):
            raise InvalidInput(f"{where}: must be an object")
        if event.get("ph") == "X":
            spans.append(checked(_Event, event, where).span())
        elif event.get("name") == "process_name":
            _take_label(event, labels, where)
    if not spans:
        raise InvalidInput(f"{place}: holds no spans; simulate or train at least one step")
    ranks = max(max(s.rank for s in spans), max(labels, default=0)) + 1
    spans.sort(key=lambda span: (span.start_s, span.rank))
    return Trace(tuple(spans), tuple(labels.get(r, f"rank {r}") for r in range(ranks)), origin="file")


def _take_label(event: dict[str, Any], labels: dict[int, str], where: str) -> None:
    rank, facts = event.get("pid"), event.get("args")
    name = facts.get("name") if isinstance(facts, dict) else None
    if not isinstance(rank, int) or not 0 <= rank < MAX_DEVICES or not isinstance(name, str):
        raise InvalidInput(f"{where}: a process_name event must have pid (0 to {MAX_DEVICES - 1}) and args.name")
    labels[rank] = name.split(" · ", 1)[-1][:120]
