"""What the members of a group exchange that divide layers: tensor parallelism inside a host.

Layers are divided by columns and rows, embedding and head by words, norms and dropout by tokens (sequence
parallelism). Attention and MLP gather tokens and scatter a sum each way; backward they gather the tokens once more, so
that no member keeps those of others. The head gathers, and backward gathers again and scatters; the embedding
scatters, and gathers backward. The loss makes three all-reduces of a number a token. An all-gather or a reduce-scatter
is half of an all-reduce.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198),
section 4.2.2 (sequence parallelism).

Legend of array suffixes: o ops.
"""

from __future__ import annotations

import numpy as np

from hetplanner.cost.compute.ring import FloatArray, Ring, Way
from hetplanner.workload.workload import Workload

ALL_REDUCES: dict[str, tuple[float, float]] = {
    "attention": (1.0, 1.5), "mlp": (1.0, 1.5), "embedding": (0.5, 0.5), "head": (0.5, 1.0),
}  # fmt: skip
"""Of a hidden state, forward and backward, by kind of operator."""
LOSS_REDUCES = 3
LOSS_BYTES = 4
"""Of a number a token."""


def exchange_of_layers(ring: Ring, workload: Workload, way: Way) -> FloatArray:
    """By op: seconds that the members exchange in one micro-batch."""
    ops, part = workload.graph.ops, 0 if way == "forward" else 1
    tokens = workload.micro_batch * workload.seq_len
    hidden = workload.transformer.hidden if workload.transformer else 0
    whole_s = 2.0 * ring.pass_seconds(tokens * hidden * workload.dtype_bytes)
    seconds = {kind: whole_s * counts[part] for kind, counts in ALL_REDUCES.items()}
    seconds["loss"] = LOSS_REDUCES * 2.0 * ring.pass_seconds(tokens * LOSS_BYTES) if way == "forward" else 0.0
    first = workload.graph.first_trained if way == "backward" else 0
    return np.array([seconds.get(op.kind, 0.0) if i >= first else 0.0 for i, op in enumerate(ops)])
