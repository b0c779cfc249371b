"""Events per second of the simulator on the full problem: 8 x 8 devices, 24 layers of GPT-3 XL.

    python tests/benchmarks/prediction/bench_simulator.py [--repeat 50] [--json]

An event is a forward, a backward or a transfer (reductions included). Kernels are warm. Each row gives the median
CPU milliseconds of timing a packed plan, of ordering its tasks (list scheduling), of packing it (ordering included),
and of the event engine, which keeps every span; and events per second of the timing, and of ordering and timing
together.
The bar is 10 M events/s, the aim 30 M.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.schedules import interleave
from hetplanner.simulator.packing import order_plan, pack_plan
from hetplanner.simulator.simulation import simulate, summarise_trace
from hetplanner.simulator.timing import time_packed
from hetplanner.workload.presets import preset

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
CASES = [("dtfm_5_worldwide", 16), ("dtfm_5_worldwide", 128), ("dtfm_1_datacenter", 16), ("dtfm_1_datacenter", 128)]


def median_ms(work: Callable[[], Any], repeat: int) -> float:
    """Median CPU time of a call that has been made once before."""
    work()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def bench(label: str, plan: Plan, model: CostModel, repeat: int) -> dict[str, Any]:
    """One row."""
    packed = pack_plan(plan, model=model)
    timing = median_ms(lambda: time_packed(packed), repeat)
    ordering = median_ms(lambda: order_plan(plan, model=model), repeat)
    start = time.process_time()
    step_s = summarise_trace(simulate(plan)).step_s
    engine_s = time.process_time() - start
    assert abs(time_packed(packed).step_s / step_s - 1) < 1e-9
    return {
        "case": label,
        "events": packed.num_events,
        "nics": packed.has_nics,
        "timing_ms": timing,
        "order_ms": ordering,
        "pack_ms": median_ms(lambda: pack_plan(plan, model=model), repeat),
        "engine_ms": 1e3 * engine_s,
        "events_per_s": packed.num_events / timing * 1e3,
        "with_order_per_s": packed.num_events / (timing + ordering) * 1e3,
    }


def main() -> None:
    """Prints a row for each case, plain and interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name, per_pipeline in CASES:
        workload = preset("gpt3-xl", global_batch=8 * per_pipeline, micro_batch=1)
        constraints = Constraints(stages=8, replicas=8)
        problem = Problem(cluster=load_cluster(SAMPLES / f"{name}.json"), workload=workload, constraints=constraints)
        model = CostModel.of(problem)
        plan = make_planner("rank-order").solve(problem, budget=Budget(evaluations=1)).plan
        for label, made in (("", plan), (" x3 chunks", interleave(plan, 3, in_flight=8, model=model))):
            r = bench(f"{name} {per_pipeline}{label}", made, model, args.repeat)
            if args.json:
                print(json.dumps(r), flush=True)
                continue
            nics = " NICs" if r["nics"] else ""
            print(
                f"{r['case']:34} {r['events']:7} events{nics:5}  timing {r['timing_ms']:6.3f} ms"
                f" = {r['events_per_s'] / 1e6:5.1f} M/s  order {r['order_ms']:6.3f} ms"
                f" (together {r['with_order_per_s'] / 1e6:4.1f} M/s)  pack {r['pack_ms']:6.2f} ms"
                f"  engine {r['engine_ms']:7.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
