"""What can be proved, and how fast: DT-FM's five networks by CP-SAT, and the cheap bounds everywhere.

    python tests/benchmarks/search/bench_certificates.py [--workers 2] [--seconds 300] [--cases dtfm_5_worldwide]
        [--networks jit r10j] [--seeds 10] [--bound-seconds 30]

First table, objective dtfm, 8 x 8: the proven value and bound, seconds of CP-SAT started without any plan and started
from the optimum, seconds of the planner `cp-sat` as a whole (search, cheap bound, proof), and the cheap bound with its
milliseconds. Second table: gap of a one-second search on the full cost model to the cheap bound. Third table, objective
dtfm on generated networks: the cheap bound, the tighter one after `--bound-seconds` of CPU time, a search's best plan,
and the share of the gap between the cheap bound and that plan which the tighter bound closes.
"""

import argparse
import time
from pathlib import Path

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.generators import generate_cluster
from hetplanner.cost.bounds.lower_bounds import bound_cost, bound_step
from hetplanner.cost.bounds.placement_bound import improve_bound, warm_up
from hetplanner.cost.dtfm import bound_dtfm, pair_costs
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.dtfm.certificates import find_classes, prove_optimum
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
PUBLISHED = ["dtfm_1_datacenter", "dtfm_2_spot", "dtfm_3_universities", "dtfm_4_regional", "dtfm_5_worldwide"]
SHAPE = (8, 8)
FULL = [
    ("dtfm_1_datacenter", "gpt3-xl", 8, 8),
    ("dtfm_2_spot", "gpt3-xl", 8, 8),
    ("dtfm_3_universities", "gpt3-xl", 4, 16),
    ("dtfm_4_regional", "gpt3-xl", 4, 16),
    ("dtfm_5_worldwide", "gpt3-xl", 8, 8),
    ("continents_4_sites_8", "tiny-gpt", 4, 2),
    ("campus_3_sites_6", "gpt2", None, None),
]


def timed(call):
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def certify(name, args):
    """One line of the first table."""
    cluster = load_cluster(SAMPLES / f"{name}.json")
    costs = pair_costs(cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD, SHAPE[1])
    cheap, cheap_s = timed(lambda: bound_dtfm(*costs, *SHAPE))
    classes = find_classes(*costs)
    limits = {"seconds": args.seconds, "workers": args.workers, "seed": args.seed}
    cold, cold_s = timed(lambda: prove_optimum(classes, SHAPE, **limits))
    shape = Constraints(stages=SHAPE[0], replicas=SHAPE[1])
    problem = Problem(cluster=cluster, workload=preset("gpt3-xl"), objective="dtfm", constraints=shape)
    planner = make_planner("cp-sat", {"workers": args.workers})
    result = planner.solve(problem, seed=args.seed, budget=args.seconds)
    warm, warm_s = timed(lambda: prove_optimum(classes, SHAPE, upper_s=result.value, hint_SC=cold.count_SC, **limits))
    print(
        f"{name:20} {result.value:10.5f} {max(cold.lower_bound_s, warm.lower_bound_s):10.5f}"
        f" {'yes' if result.gap < 1e-6 else 'no':>6} {cold_s:8.2f} {warm_s:8.2f} {result.seconds:8.2f}"
        f" {cheap:10.5f} {cheap_s * 1e3:8.1f}",
        flush=True,
    )


def measure_gap(name, model_name, stages, replicas, objective):
    """One line of the second table."""
    problem = Problem(
        cluster=load_cluster(SAMPLES / f"{name}.json"),
        workload=preset(model_name),
        objective=objective,
        constraints=Constraints(stages=stages, replicas=replicas),
    )
    result = make_planner("evolution").solve(problem, budget="1 s")
    model = CostModel.of(problem)
    bound = bound_step if objective == "step-time" else bound_cost
    # Once for what the cost model itself computes once.
    bound(model.tables, model.links)
    value, seconds = timed(lambda: bound(model.tables, model.links))
    shape = f"{len(result.plan.stages)} x {len(result.plan.stages[0].replicas)}"
    print(f"{name:22} {model_name:9} {shape:7} {objective:10} {result.value:10.4f} {value:10.4f}"
          f" {max(0.0, 1 - value / result.value):6.1%} {seconds * 1e3:8.2f}", flush=True)  # fmt: skip


def tighten(name, seed, args):
    """One line of the third table."""
    problem = Problem(
        cluster=generate_cluster(name, seed),
        workload=preset("gpt3-xl"),
        objective="dtfm",
        constraints=Constraints(stages=SHAPE[0], replicas=SHAPE[1]),
    )
    cluster = problem.cluster
    costs = pair_costs(cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD, SHAPE[1])
    best = make_planner("evolution").solve(problem, seed=seed, budget=args.search_seconds).value
    start = time.process_time()
    values = list(improve_bound(*costs, *SHAPE, is_cancelled=lambda: time.process_time() - start >= args.bound_seconds))
    share = (values[-1] - values[0]) / (best - values[0])
    print(f"{name:6} {seed:5} {values[0]:8.3f} {values[-1]:8.3f} {best:8.3f} {share:7.1%}"
          f" {time.process_time() - start:7.1f}", flush=True)  # fmt: skip


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", default=PUBLISHED)
    parser.add_argument("--networks", nargs="*", default=["jit", "r10j"], help="of the third table")
    parser.add_argument("--seeds", type=int, default=10, help="of the third table")
    parser.add_argument("--bound-seconds", type=float, default=30.0)
    parser.add_argument("--search-seconds", type=float, default=5.0)
    args = parser.parse_args()
    print(f"{'case':20} {'value':>10} {'bound':>10} {'proven':>6} {'cold s':>8} {'warm s':>8} {'all s':>8}"
          f" {'cheap':>10} {'ms':>8}")  # fmt: skip
    for name in args.cases:
        certify(name, args)
    print(f"\n{'cluster':22} {'model':9} {'shape':7} {'objective':10} {'value':>10} {'bound':>10} {'gap':>6} {'ms':>8}")
    for row in FULL:
        for objective in ("step-time", "cost"):
            measure_gap(*row, objective)
    warm_up()
    print(f"\n{'network':7} {'seed':>4} {'cheap':>8} {'tighter':>8} {'best':>8} {'closed':>7} {'s':>7}")
    for name in args.networks:
        for seed in range(args.seeds):
            tighten(name, seed, args)


if __name__ == "__main__":
    main()
