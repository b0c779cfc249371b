"""The closed form of one training step: cheap enough to search with, exact on a uniform chain.

    fill_p = sum over stages (F + B) + sum over links (latency + wire, both ways)
    more_p = max( (n - 1) * slowest stage compute, (n - 1) * slowest link wire, NIC busy time,
                  floor((n - 1) / w_s) * round_trip_s + ((n - 1) mod w_s) * slowest, over stages s with w_s < n )
    T_pipe = max_p (fill_p + more_p);   GPipe: the first two of more_p once for forwards and once for backwards
    T      = max_s (end_s + reduce_s) + optimizer,  end_s = T_pipe - backward drain of the earlier stages if overlapped

n micro-batches pass a replica, w_s of them may be in flight at stage s, and round_trip_s is the time from a
micro-batch's forward at stage s to the end of its backward there. On wide-area links that last term rules: without
it the form gives half to three quarters of an event simulation, with it 90 % and more.

Legend of array suffixes: P routes, S stages, E boundaries (S - 1), G reduction groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class StepArrays:
    """A plan as numbers.

    Attributes:
        chunk_PS: the replica that a route uses at a stage, numbered over all stages.
        micro_batches_P: micro-batches of every route.
        through_PS: micro-batches through the replica that a route uses at a stage.
        in_flight_S: micro-batches in flight allowed at a stage.
        forward_s_PS, backward_s_PS: one micro-batch, codec work included.
        activation_s_PE, gradient_s_PE: latency and wire of one message across a boundary.
        activation_wire_s_PE, gradient_wire_s_PE: wire time alone, for which the link stays busy.
        nic_s_P: NIC seconds of the busiest host on the route, beyond its first micro-batch.
        reduce_s_S: gradient reduction of every stage.
        tied_s: reduction of the weights tied across stages, and the stages it waits for.
        optimizer_s: slowest optimizer step.
        overlap: whether a stage reduces while earlier stages still drain.
        phased: GPipe: all forwards of a rank come before its backwards.
    """

    chunk_PS: IntArray
    micro_batches_P: IntArray
    through_PS: IntArray
    in_flight_S: IntArray
    forward_s_PS: FloatArray
    backward_s_PS: FloatArray
    activation_s_PE: FloatArray
    gradient_s_PE: FloatArray
    activation_wire_s_PE: FloatArray
    gradient_wire_s_PE: FloatArray
    nic_s_P: FloatArray
    reduce_s_S: FloatArray
    tied: tuple[tuple[float, tuple[int, ...]], ...]
    optimizer_s: float
    overlap: bool
    phased: bool = False


@dataclass(frozen=True)
class StepTimes:
    """Seconds at which the parts of a step end: pipeline, all reductions, the whole."""

    pipeline_s: float
    reduced_s: float
    step_s: float


def time_step(arrays: StepArrays) -> StepTimes:
    """Times one step by the closed form of this module."""
    compute = arrays.forward_s_PS + arrays.backward_s_PS
    hop = arrays.activation_s_PE + arrays.gradient_s_PE
    # Suffix sums: from a forward at stage s to its backward, all of the stages behind included.
    behind = np.cumsum(hop[:, ::-1], axis=1)[:, ::-1] if hop.shape[1] else hop
    round_trip = np.cumsum(compute[:, ::-1], axis=1)[:, ::-1].copy()
    round_trip[:, :-1] += behind
    if arrays.phased:
        more = _slowest_load(arrays, arrays.forward_s_PS, arrays.activation_wire_s_PE)
        more = more + _slowest_load(arrays, arrays.backward_s_PS, arrays.gradient_wire_s_PE)
    else:
        wire = np.maximum(arrays.activation_wire_s_PE, arrays.gradient_wire_s_PE)
        more = _slowest_load(arrays, compute, wire)
    more = np.maximum(more, arrays.nic_s_P)
    slowest = more / np.maximum(arrays.through_PS.max(axis=1) - 1, 1)
    rounds, rest = np.divmod(arrays.through_PS - 1, arrays.in_flight_S)
    waiting = np.where(rounds > 0, rounds * _mean_round_trip(arrays, round_trip) + rest * slowest[:, None], 0.0)
    more = np.maximum(more, waiting.max(axis=1))
    route_end_P = round_trip[:, 0] + more
    pipeline_s = float(route_end_P.max())
    end = np.full(compute.shape[1], pipeline_s)
    if arrays.overlap and hop.shape[1]:
        drain = np.cumsum(arrays.backward_s_PS[:, :-1] + arrays.gradient_s_PE, axis=1)
        end[1:] = (route_end_P[:, None] - drain).max(axis=0)
    done = end + arrays.reduce_s_S
    reduced_s = float(done.max())
    for seconds, stages in arrays.tied:
        reduced_s = max(reduced_s, float(max(done[s] for s in stages)) + seconds)
    return StepTimes(pipeline_s, reduced_s, reduced_s + arrays.optimizer_s)


def _mean_round_trip(arrays: StepArrays, round_trip_PS: FloatArray) -> FloatArray:
    """Round trip of the micro-batches that share a replica's in-flight depth, over all routes through it."""
    weight_PS = np.broadcast_to(arrays.micro_batches_P[:, None], round_trip_PS.shape)
    chunks = arrays.chunk_PS.reshape(-1)
    total_C = np.bincount(chunks, weights=(round_trip_PS * weight_PS).reshape(-1))
    mean_PS = total_C[arrays.chunk_PS] / arrays.through_PS
    return np.where(arrays.through_PS == weight_PS, round_trip_PS, mean_PS)


def _slowest_load(arrays: StepArrays, compute_s_PS: FloatArray, wire_s_PE: FloatArray) -> FloatArray:
    """Seconds that the busiest device or link of each route needs beyond the first micro-batch."""
    load = ((arrays.through_PS - 1) * compute_s_PS).max(axis=1)
    if wire_s_PE.shape[1]:
        through = np.minimum(arrays.through_PS[:, :-1], arrays.through_PS[:, 1:])
        load = np.maximum(load, ((through - 1) * wire_s_PE).max(axis=1))
    return np.asarray(load)
