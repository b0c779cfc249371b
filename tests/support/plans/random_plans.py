"""Random plans for property tests: shared hosts and NICs, unlike links, ragged routes, codecs, both schedules."""

import itertools
import random
from collections.abc import Sequence

import numpy as np

from hetplanner.cluster.model import Cluster, SiteLink
from hetplanner.codecs.spec import Codec
from hetplanner.plan.model import LinkCodec, Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.planners.variants.schedules import interleave
from hetplanner.schema import checked
from tests.support.plans.factories import TUNINGS, tiny_workload, tuned


def random_links(rng: np.random.Generator, sites: Sequence[str]) -> tuple[SiteLink, ...]:
    """A link for every ordered pair of sites: 0 to 80 ms, 0.3 MB/s to 1 GB/s."""
    return tuple(
        SiteLink(
            from_site=a,
            to_site=b,
            latency=float(rng.choice([0.0, 0.001, 0.08])),
            bandwidth=float(10 ** rng.uniform(5.5, 9)),
        )
        for a in sites
        for b in sites
    )


def stages_of(edges: Sequence[int], groups: Sequence[Sequence[str]], **more: object) -> tuple[Stage, ...]:
    """A stage from every edge to the next, with a replica on each device of its group."""
    return tuple(
        Stage(first_op=first, end_op=end, replicas=tuple((device,) for device in group), **more)
        for (first, end), group in zip(itertools.pairwise(edges), groups, strict=True)
    )


def random_cluster(rng: random.Random, devices: int, *, nics: bool) -> Cluster:
    """Devices of two kinds on shared hosts in up to four sites, every directed link its own."""
    sites = [f"site-{i}" for i in range(rng.randint(1, 4))]
    hosts = [{"id": f"host-{i}", "site": rng.choice(sites)} for i in range(rng.randint(1, devices))]
    for host in hosts:
        if nics and rng.random() < 0.8:
            host["nic_out"] = rng.choice(["50 Mbit/s", "200 Mbit/s"])
        if nics and rng.random() < 0.8:
            host["nic_in"] = rng.choice(["50 Mbit/s", "200 Mbit/s"])
    used = sorted({host["site"] for host in hosts})
    data = {
        "name": "random",
        "sites": [{"name": n, "latitude": 0.0, "longitude": 10.0 * i} for i, n in enumerate(used)],
        "hosts": hosts,
        "devices": [
            {"id": f"d{i}", "kind": rng.choice(["CPU generic", "T4"]), "host": hosts[i % len(hosts)]["id"]}
            for i in range(devices)
        ],
        "site_links": [
            {
                "from": a,
                "to": b,
                "latency": rng.choice(["0 s", "1 ms", "20 ms"]),
                "bandwidth": rng.choice(["20 Mbit/s", "100 Mbit/s", "1 Gbit/s"]),
            }
            for a in used
            for b in used
        ],
    }
    return checked(Cluster, data, "random", from_file=True)


def random_plan(seed: int, *, nics: bool = True, codecs: bool = True, zero: bool = True) -> Plan:
    """A plan of one to four stages with one to three replicas each, ragged or interleaved or neither; `zero`: in one of
    four ZeRO stage 1.
    """
    rng = random.Random(seed)
    num_stages = rng.randint(1, 4)
    equal = rng.random() < 0.5
    replicas = [rng.randint(1, 3)] * num_stages if equal else [rng.randint(1, 3) for _ in range(num_stages)]
    shares = [rng.randint(1, 6) for _ in range(max(replicas))]
    tuning = TUNINGS[seed % len(TUNINGS)]
    workload = tuned(tiny_workload(layers=8, global_batch=2 * sum(shares)), tuning)
    cluster = random_cluster(rng, sum(replicas) + rng.randint(0, 2), nics=nics)
    ids = list(cluster.device_ids)
    rng.shuffle(ids)
    edges = [0, *sorted(rng.sample(range(1, 20), num_stages - 1)), len(workload.graph.ops)]
    allowed = ("none", "fp16", "int8") if codecs else ("none",)
    free = iter(ids)
    stages = tuple(
        Stage(
            first_op=edges[s],
            end_op=edges[s + 1],
            replicas=tuple((next(free),) for _ in range(replicas[s])),
            in_flight=rng.randint(1, 6),
            recompute=rng.random() < 0.3,
            reduce_codec=Codec(name=rng.choice(allowed)),
        )
        for s in range(num_stages)
    )
    used = [device for stage in stages for replica in stage.replicas for device in replica]
    rng.shuffle(used)
    constraints = {"codecs": allowed, "zero": int(zero and seed % 4 == 2)}
    problem = Problem(cluster=cluster, workload=workload, constraints=constraints)
    plan = Plan(
        problem=problem,
        stages=stages,
        routes=tuple(
            Route(replicas=tuple(r % n for n in replicas), micro_batches=share) for r, share in enumerate(shares)
        ),
        link_codecs=tuple(
            LinkCodec(from_device=a, to_device=b, role=role, codec=Codec(name=rng.choice(allowed)))
            for a in used
            for b in used
            for role in ("activation", "gradient")
            if a != b and codecs and rng.random() < 0.3
        ),
        ranks=tuple(used),
        schedule=rng.choice(["1f1b", "gpipe"]),
        reducer=rng.choice(["sharded-ps", "central-ps", "ring", "hierarchical"]),
    )
    if equal and 1 < num_stages < 4 and rng.random() < 0.3:
        return interleave(plan, chunks=2, in_flight=rng.randint(1, 6))
    return plan
