"""Rehearsals: a large problem made small enough to train for real on one machine, on the same links.

The sites, hosts, links and NICs stay as they are; of the devices only stages × replicas remain, spread over as
many sites as possible, each stood in for by a CPU; the model becomes a tiny preset. It is re-planned, not
scaled: the small problem's best plan is its own.
"""

from hetplanner.cluster.model import Cluster, Device
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.workload.workload import Workload

REHEARSAL_KIND = "CPU generic"


def rehearsal_problem(problem: Problem, workload: Workload, *, stages: int = 2, replicas: int = 2) -> Problem:
    """The problem of a rehearsal of `problem`.

    Args:
        problem: what is rehearsed.
        workload: a model that trains on CPUs, such as `preset("tiny-gpt")`; it takes the optimizer of `problem`.
        stages, replicas: shape of the rehearsal; their product is the number of processes.

    Raises:
        InvalidInput: if the problem has fewer devices than stages × replicas.
    """
    wanted = stages * replicas
    usable = problem.usable_devices
    if wanted > len(usable):
        raise InvalidInput(
            f"rehearsal: {stages} stages × {replicas} replicas need {wanted} devices,"
            f" the cluster has {len(usable)}; choose fewer"
        )
    cluster = problem.cluster.subset(_spread(problem.cluster, usable, wanted))
    stand_ins = tuple(Device(id=d.id, kind=REHEARSAL_KIND, host=d.host) for d in cluster.devices)
    full = problem.constraints
    shape = f", {full.stages} × {full.replicas}" if full.stages and full.replicas else ""
    return Problem(
        cluster=cluster.replace(devices=stand_ins, transfer=None),
        workload=workload.replace(optimizer=problem.workload.optimizer),
        objective="step-time",
        constraints=full.replace(stages=stages, replicas=replicas, excluded=(), tensor=(1,), sharding=("tensor",)),
        rehearsal_of=f"{problem.workload.name} on {problem.cluster.name}{shape}",
    )


def _spread(cluster: Cluster, usable: tuple[str, ...], wanted: int) -> list[str]:
    """Ids of devices taken from sites in turn; with fewer devices than sites, from evenly spaced sites."""
    by_site: dict[str, list[str]] = {}
    for device in usable:
        by_site.setdefault(cluster.site_of(device).name, []).append(device)
    sites = list(by_site.values())
    if wanted < len(sites):
        sites = [sites[i * len(sites) // wanted] for i in range(wanted)]
    chosen: list[str] = []
    turn = 0
    while len(chosen) < wanted:
        chosen += [site[turn] for site in sites if turn < len(site)][: wanted - len(chosen)]
        turn += 1
    return [device for device in usable if device in set(chosen)]
