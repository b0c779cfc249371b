"""What another order of actions is worth: plans whose devices are slower or faster than assumed.

    python tests/benchmarks/prediction/bench_order.py [--steps 12] [--only simulated|real] [--json]

Simulated: searched plans of sample clusters, devices 1/4 to 4 times as slow as the catalog says. Compared are the
step in the catalog's order, in the list schedule for the true seconds, and in the best of `reorder`'s candidates.

Real: four CPU ranks on emulated links train twice, first in the order for devices that are assumed too slow, then in
the one that `runs reorder` makes of the first run. Run it on a machine that does nothing else.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.durations import durations_of
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.orders import reorder
from hetplanner.runs.reports.reordering import reorder_run
from hetplanner.runs.run import Run
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.simulation import simulate, summarise_plan, summarise_trace
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import train

CLUSTERS = ("lab_2_sites_4", "campus_3_sites_6", "continents_4_sites_8")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
NETWORKS = (("50 Mbit/s", "5 ms"), ("200 Mbit/s", "20 ms"), ("50 Mbit/s", "20 ms"))
ASSUMED_S = 0.03
"""Of the slowest stage's forward pass by the cluster; real cores take a fraction of it."""


def simulated() -> list[dict[str, object]]:
    """A row for every cluster and factor."""
    rows: list[dict[str, object]] = []
    for name in CLUSTERS:
        cluster = load_cluster(Path(__file__).parents[3] / "sample_clusters" / f"{name}.json")
        problem = Problem(cluster=cluster, workload=preset("gpt2", global_batch=64, micro_batch=2))
        plan = make_planner("evolution").solve(problem, seed=0, budget=Budget(evaluations=4_000)).plan
        modelled = durations_of(plan)
        for factor in FACTORS:
            seconds = {part: getattr(modelled, part) * factor for part in ("forward_s_C", "backward_s_C")}
            true = replace(modelled, **seconds)
            own = summarise_trace(simulate(plan, true, schedule=make_schedule(plan, true))).step_s
            best = reorder(plan, true)
            rows.append(
                {
                    "plan": f"{name} {len(plan.stages)}x{len(plan.routes)}",
                    "factor": factor,
                    "frozen_s": summarise_plan(plan, true).step_s,
                    "own_s": own,
                    "best_s": summarise_plan(best, true).step_s,
                    "order_scale": best.order_scale,
                }
            )
    return rows


def deep_plan(bandwidth: str, latency: str) -> Plan:
    """Four stages of one device, which may hold eight micro-batches; devices are said to be slow."""
    workload = preset("tiny-gpt", global_batch=32, micro_batch=2)
    cluster = small_cluster(4, bandwidth=bandwidth, latency=latency)
    plan = chain_plan([16], workload.boundaries[:3], cluster=cluster, workload=workload, in_flight=[8] * 4)
    slower = ASSUMED_S / float(durations_of(plan).forward_s_C.max())
    devices = tuple(d.replace(efficiency=resolve_device(d).efficiency / slower) for d in cluster.devices)
    return plan.replace(problem=plan.problem.replace(cluster=cluster.replace(devices=devices)))


def real(steps: int) -> list[dict[str, object]]:
    """A row for every network."""
    return [_trained(deep_plan(*network), " ".join(network), steps) for network in NETWORKS]


def _trained(plan: Plan, name: str, steps: int) -> dict[str, object]:
    config = TrainConfig(steps=steps, emulate_links=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        train(plan, config, Path(first))
        before = Run(Path(first)).read_all()
        found = reorder_run(before)
        train(found.plan, config, Path(second))
        after = Run(Path(second)).read_all()
        return {
            "network": name,
            "order_scale": found.plan.order_scale,
            "predicted": [found.before_s, found.after_s],
            "measured": [before.measured_step_s(), after.measured_step_s()],
            "losses": max(abs(a - b) for (_, a), (_, b) in zip(before.losses(), after.losses(), strict=True)),
        }


def main() -> None:
    """Prints both tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", choices=("simulated", "real"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parts = {"simulated": simulated, "real": lambda: real(args.steps)}
    for part, rows in ((part, make()) for part, make in parts.items() if args.only in (None, part)):
        for row in rows:
            print(json.dumps({"part": part} | row) if args.json else _line(row), flush=True)


def _line(row: dict[str, object]) -> str:
    if "plan" in row:
        frozen, own, best = (float(str(row[name])) for name in ("frozen_s", "own_s", "best_s"))
        return (
            f"{row['plan']:28} x {row['factor']:<5} catalog's order {frozen:8.3f} s, own {own:8.3f} s"
            f" ({frozen / own - 1:+.1%}), best {best:8.3f} s ({frozen / best - 1:+.1%}) at {row['order_scale']}"
        )
    (p0, p1), (m0, m1) = row["predicted"], row["measured"]  # type: ignore[misc]
    return (
        f"{row['network']:18} scale {row['order_scale']}: predicted {p0:.4f} -> {p1:.4f} s ({p1 / p0 - 1:+.1%}),"
        f" measured {m0:.4f} -> {m1:.4f} s ({m1 / m0 - 1:+.1%}); losses differ by {row['losses']:.1e}"
    )


if __name__ == "__main__":
    main()
