"""What one change would make a problem feasible: tried on the problem, not guessed.

In order: another number of stages or replicas, a smaller micro-batch, optimizer states sharded over replicas (ZeRO 1),
groups of a host's devices (tensor parallelism, then ZeRO 3), the excluded devices, and two of these together. Then what
is out of scope: weights sharded over replicas of several hosts (ZeRO 3), tensor parallelism between hosts. Last, more
devices. Recomputation is no advice: a search recomputes by itself where that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.cost.capacity import Capacity, find_fit
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.problem import Problem
from hetplanner.units import short_bytes
from hetplanner.workload.tensor_degrees import DEGREES, SHARDING_WORDS, Sharding, why_not

MOST_TENSOR_PARALLEL = 64
ADVISED: tuple[Sharding, ...] = ("tensor", "zero3")


@dataclass(frozen=True)
class Advice:
    """What would help.

    Attributes:
        text: in words, for the end of a message.
        problem: the changed problem, which has a plan; None where the change is out of scope or takes other devices.
    """

    text: str
    problem: Problem | None = None


def advise(tables: CostTables) -> Advice:
    """The smallest change after which the problem of some tables has a plan."""
    known: dict[object, Capacity] = {}
    for text, problem in _changes(tables.problem):
        key = problem.workload.micro_batch, problem.constraints.excluded, problem.groups, problem.constraints.zero
        # A change of shape alone needs no new tables.
        shape = fitting_shape(known.setdefault(key, Capacity(CostTables(problem))), problem)
        if shape is not None:
            return Advice(text.format(stages=shape[0], replicas=shape[1]), problem)
    options = [option for option in (_sharding(tables), _tensor_parallel(tables)) if option]
    more = _more_devices(tables)
    if not options:
        return Advice(f"{more} would help" if more else _both(tables))
    text = f"{' or '.join(options)} would help (not supported)"
    return Advice(f"{text}, and so would {more}" if more else f"{text}, else larger devices")


def fitting_shape(capacity: Capacity, problem: Problem) -> tuple[int, int] | None:
    """A number of stages and replicas, within the problem's constraints, that the devices hold; the fewest stages."""
    return next((shape for shape in allowed_shapes(problem) if capacity.fit(*shape) is not None), None)


def allowed_shapes(problem: Problem) -> Iterator[tuple[int, int]]:
    """Shapes within the constraints; of free replicas only one each, which needs least of the devices.

    With ZeRO more replicas need less each: all powers of two.
    """
    wanted = problem.constraints
    usable, most = len(problem.usable_devices), problem.workload.most_stages
    numbers = [2**k for k in range(usable.bit_length())] if wanted.zero else [1]
    for replicas in [wanted.replicas] if wanted.replicas else numbers:
        if replicas > problem.workload.num_micro_batches:
            return
        for stages in [wanted.stages] if wanted.stages else range(1, min(most, usable) + 1):
            if stages <= most and stages * replicas <= usable:
                yield stages, replicas


def _changes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Changes with what to call them, the least first; ``{stages}`` and ``{replicas}`` stand for what fits then."""
    yield from _shape_changes(problem)
    smaller = list(_smaller_micro_batches(problem))
    yield from smaller
    yield from _sharded_states(problem)
    yield from _groups(problem)
    if problem.constraints.excluded:
        free = problem.replace(constraints=problem.constraints.replace(excluded=()))
        yield "the excluded devices would help", free
    for text, changed in smaller[-1:]:
        head = text.removesuffix(" would help")
        for other, both in _shape_changes(changed):
            yield f"{head} together with {other.removesuffix(' would help')} would help", both


def _shape_changes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    wanted = problem.constraints
    if wanted.stages is not None:
        most = min(problem.workload.most_stages, len(problem.usable_devices) // (wanted.replicas or 1))
        for stages in range(wanted.stages + 1, most + 1):
            changed = wanted.replace(stages=stages)
            text = f"more stages would help ({stages} instead of {wanted.stages}; they recompute activations)"
            yield text, problem.replace(constraints=changed)
    if wanted.replicas is not None and wanted.replicas > 1:
        for replicas in range(wanted.replicas - 1, 0, -1):
            changed = wanted.replace(replicas=replicas)
            text = f"fewer replicas would help ({replicas} instead of {wanted.replicas})"
            yield text, problem.replace(constraints=changed)
    if wanted.stages is not None and wanted.replicas is not None:
        free = wanted.replace(stages=None, replicas=None)
        text = "more stages with fewer replicas would help ({stages} x {replicas})"
        yield text, problem.replace(constraints=free)


def _sharded_states(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """ZeRO stage 1, where replicas reduce in every step and the optimizer allows it."""
    wanted = problem.constraints
    if wanted.zero or wanted.replicas == 1 or problem.groups is not None or problem.objective == "dtfm":
        return
    with suppress(InvalidInput):
        sharded = problem.replace(constraints=wanted.replace(zero=1))
        yield "sharding the optimizer's states over {replicas} replicas would help (--zero 1)", sharded


def _groups(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Groups of one size in all hosts that have so many equal devices."""
    if problem.groups is not None or problem.constraints.tensor != (1,) or problem.objective == "dtfm":
        return
    for sharding, degree in product(ADVISED, DEGREES[1:]):
        if not why_not(problem.workload, degree, sharding):
            constraints = problem.constraints.replace(tensor=(degree,), sharding=(sharding,))
            wanted = problem.replace(constraints=constraints)
            with suppress(InvalidInput):  # no host has so many
                ways = Groupings(wanted)
                (divisions,) = ways.alike()
                more = "" if sharding == "tensor" else f" --sharding {sharding}"
                text = f"{SHARDING_WORDS[sharding]} inside hosts would help (--tensor 1,{degree}{more})"
                yield text, wanted.replace(groups=ways.groups(divisions))


def _smaller_micro_batches(problem: Problem) -> Iterator[tuple[str, Problem]]:
    workload = problem.workload
    for size in range(workload.micro_batch - 1, 0, -1):
        if workload.global_batch % size == 0:
            text = f"a smaller micro_batch would help ({size} instead of {workload.micro_batch})"
            with suppress(InvalidInput):  # a group cannot divide its samples
                yield text, problem.replace(workload=workload.with_micro_batch(size))


def _sharding(tables: CostTables) -> str | None:
    """Weights and states sharded over the fewest replicas (a power of two, if free) that make the problem fit."""
    problem, capacity = tables.problem, Capacity(tables)
    usable, wanted = len(problem.usable_devices), problem.constraints
    most = min(usable, problem.workload.num_micro_batches)
    for replicas in [wanted.replicas] if wanted.replicas else [2**k for k in range(1, most.bit_length())]:
        if 1 < replicas <= most:
            sharded = tables.shardable_bytes_per_trained * (1.0 - 1.0 / replicas)
            limits = _group_limits(capacity, replicas)
            if _fits_some(capacity.stage_bytes_KK(replicas=replicas, sharded=sharded), limits, problem):
                return f"sharding of weights over {replicas} replicas (ZeRO 3)"
    return None


def _tensor_parallel(tables: CostTables) -> str | None:
    """Tensor parallelism over the fewest devices (a power of two), which then hold a stage in equal parts."""
    problem, capacity = tables.problem, Capacity(tables)
    replicas = problem.constraints.replicas or 1
    bytes_KK = capacity.stage_bytes_KK(replicas=replicas)
    ways = 2
    while ways * replicas <= len(capacity.devices_D) and ways <= MOST_TENSOR_PARALLEL:
        if _fits_some(bytes_KK, ways * _group_limits(capacity, ways * replicas), problem):
            return f"tensor parallelism over {ways} devices of several hosts"
        ways *= 2
    return None


def _more_devices(tables: CostTables) -> str | None:
    """The fewest more devices like the one with the most memory."""
    problem, capacity = tables.problem, Capacity(tables)
    replicas = problem.constraints.replicas or 1
    if replicas > problem.workload.num_micro_batches:
        return None
    bytes_KK = capacity.stage_bytes_KK(replicas=replicas)
    memory_D = tables.devices.memory_bytes_D[capacity.devices_D]

    def fits(count: int) -> bool:
        more_D = np.concatenate((np.full(count, memory_D[0]), memory_D))
        return _fits_some(bytes_KK, more_D[replicas - 1 :: replicas], problem)

    low, high = 0, (problem.constraints.stages or tables.most_stages) * replicas
    if not fits(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    device = problem.cluster.devices[int(capacity.devices_D[0])]
    return f"{high} more device{'s' if high > 1 else ''} like {device.id} ({device.kind})"


def _both(tables: CostTables) -> str:
    """Where neither more devices nor splitting a layer among those there are would do."""
    capacity = Capacity(tables)
    least = float(np.diag(capacity.stage_bytes_KK(), 1).max())
    largest = float(tables.devices.memory_bytes_D[capacity.devices_D[0]])
    if least <= largest:
        return "more and larger devices would help"
    ways = f" over {int(np.ceil(least / largest))} or more devices of a host" if largest > 0 else ""
    return (
        f"its largest layer alone needs {short_bytes(least)}: tensor parallelism{ways} (--tensor) together with more"
        " devices would help, else larger devices"
    )


def _group_limits(capacity: Capacity, size: int) -> FloatArray:
    """Memory of the smallest device of each group of so many, the largest group first."""
    memory_D = capacity.tables.devices.memory_bytes_D[capacity.devices_D]
    return np.asarray(memory_D[size - 1 :: size])


def _fits_some(bytes_KK: FloatArray, limits_G: FloatArray, problem: Problem) -> bool:
    """Whether some number of stages within the constraints fits into the first so many groups."""
    wanted, most = problem.constraints.stages, min(problem.workload.most_stages, len(bytes_KK) - 1)
    numbers = [wanted] if wanted else range(1, most + 1)
    return any(s <= len(limits_G) and find_fit(bytes_KK, limits_G[:s]) is not None for s in numbers)
