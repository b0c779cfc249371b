"""Published runs as plans: hosts of equal GPUs, groups that divide layers, a pipeline with replicas, 1F1B."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.cluster.model import Cluster
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.profiles.model import Profile
from hetplanner.schema import checked
from hetplanner.workload.workload import Workload


@dataclass(frozen=True)
class HostKind:
    """Equal hosts in one room.

    Attributes:
        gpu: kind of its devices.
        inside: bandwidth between devices of a host, such as '170 Gbit/s'.
        nic: of a host, each way.
    """

    gpu: str
    inside: str
    nic: str


@dataclass(frozen=True)
class Timed:
    """A published run and what is predicted for it.

    Attributes:
        published_s: seconds of a step.
        closed_s, simulated_s: predicted by the closed form and by the simulator.
        is_fitted: whether the prediction knows this run.
    """

    published_s: float
    closed_s: float
    simulated_s: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """Of the simulator, relative."""
        return self.simulated_s / self.published_s - 1.0


def read_facts(name: str) -> dict[str, Any]:
    """A file of this folder."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return found


def room(hosts: Sequence[HostKind], *, between: str, gpus: int = 4, step_s: float = 0.0) -> Cluster:
    """A cluster of hosts in one site.

    Args:
        hosts: in the order of ranks.
        between: bandwidth of a pair of devices of two hosts.
        gpus: of each host.
        step_s: seconds of a step beside its plan.
    """
    data = {
        "name": "published",
        "sites": [{"name": "room", "latitude": 0, "longitude": 0}],
        "hosts": [
            {"id": f"n{i}", "site": "room", "nic_out": host.nic, "nic_in": host.nic} for i, host in enumerate(hosts)
        ],
        "devices": [
            {"id": f"n{i}-g{k}", "kind": host.gpu, "host": f"n{i}"} for i, host in enumerate(hosts) for k in range(gpus)
        ],
        "site_links": [{"from": "room", "to": "room", "latency": "20 us", "bandwidth": between}],
        "host_links": [{"host": f"n{i}", "latency": "10 us", "bandwidth": host.inside} for i, host in enumerate(hosts)],
        "transfer": {"step": f"{step_s * 1e3} ms"},
    }
    return checked(Cluster, data, "published", from_file=True)


def layout(
    cluster: Cluster, workload: Workload, *, degree: int, replicas: int, cut: Sequence[int], profile: Profile
) -> Plan:
    """All devices of a cluster in Megatron's order of ranks: tensor parallelism, then replicas, then stages.

    Args:
        cluster: its devices in the order of ranks.
        workload: a transformer by formula.
        degree: devices of a group.
        replicas: of each stage.
        cut: blocks in front of each inner boundary.
        profile: of the workload's layers.
    """
    ids = cluster.device_ids
    leaders = ids[::degree]
    groups = [WorkerGroup(devices=ids[i : i + degree]) for i in range(0, len(ids), degree)] if degree > 1 else None
    problem = Problem(cluster=cluster, workload=workload, groups=groups and tuple(groups), profile=profile)
    names = [op.name for op in workload.graph.ops]
    edges = [0, *(names.index(f"layer.{block}.attention") for block in cut), len(names)]
    stages, micro_batches = len(cut) + 1, workload.global_batch // replicas // workload.micro_batch
    made = tuple(
        Stage(
            first_op=edges[s],
            end_op=edges[s + 1],
            in_flight=min(stages - s, micro_batches),
            replicas=tuple((leaders[s * replicas + r],) for r in range(replicas)),
        )
        for s in range(stages)
    )
    routes = tuple(Route(replicas=(r,) * stages, micro_batches=micro_batches) for r in range(replicas))
    return Plan(problem=problem, stages=made, routes=routes, schedule="1f1b", reducer="ring", ranks=leaders)
