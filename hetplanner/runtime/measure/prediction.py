"""The prediction: the simulator's step from the ranks' own profiles, written before step 1 and never again."""

import json
import time
from pathlib import Path

import numpy as np

from hetplanner.atomic_files import write_whole
from hetplanner.cluster.formats.cluster_files import save_cluster
from hetplanner.cluster.measured import LINKS_FILE, MEASURED_CLUSTER_FILE, Measured, corrected, save_measured
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import on_measured_links
from hetplanner.plan.train import TrainConfig, exchanges_norms
from hetplanner.simulator.simulation import summarise_plan

PREDICTION_FILE = "prediction.json"
NUM_STEPS = 4
"""Enough for the ranks' skew at the first step to settle."""


def predict(
    plan: Plan, config: TrainConfig, durations: Durations, measured: Measured | None = None
) -> dict[str, object]:
    """The fields of prediction.json.

    Args:
        plan, config: what is trained, and how.
        durations: what the ranks measured of themselves.
        measured: what they measured of the links between them; None takes those of the cluster file.
    """
    on_hosts = measured is not None
    by_file = summarise_plan(plan, durations, steps=NUM_STEPS, fair_links=True) if on_hosts else None
    if measured is not None:
        plan = on_measured_links(plan, measured)
    summary = summarise_plan(plan, durations, steps=NUM_STEPS, fair_links=on_hosts)
    clip_s = _clip_seconds(plan) if exchanges_norms(config, plan.problem.workload.dtype) else 0.0
    return {
        "format": "hetplanner/prediction@1",
        "step_s": summary.step_s + clip_s,
        "bubble": summary.bubble,
        "terms": summary.terms | ({"clip": clip_s} if clip_s else {}),
        "per_rank": summary.per_rank,
        "durations": durations.to_data(),
        "catalog_step_s": summarise_plan(plan, steps=NUM_STEPS, fair_links=on_hosts).step_s,
        "created_unix_s": time.time(),
    } | ({"cluster_file_step_s": by_file.step_s + clip_s} if by_file is not None else {})


def write_links(plan: Plan, measured: Measured, run_dir: Path) -> None:
    """Writes links.json, and the cluster file with these numbers in it. Raises InvalidInput."""
    save_measured(measured, run_dir / LINKS_FILE)
    when = time.strftime("by a run of %Y-%m-%d", time.gmtime(measured.measured_unix_s))
    cluster = plan.problem.cluster
    save_cluster(corrected(cluster, measured, cluster.device_ids, when), run_dir / MEASURED_CLUSTER_FILE)


def _clip_seconds(plan: Plan) -> float:
    """Every rank waits for every other's norm: the longest latency, twice where norms must be relayed."""
    rows = [plan.problem.cluster.device_index(d) for d in plan.ranks]
    latency_s_NN = plan.problem.cluster.latency_s_DD[np.ix_(rows, rows)]
    linked_NN = np.isfinite(latency_s_NN)
    return float(latency_s_NN[linked_NN].max()) * (1.0 if linked_NN.all() else 2.0)


def write_prediction(fields: dict[str, object], run_dir: Path) -> None:
    """Writes the file once. Raises FileExistsError when there is one."""
    write_whole(run_dir / PREDICTION_FILE, json.dumps(fields, indent=1) + "\n", replace=False)
