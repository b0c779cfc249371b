"""The shapes that a search tried: what the best plan of each was worth, and how long it was searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetplanner.planners.search.population import Evolution

MOST_SHAPES = 2000
SAME = 1e-6


def shape_text(stages: int, replicas: int | None) -> str:
    """'4 × 16', or '4 × unlike' where stages have unlike numbers of replicas."""
    return f"{stages} × {'unlike' if replicas is None else replicas}"


@dataclass(frozen=True)
class TriedShape:
    """A number of stages and of replicas.

    Attributes:
        stages: of a plan.
        replicas: of each stage; None: not as many for every stage.
        value: of the best plan met, in the objective's unit; far more where none fits the devices' memory.
        chains: annealing runs spent on it; 0: a few layouts were scored, or all of them.
    """

    stages: int
    replicas: int | None
    value: float
    chains: int

    def to_data(self) -> dict[str, Any]:
        """As the data of JSON."""
        return asdict(self)

    @property
    def label(self) -> str:
        """'4 × 16'."""
        return shape_text(self.stages, self.replicas)


def tried_shapes(evolutions: Iterable[Evolution]) -> tuple[TriedShape, ...]:
    """Of the populations of a search, the best first; with and without recomputation count as one shape."""
    best: dict[tuple[int, int | None], TriedShape] = {}
    for evolution in evolutions:
        stages = getattr(evolution.species, "stages", None)
        if stages is None or not isfinite(evolution.value):
            continue
        shape = stages, getattr(evolution.species, "replicas", None)
        known = best.get(shape)
        chains = evolution.chains + (known.chains if known else 0)
        best[shape] = TriedShape(*shape, min(evolution.value, known.value if known else evolution.value), chains)
    # A layout that both describe is named by the simpler shape.
    return tuple(sorted(best.values(), key=lambda t: t.value * (1.0 + SAME * (t.replicas is None))))[:MOST_SHAPES]
