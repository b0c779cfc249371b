"""Compiled kernel of the exhaustive planner. Importing this module imports numba: do it lazily.

Legend of array suffixes: P placements, N devices in use first, C cuts, S stages, R replicas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hetplanner.planners.step_kernels import StepProblem, Work, evaluate, fit_shares

Array = NDArray[Any]


@njit(cache=True)
def best_of_all(
    problem: StepProblem,
    place_PN: Array,
    cut_CS: Array,
    even_R: Array,
    num_micro_batches: int,
    work: Work,
    best_cut_S: Array,
    best_share_R: Array,
) -> tuple[float, int]:
    """The least value over all placements and cuts, each with even shares and with fitted ones, and its placement."""
    least = np.inf
    pick = 0
    share = even_R.copy()
    for i in range(len(place_PN)):
        for c in range(len(cut_CS)):
            for fitted in range(2 if len(even_R) > 1 else 1):
                share[:] = even_R
                if fitted:
                    fit_shares(problem, place_PN[i], cut_CS[c], num_micro_batches, share, work)
                value, _ = evaluate(problem, place_PN[i], cut_CS[c], share, work)
                if value < least:
                    least = value
                    pick = i
                    best_cut_S[:] = cut_CS[c]
                    best_share_R[:] = share
    return least, pick
