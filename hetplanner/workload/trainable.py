"""Whether a captured model can be trained: checked from names and shapes alone, without torch."""

from math import prod

from hetplanner.errors import InvalidInput
from hetplanner.workload.calls import ALLOWED_CALLS
from hetplanner.workload.model import OpGraph
from hetplanner.workload.program import Program
from hetplanner.workload.workload import Workload


def check_captured(workload: Workload) -> None:
    """Refuses a captured model without a program, or with one that the runtime cannot perform.

    Raises:
        InvalidInput: naming the workload, the call or the op, and what to do.
    """
    program = workload.program
    if program is None:
        raise InvalidInput(
            f"workload {workload.name}: this graph can only be planned, it has no program to train;"
            " capture the module again"
        )
    for node in program.nodes:
        if node.call not in ALLOWED_CALLS:
            raise InvalidInput(
                f"workload {workload.name}: call {node.call!r:.60} of {node.name!r:.60} is not among those that the"
                " runtime performs; write it with other torch calls"
            )
    _check_weights(workload.name, workload.graph, program)


def _check_weights(name: str, graph: OpGraph, program: Program) -> None:
    """Owners, sharing and sizes as the graph has them: reduction groups follow from the graph alone."""
    index = {op.name: i for i, op in enumerate(graph.ops)}
    elements = dict.fromkeys(index, 0)
    shared: dict[str, set[tuple[str, ...]]] = {}
    for weight, users in program.users.items():
        parameter = program.parameters[weight]
        if parameter.op != min(users, key=index.__getitem__):
            raise InvalidInput(
                f"workload {name}: {parameter.op!r:.60} is not the first op that uses weight {weight!r:.60}"
            )
        for op in users:
            elements[op] += prod(parameter.shape)
            if op != parameter.op and graph.ops[index[op]].tied != parameter.op:
                raise InvalidInput(
                    f"workload {name}: op {op!r:.60} must be tied to {parameter.op!r:.60}, whose {weight!r:.60} it uses"
                )
        if len(users) > 1:
            shared.setdefault(parameter.op, set()).add(users)
    for owner, groups in shared.items():
        if len(groups) > 1:
            raise InvalidInput(
                f"workload {name}: weights of {owner!r:.60} are shared with different ops each, which cannot be cut;"
                " give every shared weight a module of its own"
            )
    _check_trained(name, graph, program)
    for described in graph.ops:
        if described.num_params != elements[described.name]:
            raise InvalidInput(
                f"workload {name}: op {described.name!r:.60} has {described.num_params} weights in the graph,"
                f" {elements[described.name]} in the program; capture the module again"
            )


def _check_trained(name: str, graph: OpGraph, program: Program) -> None:
    """Frozen weights are known, and each op's trained ones are as many as the graph says."""
    frozen = set(program.frozen)
    if unknown := sorted(frozen - program.parameters.keys()):
        raise InvalidInput(f"workload {name}: program.frozen: no weight is called {unknown[0]!r:.60}")
    trained = dict.fromkeys((op.name for op in graph.ops), 0)
    for weight, users in program.users.items():
        for op in users if weight not in frozen else ():
            trained[op] += prod(program.parameters[weight].shape)
    for described in graph.ops:
        if described.trained != trained[described.name]:
            raise InvalidInput(
                f"workload {name}: op {described.name!r:.60} has {described.trained} trained weights in the graph,"
                f" {trained[described.name]} in the program; capture the module again"
            )
