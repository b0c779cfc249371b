"""The emulator's rule of links against that of real ones: transfers queue, or share what they pass.

    python tests/benchmarks/prediction/bench_fair_links.py [--clusters 10] [--lone]

Every cluster has eight unlike GPUs on four hosts of two at three sites. Its plans for gpt2 are one that a second of
search found, and four shapes in file order. A row gives the simulated step by both rules. With `--lone` every GPU has a
host of its own.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import hetplanner as hp
from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import Infeasible
from hetplanner.planners.finish import fit_plan, order_devices
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset

SHAPES = ((4, 2), (2, 4), (8, 1), (1, 8))


def main() -> None:
    """Prints a row a plan, and mean and worst of the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--lone", action="store_true", help="a host for each GPU")
    args = parser.parse_args()
    differences = []
    for seed in range(args.clusters):
        cluster = mixed_gpus(seed, num_devices=8, num_sites=3, gpus_per_host=1 if args.lone else 2)
        problem = hp.Problem(cluster=cluster, workload=preset("gpt2"))
        plans = {"searched": hp.search(problem, budget="1 s", seed=seed, live=False).plan}
        for shape in SHAPES:
            try:
                plans[f"{shape[0]}x{shape[1]}"] = fit_plan(order_devices(problem, shape), CostModel.of(problem))
            except Infeasible:
                continue
        for name, plan in plans.items():
            queued, shared = (summarise_plan(plan, steps=2, fair_links=fair).step_s for fair in (False, True))
            differences.append(shared / queued - 1.0)
            print(f"{seed:3d} {name:9} {queued:8.3f} s {shared:8.3f} s {100 * differences[-1]:+6.2f} %", flush=True)
    sizes = [100 * abs(difference) for difference in differences]
    print(f"{len(sizes)} plans: mean {statistics.mean(sizes):.1f} %, worst {max(sizes):.1f} %")


if __name__ == "__main__":
    main()
