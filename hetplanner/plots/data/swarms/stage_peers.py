"""How many peers served every stage of a swarm, as stairs over time."""

from collections import defaultdict
from typing import Any

import numpy as np

from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.swarm_history import SwarmHistory

Columns = dict[str, list[Any]]
STAIR_NAMES = ("xs", "ys", "colour", "stage")
MOST_STAGES = 32
APART = 0.06
"""Stairs of stages with as many peers lie so far above one another, so that none covers another."""


def stage_stairs(history: SwarmHistory, num_stages: int, end_s: float) -> Columns:
    """A staircase for every stage: seconds since the coordinator began, and peers that serve.

    Args:
        history: as far as it was read.
        num_stages: of the plan.
        end_s: unix time until which what goes on is drawn.
    """
    columns: Columns = {name: [] for name in STAIR_NAMES}
    if history.first_s is None:
        return columns
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for stay in history.stays:
        if stay.state == "serving":
            changes[stay.stage].append((stay.start_s, 1))
            changes[stay.stage].append((end_s if stay.end_s is None else stay.end_s, -1))
    for stage in range(min(num_stages, MOST_STAGES)):
        steps = sorted((time_s, rise) for time_s, rise in changes[stage] if time_s < end_s)
        times = np.array([history.first_s, *(time_s for time_s, _ in steps), end_s]) - history.first_s
        counts = np.cumsum([0, *(rise for _, rise in steps)]) + stage * APART
        for name, value in zip(
            STAIR_NAMES,
            (np.repeat(times, 2)[1:-1], np.repeat(counts, 2), line_colour(stage), f"stage {stage}"),
            strict=True,
        ):
            columns[name].append(value)
    return columns
