"""Captured workloads for tests: random OP-DAGs with skips and tied weights, and one like a residual network."""

import random
from itertools import pairwise

from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.workload.model import Op, OpGraph
from hetplanner.workload.workload import Workload


def captured(ops: list[Op], *, name: str = "captured", global_batch: int = 32, micro_batch: int = 2) -> Workload:
    """A workload of a graph from elsewhere, for planning alone."""
    graph = OpGraph(ops=tuple(ops))
    return Workload(
        name=name, captured=graph, global_batch=global_batch, micro_batch=micro_batch, seq_len=1, dtype="float32"
    )


def random_dag(seed: int, num_ops: int, *, unit: int = 1, **batch: int) -> Workload:
    """A chain of ops of which some read earlier outputs too, own nothing, or share the weight of an earlier one.

    Weights are multiples of `unit` elements.
    """
    rng = random.Random(seed)
    ops = [
        Op(name="op0", kind="embedding", num_params=unit * rng.randint(1, 500), output_bytes=4 * rng.randint(1, 300))
    ]
    for i in range(1, num_ops - 1):
        skips = rng.sample(range(i), min(i, rng.choice([0, 0, 1, 1, 2])))
        owners = [op for op in ops if op.num_params and op.tied is None]
        # Users of one weight use the same one.
        shared = {op.tied: op.num_params for op in ops if op.tied}
        owner = rng.choice(owners) if owners and rng.random() < 0.2 else None
        params = rng.choice([0, unit * rng.randint(1, 3000)])
        ops.append(
            Op(
                name=f"op{i}",
                kind=rng.choice(["mlp", "attention", "norm", "function"]),
                inputs=tuple(f"op{k}" for k in sorted({i - 1, *skips})),
                num_params=shared.get(owner.name, owner.num_params) if owner else params,
                tied=owner.name if owner else None,
                forward_flops=float(rng.randint(0, 10**7)),
                backward_flops=float(rng.randint(0, 2 * 10**7)),
                activation_bytes=rng.randint(0, 4000),
                output_bytes=4 * rng.randint(1, 300),
            )
        )
    ops.append(Op(name="loss", kind="loss", inputs=(ops[-1].name,), forward_flops=100.0, output_bytes=4))
    return captured(ops, name=f"dag-{seed}", **batch)


def residual_network(blocks: int, *, width: int = 64, **batch: int) -> Workload:
    """Bottleneck blocks of seven ops: convolution and norm, three times, then the sum with the block's input."""
    ops = [_op("stem", "parameter", (), width * 9, 4.0 * width)]
    for b in range(blocks):
        before, last = ops[-1].name, ops[-1].name
        for part, (params, size) in enumerate([(width * width, width), (9 * width * width, width), (width**2, 4)]):
            narrow = 1 if part < 2 else 4
            ops.append(_op(f"b{b}.conv{part}", "parameter", (last,), params, float(params) * 49, 49 * width * narrow))
            ops.append(_op(f"b{b}.norm{part}", "norm", (ops[-1].name,), 2 * size, 1e3, 49 * width * narrow))
            last = ops[-1].name
        ops.append(_op(f"b{b}.sum", "function", tuple(dict.fromkeys((before, last))), 0, 1e3, 4 * 49 * width))
    ops.append(_op("head", "head", (ops[-1].name,), width * 1000, 2.0 * width * 1000, 1000))
    ops.append(_op("loss", "loss", ("head",), 0, 5000.0, 1))
    return captured(ops, name="residual", **batch)


def _op(name: str, kind: str, inputs: tuple[str, ...], params: int, flops: float, elements: int = 256) -> Op:
    return Op(
        name=name,
        kind=kind,
        inputs=inputs,
        num_params=params,
        forward_flops=2 * flops,
        backward_flops=4 * flops,
        activation_bytes=4 * elements,
        output_bytes=4 * elements,
    )


def cut_plan(workload: Workload, cuts: list[int], replicas: list[int], cluster, **changes) -> Plan:
    """Stages that end at given boundaries with any numbers of replicas; route r takes replica r modulo their number."""
    edges = [0, *cuts, len(workload.graph.ops)]
    free = iter(cluster.device_ids)
    stages = tuple(
        Stage(
            first_op=a,
            end_op=b,
            replicas=tuple((next(free),) for _ in range(count)),
            in_flight=len(edges) - s,
        )
        for s, ((a, b), count) in enumerate(zip(pairwise(edges), replicas, strict=True))
    )
    routes, most = max(replicas), workload.num_micro_batches
    shares = [most // routes + (r < most % routes) for r in range(routes)]
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=stages,
        routes=tuple(Route(replicas=tuple(r % n for n in replicas), micro_batches=m) for r, m in enumerate(shares)),
        ranks=tuple(d for stage in stages for replica in stage.replicas for d in replica),
        **changes,
    )
