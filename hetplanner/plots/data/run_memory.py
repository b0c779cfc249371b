"""Memory of a run's ranks over its steps."""

from typing import Any

import numpy as np

from hetplanner.plots.data.curves import thinned
from hetplanner.plots.theme import line_colour
from hetplanner.runs.reader import RunReader

MAX_POINTS = 400
MIB = 2**20


def memory_lines(run: RunReader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line for every rank: resident memory of its process, and what it holds on an accelerator if it holds any.

    Every line has xs (steps), ys (MiB; float64 arrays), colour (of its first stage), rank, stage, label.
    """
    resident, device = [], []
    for telemetry in run.ranks:
        records = list(telemetry.steps.values())
        if not records:
            continue
        chosen = [records[i] for i in thinned(len(records), MAX_POINTS)]
        stages = [stage for stage, _ in run.plan.places_of_rank[telemetry.rank]]
        facts = {
            "xs": np.array([r.step for r in chosen], dtype=np.float64),
            "colour": line_colour(stages[0]),
            "rank": f"{telemetry.rank} · {run.plan.ranks[telemetry.rank]}",
            "stage": ", ".join(map(str, stages)),
            "label": f"stage {', '.join(map(str, stages))}",
        }
        resident.append(facts | {"ys": np.array([r.memory_bytes / MIB for r in chosen])})
        if any(r.device_bytes for r in chosen):
            device.append(facts | {"ys": np.array([r.device_bytes / MIB for r in chosen])})
    return resident, device
