"""Which replicas work on the same micro-batches: what stays together while replicas take local steps."""

from collections.abc import Iterable
from dataclasses import dataclass

from hetplanner.plan.model import Plan

Place = tuple[int, int]
"""(stage, replica)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Replicas that are joined by routes or ranks, directly or by way of others.

    Attributes:
        places: (stage, replica), ascending.
        micro_batches: of a step, that they work on.
    """

    places: tuple[Place, ...]
    micro_batches: int


def parts_of(plan: Plan, stages: Iterable[int]) -> tuple[Part, ...]:
    """The parts into which the replicas of some stages fall, by their first place.

    Of all stages of a plan of equal pipelines these are the pipelines; of one stage its replicas.
    """
    wanted = tuple(stages)
    parts: list[tuple[set[Place], int]] = []
    joined = [({(s, route.replicas[s]) for s in wanted}, route.micro_batches) for route in plan.routes]
    joined += [({place for place in places if place[0] in wanted}, 0) for places in plan.places_of_rank]
    for places, micro_batches in joined:
        touching = [part for part in parts if part[0] & places]
        parts = [part for part in parts if not part[0] & places]
        if places:
            merged = places.union(*(part[0] for part in touching))
            parts.append((merged, micro_batches + sum(part[1] for part in touching)))
    return tuple(Part(tuple(sorted(places)), count) for places, count in sorted(parts, key=lambda part: min(part[0])))


def portions_of(plan: Plan, stages: Iterable[int]) -> dict[Place, float]:
    """What part of a step's micro-batches each replica's part works on."""
    total = plan.problem.workload.num_micro_batches
    return {place: part.micro_batches / total for part in parts_of(plan, stages) for place in part.places}


def shares_of(plan: Plan, stages: Iterable[int]) -> dict[Place, float]:
    """By how much the change of each copy of some weights counts in their mean: by its portion of the micro-batches.

    Copies that one part shares (of a weight tied across stages) are equal, and divide the part's portion. The sum is 1.
    """
    total, parts = plan.problem.workload.num_micro_batches, parts_of(plan, stages)
    return {place: part.micro_batches / total / len(part.places) for part in parts for place in part.places}
