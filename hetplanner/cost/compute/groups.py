"""Groups of devices as one device of the cost model.

A group of k computes at k times the rate and holds k times the memory of one, less what each member has by itself.
What members exchange inside the host comes on top, see :mod:`hetplanner.cost.compute.tensor` and
:mod:`hetplanner.cost.compute.sharded`. Between stages one member sends, so messages are those of a device; the
replicas' reductions carry every weight once, as with one device.

Legend of array suffixes: D devices, o ops.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.catalog import find_kind, plain_kind
from hetplanner.cluster.edits import INSIDE_HOST_S
from hetplanner.cluster.model import Cluster
from hetplanner.cost.compute.collectives import Collectives, Curve, Way
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.cost.compute.sharded import exchange_of_weights, gather_seconds, matrices_o
from hetplanner.cost.compute.tensor import exchange_of_layers
from hetplanner.plan.problem import Problem
from hetplanner.profiles.model import COLLECTIVES, Collective, Profile
from hetplanner.workload.tensor_degrees import SHARDINGS, Sharding
from hetplanner.workload.workload import Workload

MESSAGES = 4
"""Hidden states that the leader has whole: a message in and one out, of activations and gradients."""
GATHERED = 2
"""Hidden states that each member gathers where layers are divided: for a product and for its gradient."""
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
    cluster = problem.cluster
    columns = ("rate_flops_per_s_D", "memory_bytes_D", "memory_bandwidth_bytes_per_s_D", "price_usd_per_s_D")
    found = {name: getattr(table, name).copy() for name in (*columns, "update_s_per_weight_D")}
    degree_D, sharding_D = table.degree_D.copy(), table.sharding_D.copy()
    per_byte_D, latency_D = np.zeros(len(table.class_D)), np.zeros(len(table.class_D))
    for group in problem.groups:
        rows = np.array([cluster.device_index(device) for device in group.devices])
        leader = rows[0]
        degree_D[leader], sharding_D[leader] = group.degree, SHARDINGS.index(group.sharding)
        per_byte_D[leader], latency_D[leader] = _link_inside(cluster, rows)
        # The slowest member sets the pace, and the smallest the share.
        for name in ("rate_flops_per_s_D", "memory_bandwidth_bytes_per_s_D"):
            found[name][leader] = group.degree * getattr(table, name)[rows].min()
        alone = repeated_bytes(problem.workload, state_bytes, group.sharding)
        each = max(float(table.memory_bytes_D[rows].min()) - alone, 0.0)
        found["memory_bytes_D"][leader] = group.degree * each + alone
        found["price_usd_per_s_D"][leader] = table.price_usd_per_s_D[rows].sum()
        found["update_s_per_weight_D"][leader] = table.update_s_per_weight_D[rows].max() / group.degree
    keys = np.nan_to_num(
        np.column_stack((table.class_D, degree_D, sharding_D, per_byte_D, latency_D, *found.values())), nan=-1.0
    )
    class_D = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return replace(
        table,
        **found,
        degree_D=degree_D,
        sharding_D=sharding_D,
        ring_s_per_byte_D=per_byte_D,
        ring_latency_s_D=latency_D,
        class_D=class_D,
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


def with_gathers(table: DeviceTable, problem: Problem) -> DeviceTable:
    """The devices, where a step of groups with ZeRO 2 gathers the new weights."""
    groups = [group for group in problem.groups or () if group.sharding == "zero2"]
    if not groups:
        return table
    trained = max(1, sum(op.trained for op in problem.workload.graph.ops))
    update_D = table.update_s_per_weight_D.copy()
    for group in groups:
        leader = problem.cluster.device_index(group.leader)
        update_D[leader] += gather_seconds(collectives_of(table, leader, problem.profile), problem.workload) / trained
    return replace(table, update_s_per_weight_D=update_D)


def repeated_bytes(workload: Workload, state_bytes: float, sharding: Sharding = "tensor") -> float:
    """Bytes that a member of a group holds, whatever its share: what is repeated, messages, and gathered inputs.

    Args:
        workload: the model.
        state_bytes: of a weight with gradient and optimizer state.
        sharding: what the members divide.
    """
    shape = workload.transformer
    if shape is None and workload.program is None:
        return 0.0
    tokens = workload.micro_batch * workload.seq_len
    hidden_state = _between_layers(workload) if shape is None else tokens * shape.hidden
    drawn = DRAWN_BYTES * hidden_state if shape is None or shape.dropout else 0.0
    if sharding == "tensor":
        # Of a captured model what is repeated is counted op by op, see `CostTables`.
        repeated = (2 * shape.layers + 1) * shape.hidden * (2 if shape.family == "gpt2" else 1) if shape else 0
        whole = MESSAGES + GATHERED
    else:
        repeated = sum(op.num_params for op in workload.graph.ops) - int(matrices_o(workload)[0].sum())
        whole = MESSAGES
    return repeated * state_bytes + whole * hidden_state * workload.dtype_bytes + drawn


def _between_layers(workload: Workload) -> int:
    """Elements that one layer of a captured model hands to the next, at most; without layers those of any boundary."""
    layers = [op.layer for op in workload.graph.ops]
    sizes = workload.boundary_elements
    ends = [
        size
        for i, size in enumerate(sizes[1:-1], 1)
        if None not in (layers[i - 1 : i + 1]) and layers[i - 1] != layers[i]
    ]
    return max(ends or sizes)


def collectives_of(table: DeviceTable, device: int, profile: Profile | None = None) -> Collectives:
    """The members of a device's group; of a single device it alone. What a profile has measured goes first."""
    per_byte, latency = float(table.ring_s_per_byte_D[device]), float(table.ring_latency_s_D[device])
    degree, curves = int(table.degree_D[device]), dict[Collective, Curve]()
    if profile is not None and degree > 1:
        kinds = [kind for kind in profile.kinds if plain_kind(kind) == table.kind_D[device]]
        for kind, collective in product(kinds, COLLECTIVES):
            if curve := profile.collective_curve(kind, degree, collective):
                curves[collective] = curve
    return Collectives(degree, per_byte, latency, curves)


def exchange_seconds(
    table: DeviceTable, device: int, workload: Workload, way: Way, profile: Profile | None = None
) -> FloatArray:
    """By op: seconds that the members of a device's group exchange in one micro-batch; 0 for a single device."""
    collectives, sharding = collectives_of(table, device, profile), SHARDINGS[table.sharding_D[device]]
    if collectives.members == 1:
        return np.zeros(len(workload.graph.ops))
    if sharding == "tensor":
        return exchange_of_layers(collectives, workload, way)
    return exchange_of_weights(collectives, workload, way, sharding)
