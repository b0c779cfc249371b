"""The closed form against the event simulator: random plans over all sample clusters, contention on, jitter off.

    python tests/benchmarks/prediction/bench_closed_form.py [--plans 100] [--seed 0] [--worst 10] [--json]

A plan is random in everything: model, batch, shape, placement, cut, shares, depth, recompute, schedule, codecs,
reducer, and in one plan of five the numbers of replicas differ from stage to stage. Error = closed form / simulated
step - 1. Memory is not checked: only time is compared. The bars are 12 % (median of the absolute error) and 25 %
(95th percentile).
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import Codec
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.plan.model import LinkCodec, Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.planners.variants.schedules import interleave
from hetplanner.simulator.timing import simulate_step_s
from hetplanner.workload.presets import preset

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
PRESETS = ("tiny-gpt", "gpt2", "gpt2-xl", "gpt3-xl", "llama-1b")
REDUCERS = ("sharded-ps", "sharded-ps", "ring", "hierarchical", "central-ps")
CODECS = ("none", "fp16", "int8")


def random_problem(cluster: Cluster, rng: random.Random, models: dict[Any, CostModel]) -> tuple[CostModel, int, int]:
    """A cost model, and numbers of stages and replicas that the cluster and the model can hold."""
    name, per_pipeline = rng.choice(PRESETS), rng.choice((2, 4, 8, 16, 32, 64))
    micro_batch = rng.choice((1, 2, 4))
    devices = len(cluster.devices)
    layers = preset(name).graph.num_layers
    stages = rng.choice([s for s in (1, 2, 3, 4, 6, 8, 12, 16) if s <= min(devices, layers)])
    replicas = rng.randint(1, max(1, min(devices // stages, 8)))
    key = (cluster.name, name, per_pipeline * replicas, micro_batch)
    if key not in models:
        workload = preset(name, global_batch=per_pipeline * replicas * micro_batch, micro_batch=micro_batch)
        problem = Problem(cluster=cluster, workload=workload, constraints={"codecs": CODECS})
        models[key] = CostModel.of(problem)
    return models[key], stages, replicas


def random_shares(total: int, parts: int, rng: random.Random) -> list[int]:
    """Equal shares, or shares that differ by up to a factor of about three."""
    weight = [1.0 if rng.random() < 0.5 else rng.uniform(0.5, 1.5) for _ in range(parts)]
    share = [max(1, round(total * w / sum(weight))) for w in weight]
    while sum(share) != total:
        most = share.index(max(share))
        share[most] += 1 if sum(share) < total else -1
    return share


def random_depths(stages: int, most: int, rng: random.Random) -> list[int]:
    """Usual 1F1B depths, as many as micro-batches, or something between."""
    extra = rng.choice((0, 0, 1, 4, most))
    return [min(most, stages - s + extra) for s in range(stages)]


def random_plan(model: CostModel, stages: int, replicas: int, rng: random.Random) -> Plan:
    """A plan of this shape, ragged in one case of five."""
    problem, tables = model.tables.problem, model.tables
    counts = [replicas] * stages
    if rng.random() < 0.2:
        counts = [rng.randint(1, replicas) for _ in range(stages)]
    routes = max(counts)
    placed = rng.sample(list(problem.cluster.device_ids), sum(counts))
    edges = [0, *sorted(rng.sample(tables.cuts.tolist(), stages - 1)), tables.num_ops]
    if rng.random() < 0.5:  # equal layers
        edges = [0, *(tables.cuts[round(len(tables.cuts) * s / stages)] for s in range(1, stages)), tables.num_ops]
    shares = random_shares(problem.workload.num_micro_batches, routes, rng)
    depths = random_depths(stages, max(shares), rng)
    free, recompute, reduce_codec = iter(placed), rng.random() < 0.3, Codec(name=rng.choice(CODECS))
    made = tuple(
        Stage(
            first_op=int(edges[s]),
            end_op=int(edges[s + 1]),
            replicas=tuple((next(free),) for _ in range(counts[s])),
            in_flight=depths[s],
            recompute=recompute,
            reduce_codec=reduce_codec,
        )
        for s in range(stages)
    )
    plan = Plan(
        problem=problem,
        stages=made,
        routes=tuple(
            Route(replicas=tuple(r * n // routes for n in counts), micro_batches=share)
            for r, share in enumerate(shares)
        ),
        ranks=tuple(placed),
        schedule=rng.choice(("1f1b", "1f1b", "gpipe")),
        reducer=rng.choice(REDUCERS),
    )
    if rng.random() < 0.15 and len(set(counts)) == 1:
        plan = interleaved(plan, rng)
    return plan if rng.random() < 0.6 else with_codecs(plan, rng.choice(CODECS[1:]))


def interleaved(plan: Plan, rng: random.Random) -> Plan:
    """The plan with several stages on every device, where the model has the layers."""
    chunks = rng.choice((2, 3))
    if len(plan.stages) < 2 or chunks * len(plan.stages) > plan.problem.workload.graph.num_layers:
        return plan
    most = max(route.micro_batches for route in plan.routes)
    return interleave(plan, chunks, in_flight=min(most, rng.choice((len(plan.stages), 2 * len(plan.stages), most))))


def with_codecs(plan: Plan, name: str) -> Plan:
    """The codec on every boundary, both ways."""
    codec, rules = Codec(name=name), {}
    for route in plan.routes:
        path = [plan.ranks[plan.rank_at(s, r)] for s, r in enumerate(route.replicas)]
        for a, b in pairwise(path):
            rules[a, b] = LinkCodec(from_device=a, to_device=b, role="activation", codec=codec)
            rules[b, a] = LinkCodec(from_device=b, to_device=a, role="gradient", codec=codec)
    return plan.replace(link_codecs=tuple(rules.values()))


def sample(plans: int, seed: int) -> Iterator[tuple[Plan, float]]:
    """(plan, relative error) of random plans over all sample clusters."""
    for path in sorted(SAMPLES.glob("*.json")):
        cluster, rng = load_cluster(path), random.Random(f"{seed} {path.stem}")
        models: dict[Any, CostModel] = {}
        for _ in range(plans):
            model, stages, replicas = random_problem(cluster, rng, models)
            plan = random_plan(model, stages, replicas, rng)
            yield plan, estimate_plan(plan, model=model).step_s / simulate_step_s(plan, model) - 1.0


def describe(plan: Plan) -> str:
    """One line of what matters."""
    counts = [len(stage.replicas) for stage in plan.stages]
    shape = f"{len(counts)}x{counts[0]}" if len(set(counts)) == 1 else "/".join(map(str, counts))
    workload = plan.problem.workload
    shares = ",".join(str(r.micro_batches) for r in plan.routes)
    depths = ",".join(str(s.in_flight) for s in plan.stages)
    return f"{workload.name} {shape} {plan.schedule} {plan.reducer} micro-batches {shares} depths {depths}"


def row(label: str, errors: np.ndarray) -> dict[str, Any]:
    """Numbers of one group."""
    size = np.abs(errors)
    return {
        "group": label,
        "plans": len(errors),
        "median": float(np.median(size)),
        "p95": float(np.percentile(size, 95)),
        "worst": float(errors[np.argmax(size)]),
        "bias": float(np.median(errors)),
    }


def main() -> None:
    """Prints a table by cluster, schedule, reducer and shape, and the worst plans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=100, help="random plans a cluster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", type=int, default=0, help="how many of the worst plans to describe")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = list(sample(args.plans, args.seed))
    errors = np.array([error for _, error in found])
    views: list[Callable[[Plan], str]] = [
        lambda p: p.problem.cluster.name,
        lambda p: p.schedule,
        lambda p: p.reducer,
        lambda p: "ragged" if len({len(s.replicas) for s in p.stages}) > 1 else "even",
        lambda p: "one stage" if len(p.stages) == 1 else "several stages",
    ]
    rows = [row("all", errors)]
    for view in views:
        names = np.array([view(plan) for plan, _ in found])
        rows += [row(str(name), errors[names == name]) for name in sorted(set(names))]
    for r in rows:
        if args.json:
            print(json.dumps(r))
        else:
            print(
                f"{r['group']:28} {r['plans']:5} plans  median {r['median']:6.1%}  95th {r['p95']:6.1%}"
                f"  worst {r['worst']:+7.1%}  bias {r['bias']:+6.1%}"
            )
    for index in np.argsort(-np.abs(errors))[: args.worst]:
        plan, error = found[index]
        print(f"{error:+7.1%}  {plan.problem.cluster.name}: {describe(plan)}")


if __name__ == "__main__":
    main()
