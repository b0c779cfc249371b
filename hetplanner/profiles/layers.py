"""The layers of a workload for a profile: groups of operators that are measured together, equal ones once."""

from collections.abc import Sequence

from hetplanner.profiles.model import LayerRun
from hetplanner.workload.model import Op
from hetplanner.workload.workload import Workload

USUAL_NAMES = ("embedding", "block", "head")
"""What the first, the repeated and the last group of a transformer by formula are called."""


def layer_runs(workload: Workload) -> tuple[LayerRun, ...]:
    """The layers of a workload from its first operator to its last.

    A group ends where the operators' layer changes and a stage may end; equal groups bear one name. A transformer by
    formula has `embedding`, `block` and `head` (with norm and loss), and others where blocks differ.
    """
    groups = layer_groups(workload)
    names: dict[tuple[object, ...], str] = {}
    taken: set[str] = set()
    runs: list[LayerRun] = []
    for i, group in enumerate(groups):
        key = tuple(_signature(op) for op in group)
        if key not in names:
            wanted = _wanted_name(group, i, len(groups), is_formula=workload.transformer is not None)
            names[key] = next(n for n in (wanted, *(f"{wanted} {k}" for k in range(2, 20_002))) if n not in taken)
            taken.add(names[key])
        if runs and runs[-1].name == names[key]:
            runs[-1] = runs[-1].replace(times=runs[-1].times + 1)
        else:
            runs.append(LayerRun(name=names[key], ops=len(group)))
    return tuple(runs)


def layer_groups(workload: Workload) -> list[Sequence[Op]]:
    """The operators of every layer, see :func:`layer_runs`."""
    ops, may_end = workload.graph.ops, set(workload.boundaries)
    starts = [0]
    for k in range(1, len(ops)):
        one, two = ops[k - 1].layer, ops[k].layer
        if k in may_end and (one != two or one is None):
            starts.append(k)
    return [ops[start:end] for start, end in zip(starts, [*starts[1:], len(ops)], strict=True)]


def _signature(op: Op) -> tuple[object, ...]:
    fields = {name: getattr(op, name) for name in Op.model_fields if name not in ("name", "layer", "inputs")}
    return (*fields.values(), len(op.inputs))


def _wanted_name(group: Sequence[Op], place: int, count: int, *, is_formula: bool) -> str:
    if is_formula:
        return USUAL_NAMES[0 if place == 0 else 2 if place == count - 1 else 1]
    return max(group, key=lambda op: op.forward_flops).name
