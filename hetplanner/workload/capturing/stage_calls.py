"""The calls of a captured model's stage."""

from __future__ import annotations

from hetplanner.workload.program import Node, Program, references
from hetplanner.workload.workload import Workload


def calls_of(workload: Workload, program: Program, first_op: int, end_op: int) -> list[Node]:
    """The calls of a range of ops and the free calls that they need, in order."""
    mine = {op.name for op in workload.graph.ops[first_op:end_op]}
    wanted = {program.loss}
    chosen = []
    for node in reversed(program.nodes):
        if node.op in mine or (node.op is None and node.name in wanted):
            chosen.append(node)
            wanted |= {name for kind, name in references(node) if kind == "node"}
    return chosen[::-1]


def batch_reads(calls: list[Node]) -> frozenset[str]:
    """What calls read of a micro-batch: inputs, labels, both or neither."""
    return frozenset(name for node in calls for kind, name in references(node) if kind == "batch")
