"""What the members of a group exchange that divide layers: tensor parallelism inside a host.

Layers are divided by columns and rows, embedding and head by words, norms and dropout by tokens (sequence
parallelism). Attention and MLP gather tokens and scatter a sum each way; backward they gather the tokens once more, so
that no member keeps those of others. The head gathers, and backward gathers again and scatters; the embedding
scatters, and gathers backward. The loss makes three all-reduces of a number a token. Of a captured model the steps of
its program tell.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198),
section 4.2.2 (sequence parallelism).

Legend of array suffixes: o ops.
"""

from __future__ import annotations

from math import prod

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.cost.compute.collectives import Collectives, Way
from hetplanner.workload.capturing.division import Step
from hetplanner.workload.optimizers import FLOAT_BYTES
from hetplanner.workload.workload import Workload

GATHERS: dict[str, tuple[int, int]] = {"attention": (1, 2), "mlp": (1, 2), "embedding": (0, 1), "head": (1, 1)}
SCATTERS: dict[str, tuple[int, int]] = {"attention": (1, 1), "mlp": (1, 1), "embedding": (1, 0), "head": (0, 1)}
"""Of a hidden state, forward and backward, by kind of operator."""
GATHERING_STEPS = ("collect", "whole", "gather")
LOSS_REDUCES = 3
LOSS_BYTES = 4
"""Of a number a token."""


def exchange_of_layers(collectives: Collectives, workload: Workload, way: Way) -> FloatArray:
    """By op: seconds that the members exchange in one micro-batch."""
    if workload.program is not None:
        return _exchange_of_steps(collectives, workload, way)
    ops, part = workload.graph.ops, 0 if way == "forward" else 1
    tokens = workload.micro_batch * workload.seq_len
    hidden = workload.transformer.hidden if workload.transformer else 0
    size = tokens * hidden * workload.dtype_bytes
    gather_s, scatter_s = collectives.all_gather(size), collectives.reduce_scatter(size)
    seconds = {kind: gather_s * GATHERS[kind][part] + scatter_s * SCATTERS[kind][part] for kind in GATHERS}
    seconds["loss"] = LOSS_REDUCES * collectives.all_reduce(tokens * LOSS_BYTES) if way == "forward" else 0.0
    first = workload.graph.first_trained if way == "backward" else 0
    return np.array([seconds.get(op.kind, 0.0) if i >= first else 0.0 for i, op in enumerate(ops)])


def _exchange_of_steps(collectives: Collectives, workload: Workload, way: Way) -> FloatArray:
    """The same of a captured model."""
    index = {op.name: i for i, op in enumerate(workload.graph.ops)}
    found = np.zeros(len(index))
    for step in workload.division(collectives.members).steps.values():
        if step.op is not None:
            found[index[step.op]] += _step_seconds(collectives, step, workload.dtype_bytes, way)
    if way == "backward":
        found[: workload.graph.first_trained] = 0.0
    return found


def _step_seconds(collectives: Collectives, step: Step, element_bytes: int, way: Way) -> float:
    """Seconds of a step: forward, or of its gradient; tokens that were collected are collected again."""
    size = prod(step.shape) * (FLOAT_BYTES if step.kind == "rows" else element_bytes)
    gather_s, scatter_s = collectives.all_gather(size), collectives.reduce_scatter(size)
    if way == "forward":
        summed = scatter_s if step.out is not None else collectives.all_reduce(size)
        loss = LOSS_REDUCES * collectives.all_reduce(step.shape[0] * LOSS_BYTES) if step.kind == "loss" else 0.0
        seconds = {"sum": summed, "rows": summed, "loss": loss}
        return gather_s if step.kind in GATHERING_STEPS else seconds.get(step.kind, 0.0)
    if not step.has_gradient:
        return 0.0
    if step.kind == "sum" and step.out is not None:
        return gather_s
    return {
        "collect": gather_s + scatter_s,
        "enter": collectives.all_reduce(size),
        "own part": collectives.all_reduce(size),
    }.get(step.kind, 0.0)
