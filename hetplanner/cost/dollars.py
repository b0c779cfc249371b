"""Dollars of a plan's step: the hours of the devices used, and the bytes that leave a site."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Plan

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def usd_per_step(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> float | None:
    """Dollars of one step: :func:`usd_parts` together; None if a used device's price is unknown."""
    device_usd, egress_usd = usd_parts(plan, step_s, tables, links)
    return None if device_usd is None else device_usd + egress_usd


def usd_parts(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> tuple[float | None, float]:
    """What one step costs: the hours of the devices used, and the bytes that leave a site.

        devices = step_s * sum over used devices of price_usd_per_s
        egress  = sum over messages from site a to another site b of bytes on the wire * a's price per byte

    A device that serves no stage costs nothing, one that serves costs for the whole step, idle or not. The sender's
    site pays. Messages are those of the pipelines (activations there, gradients back, as their codecs send them),
    of the stages' reductions and of weights tied across stages, both ways of each.

    Args:
        plan: the plan.
        step_s: seconds of its step.
        tables: tables of its problem.
        links: links of its cluster.

    Returns:
        Dollars for devices (None if a price is unknown) and for egress.

    Source: clouds bill instances by the time they are held, and traffic by the region it leaves.
    """
    rate = float(tables.devices.price_usd_per_s_D[_devices_of(plan)].sum())
    device_usd = None if np.isnan(rate) else rate * step_s
    if not links.egress_usd_per_byte_D.any():
        return device_usd, 0.0
    return device_usd, links.egress_usd(*_moves(plan))


def list_dollars(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> list[tuple[str, float]]:
    """Who is paid in one step: each kind of device, and each site for what it sends to each other; the dearest first.

    What costs nothing, and devices without a known price, are left out.
    """
    cluster, paid = plan.problem.cluster, Counter[str]()
    kinds = Counter(cluster.devices[row].kind for row in _devices_of(plan))
    for row in _devices_of(plan):
        kind = cluster.devices[row].kind
        paid[f"{kinds[kind]} x {kind}"] += np.nan_to_num(tables.devices.price_usd_per_s_D[row]) * step_s
    source, target, size = _moves(plan)
    usd = size * links.egress_usd_per_byte_D[source]
    for a, b, each in zip(links.site_D[source].tolist(), links.site_D[target].tolist(), usd.tolist(), strict=True):
        if a != b:
            paid[f"egress {cluster.sites[a].name} → {cluster.sites[b].name}"] += each
    return [(name, float(usd)) for name, usd in paid.most_common() if usd > 0]


def _devices_of(plan: Plan) -> IntArray:
    """Rows of the devices used."""
    return np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])


def _moves(plan: Plan) -> tuple[IntArray, IntArray, FloatArray]:
    """Sender, receiver (rows of the cluster) and bytes of all messages of one step."""
    moves = reduction_bytes(plan)
    for route in plan.routes:
        path = [plan.rank_at(s, r) for s, r in enumerate(route.replicas)]
        for e, (one, two) in enumerate(pairwise(path)):
            moves.append((one, two, plan.boundary_bytes(e, one, two, "activation") * route.micro_batches))
            moves.append((two, one, plan.boundary_bytes(e, two, one, "gradient") * route.micro_batches))
    if not moves:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.zeros(0)
    source, target, size = (np.array(column) for column in zip(*moves, strict=True))
    row_N = _devices_of(plan)
    return row_N[source], row_N[target], size.astype(np.float64)
