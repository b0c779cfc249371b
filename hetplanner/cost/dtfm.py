"""The communication objective of DT-FM, exactly as published, with its own constants.

Legend of array suffixes: D devices, S stages, R replicas (pipelines).

``PipelineP`` is a *ranking proxy*, not seconds of a real step: it charges the whole batch on every hop in
sequence, whereas a pipeline overlaps its micro-batches.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022 (arXiv 2206.01288), section 3, and the constants of its published scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.bounds.connectivity import bound_path, bound_runs, largest_parts, spanning_edges
from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import DtfmCost

# Gradients of one stage, GB: 1.3 B parameters x 4 bytes x 3 layers of 24.
GRADIENT_GB = 1.3 * 4 * 3 / 24
# Activations of one batch, "GB" (2^30): the source writes 2024 where 2048 is meant; kept, so its numbers come out.
ACTIVATION_GB = 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30

# Rows (and columns) of a table that are worked on at once, so that thousands of devices need no second table.
ROWS_AT_ONCE = 256


def score_dtfm(placement_SR: ArrayLike, delay_ms_DD: ArrayLike, bandwidth_gbps_DD: ArrayLike) -> DtfmCost:
    """Scores an emitted plan from the source's literal matrices, sharing nothing with the search.

    Stages keep the order of the rows and pipelines are the columns, so the pipeline term is the sum, over
    neighbouring stages, of the slowest column. Links of unequal directions count the mean of both.

    Args:
        placement_SR: device index of each stage (row) in each pipeline (column); every device at most once.
        delay_ms_DD: delay in milliseconds, row from, column to.
        bandwidth_gbps_DD: bandwidth in Gbit/s, row from, column to.

    Returns:
        The cost; the number of replicas (``D_DP`` of the paper) is the number of columns.

    Raises:
        InvalidInput: if the placement is not a table of distinct devices of these matrices.

    Source: DT-FM section 3.2 (sharded parameter server) and 3.3 (open-loop path over bottleneck matchings).
    """
    placement, delay, bandwidth = _checked(placement_SR, delay_ms_DD, bandwidth_gbps_DD)
    num_replicas = placement.shape[1]
    data_parallel = 0.0
    for stage in placement:
        paid_RR = _both_ways(delay, bandwidth, stage[:, None], stage[None, :], GRADIENT_GB / num_replicas)
        np.fill_diagonal(paid_RR, 0.0)
        data_parallel = max(data_parallel, float(paid_RR.cumsum(axis=1)[:, -1].max()))
    pipeline = 0.0
    for first, second in pairwise(placement):
        pipeline += float(_both_ways(delay, bandwidth, first, second, ACTIVATION_GB).max())
    return DtfmCost(data_parallel_s=data_parallel, pipeline_s=pipeline, total_s=data_parallel + pipeline)


def pair_costs(
    delay_ms_DD: ArrayLike,
    bandwidth_gbps_DD: ArrayLike,
    num_replicas: int,
    *,
    rows: IntArray | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Seconds that any two devices spend on each other: as data-parallel peers and as pipeline neighbours.

    Args:
        delay_ms_DD: delay in milliseconds, row from, column to.
        bandwidth_gbps_DD: bandwidth in Gbit/s, row from, column to.
        num_replicas: number of pipelines.
        rows: devices of the result; None for all, in their order.
        dtype: of the result; float32 halves what thousands of devices take.

    Returns:
        ``(data_parallel_s_DD, pipeline_s_DD)``, both symmetric with a zero diagonal.
    """
    delay, bandwidth = np.asarray(delay_ms_DD), np.asarray(bandwidth_gbps_DD)
    count = len(delay) if rows is None else len(rows)
    sizes_gb = (GRADIENT_GB / num_replicas, ACTIVATION_GB)
    data_parallel, pipeline = (np.empty((count, count), dtype) for _ in sizes_gb)
    blocks = [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]
    for one, two in combinations_with_replacement(blocks, 2):
        there, back = _block(rows, one, two), _block(rows, two, one)
        delays_s = [np.asarray(d, dtype=np.float64) / 1e3 for d in (delay[there], delay[back].T)]
        with np.errstate(divide="ignore"):
            rates = [8.0 / np.asarray(b, dtype=np.float64) for b in (bandwidth[there], bandwidth[back].T)]
        for out_DD, size_gb in zip((data_parallel, pipeline), sizes_gb, strict=True):
            out_DD[one, two] = (delays_s[0] + size_gb * rates[0]) + (delays_s[1] + size_gb * rates[1])
            out_DD[two, one] = out_DD[one, two].T
    np.fill_diagonal(data_parallel, 0.0)
    np.fill_diagonal(pipeline, 0.0)
    return data_parallel, pipeline


def bound_dtfm(data_parallel_s_DD: NDArray[Any], pipeline_s_DD: NDArray[Any], stages: int, replicas: int) -> float:
    """A cheap bound below the cost of every placement of ``stages x replicas`` of these devices.

    A device shares gradients with R - 1 others, so it pays at least its R - 1 cheapest links; some R*S devices
    must serve, so at least the R*S-th smallest of these sums is paid. The first S - 1 stages are disjoint groups
    of R devices, each with an edge not below any member's cheapest link. So the i-th cheapest edge is at least
    the (i*R)-th smallest of the devices' cheapest links. See :mod:`hetplanner.cost.bounds.connectivity` for what the
    parts of the network add to this.

    Args:
        data_parallel_s_DD: first result of :func:`pair_costs`.
        pipeline_s_DD: second result of :func:`pair_costs`.
        stages: number of pipeline stages.
        replicas: number of pipelines.

    Returns:
        Seconds of the published objective.
    """
    shared = 0.0
    if replicas > 1:
        paid_D = _by_rows(data_parallel_s_DD, lambda rows: _sum_of_least(rows, replicas - 1))
        shared = float(np.sort(paid_D)[stages * replicas - 1])
    if stages < 2:
        return shared
    nearest = np.sort(_by_rows(pipeline_s_DD, lambda rows: rows.min(axis=1)))
    hops = nearest[replicas - 1 : (stages - 1) * replicas : replicas]
    path = max(float(hops.sum()), float(bound_path(largest_parts(spanning_edges(pipeline_s_DD)), stages)))
    return max(shared + path, bound_runs(data_parallel_s_DD, pipeline_s_DD, hops, replicas))


def _block(rows: IntArray | None, one: slice, two: slice) -> Any:
    return (one, two) if rows is None else np.ix_(rows[one], rows[two])


def _by_rows(cost_DD: NDArray[Any], reduce: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """A number of every row, without its diagonal (which `reduce` sees as infinite), some rows at a time."""
    out = []
    for start in range(0, len(cost_DD), ROWS_AT_ONCE):
        rows = cost_DD[start : start + ROWS_AT_ONCE].astype(np.float64)
        np.fill_diagonal(rows[:, start:], np.inf)
        out.append(reduce(rows))
    return np.concatenate(out)


def _sum_of_least(rows: FloatArray, count: int) -> FloatArray:
    return np.asarray(np.sort(np.partition(rows, count - 1, axis=1)[:, :count], axis=1).sum(axis=1))


def _both_ways(delay: NDArray[Any], bandwidth: NDArray[Any], a: IntArray, b: IntArray, size_gb: float) -> FloatArray:
    with np.errstate(divide="ignore"):  # the diagonal, which is not paid
        there = delay[a, b].astype(np.float64) / 1e3 + size_gb * 8 / bandwidth[a, b].astype(np.float64)
        back = delay[b, a].astype(np.float64) / 1e3 + size_gb * 8 / bandwidth[b, a].astype(np.float64)
    return np.asarray(there + back)


def _checked(
    placement_SR: ArrayLike, delay_ms_DD: ArrayLike, bandwidth_gbps_DD: ArrayLike
) -> tuple[IntArray, NDArray[Any], NDArray[Any]]:
    placement = np.asarray(placement_SR, dtype=np.int64)
    delay, bandwidth = np.asarray(delay_ms_DD), np.asarray(bandwidth_gbps_DD)
    if delay.ndim != 2 or delay.shape[0] != delay.shape[1] or delay.shape != bandwidth.shape:
        raise InvalidInput(
            f"delay and bandwidth must be square tables of one size, got {delay.shape} and {bandwidth.shape}"
        )
    if placement.ndim != 2 or placement.size == 0:
        raise InvalidInput(f"placement must be a table of stages x replicas, got shape {placement.shape}")
    if placement.min() < 0 or placement.max() >= len(delay):
        raise InvalidInput(f"placement names a device outside 0..{len(delay) - 1}")
    if len(np.unique(placement)) != placement.size:
        raise InvalidInput("placement uses a device twice; DT-FM gives every device one stage")
    return placement, delay, bandwidth
