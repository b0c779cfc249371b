"""A search that goes on from an existing plan: the plan's layout, adapted to the problem.

Legend of array suffixes: S stages, R replicas.
"""

from __future__ import annotations

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cluster.model import Cluster
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.layout import apportion, proportional_cut
from hetplanner.planners.pins import pin_placement
from hetplanner.planners.step_time.species import Start
from hetplanner.planners.variants.carry_over import carried_cut

# How many devices a message names.
NAMED = 3
SAME_LINK = 1e-9


class WarmStart:
    """The layout of a plan as a problem of the same cluster may use it.

    Args:
        plan: the plan to begin with.
        model: the cost model of the problem.

    Raises:
        InvalidInput: if the plan is of another cluster, or too little of it is usable.
    """

    def __init__(self, plan: Plan, model: CostModel) -> None:
        problem = model.tables.problem
        refuse_other_cluster(plan.problem.cluster, problem.cluster)
        self._model, self._problem = model, problem
        self.plan = _under(plan, problem, model)
        self.recompute = any(stage.recompute for stage in plan.stages)
        self.cut = carried_cut(plan, model)
        self.members, self.loads = self._members(plan)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Stages and replicas if every device is on one route of its own, else None."""
        counts = {len(rows) for rows in self.members}
        shares = {loads.tobytes() for loads in self.loads}
        return (len(self.members), counts.pop()) if len(counts) == len(shares) == 1 else None

    def of(self, shape: tuple[int, int]) -> list[Start]:
        """The layout where the shape is its own; for another the devices in the order of its pipelines."""
        stages, replicas = shape
        if shape == self.shape and self.cut is not None:
            return [Start(pin_placement(np.array(self.members), self._problem), self.cut, self.loads[0])]
        walk = self._walk()[: stages * replicas].reshape(replicas, stages).T
        placement = pin_placement(walk.copy(), self._problem)
        share = apportion(self._problem.workload.num_micro_batches, np.ones(replicas))
        return [Start(placement, proportional_cut(self._model, np.ones(stages)), share)]

    def _walk(self) -> IntArray:
        """All usable devices: those of the plan pipeline by pipeline, the others behind."""
        most = max(len(rows) for rows in self.members)
        walk = [int(rows[r]) for r in range(most) for rows in self.members if r < len(rows)]
        usable = [self._problem.cluster.device_index(d) for d in self._problem.usable_devices]
        return np.array(walk + [d for d in usable if d not in set(walk)], dtype=np.int64)

    def _members(self, plan: Plan) -> tuple[list[IntArray], list[IntArray]]:
        """Usable devices by stage in the order of their routes, and their micro-batches."""
        usable = set(self._problem.usable_devices)
        micro_batches = self._problem.workload.num_micro_batches
        members, loads = [], []
        for s, stage in enumerate(plan.stages):
            order = dict.fromkeys(route.replicas[s] for route in plan.routes)
            load = {r: sum(route.micro_batches for route in plan.routes if route.replicas[s] == r) for r in order}
            kept = [r for r in order if stage.replicas[r][0] in usable][:micro_batches]
            if not kept:
                raise InvalidInput(
                    f"start: every device of stage {s} ({', '.join(d for r in stage.replicas for d in r):.80}) is"
                    " excluded; allow one of them or search without this start"
                )
            members.append(np.array([self._problem.cluster.device_index(stage.replicas[r][0]) for r in kept]))
            loads.append(apportion(micro_batches, np.array([float(load[r]) for r in kept])))
        return members, loads


def refuse_other_cluster(start: Cluster, cluster: Cluster) -> None:
    """Refuses a start from a plan of another cluster. Raises InvalidInput naming what differs."""
    differences = list(_differences(start, cluster))
    if differences:
        raise InvalidInput(
            f"start: the plan is of another cluster ({start.name:.60}): {'; '.join(differences)}; plan from scratch, or"
            " start from a plan of this cluster"
        )


def _differences(start: Cluster, cluster: Cluster) -> list[str]:
    old = {d.id: (d, start.site_of(d.id).name) for d in start.devices}
    new = {d.id: (d, cluster.site_of(d.id).name) for d in cluster.devices}
    groups = {
        "only in the plan": [d for d in old if d not in new],
        "only in the cluster": [d for d in new if d not in old],
        "of another kind, host or site": [d for d in old if d in new and old[d] != new[d]],
    }
    found = [f"{_counted(ids)} {what}" for what, ids in groups.items() if ids]
    shared = [d for d in old if d in new]
    one = np.ix_(*[[start.device_index(d) for d in shared]] * 2)
    two = np.ix_(*[[cluster.device_index(d) for d in shared]] * 2)
    same = np.isclose(start.latency_s_DD[one], cluster.latency_s_DD[two], rtol=SAME_LINK, atol=0.0)
    rate = np.isclose(start.bandwidth_bytes_per_s_DD[one], cluster.bandwidth_bytes_per_s_DD[two], rtol=SAME_LINK)
    changed = np.argwhere(~(same & rate))
    if len(changed):
        first, second = (shared[k] for k in changed[0])
        found.append(f"{len(changed)} of {len(shared) * (len(shared) - 1)} links differ, such as {first} to {second}")
    hosts = {h.id: h for h in start.hosts}
    nics = [h.id for h in cluster.hosts if h.id in hosts and (h.nic_out, h.nic_in) != _nics(hosts[h.id])]
    return found + ([f"NICs of {len(nics)} hosts differ, such as {nics[0]:.60}"] if nics else [])


def _nics(host: object) -> tuple[object, object]:
    return getattr(host, "nic_out", None), getattr(host, "nic_in", None)


def _counted(ids: list[str]) -> str:
    named = ", ".join(f"{d:.60}" for d in ids[:NAMED])
    return f"{len(ids)} device{'s' if len(ids) > 1 else ''} ({named}{', …' if len(ids) > NAMED else ''})"


def _under(plan: Plan, problem: Problem, model: CostModel) -> Plan | None:
    """The plan as one of the problem, with an estimate; None if the problem does not allow it as it is."""
    wanted = problem.constraints
    replicas = {len(stage.replicas) for stage in plan.stages}
    if wanted.stages not in (None, len(plan.stages)) or (wanted.replicas is not None and replicas != {wanted.replicas}):
        return None
    try:
        same = plan.replace(problem=problem, estimate=None)
        check_plan(same, model.tables)
    except (InvalidInput, Infeasible):
        return None
    return same.replace(estimate=estimate_plan(same, model=model))
