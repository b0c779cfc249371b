"""All layouts of one shape, for problems small enough.

Legend of array suffixes: N devices in use first (spare ones after), S stages, R replicas, C cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.estimate import CostModel
from hetplanner.planners.exhaustive.symmetry import Listing, least_placements
from hetplanner.planners.interface import Progress
from hetplanner.planners.search.population import Candidate

if TYPE_CHECKING:
    from hetplanner.planners.step_time.species import StepSpecies

# Layouts scored between two looks at the budget, and placements counted.
CHUNK = 20_000
COUNTED = 50_000


def num_variants(model: CostModel, stages: int, replicas: int) -> int:
    """Combinations of cuts and micro-batch shares for each placement of a shape."""
    micro_batches = model.tables.problem.workload.num_micro_batches
    return comb(len(model.tables.cuts), stages - 1) * comb(micro_batches - 1, replicas - 1)


class StepLayouts:
    """All layouts of one shape for the closed form."""

    def __init__(self, model: CostModel, species: StepSpecies) -> None:
        self.species = species
        self._twins = species.twins()
        self._shape = shape = (species.stages, species.replicas)
        self._num_cuts = len(model.tables.cuts)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        self.least_placements = least_placements(self._twins, *shape, is_named=True)
        self.variants = num_variants(model, *shape)

    def listing(self) -> Listing:
        """Placements in the species' numbers of devices, pinned ones in their stages."""
        return Listing(self._twins, self._shape, is_named=True, pin_D=self.species.pin_D)

    def count(self, most: int, progress: Progress) -> int | None:
        """How many layouts there are; None if more than `most`, or the budget ended before that was known."""
        room = most // self.variants
        if self.least_placements > room:
            return None
        placements = count_placements(self.listing(), room, progress)
        return placements * self.variants if placements is not None and placements <= room else None

    def search(self, progress: Progress) -> Candidate:
        """The best layout of this shape, or the best met when the budget ends."""
        best: Candidate | None = None
        for places, cuts, shares in self._blocks():
            found = self.species.best_of(places, cuts, shares)
            progress.evaluations += len(places) * len(cuts) * len(shares)
            best = found if best is None or found.value < best.value else best
            if progress.is_over():
                break
        assert best is not None
        return best

    def _blocks(self) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """All combinations of placements, cuts and shares, at most `CHUNK` at a time."""
        stages, replicas = self._shape
        for shares in _splits(self._micro_batches, replicas, CHUNK):
            for cuts in _splits(self._num_cuts + 1, stages, max(1, CHUNK // len(shares))):
                most = max(1, CHUNK // (len(shares) * len(cuts)))
                for places in in_parts(self.listing(), len(self._twins), most):
                    yield places, cuts, np.diff(shares, axis=1)


def _splits(total: int, parts: int, most: int) -> Iterator[IntArray]:
    """All ways to split a whole number into parts of at least one, as boundaries from 0 to the number."""
    inner = combinations(range(1, total), parts - 1)
    while chunk := [[0, *ends, total] for ends in islice(inner, most)]:
        yield np.array(chunk, dtype=np.int64)


def count_placements(listing: Listing, most: int, progress: Progress) -> int | None:
    """How many placements a listing holds, up to `most` + 1; None if the budget ended before that was known."""
    count = 0
    while count <= most:
        asked = min(COUNTED, most + 1 - count)
        found = len(listing.more(asked))
        count += found
        if found < asked or count > most:
            break
        if progress.is_over():
            return None
    return count


def in_parts(listing: Listing, num_devices: int, most: int) -> Iterator[IntArray]:
    """Placements part by part, the devices that are not in use behind the others."""
    while len(used := listing.more(most)):
        is_spare = np.ones((len(used), num_devices), dtype=bool)
        is_spare[np.arange(len(used))[:, None], used] = False
        yield np.concatenate([used, np.nonzero(is_spare)[1].reshape(len(used), -1)], axis=1)
