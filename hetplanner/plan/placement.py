"""Plans on real hosts: which ranks, peers and GPUs a host has, and whether a process runs where it should."""

from collections.abc import Sequence
from difflib import get_close_matches

from hetplanner.cluster.catalog import DeviceKind, find_kind
from hetplanner.cluster.measured import Measured, corrected
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan

HOST_VARIABLE = "HETPLANNER_HOST"
"""Tells a worker which of the plan's hosts its machine is."""
ADDRESS_VARIABLE = "HETPLANNER_ADDRESS"
"""Tells a worker the address at which the other hosts reach its machine."""
COORDINATOR_VARIABLE = "HETPLANNER_COORDINATOR"
"""Tells a host's part of a swarm the address and port of the coordinator."""


def workers_of(plan: Plan | ElasticPlan) -> tuple[str, ...]:
    """The devices that compute, each a process: those of a static plan's ranks, a swarm's peers of the start.

    A peer that is a group is its first device: it starts the others' processes.
    """
    return plan.peers if isinstance(plan, ElasticPlan) else plan.processes


def host_of_rank(plan: Plan | ElasticPlan, rank: int) -> str:
    """Id of the host that the plan has a process on; of a swarm, a peer by its number."""
    cluster = plan.problem.cluster
    return cluster.host_of(workers_of(plan)[rank]).id


def ranks_by_host(plan: Plan | ElasticPlan) -> dict[str, tuple[int, ...]]:
    """The plan's hosts in order of their lowest rank, each with its processes in ascending order; of a swarm its peers.

    The position of a host is torchrun's node rank; a process's local rank is its position among the host's processes.
    """
    found: dict[str, list[int]] = {}
    for rank in range(len(workers_of(plan))):
        found.setdefault(host_of_rank(plan, rank), []).append(rank)
    return {host: tuple(ranks) for host, ranks in found.items()}


def stages_on_host(plan: Plan, processes: Sequence[int]) -> set[int]:
    """The stages that some processes work on."""
    return {stage for process in processes for stage, _ in plan.places_of_rank[plan.rank_of_process[process]]}


def planned_gpus(plan: Plan | ElasticPlan, device: str, ranks: Sequence[int]) -> list[DeviceKind]:
    """The kinds of the GPUs that some ranks have; none where a run computes on processors.

    Args:
        plan: what is run.
        device: `TrainConfig.device`.
        ranks: of one host.
    """
    if device == "cpu":
        return []
    cluster = plan.problem.cluster
    workers = workers_of(plan)
    devices = [device for rank in ranks for device in _devices_of(plan, workers[rank])]
    kinds = [find_kind(cluster.devices[cluster.device_index(device)].kind) for device in devices]
    return [kind for kind in kinds if kind is not None and kind.grade != "cpu"]


def _devices_of(plan: Plan | ElasticPlan, worker: str) -> tuple[str, ...]:
    """The devices of a worker: itself, or the group that a swarm's peer is."""
    return plan.problem.members_of(worker) if isinstance(plan, ElasticPlan) else (worker,)


def on_measured_links(plan: Plan, measured: Measured) -> Plan:
    """The same plan over the links between its hosts as they were measured."""
    cluster = corrected(plan.problem.cluster, measured, plan.ranks)
    return plan.replace(problem=plan.problem.replace(cluster=cluster))


def rank_on_host(plan: Plan, host: str, local_rank: int, num_processes: int) -> int:
    """The number of a process in the plan; up to the number of ranks that of the rank it works for.

    Args:
        plan: what is run.
        host: id of the host that the process runs on.
        local_rank: its number on that host.
        num_processes: started there.

    Raises:
        InvalidInput: the plan has no such host, or another number of devices there.
    """
    hosts = ranks_by_host(plan)
    if host not in hosts:
        near = get_close_matches(host, hosts, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"{HOST_VARIABLE}: {host!r:.80} is no host of the plan ({_listed(hosts)}){hint}")
    ranks = hosts[host]
    if num_processes != len(ranks):
        devices = ", ".join(plan.processes[rank] for rank in ranks[:8])
        raise InvalidInput(
            f"host {host}: {num_processes} processes were started, but the plan has {len(ranks)} devices there"
            f" ({devices}); use --nproc-per-node={len(ranks)} on this host"
        )
    return ranks[local_rank]


def check_host(plan: Plan, rank: int, said: str | None, hostname: str) -> None:
    """Refuses a process on another machine than the plan has its rank on.

    Args:
        plan: what is run, over several machines.
        rank: the plan's rank that the process would take.
        said: the host that its launcher says this machine is; None: the launcher names no host.
        hostname: what the machine calls itself, with or without domain.

    Raises:
        InvalidInput: it is another host, or cannot be told; with both names.
    """
    hosts, planned = ranks_by_host(plan), host_of_rank(plan, rank)
    found = next((name for name in (hostname, hostname.partition(".")[0]) if name in hosts), None)
    if found is None and said is None:
        raise InvalidInput(
            f"rank {rank}: the plan has it on host {planned!r:.80}, and this machine is called {hostname!r:.80}, which"
            f" is no host of the plan ({_listed(hosts)}); set {HOST_VARIABLE} to the host that it stands for"
        )
    here = found or said
    if here != planned or (said is not None and said != planned):
        raise InvalidInput(
            f"rank {rank}: runs on host {here!r:.80}, but the plan has it (device {plan.processes[rank]}) on"
            f" {planned!r:.80}; give every host its own {HOST_VARIABLE}, as `hetplanner train --dry-run` prints it"
        )


def _listed(hosts: dict[str, tuple[int, ...]]) -> str:
    names = ", ".join(list(hosts)[:8])
    return names if len(hosts) <= 8 else f"{names} and {len(hosts) - 8} more"
