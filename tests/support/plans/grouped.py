"""Plans whose replicas are groups of devices, made of plans of single devices."""

from collections.abc import Sequence

from hetplanner.cluster.model import Cluster
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.model import Plan
from hetplanner.schema import checked


def in_groups(plan: Plan, degrees: Sequence[int]) -> Plan:
    """The plan with a group in the place of each rank, all on the rank's host.

    Args:
        plan: each of whose devices has a host of its own.
        degrees: of every rank; 1 leaves it a single device.
    """
    cluster = plan.problem.cluster
    data = cluster.model_dump(mode="json", by_alias=True)
    groups = []
    for device, degree in zip(plan.ranks, degrees, strict=True):
        (first,) = (d for d in data["devices"] if d["id"] == device)
        others = [f"{device}-{i}" for i in range(1, degree)]
        data["devices"] += [first | {"id": other} for other in others]
        if others:
            groups.append(WorkerGroup(devices=(device, *others)))
    problem = plan.problem.replace(cluster=checked(Cluster, data, "grouped"), groups=tuple(groups))
    return plan.replace(problem=problem)
