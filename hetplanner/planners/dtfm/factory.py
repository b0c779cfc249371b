"""The species of DT-FM's objective for a problem: the multilevel one for a thousand devices and more."""

from __future__ import annotations

import numpy as np

from hetplanner.plan.problem import Problem
from hetplanner.planners.dtfm.large import LargeDtfmSpecies
from hetplanner.planners.dtfm.species import DtfmSpecies
from hetplanner.planners.network.coarsen import LARGE


def dtfm_species(problem: Problem, shape: tuple[int, int], seed: int, starts: str) -> DtfmSpecies:
    """The species of a problem's usable devices under DT-FM's objective."""
    cluster, usable = problem.cluster, problem.usable_devices
    rows = None if len(usable) == len(cluster.devices) else np.array([cluster.device_index(d) for d in usable])
    kind = LargeDtfmSpecies if len(usable) >= LARGE else DtfmSpecies
    tables = cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD
    return kind(*tables, usable, shape, seed, starts, rows)
