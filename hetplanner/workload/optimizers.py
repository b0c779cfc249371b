"""Optimisers by name: what each keeps of a weight from one step to the next, and what a step reads and writes.

Weights and gradients are float32, and so are states, but for the 8-bit ones. What is kept of a weight has names, which
are those of a checkpoint:

    adamw      mean and square of the gradients, as large as the weight
    adamw8bit  the same as 8-bit codes with a scale for every 256 of them; small weights as in adamw
    sgd        mean: the momentum
    adafactor  of a matrix the mean square of its rows and of its columns, of a vector its square
    muon       of a matrix inside the model mean: the momentum; of all others what adamw keeps

Sources: Loshchilov and Hutter 2019 (arXiv 1711.05101); Dettmers et al. 2022 (arXiv 2110.02861); Shazeer and Stern 2018
(arXiv 1804.04235); Jordan et al. 2024 (Muon) with the step sizes of Liu et al. 2025 (arXiv 2502.16982).
"""

from collections.abc import Iterable
from math import prod
from typing import Literal, get_args

import numpy as np

from hetplanner.workload.fine_tuning import LinearLayer
from hetplanner.workload.model import OpGraph
from hetplanner.workload.program import Program

OptimizerName = Literal["adamw", "adamw8bit", "sgd", "adafactor", "muon"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

FLOAT_BYTES = 4
TRAFFIC_BYTES: dict[OptimizerName, int] = {"adamw": 28, "adamw8bit": 16, "sgd": 20, "adafactor": 20, "muon": 20}
"""Of a weight in a step where all is read and written once: gradient 4, weight 8, each state 8 (8-bit: 2), for
adafactor the gradient and the weight once more. Muon's matrix products are not counted."""
ELEMENTWISE: tuple[OptimizerName, ...] = ("adamw", "sgd")
"""Those that step each element of a weight by itself, so that a weight and its states can be sharded."""
SLICE_ELEMENTS = 2**22
"""Elements of a weight that AdamW and SGD update at once: so much memory their temporaries take."""
CODES_BLOCK, LEAST_CODED = 256, 4096
"""8-bit states: codes that share a scale, and elements of the smallest weight that has codes."""
MOMENTUM: dict[OptimizerName, float] = {"sgd": 0.9, "muon": 0.95}
"""What those that have a momentum take if none is given."""

Shapes = dict[str, tuple[int, ...]]
_BYTE_PARTS = ("mean_codes", "square_codes")
_PARTS: dict[OptimizerName, tuple[str, ...]] = {
    "adamw": ("mean", "square"),
    "adamw8bit": ("mean", "square", *_BYTE_PARTS, "mean_scales", "square_scales"),
    "sgd": ("mean",),
    "adafactor": ("square", "rows", "columns"),
    "muon": ("mean", "square"),
}


def state_parts(name: OptimizerName) -> tuple[str, ...]:
    """Names of what an optimiser may keep, in the order of a checkpoint."""
    return _PARTS[name]


def is_codes(part: str) -> bool:
    """Whether a part is of bytes; all others are float32."""
    return part in _BYTE_PARTS


def state_shapes(name: OptimizerName, shape: tuple[int, ...], *, inner: bool) -> Shapes:
    """What an optimiser keeps of a weight: shapes by part.

    Args:
        name: of the optimiser.
        shape: of the weight.
        inner: whether the weight is inside the model, see `inner_ops`.
    """
    if name == "sgd" or (name == "muon" and inner and len(shape) == 2):
        return {"mean": shape}
    if name == "adafactor":
        if len(shape) < 2:
            return {"square": shape}
        return {"rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1])}
    if name == "adamw8bit" and prod(shape) >= LEAST_CODED:
        scales = (-(-prod(shape) // CODES_BLOCK),)
        return {"mean_codes": shape, "square_codes": shape, "mean_scales": scales, "square_scales": scales}
    return {"mean": shape, "square": shape}


def inner_ops(graph: OpGraph) -> frozenset[int]:
    """Ops between the model's inputs and outputs: all but embeddings, the last one with weights, and what is tied to
    either. Muon is for the matrices of these alone.
    """
    index = {op.name: i for i, op in enumerate(graph.ops)}
    outer = {i for i, op in enumerate(graph.ops) if op.kind == "embedding"}
    outer |= {max((i for i, op in enumerate(graph.ops) if op.num_params), default=0)}
    outer |= {index[op.tied] for i, op in enumerate(graph.ops) if i in outer and op.tied}
    owners = {graph.ops[i].name for i in outer}
    return frozenset(i for i, op in enumerate(graph.ops) if i not in outer and op.tied not in owners)


def state_bytes_of_ops(name: OptimizerName, graph: OpGraph, program: Program | None, width: int | None) -> np.ndarray:
    """Bytes per trained weight that an optimiser keeps, by op.

    Args:
        name: of the optimiser.
        graph: the model's.
        program: of a captured model; its weights have shapes, which make the numbers exact.
        width: hidden width of a transformer by formula. It stands for the smaller side of each matrix, and vectors
            are a share of 1 / width.
    """
    inner = inner_ops(graph)
    if program is not None and name != "adamw":
        return _exact(name, graph, program, inner)
    usual = np.full(len(graph.ops), 2.0 * FLOAT_BYTES)
    if name == "sgd":
        usual[:] = FLOAT_BYTES
    elif name == "adamw8bit":
        usual[:] = 2.0 + 2.0 * FLOAT_BYTES / CODES_BLOCK
    elif name == "adafactor":
        usual[:] = 3.0 * FLOAT_BYTES / (width or 256)
    elif name == "muon":
        usual[list(inner)] = FLOAT_BYTES
    return usual


def state_bytes_of_adapters(name: OptimizerName, layers: Iterable[LinearLayer], rank: int) -> dict[str, float]:
    """Bytes per weight of adapters that an optimiser keeps, by kind of the op that they are in.

    Args:
        name: of the optimiser.
        layers: those of a layer of the model that have an adapter.
        rank: of the adapters.
    """
    kept: dict[str, int] = {}
    held: dict[str, int] = {}
    for layer in layers:
        for shape in ((rank, layer.wide_in), (layer.wide_out, rank)):
            kept[layer.half] = kept.get(layer.half, 0) + _state_bytes(state_shapes(name, shape, inner=True))
        held[layer.half] = held.get(layer.half, 0) + layer.adapter_elements(rank)
    return {half: kept[half] / held[half] for half in kept}


def _state_bytes(shapes: Shapes) -> int:
    return sum(prod(shape) * (1 if is_codes(part) else FLOAT_BYTES) for part, shape in shapes.items())


def _exact(name: OptimizerName, graph: OpGraph, program: Program, inner: frozenset[int]) -> np.ndarray:
    index = {op.name: i for i, op in enumerate(graph.ops)}
    kept, held = np.zeros(len(graph.ops)), np.zeros(len(graph.ops))
    frozen = set(program.frozen)
    for weight, users in program.users.items():
        if weight in frozen:
            continue
        shape = program.parameters[weight].shape
        is_inner = all(index[op] in inner for op in users)
        size = _state_bytes(state_shapes(name, shape, inner=is_inner))
        for op in users:
            kept[index[op]] += size
            held[index[op]] += prod(shape)
    return np.divide(kept, held, out=np.zeros_like(kept), where=held > 0)
