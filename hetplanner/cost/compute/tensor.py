"""Groups of devices as one device of the cost model: tensor parallelism inside a host.

A group of k computes at k times the rate and holds k times the memory of one, less what each member has by itself.
Layers are divided by columns and rows, embedding and head by words, norms and dropout by tokens (sequence
parallelism). What members exchange inside the host comes on top, as a ring passes it:

    all-reduce of n bytes = 2 (k - 1) / k x n / bandwidth + 2 (k - 1) x latency

An all-gather or a reduce-scatter is half of one. Attention and MLP gather tokens and scatter a sum each way; backward
they gather the tokens once more, so that no member keeps those of others. The head gathers, and backward gathers again
and scatters; the embedding scatters, and gathers backward. The loss makes three of a number a token. Between stages one
member sends, so messages are those of a device; the replicas' reductions carry every weight once, as with one device.

Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv 2205.05198),
section 4.2.2 (sequence parallelism).

Legend of array suffixes: D devices, o ops, M members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetplanner.cluster.catalog import find_kind
from hetplanner.cluster.edits import INSIDE_HOST_S
from hetplanner.cluster.model import Cluster
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.plan.problem import Problem
from hetplanner.workload.workload import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Way = Literal["forward", "backward"]
ALL_REDUCES: dict[str, tuple[float, float]] = {
    "attention": (1.0, 1.5), "mlp": (1.0, 1.5), "embedding": (0.5, 0.5), "head": (0.5, 1.0),
}  # fmt: skip
"""Of a hidden state, forward and backward, by kind of operator."""
LOSS_REDUCES = 3
LOSS_BYTES = 4
"""Of a number a token."""
MESSAGES = 6
"""Hidden states that each member has whole: a message in and one out, of activations and gradients, and what is
gathered for a product and for its gradient."""
DRAWN_BYTES = 4
"""Of an element of the hidden state: each member draws dropout for all tokens."""


def grouped_devices(table: DeviceTable, problem: Problem, state_bytes: float) -> DeviceTable:
    """The devices with each group in the place of its first member.

    Args:
        table: of single devices.
        problem: whose groups they are.
        state_bytes: of a weight with gradient and optimizer state.
    """
    if not problem.groups:
        return table
    cluster, alone = problem.cluster, repeated_bytes(problem.workload, state_bytes)
    columns = ("rate_flops_per_s_D", "memory_bytes_D", "memory_bandwidth_bytes_per_s_D", "price_usd_per_s_D")
    found = {name: getattr(table, name).copy() for name in (*columns, "update_s_per_weight_D")}
    degree_D, per_byte_D, latency_D = table.degree_D.copy(), np.zeros(len(table.class_D)), np.zeros(len(table.class_D))
    for group in problem.groups:
        rows = np.array([cluster.device_index(device) for device in group.devices])
        leader = rows[0]
        degree_D[leader] = group.degree
        per_byte_D[leader], latency_D[leader] = _link_inside(cluster, rows)
        # The slowest member sets the pace, and the smallest the share.
        for name in ("rate_flops_per_s_D", "memory_bandwidth_bytes_per_s_D"):
            found[name][leader] = group.degree * getattr(table, name)[rows].min()
        each = max(float(table.memory_bytes_D[rows].min()) - alone, 0.0)
        found["memory_bytes_D"][leader] = group.degree * each + alone
        found["price_usd_per_s_D"][leader] = table.price_usd_per_s_D[rows].sum()
        found["update_s_per_weight_D"][leader] = table.update_s_per_weight_D[rows].max() / group.degree
    keys = np.nan_to_num(np.column_stack((table.class_D, degree_D, per_byte_D, latency_D, *found.values())), nan=-1.0)
    class_D = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return replace(
        table, **found, degree_D=degree_D, ring_s_per_byte_D=per_byte_D, ring_latency_s_D=latency_D, class_D=class_D
    )


def _link_inside(cluster: Cluster, rows: IntArray) -> tuple[float, float]:
    """Seconds per byte and latency of the slowest link between devices of one host.

    Where the cluster states none for the host, only one between hosts of the site, it is that of the kind's catalog.
    """
    pairs = cluster.link_index_DD[np.ix_(rows, rows)][~np.eye(len(rows), dtype=bool)]
    known = find_kind(cluster.devices[int(rows[0])].kind)
    if known is not None and (pairs < len(cluster.site_links)).any():
        return 1.0 / known.link_bytes_per_s, INSIDE_HOST_S
    rules = [cluster.links[k] for k in sorted(set(pairs.tolist()))]
    return 1.0 / min(rule.bandwidth for rule in rules), max(rule.latency for rule in rules)


def repeated_bytes(workload: Workload, state_bytes: float) -> float:
    """Bytes that every member of a group holds, whatever its share: norms, messages, and gathered inputs.

    Args:
        workload: the model.
        state_bytes: of a weight with gradient and optimizer state.
    """
    shape = workload.transformer
    if shape is None:
        return 0.0
    hidden_state = workload.micro_batch * workload.seq_len * shape.hidden
    norms = (2 * shape.layers + 1) * shape.hidden * (2 if shape.family == "gpt2" else 1)
    drawn = DRAWN_BYTES * hidden_state if shape.dropout else 0.0
    return norms * state_bytes + MESSAGES * hidden_state * workload.dtype_bytes + drawn


def exchange_seconds(table: DeviceTable, device: int, workload: Workload, way: Way) -> FloatArray:
    """By op: seconds that the members of a device's group exchange in one micro-batch; 0 for a single device."""
    ops, degree = workload.graph.ops, int(table.degree_D[device])
    if degree == 1:
        return np.zeros(len(ops))
    tokens = workload.micro_batch * workload.seq_len
    hidden = workload.transformer.hidden if workload.transformer else 0
    per_byte, latency = float(table.ring_s_per_byte_D[device]), float(table.ring_latency_s_D[device])

    def all_reduce(size: float) -> float:
        return 2.0 * (degree - 1) * (size / degree * per_byte + latency)

    part = 0 if way == "forward" else 1
    whole_s = all_reduce(tokens * hidden * workload.dtype_bytes)
    loss_s = LOSS_REDUCES * all_reduce(tokens * LOSS_BYTES)
    seconds = {kind: whole_s * counts[part] for kind, counts in ALL_REDUCES.items()}
    seconds["loss"] = loss_s if way == "forward" else 0.0
    first = workload.graph.first_trained if way == "backward" else 0
    return np.array([seconds.get(op.kind, 0.0) if i >= first else 0.0 for i, op in enumerate(ops)])
