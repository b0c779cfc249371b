"""All layouts of one shape, for problems small enough.

Legend of array suffixes: N devices in use first (spare ones after), S stages, R replicas, C cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.estimate import CostModel
from hetplanner.planners.interface import Progress
from hetplanner.planners.population import Candidate
from hetplanner.planners.step_search import StepSpecies
from hetplanner.planners.symmetry import least_placements, list_placements

IntArray = NDArray[np.int64]
# Layouts scored between two looks at the budget.
CHUNK = 100_000


class StepLayouts:
    """All layouts of one shape for the closed form."""

    def __init__(self, model: CostModel, species: StepSpecies) -> None:
        self.species = species
        self._twins = species.twins()
        self._shape = shape = (species.stages, species.replicas)
        self._num_cuts = len(model.tables.cuts)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        self.least_placements = least_placements(self._twins, *shape, ordered=True)
        self.variants = comb(self._num_cuts, shape[0] - 1) * comb(self._micro_batches - 1, shape[1] - 1)

    def list_placements(self) -> Iterator[tuple[int, ...]]:
        """Placements in the species' numbers of devices."""
        return list_placements(self._twins, *self._shape)

    def count(self, most: int) -> int | None:
        """How many layouts there are; None if more than `most`."""
        room = most // self.variants
        if self.least_placements > room:
            return None
        placements = sum(1 for _ in islice(self.list_placements(), room + 1))
        return placements * self.variants if placements <= room else None

    def search(self, progress: Progress) -> Candidate:
        """The best layout of this shape, or the best met when the budget ends."""
        stages, replicas = self._shape
        cuts = _splits(self._num_cuts + 1, stages)
        shares = np.diff(_splits(self._micro_batches, replicas), axis=1)
        size = max(1, CHUNK // self.variants)
        best: Candidate | None = None
        for batch in in_batches_of(self.list_placements(), len(self._twins), size):
            found = self.species.best_of(batch, cuts, shares)
            progress.evaluations += len(batch) * self.variants
            best = found if best is None or found.value < best.value else best
            if progress.is_over():
                break
        assert best is not None
        return best


def _splits(total: int, parts: int) -> IntArray:
    """All ways to split a whole number into parts of at least one, as boundaries from 0 to the number."""
    inner = combinations(range(1, total), parts - 1)
    return np.array([[0, *ends, total] for ends in inner], dtype=np.int64)


def in_batches_of(placements: Iterator[tuple[int, ...]], num_devices: int, size: int) -> Iterator[IntArray]:
    """Placements in batches, the devices that are not in use behind the others."""
    while chunk := list(islice(placements, size)):
        used = np.array(chunk, dtype=np.int64)
        if used.shape[1] < num_devices:
            spare = np.array([np.setdiff1d(np.arange(num_devices), row) for row in used])
            used = np.concatenate([used, spare], axis=1)
        yield used
