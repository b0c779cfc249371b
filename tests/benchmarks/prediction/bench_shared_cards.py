"""The closed form against both simulators where hosts share a network card, by reducer.

    python tests/benchmarks/prediction/bench_shared_cards.py [--json]

Plans of GPT-2 on two to eight hosts of two to eight devices, with stages inside hosts and across them, on three
relations of card and link. The simulator queues transfers or shares links fairly.
"""

import argparse
import json
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.model import Cluster
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.schema import checked
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset

SHAPES = ((2, 4, 1), (2, 4, 2), (4, 4, 2), (4, 4, 4), (2, 8, 4), (8, 2, 2), (4, 2, 1), (3, 4, 1))
"""Hosts, devices of each, stages."""
RATES = (("10 Gbit/s", "10 Gbit/s"), ("1 Gbit/s", "1 Gbit/s"), ("10 Gbit/s", "1 Gbit/s"))
"""Of a card, and of a link."""
REDUCERS = ("sharded-ps", "central-ps", "ring")
MICRO_BATCHES = 64


def hosts_of(hosts: int, devices: int, card: str, link: str) -> Cluster:
    """Equal hosts, each in a site of its own."""
    names = [f"h{i}" for i in range(hosts)]
    data = {
        "name": "hosts",
        "sites": [{"name": n, "latitude": float(i), "longitude": 0.0} for i, n in enumerate(names)],
        "hosts": [{"id": n, "site": n, "nic_out": card, "nic_in": card} for n in names],
        "devices": [{"id": f"{n}d{j}", "kind": "V100", "host": n} for n in names for j in range(devices)],
        "site_links": [{"from": a, "to": b, "latency": "1 ms", "bandwidth": link} for a in names for b in names],
        "host_links": [{"host": n, "latency": "10 us", "bandwidth": "300 Gbit/s"} for n in names],
    }
    return checked(Cluster, data, "hosts", from_file=True)


def plan_on(cluster: Cluster, stages: int, reducer: str, *, across: bool) -> Plan:
    """Equal stages, whose replicas stand on all hosts, or together."""
    workload = preset("gpt2", global_batch=MICRO_BATCHES, micro_batch=1)
    ids, places = cluster.device_ids, workload.boundaries
    replicas = len(ids) // stages
    edges = [0, *(places[len(places) * s // stages] for s in range(1, stages)), len(workload.graph.ops)]
    grid = [[ids[r * stages + s] if across else ids[s * replicas + r] for r in range(replicas)] for s in range(stages)]
    shares = [MICRO_BATCHES // replicas + (r < MICRO_BATCHES % replicas) for r in range(replicas)]
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=tuple(
            Stage(first_op=edges[s], end_op=edges[s + 1], replicas=tuple((d,) for d in grid[s]), in_flight=stages - s)
            for s in range(stages)
        ),
        routes=tuple(Route(replicas=(r,) * stages, micro_batches=share) for r, share in enumerate(shares)),
        reducer=reducer,
        ranks=ids,
    )


def main() -> None:
    """Prints the range of errors of each reducer, or every row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    errors: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for (hosts, devices, stages), rates, across, reducer in product(SHAPES, RATES, (True, False), REDUCERS):
        plan = plan_on(hosts_of(hosts, devices, *rates), stages, reducer, across=across)
        closed_s = estimate_plan(plan).step_s
        for fair in (False, True):
            simulated_s = summarise_plan(plan, fair_links=fair).step_s
            errors[reducer, fair].append(closed_s / simulated_s - 1.0)
            if args.json:
                row = {"hosts": hosts, "devices": devices, "stages": stages, "rates": rates, "across": across}
                print(json.dumps(row | {"reducer": reducer, "fair": fair, "error": errors[reducer, fair][-1]}))
    if not args.json:
        for (reducer, fair), found in errors.items():
            kind = "fair shares" if fair else "queues"
            print(f"{reducer:10} against {kind:11}: {min(found):+.1%} to {max(found):+.1%}, {len(found)} plans")


if __name__ == "__main__":
    main()
