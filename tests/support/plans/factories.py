"""Small clusters, workloads and plans for tests."""

from collections.abc import Sequence

import numpy as np

from hetplanner.cluster.model import Cluster, Device, Host, Site, SiteLink
from hetplanner.plan.elastic.model import ElasticPlan, ElasticStage
from hetplanner.plan.elastic.settings import ElasticTimes, WiringSettings
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.schema import checked
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.presets import preset
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload


def small_cluster(
    devices: int, *, bandwidth: str = "50 Mbit/s", latency: str = "10 ms", nic: str | None = None
) -> Cluster:
    """One CPU device on its own host in each of `devices` sites, all links alike."""
    host_nic = {"nic_out": nic, "nic_in": nic} if nic else {}
    names = [f"site-{i}" for i in range(devices)]
    data = {
        "name": "small",
        "sites": [{"name": n, "latitude": 5.0 * (i % 18), "longitude": 10.0 * (i % 18)} for i, n in enumerate(names)],
        "hosts": [{"id": f"host-{i}", "site": n} | host_nic for i, n in enumerate(names)],
        "devices": [{"id": f"d{i}", "kind": "CPU generic", "host": f"host-{i}"} for i in range(devices)],
        "site_links": [{"from": a, "to": b, "latency": latency, "bandwidth": bandwidth} for a in names for b in names],
    }
    return checked(Cluster, data, "small", from_file=True)


def sites_cluster(
    sizes: Sequence[int],
    *,
    inside: tuple[str, str] = ("1 Gbit/s", "1 ms"),
    between: tuple[str, str] = ("50 Mbit/s", "20 ms"),
    nic: str | None = None,
) -> Cluster:
    """Sites of so many CPU devices, each on its own host; (bandwidth, latency) inside a site and between two."""
    host_nic = {"nic_out": nic, "nic_in": nic} if nic else {}
    names = [f"site-{i}" for i in range(len(sizes))]
    hosts = [(f"h{i}-{k}", name) for i, name in enumerate(names) for k in range(sizes[i])]

    def link(a: str, b: str) -> dict[str, str]:
        bandwidth, latency = inside if a == b else between
        return {"from": a, "to": b, "latency": latency, "bandwidth": bandwidth}

    data = {
        "name": "sites",
        "sites": [{"name": n, "latitude": 5.0 * i, "longitude": 10.0 * i} for i, n in enumerate(names)],
        "hosts": [{"id": host, "site": site} | host_nic for host, site in hosts],
        "devices": [{"id": f"d{i}", "kind": "CPU generic", "host": host} for i, (host, _) in enumerate(hosts)],
        "site_links": [link(a, b) for a in names for b in names],
    }
    return checked(Cluster, data, "sites", from_file=True)


def hosted(hosts: dict[str, str]) -> Cluster:
    """Devices of one site, each on the host that is given for it."""
    base = sites_cluster([len(hosts)])
    return base.replace(
        hosts=tuple(Host(id=name, site=base.sites[0].name) for name in sorted(set(hosts.values()))),
        devices=tuple(base.devices[0].replace(id=device, host=host) for device, host in hosts.items()),
    )


def tiny_workload(*, layers: int = 4, global_batch: int = 32, micro_batch: int = 2) -> Workload:
    """A GPT of hidden size 32 with tied embeddings, in float32."""
    return small_gpt(layers=layers, global_batch=global_batch, micro_batch=micro_batch).replace(name="test-gpt")


def small_gpt(*, global_batch: int = 16, micro_batch: int = 2, optimizer: str = "adamw", **shape: object) -> Workload:
    """A GPT of hidden size 32 in float32, of any other shape that is given."""
    usual = {"vocab": 256, "max_seq_len": 32, "hidden": 32, "layers": 4, "heads": 2, "ffn": 64}
    return Workload(
        name="test",
        transformer=TransformerConfig(**(usual | shape)),
        global_batch=global_batch,
        micro_batch=micro_batch,
        seq_len=32,
        dtype="float32",
        optimizer=optimizer,
    )


TUNINGS = (
    None,
    FineTuning(adapters=Adapters(rank=4, alpha=8.0, targets=("c_attn",))),
    FineTuning(adapters=Adapters(rank=2, alpha=8.0, targets=("c_fc", "c_proj"))),
    FineTuning(frozen_layers=1),
    FineTuning(frozen_layers=2),
)
"""What of a small GPT may be trained."""


def tuned(workload: Workload, tuning: FineTuning | None) -> Workload:
    """The workload, of which so much is trained; all where it has no layer more than are to be frozen."""
    assert workload.transformer is not None
    if tuning is None or tuning.frozen_layers >= workload.transformer.layers:
        return workload
    return workload.replace(fine_tuning=tuning)


PAYERS = (
    {"egress_usd_per_gb": 0.0},
    {"egress_usd_per_gb": 0.09, "provider": "aws", "region": "us-east-1"},
    {"provider": "aws", "region": "us-east-1"},
    {"provider": "AWS", "region": "us-east-2"},
    {"provider": "aws", "region": "ap-south-1"},
    {"provider": "aws", "region": "nowhere-1"},
    {},
)
"""What a site may say of its egress."""


def unlike_cluster(rng: np.random.Generator, devices: int) -> Cluster:
    """Devices of three speeds and prices to match at three sites, whose egress has any sort of price, or none known."""
    peak_D = rng.choice([3e8, 1e9, 4e9], devices)
    names = ["a", "b", "c"]
    return Cluster(
        name="random",
        sites=tuple(
            Site(name=n, latitude=0.0, longitude=float(i), **PAYERS[rng.integers(len(PAYERS))])
            for i, n in enumerate(names)
        ),
        hosts=tuple(Host(id=f"h{n}", site=n) for n in names),
        devices=tuple(
            Device(
                id=f"d{i}",
                kind="any",
                host=f"h{rng.choice(names)}",
                peak={"float32": float(peak_D[i])},
                memory=1e12,
                memory_bandwidth=1e10,
                efficiency=0.5,
                reserve=0.0,
                price_usd_per_hour=float(peak_D[i] / 1e9 * rng.uniform(0.3, 1.0)),
            )
            for i in range(devices)
        ),
        site_links=tuple(
            SiteLink(from_site=x, to_site=y, latency=0.002, bandwidth=float(10 ** rng.uniform(6, 9)))
            for x in names
            for y in names
        ),
    )


def tied_workload(rng: np.random.Generator, micro_batches: int) -> Workload:
    """A GPT of four layers, tied embeddings in half of the draws, shared layers in half."""
    workload = small_gpt(
        global_batch=2 * micro_batches,
        vocab=int(rng.choice([64, 2000])),
        hidden=64,
        ffn=128,
        tie_embeddings=bool(rng.integers(2)),
        shared_layers=int(rng.choice([1, 1, 2, 4])),
    )
    return tuned(workload, TUNINGS[int(rng.integers(len(TUNINGS)))])


def chain_plan(
    shares: Sequence[int],
    cuts: Sequence[int],
    *,
    schedule: str = "1f1b",
    in_flight: Sequence[int] | None = None,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
) -> Plan:
    """A plan of len(cuts)+1 stages and len(shares) replicas; `cuts` are op indices, `shares` micro-batches a route."""
    workload = workload or tiny_workload(global_batch=2 * sum(shares))
    num_stages, replicas = len(cuts) + 1, len(shares)
    cluster = cluster or small_cluster(num_stages * replicas)
    edges = [0, *cuts, len(workload.graph.ops)]
    ids = cluster.device_ids
    depth = in_flight or [num_stages - s for s in range(num_stages)]
    stages = tuple(
        Stage(
            first_op=edges[s],
            end_op=edges[s + 1],
            replicas=tuple((ids[s * replicas + r],) for r in range(replicas)),
            in_flight=depth[s],
        )
        for s in range(num_stages)
    )
    routes = tuple(Route(replicas=(r,) * num_stages, micro_batches=n) for r, n in enumerate(shares))
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=stages,
        routes=routes,
        ranks=tuple(ids[: num_stages * replicas]),
        schedule=schedule,
    )


def sharded(plan: Plan) -> Plan:
    """The plan with ZeRO stage 1."""
    constraints = plan.problem.constraints.replace(zero=1)
    return plan.replace(problem=plan.problem.replace(constraints=constraints))


def swarm_plan(
    peers: Sequence[int],
    cuts: Sequence[int],
    *,
    in_flight: int = 2,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    **more: object,
) -> ElasticPlan:
    """An elastic plan of len(cuts)+1 stages with so many peers each, in the cluster's order; `cuts` are op indices."""
    workload = workload or tiny_workload()
    cluster = cluster or small_cluster(sum(peers))
    edges = [0, *cuts, len(workload.graph.ops)]
    ids = iter(cluster.device_ids)
    stages = tuple(
        ElasticStage(
            first_op=edges[s],
            end_op=edges[s + 1],
            peers=tuple(next(ids) for _ in range(count)),
            in_flight=in_flight,
        )
        for s, count in enumerate(peers)
    )
    return ElasticPlan(problem=Problem(cluster=cluster, workload=workload), stages=stages, **more)


def slow_swarm(
    peers: Sequence[int] = (2, 3, 2), *, peaks: Sequence[float] = (5e8, 1e9), micro_batches: int = 24
) -> ElasticPlan:
    """A swarm of tiny-gpt whose peers, if their speeds are emulated, make 5 to 30 micro-batches a second."""
    workload = preset("tiny-gpt", global_batch=micro_batches, micro_batch=1).replace(seq_len=16)
    cluster = small_cluster(sum(peers), bandwidth="200 Mbit/s", latency="2 ms")
    devices = [d.replace(peak={"float32": peaks[i % len(peaks)]}) for i, d in enumerate(cluster.devices)]
    cuts = [workload.boundaries[i] for i in (1, 3, 5, 7)[: len(peers) - 1]]
    plan = swarm_plan(peers, cuts, cluster=cluster.replace(devices=tuple(devices)), workload=workload, in_flight=8)
    # On a busy machine nobody is taken for dead who only waits for a core.
    times = ElasticTimes(silence=20.0, answer=20.0, reduce=30.0, lease=60.0)
    return plan.replace(wiring=WiringSettings(trainers=1, slots=8), times=times)


def image_workload(shape: tuple[int, int, int] = (1, 8, 8), classes: int = 10, *, global_batch: int = 8) -> Workload:
    """A captured program: pictures, flattened, one linear layer, cross-entropy; micro-batches of 4."""
    pixels = shape[0] * shape[1] * shape[2]
    ops = [
        {"name": "linear", "kind": "function", "num_params": classes * pixels, "output_bytes": 4 * classes},
        {"name": "loss", "kind": "loss", "inputs": ("linear",), "output_bytes": 4},
    ]
    nodes = [
        {"name": "flat", "call": "view.default", "args": ({"batch": "inputs"}, [4, pixels]), "shape": (4, pixels)},
        {"name": "logits", "call": "linear.default", "op": "linear", "shape": (4, classes),
         "args": ({"node": "flat"}, {"parameter": "weight"})},
        {"name": "loss", "call": "cross_entropy_loss.default", "op": "loss", "shape": (),
         "args": ({"node": "logits"}, {"batch": "labels"}, None, 2)},
    ]  # fmt: skip
    program = {
        "micro_batch": 4,
        "inputs": (4, *shape),
        "inputs_dtype": "float32",
        "labels": (4,),
        "parameters": {"weight": {"shape": (classes, pixels), "op": "linear", "init": [{"call": "zero_"}]}},
        "nodes": [node | {"dtype": "float32"} for node in nodes],
        "outputs": {"linear": ("logits",), "loss": ()},
        "loss": "loss",
        "num_targets": 1,
    }
    fields = {"name": "pictures", "captured": {"ops": ops}, "program": program, "global_batch": global_batch}
    return checked(Workload, fields | {"micro_batch": 4, "seq_len": 1, "dtype": "float32"}, "pictures")
