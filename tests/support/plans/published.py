"""Problems on sample clusters, and the optima of DT-FM's five published networks."""

from pathlib import Path
from typing import Any

import numpy as np

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.workload.presets import preset

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
OPTIMA = {
    "dtfm_1_datacenter": 3.43980,
    "dtfm_2_spot": 31.63416,
    "dtfm_3_universities": 16.08684,
    "dtfm_4_regional": 34.80204,
    "dtfm_5_worldwide": 49.21838,
}
"""Least costs of the objective `dtfm` with 8 stages and 8 replicas, proven by CP-SAT."""


def published_problem(
    name: str, stages: int = 8, replicas: int = 8, *, shuffle: int | None = None, **fields: Any
) -> Problem:
    """GPT-3 XL on a sample cluster, by default for the objective `dtfm`.

    Args:
        name: of the sample.
        stages: given, as the replicas are.
        replicas: of each stage.
        shuffle: a seed; devices then stand in another order.
        fields: others of the problem.
    """
    cluster = load_cluster(SAMPLES / f"{name}.json")
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(len(cluster.devices))
        cluster = cluster.replace(devices=tuple(cluster.devices[i] for i in order))
    return Problem(
        cluster=cluster,
        workload=preset("gpt3-xl"),
        constraints=Constraints(stages=stages, replicas=replicas),
        **({"objective": "dtfm"} | fields),
    )
