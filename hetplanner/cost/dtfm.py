"""The communication objective of DT-FM, exactly as published, with its own constants.

Legend of array suffixes: D devices, S stages, R replicas (pipelines).

``PipelineP`` is a *ranking proxy*, not seconds of a real step: it charges the whole batch on every hop in
sequence, whereas a pipeline overlaps its micro-batches.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022 (arXiv 2206.01288), section 3, and the constants of its published scheduler.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetplanner.cost.connectivity import bound_path, bound_runs, largest_parts, spanning_edges
from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import DtfmCost

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Gradients of one stage, GB: 1.3 B parameters x 4 bytes x 3 layers of 24.
GRADIENT_GB = 1.3 * 4 * 3 / 24
# Activations of one batch, "GB" (2^30): the source writes 2024 where 2048 is meant; kept, so its numbers come out.
ACTIVATION_GB = 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30


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
        for device in stage:
            shared = 0.0
            for peer in stage:
                if peer != device:
                    shared += _both_ways(delay, bandwidth, device, peer, GRADIENT_GB / num_replicas)
            data_parallel = max(data_parallel, shared)
    pipeline = 0.0
    for first, second in pairwise(placement):
        pipeline += max(_both_ways(delay, bandwidth, a, b, ACTIVATION_GB) for a, b in zip(first, second, strict=True))
    return DtfmCost(
        data_parallel_s=float(data_parallel),
        pipeline_s=float(pipeline),
        total_s=float(data_parallel + pipeline),
    )


def pair_costs(
    delay_ms_DD: ArrayLike, bandwidth_gbps_DD: ArrayLike, num_replicas: int
) -> tuple[FloatArray, FloatArray]:
    """Seconds that any two devices spend on each other: as data-parallel peers and as pipeline neighbours.

    Returns:
        ``(data_parallel_s_DD, pipeline_s_DD)``, both symmetric with a zero diagonal.
    """
    delay_s = np.asarray(delay_ms_DD, dtype=np.float64) / 1e3
    with np.errstate(divide="ignore"):
        seconds_per_gb = 8.0 / np.asarray(bandwidth_gbps_DD, dtype=np.float64)
    data_parallel = delay_s + GRADIENT_GB / num_replicas * seconds_per_gb
    pipeline = delay_s + ACTIVATION_GB * seconds_per_gb
    data_parallel, pipeline = data_parallel + data_parallel.T, pipeline + pipeline.T
    np.fill_diagonal(data_parallel, 0.0)
    np.fill_diagonal(pipeline, 0.0)
    return data_parallel, pipeline


def bound_dtfm(data_parallel_s_DD: FloatArray, pipeline_s_DD: FloatArray, stages: int, replicas: int) -> float:
    """A cheap bound below the cost of every placement of ``stages x replicas`` of these devices.

    A device shares gradients with R - 1 others, so it pays at least its R - 1 cheapest links; some R*S devices
    must serve, so at least the R*S-th smallest of these sums is paid. The first S - 1 stages are disjoint groups
    of R devices, each with an edge not below any member's cheapest link, so the i-th cheapest edge is at least
    the (i*R)-th smallest of the devices' cheapest links. See :mod:`hetplanner.cost.connectivity` for what the parts
    of the network add to this.

    Args:
        data_parallel_s_DD: first result of :func:`pair_costs`.
        pipeline_s_DD: second result of :func:`pair_costs`.
        stages: number of pipeline stages.
        replicas: number of pipelines.

    Returns:
        Seconds of the published objective.
    """
    num_devices = len(data_parallel_s_DD)
    off_diagonal = ~np.eye(num_devices, dtype=bool)
    shared = 0.0
    if replicas > 1:
        rows = np.sort(data_parallel_s_DD[off_diagonal].reshape(num_devices, -1), axis=1)
        shared = float(np.sort(rows[:, : replicas - 1].sum(axis=1))[stages * replicas - 1])
    if stages < 2:
        return shared
    nearest = np.sort(np.where(off_diagonal, pipeline_s_DD, np.inf).min(axis=1))
    hops = nearest[replicas - 1 : (stages - 1) * replicas : replicas]
    path = max(float(hops.sum()), float(bound_path(largest_parts(spanning_edges(pipeline_s_DD)), stages)))
    return max(shared + path, bound_runs(data_parallel_s_DD, pipeline_s_DD, hops, replicas))


def _both_ways(delay: FloatArray, bandwidth: FloatArray, a: int, b: int, size_gb: float) -> float:
    there = delay[a, b] / 1e3 + size_gb * 8 / bandwidth[a, b]
    back = delay[b, a] / 1e3 + size_gb * 8 / bandwidth[b, a]
    return float(there + back)


def _checked(
    placement_SR: ArrayLike, delay_ms_DD: ArrayLike, bandwidth_gbps_DD: ArrayLike
) -> tuple[IntArray, FloatArray, FloatArray]:
    placement = np.asarray(placement_SR, dtype=np.int64)
    delay = np.asarray(delay_ms_DD, dtype=np.float64)
    bandwidth = np.asarray(bandwidth_gbps_DD, dtype=np.float64)
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
