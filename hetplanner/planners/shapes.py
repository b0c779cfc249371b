"""Numbers of stages and replicas that a problem allows."""

from __future__ import annotations

import numpy as np

from hetplanner.cost.advice.feasibility import fitting_shape
from hetplanner.cost.capacity import Capacity
from hetplanner.cost.check import check_problem, explain_infeasible
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.planners.pins import shapes_with_room

# Shapes that use less than this share of the devices are not tried unless asked for.
LEAST_USE = 0.75
# Up to so many replicas every number is tried, above only some.
ALL_REPLICAS = 12
MANY_DEVICES = 128


def fixed_shape(problem: Problem) -> tuple[int, int]:
    """The one shape for objectives and planners that do not choose it: what is free follows from the devices.

    Raises:
        InvalidInput: if neither degree is given, or they do not fit the cluster or the model.
    """
    wanted = problem.constraints
    usable, most_stages = len(problem.usable_devices), problem.workload.most_stages
    most_replicas = problem.workload.num_micro_batches
    if wanted.stages is None and wanted.replicas is None:
        raise InvalidInput("constraints: give the number of stages or of replicas (the other follows)")
    if wanted.stages is not None:
        stages, replicas = wanted.stages, wanted.replicas or max(1, min(usable // wanted.stages, most_replicas))
    else:
        assert wanted.replicas is not None
        stages, replicas = max(1, min(usable // wanted.replicas, most_stages)), wanted.replicas
    check_problem(problem, stages, replicas)
    return stages, replicas


def free_shapes(problem: Problem, tables: CostTables, *, spare: bool = False) -> list[tuple[int, int]]:
    """All shapes worth a search, within the constraints and the memory of all devices together.

    For each number of stages the most replicas that the devices allow, and for objective `cost` (where leaving
    devices out may pay) or where links are missing fewer as well.

    Args:
        problem: what to plan.
        tables: its cost tables.
        spare: also shapes that leave many devices idle, down to a single one.

    Raises:
        InvalidInput: if fixed degrees do not fit the cluster or the model, or pinned devices no shape.
    """
    wanted = problem.constraints
    if wanted.stages is not None and wanted.replicas is not None:
        check_problem(problem, wanted.stages, wanted.replicas)
        return shapes_with_room([(wanted.stages, wanted.replicas)], problem)
    usable = len(problem.usable_devices)
    if wanted.stages is not None or wanted.replicas is not None:
        check_problem(problem, wanted.stages or 1, wanted.replicas or 1)
    most = problem.workload.num_micro_batches
    shapes = []
    for stages in [wanted.stages] if wanted.stages else range(1, min(tables.most_stages, usable) + 1):
        top = min(usable // stages, most)
        options = {wanted.replicas} if wanted.replicas else {top}
        if not wanted.replicas and spare:
            options |= _fewer(top, ALL_REPLICAS if usable <= MANY_DEVICES else ALL_REPLICAS // 3)
        elif not wanted.replicas and (problem.objective == "cost" or problem.cluster.has_gaps):
            options |= {top >> k for k in range(1, top.bit_length())}
        shapes += [(stages, r) for r in sorted(options - {0}) if stages * r <= usable]
    return _prune(shapes, problem, tables, usable, spare)


def _fewer(most: int, few_first: int) -> set[int]:
    """All numbers up to a few, then ever wider apart."""
    few = set(range(1, min(most, few_first) + 1))
    steps = range(int(2 * np.log2(max(most, 1))) + 1)
    return few | {round(most / 2 ** (k / 2)) for k in steps}


def _prune(
    shapes: list[tuple[int, int]], problem: Problem, tables: CostTables, usable: int, spare: bool
) -> list[tuple[int, int]]:
    """Drops shapes whose weights alone exceed all memory, and those that leave many devices idle for nothing."""
    shapes = shapes_with_room(shapes, problem)
    devices = [problem.cluster.device_index(d) for d in problem.usable_devices]
    have = float(tables.devices.memory_bytes_D[devices].sum())
    state = tables.stage_state_bytes(0, tables.num_ops)
    fitting = [(s, r) for s, r in shapes if r * (state - tables.sharded_bytes(0, tables.num_ops, r)) <= have] or shapes
    if problem.objective != "cost" and not spare and not problem.cluster.has_gaps:
        fitting = [(s, r) for s, r in fitting if s * r >= LEAST_USE * usable] or fitting
    capacity = Capacity(tables)
    if not any(capacity.fit(*shape) for shape in fitting):
        # Where no device can be spared for a replica, the smallest shape that fits is the one to search.
        rescue = fitting_shape(capacity, problem)
        return [rescue] if rescue else fitting
    return fitting


def feasible_shapes(
    model: CostModel, shapes: list[tuple[int, int]], *, both: bool = False
) -> list[tuple[tuple[int, int], bool]]:
    """Shapes that memory allows, each with whether its stages recompute activations.

    Where memory holds a layer's activations, but not those of a full pipeline, both ways are worth a search.

    Args:
        model: the cost model of the problem.
        shapes: to choose from.
        both: recomputation also where a full pipeline's activations fit (a slow network may want more in flight).

    Raises:
        Infeasible: if no shape fits.
    """
    problem, capacity = model.tables.problem, Capacity(model.tables)
    found = []
    for stages, replicas in shapes:
        full_depth = min(stages + 1, problem.workload.num_micro_batches // replicas)
        if not problem.workload.recompute and capacity.fit(stages, replicas, recompute=False):
            found.append(((stages, replicas), False))
            if not both and capacity.fit(stages, replicas, full_depth, recompute=False):
                continue
        if capacity.fit(stages, replicas):
            found.append(((stages, replicas), True))
    if not found:
        raise explain_infeasible(problem, model.tables, *max(shapes))
    return found
