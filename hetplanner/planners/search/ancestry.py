"""Where the best placement of an evolutionary search comes from: its parents, theirs, back to the first layouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from hetplanner.planners.search.tried import shape_text

Way = Literal["seed", "annealed", "crossed"]
Shape = tuple[int, int | None]
MOST_ANCESTORS = 300


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """How a candidate arose. It holds its parents, so what leads to no living candidate is forgotten.

    Attributes:
        way: a first layout, an annealing run on one parent, or a crossing of two.
        value: in the objective's unit.
        evaluations: placements that the search had scored by then.
        shape: stages and replicas; None replicas: not as many for every stage; (0, None) where the species has none.
        parents: none of a seed.
        generation: 0 of a seed, one more than the oldest parent's.
    """

    way: Way
    value: float
    evaluations: int
    shape: Shape
    parents: tuple[Birth, ...]
    generation: int

    @classmethod
    def of(cls, way: Way, value: float, evaluations: int, shape: Shape, parents: tuple[Birth, ...] = ()) -> Birth:
        """A birth of these parents."""
        return cls(way, value, evaluations, shape, parents, 1 + max((p.generation for p in parents), default=-1))


@dataclass(frozen=True)
class Ancestor:
    """A birth in a list of them, where parents stand before their children.

    Attributes:
        way, value, evaluations: see `Birth`.
        stages, replicas: its shape.
        parents: positions in the list.
    """

    way: Way
    value: float
    evaluations: int
    stages: int
    replicas: int | None
    parents: tuple[int, ...]

    def to_data(self) -> dict[str, Any]:
        """As the data of JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Ancestor:
        """What `to_data` gave."""
        return cls(**{**data, "parents": tuple(data["parents"])})

    @property
    def shape(self) -> str:
        """'4 × 16'."""
        return shape_text(self.stages, self.replicas)


def ancestors_of(birth: Birth | None, most: int = MOST_ANCESTORS) -> tuple[Ancestor, ...]:
    """The births that lead to one, which is the last; of more than `most` the latest."""
    if birth is None:
        return ()
    met, waiting = {id(birth): birth}, [birth]
    while waiting:
        for parent in waiting.pop().parents:
            if id(parent) not in met:
                met[id(parent)] = parent
                waiting.append(parent)
    kept = sorted(met.values(), key=lambda b: (b.evaluations, b.generation))[-most:]
    place = {id(one): k for k, one in enumerate(kept)}
    return tuple(
        Ancestor(b.way, b.value, b.evaluations, *b.shape, tuple(place[id(p)] for p in b.parents if id(p) in place))
        for b in kept
    )
