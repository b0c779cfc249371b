"""Clusters of hosts with several GPUs, and plans whose ranks are groups of them."""

from collections.abc import Sequence
from typing import TypeVar

from hetplanner.cluster.model import Cluster
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.schema import checked
from hetplanner.workload.presets import preset
from hetplanner.workload.tensor_degrees import Sharding
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan

PlanT = TypeVar("PlanT", Plan, ElasticPlan)
GPT = preset("gpt2", global_batch=32, micro_batch=2, dtype="float16")


def hosts(*counts: tuple[str, int], link: str = "200 Gbit/s", between: str = "1 Gbit/s") -> Cluster:
    """One site with hosts of so many devices of a kind."""
    made = [(f"h{i}", kind, count) for i, (kind, count) in enumerate(counts)]
    data = {
        "name": "hosts",
        "sites": [{"name": "here", "latitude": 0, "longitude": 0}],
        "hosts": [{"id": h, "site": "here"} for h, _, _ in made],
        "devices": [{"id": f"{h}-{k}", "kind": kind, "host": h} for h, kind, count in made for k in range(count)],
        "site_links": [{"from": "here", "to": "here", "latency": "1 ms", "bandwidth": between}],
        "host_links": [{"host": h, "latency": "10 us", "bandwidth": link} for h, _, count in made if count > 1],
    }
    return checked(Cluster, data, "hosts", from_file=True)


def grouped_plan(degree: int = 2, *, kind: str = "T4", workload: Workload = GPT, cut: int = 13) -> Plan:
    """Two stages on two hosts of four GPUs: a replica for each group of so many, with an estimate."""
    cluster = hosts((kind, 4), (kind, 4))
    wanted = Problem(cluster=cluster, workload=workload, constraints=Constraints(tensor=(degree,)))
    ways = Groupings(wanted)
    grouped = wanted.replace(groups=ways.groups(ways.alike()[0]))
    replicas, total = 4 // degree, workload.num_micro_batches
    leaders = cluster.subset(grouped.usable_devices)
    plan = chain_plan([total // replicas] * replicas, [cut], cluster=leaders, workload=workload)
    plan = plan.replace(problem=grouped)
    return plan.replace(estimate=estimate_plan(plan))


def in_groups(plan: PlanT, degrees: Sequence[int], sharding: Sharding = "tensor") -> PlanT:
    """The plan with a group in the place of each rank or peer, all on its host.

    Args:
        plan: each of whose devices has a host of its own.
        degrees: of every rank or peer; 1 leaves it a single device.
        sharding: what the devices of each group divide.
    """
    cluster = plan.problem.cluster
    data = cluster.model_dump(mode="json", by_alias=True)
    groups = []
    workers = plan.peers if isinstance(plan, ElasticPlan) else plan.ranks
    for device, degree in zip(workers, degrees, strict=True):
        (first,) = (d for d in data["devices"] if d["id"] == device)
        others = [f"{device}-{i}" for i in range(1, degree)]
        data["devices"] += [first | {"id": other} for other in others]
        if others:
            groups.append(WorkerGroup(devices=(device, *others), sharding=sharding))
    problem = plan.problem.replace(cluster=checked(Cluster, data, "grouped"), groups=tuple(groups) or None)
    return plan.replace(problem=problem)
