"""DT-FM's setting on emulated links: planned placement against random, shuffled and site-ordered ranks, per codec.

    python tests/benchmarks/prediction/bench_placement.py [--steps 8] [--slower 24] [--only planned] [--seed 0] [--json]

Eight CPU ranks on four sites (`continents_4_sites_8.json`), tiny-gpt in four stages of two replicas. Every placement is
trained for real with every codec; the prediction is written before the first step from the ranks' own profiles, the
measured time is the median over the steps but the first. Compared are both, and whether placements come in the
predicted order. All bandwidths are a part of the file's, so that two cores serve eight ranks and links decide; run it
on a machine that does nothing else.
"""

import argparse
import json
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.model import Cluster
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.choices.codec import choose_codecs
from hetplanner.planners.finish import equal_plan, order_devices
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.runs.run import Run
from hetplanner.workload.presets import preset
from tests.benchmarks.prediction.bench_prediction import with_codec
from tests.support.training.real_ranks import train

CLUSTER = Path(__file__).parents[3] / "sample_clusters" / "continents_4_sites_8.json"
STAGES, REPLICAS = 4, 2
CODECS = ("none", "int8", "adatopk")
MAX_RATIO = 10.0
BAR = 0.10
TOLD_APART = 0.05
"""Placements that are predicted nearer to each other than this need not come in order."""


def slower(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with bandwidths divided."""
    links = tuple(link.replace(bandwidth=link.bandwidth / factor) for link in cluster.site_links)
    return cluster.replace(site_links=links)


def placements(problem: Problem, seed: int) -> dict[str, Plan]:
    """The same shape, placed in four ways."""
    model, shape = CostModel.of(problem), (STAGES, REPLICAS)
    rows = order_devices(problem, shape)
    shuffled = np.random.default_rng(seed).permutation(rows.T.ravel()).reshape(REPLICAS, STAGES).T
    planned = make_planner("evolution").solve(problem, seed=seed, budget=Budget(evaluations=20_000)).plan
    plans = {
        "planned": planned,
        "site order": equal_plan(rows, model),
        "shuffled": equal_plan(shuffled, model),
        "random": make_planner("random").solve(problem, seed=seed, budget=Budget(evaluations=1)).plan,
    }
    return {name: plan for name, plan in plans.items() if plan is not None}


def coded(plan: Plan, codec: str) -> Plan:
    """The plan with a codec on all links and reductions, or as AdaTopK chooses per link."""
    if codec != "adatopk":
        return with_codec(plan, codec)
    constraints = plan.problem.constraints.replace(codecs=("none", "adatopk"), max_ratio=MAX_RATIO)
    problem = plan.problem.replace(constraints=constraints)
    return choose_codecs(plan.replace(problem=problem), CostModel.of(problem))


def bench(placement: str, codec: str, plan: Plan, steps: int) -> dict[str, object]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        train(plan, TrainConfig(steps=steps, emulate_links=True), Path(folder))
        run = Run(Path(folder)).read_all()
        predicted, measured = run.predicted_step_s(), run.measured_step_s()
        assert predicted
        assert measured
        return {
            "placement": placement,
            "codec": codec,
            "predicted_s": predicted,
            "measured_s": measured,
            "ratio": predicted / measured,
            "boundary_bytes": run.bytes_boundary / steps,
            "loss": run.losses()[-1][1],
            "late": run.late[0],
            "deliveries": sum(total.taken for t in run.ranks for total in t.links.values()),
        }


def disorder(rows: list[dict[str, object]]) -> list[str]:
    """Pairs of placements whose measured order is not the predicted one, per codec."""
    wrong = []
    for a, b in combinations(rows, 2):
        if a["codec"] != b["codec"]:
            continue
        first, second = sorted((a, b), key=lambda row: float(str(row["predicted_s"])))
        apart = float(str(second["predicted_s"])) / float(str(first["predicted_s"])) - 1.0
        if apart > TOLD_APART and float(str(first["measured_s"])) > float(str(second["measured_s"])):
            wrong.append(f"{a['codec']}: {first['placement']} before {second['placement']}")
    return wrong


def main() -> None:
    """Prints the table, or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--slower", type=float, default=24.0, help="divides the bandwidths of the cluster file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rows whose placement and codec hold this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    problem = Problem(
        cluster=slower(load_cluster(CLUSTER), args.slower),
        workload=preset("tiny-gpt"),
        constraints=Constraints(stages=STAGES, replicas=REPLICAS),
    )
    if not args.json:
        print(f"{'placement':11} {'codec':8} {'predicted':>10} {'measured':>10} {'ratio':>6} {'loss':>7} {'late':>12}")
    rows = []
    for placement, plan in placements(problem, args.seed).items():
        for codec in CODECS:
            if args.only not in f"{placement} {codec}":
                continue
            row = bench(placement, codec, coded(plan, codec), args.steps)
            rows.append(row)
            if args.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{placement:11} {codec:8} {1e3 * row['predicted_s']:8.1f}ms {1e3 * row['measured_s']:8.1f}ms"
                f" {row['ratio']:6.3f} {row['loss']:7.4f} {row['late']:5}/{row['deliveries']:<6}",
                flush=True,
            )
    if args.json:
        return
    off = [row for row in rows if abs(float(str(row["ratio"])) - 1.0) > BAR]
    print(
        f"within {BAR:.0%}: {len(rows) - len(off)} of {len(rows)}; out of order: {'; '.join(disorder(rows)) or 'none'}"
    )


if __name__ == "__main__":
    main()
