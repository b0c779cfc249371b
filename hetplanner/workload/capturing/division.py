"""What members of a group perform of a captured model whose layers they divide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hetplanner.workload.capturing.layouts import Layout
from hetplanner.workload.program import Program, Shape

Exchange = Literal["enter", "own part", "sum", "gather", "rows", "collect", "whole", "loss"]
"""What members do between calls:

- enter: begin a divided part; gradients are added up.
- own part: take their part of a value.
- sum: add up their values.
- gather: put their values together.
- rows: look up words of which each has some.
- collect: gather tokens to begin a divided part.
- whole: gather tokens for a call that every member performs.
- loss: a cross-entropy of divided logits.
"""


@dataclass(frozen=True)
class Step:
    """What the members do at a place of the program.

    Attributes:
        kind: what.
        shape: of the value that crosses, for all members together.
        op: for which it is done; None: for a free call.
        axis, blocks: of the part that goes in, or of a table's.
        has_gradient: whether the value may have one.
        out: of the value that comes out; None: every member has it.
    """

    kind: Exchange
    shape: Shape
    op: str | None
    axis: int = 0
    blocks: tuple[int, ...] = ()
    has_gradient: bool = True
    out: Layout | None = None


@dataclass(frozen=True)
class Division:
    """A captured model for the members of a group.

    Attributes:
        program: as each member performs it.
        steps: by node that stands for no call.
        weights: by parameter that is divided, its axis and the blocks along it.
        layouts: by divided value.
        partial: weights that every member has, and whose gradients are those of its own part.
    """

    program: Program
    steps: dict[str, Step] = field(default_factory=dict)
    weights: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
