"""Groups of a host's devices (tensor parallelism) against the best homogeneous setting.

    python tests/benchmarks/search/bench_groups.py [--clusters 20] [--budget 10] [--only mixed|large] [--json]

mixed   gpt3-xl on generated clusters of hosts with two to eight GPUs of five kinds at one to four sites. Compared are
        the search with all degrees (evolution), the same without groups, and Megatron's order with the best of all
        degrees and shapes (planner megatron). Ratios are of step times; above 1 the search with degrees is faster.
large   llama-70b on twelve hosts of eight V100-16 with 1 Gbit/s between them, by sequence length: whether it fits.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.catalog import device_kind
from hetplanner.cluster.model import Cluster
from hetplanner.errors import Infeasible
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.schema import checked
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from hetplanner.workload.tensor_degrees import DEGREES

KINDS = ("A100-40", "V100-16", "T4", "RTX 3090", "H100-SXM")
LENGTHS = (1024, 2048, 4096)


def hosts_cluster(
    name: str, sites: list[list[tuple[str, int]]], inside: str, between: str, nic: str | None = None
) -> Cluster:
    """Sites of hosts, each with so many GPUs of a kind; links inside a host by the catalog."""
    names = [f"site-{i}" for i in range(len(sites))]
    hosts = [(f"{names[i]}-h{k}", names[i], *host) for i, site in enumerate(sites) for k, host in enumerate(site)]
    card = {"nic_out": nic, "nic_in": nic} if nic else {}
    data = {
        "name": name,
        "sites": [{"name": n, "latitude": 40.0 + i, "longitude": 9.0 * i} for i, n in enumerate(names)],
        "hosts": [{"id": host, "site": site} | card for host, site, _, _ in hosts],
        "devices": [
            {"id": f"{host}-g{k}", "kind": kind, "host": host} for host, _, kind, count in hosts for k in range(count)
        ],
        "host_links": [
            {"host": host, "latency": "10 us", "bandwidth": f"{device_kind(kind).link_bytes_per_s * 8e-9:g} Gbit/s"}
            for host, _, kind, count in hosts
            if count > 1
        ],
        "site_links": [
            {"from": a, "to": b, "latency": "0.1 ms" if a == b else "10 ms", "bandwidth": inside if a == b else between}
            for a in names
            for b in names
        ],
    }
    return checked(Cluster, data, name, from_file=True)


def mixed_cluster(seed: int) -> Cluster:
    """Three to eight hosts at one to four sites."""
    rng = np.random.default_rng(seed)
    sites: list[list[tuple[str, int]]] = [[] for _ in range(int(rng.integers(1, 5)))]
    for i in range(int(rng.integers(max(3, len(sites)), 9))):
        site = sites[i % len(sites)]
        site.append((str(rng.choice(KINDS)), int(rng.choice((2, 4, 8)))))
    inside, between = rng.choice((10, 25, 100)), rng.choice((0.5, 1, 2, 5))
    return hosts_cluster(f"mixed-{seed}", sites, f"{inside:g} Gbit/s", f"{between:g} Gbit/s", f"{inside:g} Gbit/s")


def solved(planner: str, problem: Problem, budget: Budget) -> float | None:
    """Seconds of the best plan's step; None if nothing fits."""
    try:
        return make_planner(planner).solve(problem, seed=0, budget=budget).value
    except Infeasible:
        return None


def mixed(count: int, budget_s: float) -> list[dict[str, object]]:
    """A row for every cluster."""
    rows: list[dict[str, object]] = []
    for seed in range(count):
        single = Problem(cluster=mixed_cluster(seed), workload=preset("gpt3-xl", global_batch=256))
        free = single.replace(constraints=Constraints(tensor=DEGREES))
        found = make_planner("evolution").solve(free, seed=0, budget=Budget(seconds=budget_s))
        degrees = sorted({group.degree for group in found.plan.problem.groups or ()})
        rows.append(
            {
                "cluster": free.cluster.name,
                "devices": len(free.cluster.devices),
                "hosts": len(free.cluster.hosts),
                "sites": len(free.cluster.sites),
                "degrees": degrees or [1],
                "step_s": found.value,
                "simulated_s": summarise_plan(found.plan).step_s,
                "seconds": found.seconds,
                "single_s": solved("evolution", single, Budget(seconds=budget_s)),
                "homogeneous_s": solved("megatron", free, Budget(seconds=60.0)),
            }
        )
    return rows


def large(budget_s: float) -> list[dict[str, object]]:
    """A row for every sequence length."""
    cluster = hosts_cluster("v100", [[("V100-16", 8)] * 12], "1 Gbit/s", "1 Gbit/s", "1 Gbit/s")
    rows: list[dict[str, object]] = []
    for length in LENGTHS:
        workload = preset("llama-70b", seq_len=length, dtype="float16", global_batch=256)
        problem = Problem(cluster=cluster, workload=workload, constraints=Constraints(tensor=DEGREES))
        rows.append({"tokens": length, "step_s": solved("evolution", problem, Budget(seconds=budget_s))})
    return rows


def main() -> None:
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--only", choices=("mixed", "large"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    parts: dict[str, list[dict[str, object]]] = {}
    if given.only != "mixed":
        parts["large"] = large(given.budget)
    if given.only != "large":
        parts["mixed"] = mixed(given.clusters, given.budget)
    if given.json:
        print(json.dumps(parts))
        return
    for name, rows in parts.items():
        for row in rows:
            words = (
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print(f"{name}: " + ", ".join(words))
    for other in ("homogeneous_s", "single_s"):
        ratios = [row[other] / row["step_s"] for row in parts.get("mixed", ()) if row[other]]  # type: ignore[operator]
        if ratios:
            print(f"{other} / step_s: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
