"""The prediction: the simulator's step from the ranks' own profiles, written before step 1 and never again."""

import json
import time
from pathlib import Path

import numpy as np

from hetplanner.atomic_files import write_whole
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig, exchanges_norms
from hetplanner.simulator.simulation import summarise_plan

PREDICTION_FILE = "prediction.json"
NUM_STEPS = 4
"""Enough for the ranks' skew at the first step to settle."""


def predict(plan: Plan, config: TrainConfig, durations: Durations) -> dict[str, object]:
    """The fields of prediction.json."""
    summary = summarise_plan(plan, durations, steps=NUM_STEPS)
    clip_s = _clip_seconds(plan) if exchanges_norms(config, plan.problem.workload.dtype) else 0.0
    return {
        "format": "hetplanner/prediction@1",
        "step_s": summary.step_s + clip_s,
        "bubble": summary.bubble,
        "terms": summary.terms | ({"clip": clip_s} if clip_s else {}),
        "per_rank": summary.per_rank,
        "durations": durations.to_data(),
        "catalog_step_s": summarise_plan(plan, steps=NUM_STEPS).step_s,
        "created_unix_s": time.time(),
    }


def _clip_seconds(plan: Plan) -> float:
    """Every rank waits for every other's norm: the longest latency, twice where norms must be relayed."""
    rows = [plan.problem.cluster.device_index(d) for d in plan.ranks]
    latency_s_NN = plan.problem.cluster.latency_s_DD[np.ix_(rows, rows)]
    linked_NN = np.isfinite(latency_s_NN)
    return float(latency_s_NN[linked_NN].max()) * (1.0 if linked_NN.all() else 2.0)


def write_prediction(fields: dict[str, object], run_dir: Path) -> None:
    """Writes the file once. Raises FileExistsError when there is one."""
    write_whole(run_dir / PREDICTION_FILE, json.dumps(fields, indent=1) + "\n", replace=False)
