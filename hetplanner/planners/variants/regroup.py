"""A plan on worker groups of another size. Its stages keep the devices they have as far as groups allow.

A new group serves the stage that its devices served. Where these served several stages, it serves the one of them
that has the least of its former FLOP/s back. Shares follow the FLOP/s of the groups; cut, recomputation, depths, codecs
and reducer are the best of few that are tried. Placements are not searched.

Legend of array suffixes: S stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.model import Plan, Route
from hetplanner.plan.problem import Problem
from hetplanner.planners.layout import apportion, complete_plan, proportional_cut, value_of
from hetplanner.planners.variants.depths import max_depths
from hetplanner.workload.tensor_degrees import Sharding, TensorDegree


def with_degree(problem: Problem, degree: TensorDegree) -> Problem:
    """The problem with groups of one size in all hosts that have so many equal devices.

    They divide what the problem's groups do, or what it allows first. A number of replicas that the groups cannot fill
    is left to the planner.

    Raises:
        InvalidInput: the model's layers cannot be divided so, or no host has so many equal devices.
    """
    now = next((group.sharding for group in problem.groups or ()), problem.constraints.sharding[0])
    sharding: Sharding = now if degree > 1 else "tensor"
    wanted = problem.constraints.replace(tensor=(degree,), sharding=(sharding,))
    alone = problem.replace(groups=None, constraints=wanted)
    ways = Groupings(alone)
    try:
        (degrees,) = ways.alike()
    except InvalidInput as error:
        raise InvalidInput(f"what if: {str(error).removeprefix('constraints.tensor: ')}") from None
    made = alone if degree == 1 else alone.replace(groups=ways.groups(degrees))
    if wanted.replicas and (wanted.stages or 1) * wanted.replicas > len(made.usable_devices):
        made = made.replace(constraints=wanted.replace(replicas=None))
    return made


def regroup(plan: Plan, problem: Problem) -> Plan:
    """The plan on the groups of another problem of the same cluster and model.

    Args:
        plan: not interleaved.
        problem: of `with_degree`.

    Returns:
        The plan of `problem`, checked, with its estimate.

    Raises:
        Infeasible: a stage has no group, or a group cannot hold its share, saying which.
    """
    if plan.is_interleaved:
        raise Infeasible("what if: an interleaved plan keeps its groups; start from the plan that it was made of")
    model = CostModel.of(problem)
    workers_S = _workers(plan, problem, model.tables.devices)
    moved = _moved(plan, problem, workers_S, model.tables.devices)
    best: Plan | None = None
    error: Infeasible | None = None
    for candidate in _candidates(moved, workers_S, model):
        try:
            found = complete_plan(candidate, model)
        except Infeasible as failure:
            error = error or failure
            continue
        if best is None or value_of(found) < value_of(best):
            best = found
    if best is None:
        assert error is not None
        raise error
    return best


def _workers(plan: Plan, problem: Problem, devices: DeviceTable) -> list[list[str]]:
    """By stage the groups (or devices alone) that serve it, by their first devices, in the order of the routes."""
    stage_of, turn_of = dict[str, int](), dict[str, int]()
    for turn, route in enumerate(plan.routes):
        for s, r in enumerate(route.replicas):
            for device in plan.problem.members_of(plan.stages[s].replicas[r][0]):
                stage_of[device] = s
                turn_of.setdefault(device, turn)
    members = {w: [d for d in problem.members_of(w) if d in stage_of] for w in problem.usable_devices}
    votes = {w: Counter(stage_of[d] for d in served) for w, served in members.items() if served}
    if len(votes) < len(plan.stages):
        raise Infeasible(
            f"what if: the plan's devices make {workers_text(votes, problem)}, fewer than its {len(plan.stages)}"
            " stages; search with fewer stages"
        )
    before_S, now_S = _rates(plan), np.zeros(len(plan.stages))
    workers_S: list[list[str]] = [[] for _ in plan.stages]
    # Those whose devices served one stage have no choice, so they come first.
    for worker in sorted(votes, key=lambda w: len(votes[w])):
        s = min(votes[worker], key=lambda s: (now_S[s] / before_S[s], -votes[worker][s]))
        workers_S[s].append(worker)
        now_S[s] += devices.rate_flops_per_s_D[problem.cluster.device_index(worker)]
    for workers in workers_S:
        if not workers:
            workers.append(max(workers_S, key=len).pop())
    order = {w: min(turn_of[d] for d in members[w]) for w in votes}
    most = problem.workload.num_micro_batches
    return [sorted(workers, key=lambda w: order[w])[:most] for workers in workers_S]


def workers_text(workers: Iterable[str], problem: Problem) -> str:
    """'6 groups of 2 and 1 single device': groups by their first devices."""
    degrees = Counter(problem.degree_of(worker) for worker in workers)
    return " and ".join(
        f"{count} group{'s' if count > 1 else ''} of {degree}"
        if degree > 1
        else f"{count} single device{'s' if count > 1 else ''}"
        for degree, count in sorted(degrees.items(), reverse=True)
    )


def _rates(plan: Plan) -> FloatArray:
    """FLOP/s of each stage's replicas together."""
    rate_D = CostTables(plan.problem).devices.rate_flops_per_s_D
    index = plan.problem.cluster.device_index
    return np.array([sum(rate_D[index(replica[0])] for replica in stage.replicas) for stage in plan.stages])


def _moved(plan: Plan, problem: Problem, workers_S: Sequence[Sequence[str]], devices: DeviceTable) -> Plan:
    """The plan with these workers; micro-batches in proportion to their FLOP/s, codecs none."""
    total, index = problem.workload.num_micro_batches, problem.cluster.device_index
    shares_S = [
        apportion(total, np.array([devices.rate_flops_per_s_D[index(w)] for w in workers])) for workers in workers_S
    ]
    stages = zip(plan.stages, workers_S, strict=True)
    return plan.replace(
        problem=problem,
        estimate=None,
        stages=tuple(stage.replace(replicas=tuple((w,) for w in workers)) for stage, workers in stages),
        routes=tuple(_routes(shares_S)),
        ranks=tuple(w for workers in workers_S for w in workers),
        link_codecs=(),
    )


def _routes(shares_S: Sequence[IntArray]) -> Iterator[Route]:
    """The fewest routes by which every replica has its share: replicas take micro-batches in turn, stage by stage."""
    ends_S = [np.cumsum(shares) for shares in shares_S]
    begin = 0
    for end in sorted({int(end) for ends in ends_S for end in ends}):
        replicas = tuple(int(np.searchsorted(ends, begin, side="right")) for ends in ends_S)
        yield Route(replicas=replicas, micro_batches=end - begin)
        begin = end


def _candidates(plan: Plan, workers_S: Sequence[Sequence[str]], model: CostModel) -> Iterator[Plan]:
    """With the plan's cut, and with stages in proportion to what their workers compute; as planned, and recomputing.

    Depths are the greatest that memory allows.
    """
    cuts = {(0, *(stage.end_op for stage in plan.stages)): None}
    if len(plan.stages) <= model.tables.most_stages:
        cuts[proportional_cut(model, _rates(plan))] = None
    for recompute, cut in product((False, True), cuts):
        stages = tuple(
            stage.replace(first_op=a, end_op=b, recompute=stage.recompute or recompute)
            for stage, (a, b) in zip(plan.stages, pairwise(cut), strict=True)
        )
        made = plan.replace(stages=stages)
        depths = zip(made.stages, max_depths(made), strict=True)
        yield made.replace(stages=tuple(stage.replace(in_flight=max(1, depth)) for stage, depth in depths))
