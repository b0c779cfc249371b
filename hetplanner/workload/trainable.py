"""Whether a captured model's program can be performed in stages: checked from names and shapes alone, without torch."""

from math import prod

from hetplanner.errors import InvalidInput
from hetplanner.workload.calls import ALLOWED_CALLS
from hetplanner.workload.model import OpGraph
from hetplanner.workload.program import Node, Program, references
from hetplanner.workload.workload import Workload


def check_program(workload: Workload) -> None:
    """Refuses a program that the runtime cannot perform, or that does not belong to the workload's graph.

    Raises:
        InvalidInput: naming the workload, the call or weight, and what to do.
    """
    program = workload.program
    if program is None:
        raise InvalidInput(
            f"workload {workload.name}: this graph can only be planned, it has no program to train;"
            " capture the module again: hetplanner workload capture"
        )
    _check_batch(workload, program)
    _check_calls(workload.name, workload.graph, program)
    _check_weights(workload.name, workload.graph, program)


def _check_batch(workload: Workload, program: Program) -> None:
    if workload.micro_batch != program.micro_batch:
        raise InvalidInput(
            f"workload {workload.name}: micro_batch must be {program.micro_batch}, as it was captured, got"
            f" {workload.micro_batch}; capture it again with --micro-batch {workload.micro_batch}"
        )


def _check_calls(name: str, graph: OpGraph, program: Program) -> None:
    index = {op.name: i for i, op in enumerate(graph.ops)}
    op_of = {node.name: node.op for node in program.nodes}
    for node in program.nodes:
        if node.call not in ALLOWED_CALLS:
            raise InvalidInput(
                f"workload {name}: call {node.call!r:.60} of {node.name!r:.60} is not among those that the runtime"
                " performs; write it with other torch calls"
            )
        if node.op is not None and node.op not in index:
            raise InvalidInput(f"workload {name}: {node.name!r:.60} is part of {node.op!r:.60}, which is no op")
        for kind, source in references(node):
            if kind == "node":
                _check_read(name, graph, program, index, node, source, op_of[source])
    if op_of[program.loss] != graph.ops[-1].name:
        raise InvalidInput(f"workload {name}: the loss must be part of the last op, {graph.ops[-1].name!r:.60}")


def _check_read(
    name: str, graph: OpGraph, program: Program, index: dict[str, int], node: Node, source: str, giver: str | None
) -> None:
    """A value goes from op to op only as one of the giver's outputs along an edge of the graph."""
    if giver is None or giver == node.op:
        return
    edge = node.op is not None and giver in graph.ops[index[node.op]].inputs
    if not edge or source not in program.outputs.get(giver, ()) or source not in program.shape_of:
        raise InvalidInput(
            f"workload {name}: {node.name!r:.60} reads {source!r:.60} of op {giver!r:.60}, which the graph does not"
            " hand on; capture the module again"
        )


def _check_weights(name: str, graph: OpGraph, program: Program) -> None:
    index = {op.name: i for i, op in enumerate(graph.ops)}
    elements = dict.fromkeys(index, 0)
    shared: dict[str, set[tuple[str, ...]]] = {}
    for weight, users in program.users.items():
        parameter = program.parameters[weight]
        if not set(users) | {parameter.op} <= index.keys() or parameter.op != min(users, key=index.__getitem__):
            raise InvalidInput(
                f"workload {name}: {parameter.op!r:.60} is not the first op that uses weight {weight!r:.60}"
            )
        for op in users:
            elements[op] += prod(parameter.shape)
        if len(users) > 1:
            shared.setdefault(parameter.op, set()).add(users)
        for op in users[1:]:
            if graph.ops[index[op]].tied != parameter.op:
                raise InvalidInput(
                    f"workload {name}: op {op!r:.60} must be tied to {parameter.op!r:.60}, as {weight!r:.60} is"
                )
    for op, groups in shared.items():
        if len(groups) > 1:
            raise InvalidInput(
                f"workload {name}: the weights of {op!r:.60} are shared with different ops each, which cannot be cut;"
                " give every shared weight a module of its own"
            )
    for op_name, count in elements.items():
        if graph.ops[index[op_name]].num_params != count:
            raise InvalidInput(
                f"workload {name}: op {op_name!r:.60} has {graph.ops[index[op_name]].num_params} weights in the graph,"
                f" {count} in the program; capture the module again"
            )
