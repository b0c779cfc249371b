"""Spans of one step as columns: what plots draw and a page is sent, without an object for every span."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.plan.trace import Span, Trace

Array = NDArray[Any]

KINDS = ("forward", "backward", "send", "recv", "reduce", "step")
ROLES = ("", "activation", "gradient")
_TYPES = {
    "rank_J": "<i4", "kind_J": "<i1", "stage_J": "<i4", "micro_batch_J": "<i4", "start_s_J": "<f8", "end_s_J": "<f8",
    "bytes_J": "<i8", "peer_J": "<i4", "role_J": "<i1",
}  # fmt: skip


@dataclass(frozen=True)
class SpanTable:
    """Spans of a step, J of them; `kind_J` and `role_J` are places in `KINDS` and `ROLES`, the rest as in `Span`."""

    rank_J: Array
    kind_J: Array
    stage_J: Array
    micro_batch_J: Array
    start_s_J: Array
    end_s_J: Array
    bytes_J: Array
    peer_J: Array
    role_J: Array

    @classmethod
    def of(cls, *columns: Array) -> SpanTable:
        """From columns of any numbers, in the order of the fields."""
        return cls(*(column.astype(kind) for column, kind in zip(columns, _TYPES.values(), strict=True)))

    def __len__(self) -> int:
        return len(self.rank_J)

    @property
    def end_s(self) -> float:
        """When the last span ends; 0 without any."""
        return float(self.end_s_J.max(initial=0.0))

    def take(self, which: Array) -> SpanTable:
        """The spans of a mask, or at these places."""
        return SpanTable(*(getattr(self, f.name)[which] for f in fields(self)))

    def to_trace(self, rank_labels: Sequence[str]) -> Trace:
        """The same as objects, in the order of their beginning."""
        order = np.lexsort((self.rank_J, self.start_s_J))
        rows = zip(*(getattr(self, f.name)[order].tolist() for f in fields(self)), strict=True)
        spans = tuple(
            Span(rank, KINDS[kind], 0, micro_batch, start, end, num_bytes, peer, stage, ROLES[role])
            for rank, kind, stage, micro_batch, start, end, num_bytes, peer, role in rows
        )
        return Trace(spans, tuple(rank_labels))

    def to_data(self) -> dict[str, str]:
        """Plain data: little-endian columns in base 64."""
        return {name: pack(getattr(self, name), kind) for name, kind in _TYPES.items()}

    @classmethod
    def from_data(cls, data: Mapping[str, str]) -> SpanTable:
        """From what `to_data` made."""
        return cls(**{name: unpack(data[name], kind) for name, kind in _TYPES.items()})


def pack(values: Array, kind: str = "<f8") -> str:
    """An array as text; `unpack` reads it back."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def unpack(text: str, kind: str = "<f8") -> Array:
    """A flat array from what `pack` made."""
    return np.frombuffer(base64.b64decode(text), dtype=kind)
