"""Memory of a run's ranks over its steps."""

from typing import Any

import numpy as np

from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.reader import RunReader

MEGABYTE = 1e6


def memory_lines(run: RunReader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line for every rank: resident memory of its process, and what it holds on an accelerator if it holds any.

    Every line has xs (steps), ys (MB; float64 arrays), colour (of its first stage), rank, stage, label.
    """
    resident, device = [], []
    for telemetry in run.ranks:
        if not telemetry.memory:
            continue
        steps, held_bytes, device_bytes = np.array(telemetry.memory, dtype=np.float64).T
        stages = [stage for stage, _ in run.plan.places_of_rank[telemetry.rank]]
        facts = {
            "xs": steps,
            "colour": line_colour(stages[0]),
            "rank": f"{telemetry.rank} · {run.plan.ranks[telemetry.rank]}",
            "stage": ", ".join(map(str, stages)),
            "label": f"stage {', '.join(map(str, stages))}",
        }
        resident.append(facts | {"ys": held_bytes / MEGABYTE})
        if device_bytes.any():
            device.append(facts | {"ys": device_bytes / MEGABYTE})
    return resident, device
