"""Compiled kernel of the exhaustive planner. Importing this module imports numba: do it lazily.

Legend of array suffixes: P placements, N devices in use first, C cuts, S stages, R replicas, H ways to share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.planners.step_time.kernels import evaluate
from hetplanner.planners.step_time.space import StepProblem, StepWork

Array = NDArray[Any]


@kernel
def best_of_all(
    problem: StepProblem, place_PN: Array, cut_CS: Array, share_HR: Array, work: StepWork
) -> tuple[float, int, int, int]:
    """The least value over all placements, cuts and shares, and the numbers of these."""
    least = np.inf
    best = (0, 0, 0)
    for i in range(len(place_PN)):
        for c in range(len(cut_CS)):
            for h in range(len(share_HR)):
                value, _ = evaluate(problem, place_PN[i], cut_CS[c], share_HR[h], work)
                if value < least:
                    least = value
                    best = (i, c, h)
    return least, best[0], best[1], best[2]
