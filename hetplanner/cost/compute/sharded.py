"""What the members of a group exchange that divide samples, and what they hold of weights (ZeRO 2 and 3).

Each member has some rows of every matrix. With ZeRO 3 a matrix is gathered forward, and again backward where its input
has a gradient; its own gradient is added up by a reduce-scatter in float32. With ZeRO 2 a member keeps the whole matrix
from one update to the next, and gathers once a step. Vectors and adapters are on every member.

Source: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), sections 5 and 7.

Legend of array suffixes: o ops.
"""

from __future__ import annotations

import math

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.cost.compute.collectives import Collectives, Way
from hetplanner.workload.model import Op
from hetplanner.workload.optimizers import FLOAT_BYTES
from hetplanner.workload.tensor_degrees import Sharding
from hetplanner.workload.workload import Workload

MATRIX_NDIM = 2


def summing_bytes(members: int) -> int:
    """Bytes that all members hold of each element of a matrix while its gradients are added up, in float32: its own
    gradient, those of the others, and the sum.
    """
    return 2 * FLOAT_BYTES * members + FLOAT_BYTES


def gathering_bytes_o(workload: Workload, members: int) -> FloatArray:
    """By op: bytes that all members hold while its largest matrix is gathered: it, and what each sends."""
    shape, ops = workload.transformer, workload.graph.ops
    if shape is None:
        largest_o = np.array([max(sizes, default=0) for sizes in _matrices(workload)], dtype=np.float64)
        return 2.0 * members * largest_o * matrices_o(workload)[2]
    wide, narrow = shape.hidden, shape.narrow_width if shape.boundary_layers else 0
    largest = {
        "attention": wide * (wide + 2 * shape.num_kv_heads * shape.head_dim), "mlp": wide * shape.ffn,
        "embedding": wide * shape.vocab, "head": wide * shape.vocab, "narrow": wide * narrow, "widen": wide * narrow,
    }  # fmt: skip
    return 2.0 * members * np.array([largest.get(op.kind, 0) for op in ops]) * matrices_o(workload)[2]


def matrices_o(workload: Workload) -> tuple[FloatArray, FloatArray, FloatArray]:
    """By op: elements of its matrices, how many there are, and the bytes of an element that is gathered."""
    shape, ops = workload.transformer, workload.graph.ops
    if shape is None:
        found_o, width_o = _matrices(workload), [_element_bytes(workload, op) for op in ops]
        return np.array([sum(o) for o in found_o], float), np.array([len(o) for o in found_o], float), np.array(width_o)
    wide, narrow = shape.hidden, shape.narrow_width if shape.boundary_layers else 0
    is_llama, is_maxout = shape.family == "llama", shape.boundary_layers and shape.boundary_layers.kind == "maxout"
    projected = wide + 2 * shape.num_kv_heads * shape.head_dim
    of_kind = {
        "attention": (wide * projected + wide * wide, 2),
        "mlp": (wide * shape.ffn * (3 if is_llama else 2), 3 if is_llama else 2),
        "embedding": (wide * (shape.vocab + (0 if is_llama else shape.max_seq_len)), 1 if is_llama else 2),
        "head": (wide * shape.vocab, 1),
        "narrow": (0, 0) if is_maxout else (wide * narrow, 1),
        "widen": (narrow * wide, 1),
    }
    found = np.array([of_kind.get(op.kind, (0, 0)) for op in ops], dtype=np.float64)
    bytes_o = [_element_bytes(workload, op) for op in ops]
    return found[:, 0], found[:, 1], np.array(bytes_o, dtype=np.float64)


def _element_bytes(workload: Workload, op: Op) -> float:
    """Of what is gathered: products lower matrices to the workload's dtype first."""
    return float(FLOAT_BYTES if op.kind == "embedding" else workload.dtype_bytes)


def _matrices(workload: Workload) -> list[list[int]]:
    """By op of a captured model: elements of each matrix that it owns, or reads of an op in front."""
    index = {op.name: i for i, op in enumerate(workload.graph.ops)}
    found: list[list[int]] = [[] for _ in index]
    program = workload.program
    if program is None:
        return found
    for name, users in program.users.items():
        shape = program.parameters[name].shape
        for user in users if len(shape) == MATRIX_NDIM else ():
            found[index[user]].append(math.prod(shape))
    return found


def exchange_of_weights(collectives: Collectives, workload: Workload, way: Way, sharding: Sharding) -> FloatArray:
    """By op: seconds that the members exchange in one micro-batch."""
    elements_o, count_o, bytes_o = matrices_o(workload)
    ops, first = workload.graph.ops, workload.graph.first_trained
    is_gathered = sharding == "zero3"
    has_adapters = workload.fine_tuning is not None and workload.fine_tuning.adapters is not None
    found = np.zeros(len(ops))
    for i, op in enumerate(ops):
        size, count = float(elements_o[i]), int(count_o[i])
        gather_s = collectives.all_gather(size * bytes_o[i], count) if is_gathered else 0.0
        if way == "forward":
            found[i] = gather_s
        elif i >= first:
            is_summed = op.trained > 0 and not has_adapters
            found[i] = collectives.reduce_scatter(size * FLOAT_BYTES, count) if is_summed else 0.0
            # No gradient goes on to tokens.
            found[i] += 0.0 if op.kind == "embedding" else gather_s
    return found


def gather_seconds(collectives: Collectives, workload: Workload) -> float:
    """One gathering of all matrices of the model."""
    elements_o, count_o, bytes_o = matrices_o(workload)
    return sum(
        collectives.all_gather(size * width, int(count))
        for size, count, width in zip(elements_o, count_o, bytes_o, strict=True)
    )


def whole_bytes_o(workload: Workload) -> FloatArray:
    """By op: bytes per parameter of whole matrices beside a member's own rows."""
    elements_o, _, bytes_o = matrices_o(workload)
    params_o = np.array([op.num_params for op in workload.graph.ops], dtype=np.float64)
    return np.divide(elements_o * bytes_o, params_o, out=np.zeros_like(params_o), where=params_o > 0)
