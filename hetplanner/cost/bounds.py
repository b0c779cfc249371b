"""A cheap bound below the step time of every plan of a problem: compute, fill, one reduction, one optimizer step."""

from __future__ import annotations

import numpy as np

from hetplanner.cost.links import LinkTable
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, OPTIMIZER_TRAFFIC_BYTES_PER_PARAM, CostTables


def bound_step(tables: CostTables, links: LinkTable) -> float:
    """Seconds below which no plan of the problem can finish a step by the closed form.

    With R routes of total rate Q (FLOP/s of all devices used), W FLOPs a micro-batch and M micro-batches, a route p
    with rate Q_p takes at least W/q_max (fill on the fastest device) + (m_p - 1) W / Q_p, and the largest
    (m_p - 1)/Q_p is at least (M - R)/Q. Two stages or more add one round trip on the best link, two replicas or more
    the reduction of the first op's own weights (its stage ends the pipeline), and the stage with the most weights
    holds at least 1/S of them when the optimizer steps. Free shapes take the least over all.
    """
    problem = tables.problem
    usable = np.array([problem.cluster.device_index(d) for d in problem.usable_devices])
    rates = np.sort(tables.devices.rate_flops_per_s_D[usable])[::-1]
    best = np.inf
    most_stages = min(problem.workload.graph.num_layers, len(usable))
    stages = [problem.constraints.stages] if problem.constraints.stages else list(range(1, most_stages + 1))
    for num_stages in stages:
        most = min(len(usable) // num_stages, problem.workload.num_micro_batches)
        fixed = problem.constraints.replicas
        for num_replicas in [fixed] if fixed else range(1, most + 1):
            best = min(best, _bound_shape(tables, links, usable, rates, num_stages, num_replicas))
    return float(best) if np.isfinite(best) else 0.0


def _bound_shape(
    tables: CostTables, links: LinkTable, usable: np.ndarray, rates: np.ndarray, stages: int, replicas: int
) -> float:
    problem = tables.problem
    work = float(tables.flops_O[-1])
    micro_batches = problem.workload.num_micro_batches
    total_rate = float(rates[: stages * replicas].sum())
    seconds = work / rates[0] + max(micro_batches - replicas, 0) * work / total_rate
    if stages > 1:
        seconds += (stages - 1) * 2.0 * _least_latency(links, usable)
    if replicas > 1 and len(usable) > 1:
        seconds += _least_reduction(tables, links, usable, replicas)
    fastest_memory = float(tables.devices.memory_bandwidth_bytes_per_s_D[usable].max())
    params = problem.workload.graph.num_params / stages
    return seconds + params * OPTIMIZER_TRAFFIC_BYTES_PER_PARAM / fastest_memory


def _least_latency(links: LinkTable, usable: np.ndarray) -> float:
    return float(_off_diagonal(links.latency_s_DD, usable).min()) if len(usable) > 1 else 0.0


def _least_reduction(tables: CostTables, links: LinkTable, usable: np.ndarray, replicas: int) -> float:
    """Two phases of a shard of the first op's weights on the best link, in the densest form a codec may give (1/4)."""
    tied = {op.tied for op in tables.problem.workload.graph.ops}
    first = tables.problem.workload.graph.ops[0]
    params = 0 if first.name in tied else first.num_params
    shard = params * GRADIENT_ELEMENT_BYTES / 4.0 / replicas
    latency = _off_diagonal(links.latency_s_DD, usable)
    return 2.0 * float((latency + shard * _off_diagonal(links.seconds_per_byte_DD, usable)).min()) if params else 0.0


def _off_diagonal(matrix_DD: np.ndarray, usable: np.ndarray) -> np.ndarray:
    part = matrix_DD[np.ix_(usable, usable)]
    return np.asarray(part[~np.eye(len(usable), dtype=bool)])


def bound_cost(tables: CostTables) -> float:
    """Dollars per million tokens below which no plan can train: every FLOP on the device that is cheapest for it."""
    problem = tables.problem
    usable = np.array([problem.cluster.device_index(d) for d in problem.usable_devices])
    usd_per_flop = tables.devices.price_usd_per_s_D[usable] / tables.devices.rate_flops_per_s_D[usable]
    flops = float(tables.flops_O[-1]) * problem.workload.num_micro_batches
    return float(np.nan_to_num(usd_per_flop).min()) * flops / problem.workload.tokens_per_step * 1e6
