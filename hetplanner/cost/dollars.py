"""Dollars of a plan's step: the hours of the devices used, and the bytes that leave a site."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.plan.model import Plan


@dataclass(frozen=True)
class StepDollars:
    """What one step costs, and which parts have an unknown price.

    Attributes:
        device_usd: the hours of the devices used; None if the price of one is unknown.
        egress_usd: bytes that leave a site at a known price.
        unpriced_egress_bytes: bytes that leave a site at an unknown price, by the name of that site.
    """

    device_usd: float | None
    egress_usd: float
    unpriced_egress_bytes: dict[str, float]


def usd_per_step(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> float | None:
    """Dollars of one step as far as traffic has a price; None if a used device's price is unknown."""
    device_usd = _device_usd(plan, step_s, tables)
    if device_usd is None or not np.nansum(links.egress_usd_per_byte_CC):
        return device_usd
    return device_usd + links.egress_usd(*_moves(plan))


def step_dollars(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> StepDollars:
    """What one step costs: the hours of the devices used, and the bytes that leave a site.

        devices = step_s * sum over used devices of price_usd_per_s
        egress  = sum over messages from site a to another site b of bytes on the wire * price per byte from a to b

    A device that serves no stage costs nothing, one that serves costs for the whole step, idle or not. The sender's
    site pays. Messages are those of the pipelines (activations there, gradients back, as their codecs send them),
    of the stages' reductions and of weights tied across stages, both ways of each.

    Args:
        plan: the plan.
        step_s: seconds of its step.
        tables: tables of its problem.
        links: links of its cluster.

    Source: clouds bill instances by the time they are held, and traffic by the region it leaves.
    """
    device_usd = _device_usd(plan, step_s, tables)
    if len(plan.problem.cluster.sites) < 2:
        return StepDollars(device_usd, 0.0, {})
    source, target, size = _moves(plan)
    unpriced = np.isnan(links.egress_usd_per_byte(source, target)) & (size > 0)
    site, at = np.unique(links.site_D[source[unpriced]], return_inverse=True)
    left_out = np.bincount(at, weights=size[unpriced], minlength=len(site))
    names = [plan.problem.cluster.sites[s].name for s in site]
    return StepDollars(
        device_usd, links.egress_usd(source, target, size), dict(zip(names, left_out.tolist(), strict=True))
    )


def _device_usd(plan: Plan, step_s: float, tables: CostTables) -> float | None:
    rate = float(tables.devices.price_usd_per_s_D[_devices_of(plan)].sum())
    return None if np.isnan(rate) else rate * step_s


def list_dollars(plan: Plan, step_s: float, tables: CostTables, links: LinkTable) -> list[tuple[str, float]]:
    """What is paid for in one step: each kind of device, and what each site sends to each other; the dearest first.

    What costs nothing, and what has no known price, is left out.
    """
    cluster, paid = plan.problem.cluster, Counter[str]()
    kinds = Counter(cluster.devices[row].kind for row in _devices_of(plan))
    for row in _devices_of(plan):
        kind = cluster.devices[row].kind
        paid[f"{kinds[kind]} x {kind}"] += np.nan_to_num(tables.devices.price_usd_per_s_D[row]) * step_s
    source, target, size = _moves(plan)
    usd = size * np.nan_to_num(links.egress_usd_per_byte(source, target))
    one, two = links.site_D[source], links.site_D[target]
    leaves = one != two
    ways, first, at = np.unique(np.stack([one[leaves], two[leaves]]), axis=1, return_index=True, return_inverse=True)
    total = np.bincount(at.reshape(-1), weights=usd[leaves], minlength=len(first))
    for k in np.argsort(first):
        a, b = ways[:, k]
        paid[f"egress {cluster.sites[a].name} → {cluster.sites[b].name}"] += total[k]
    return [(name, float(usd)) for name, usd in paid.most_common() if usd > 0]


def _devices_of(plan: Plan) -> IntArray:
    """Rows of the devices used."""
    return np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])


def _moves(plan: Plan) -> tuple[IntArray, IntArray, FloatArray]:
    """Sender, receiver (rows of the cluster) and bytes of all messages of one step."""
    moves: list[tuple[int, int, int]] = []
    for route in plan.routes:
        path = [plan.rank_at(s, r) for s, r in enumerate(route.replicas)]
        for e, (one, two) in enumerate(pairwise(path)):
            moves.append((one, two, plan.boundary_bytes(e, one, two, "activation") * route.micro_batches))
            moves.append((two, one, plan.boundary_bytes(e, two, one, "gradient") * route.micro_batches))
    reduced = reduction_bytes(plan)
    routed = np.array(moves, dtype=np.int64).reshape(-1, 3).T
    source, target, size = (np.concatenate(columns) for columns in zip(reduced, routed, strict=True))
    row_N = _devices_of(plan)
    return row_N[source], row_N[target], size.astype(np.float64)
