"""The one interface of formats of other tools' profiles.

To add a format: one file with a `ProfileFormat`, one line in `registry.FORMATS`. It takes files apart into measured
cells; what is common (layers of the model, names, checks) is done by `registry.imported_profile`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_FILES = 200
MOST_CELLS = 2000
SPLIT = 3.0
"""Passes in which a format's forward and backward count together: the backward is taken as two of them."""


@dataclass(frozen=True)
class Named:
    """One file.

    Attributes:
        name: without its folder; some formats keep kind, degree and micro-batch in it.
    """

    name: str
    content: bytes


@dataclass(frozen=True)
class Cell:
    """What was measured on one kind at one degree and micro-batch.

    Attributes:
        kind: as the format has it; '' where it does not say.
        layers: (forward, backward, update) seconds of every layer in the model's order; update None where unknown.
        kept: bytes kept by layer, where known.
        names: of the layers, where the format has the names of `layer_runs` and not the model's order.
    """

    kind: str
    degree: int
    micro_batch: int
    layers: tuple[tuple[float, float, float | None], ...]
    kept: tuple[float | None, ...] | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ProfileFormat:
    """One format.

    Attributes:
        name: what it is called by.
        summary: what it holds, for people.
        is_of: whether a file is of this format, from its name and content.
        read: cells of files. Raises InvalidInput naming the file and place.
    """

    name: str
    summary: str
    is_of: Callable[[Named], bool]
    read: Callable[[Sequence[Named]], list[Cell]]
