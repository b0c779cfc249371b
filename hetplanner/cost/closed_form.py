"""The closed form of one training step: cheap enough to search with, exact on a uniform chain.

    fill_p = sum over stages (F + B) + sum over links (latency + wire, both ways)
    more_p = max( (n - 1) * slowest stage compute, (n - 1) * slowest link wire, NIC busy time,
                  floor((n - 1) / w_s) * round_trip_s + ((n - 1) mod w_s) * slowest, over stages s with w_s < n )
    T_pipe = max_p (fill_p + more_p);   GPipe: the first two of more_p once for forwards and once for backwards
    T      = max_s (end_s + reduce_s) + optimizer,  end_s = T_pipe - backward drain of the earlier stages

n micro-batches pass a replica, w_s of them may be in flight at stage s, and round_trip_s is the time from a
micro-batch's forward at stage s to the end of its backward there. On wide-area links that last term rules: without
it the form gives half to three quarters of an event simulation, with it 90 % and more. Where routes share a replica,
its round trip is their mean, weighted by micro-batches, and a link counts the messages of all routes over it.

A rank that serves several stages (interleaved) works on other micro-batches while the first is away, so it adds

    load - round_trip_s     load: all forwards and backwards of the rank; s: the first of its stages

to the fill in place of (n - 1) * compute, which on equal stages gives the bubble of Narayanan et al. 2021 (arXiv
2104.04473, section 2.2); its reductions begin when all its stages are through, one after the other.

Where replicas take H local steps, T is the mean: a step without the stages' reductions H - 1 times, one with them and
the outer optimizer's step once. Weights tied across stages are reduced inside pipelines in all of them. With F
fragments it is H - F times and F times, one of these with what replicas average of weights tied across stages.

Source: GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019, PipeDream) for what a pipeline takes without a
network; the round-trip, NIC and drain terms are ours, held against the event simulator.

Legend of array suffixes: P routes, S stages, E boundaries (S - 1), G reduction groups, N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray

# With more ranks links are numbered anew before their loads are summed: a table of all pairs would be too large.
MOST_DENSE_RANKS = 256


@dataclass(frozen=True)
class StepArrays:
    """A plan as numbers.

    Attributes:
        rank_PS: the rank that a route uses at a stage.
        micro_batches_P: micro-batches of every route.
        through_PS: micro-batches through the replica that a route uses at a stage.
        in_flight_S: micro-batches in flight allowed at a stage.
        forward_s_PS, backward_s_PS: one micro-batch, codec work included.
        activation_s_PE, gradient_s_PE: latency and wire of one message across a boundary.
        activation_wire_s_PE, gradient_wire_s_PE: wire time alone, for which the link stays busy.
        nic_s_P: NIC seconds of the busiest host on the route, beyond its first micro-batch.
        reduce_s_S: gradient reduction of every stage; of one fragment of it where there are several.
        tied: seconds to reduce each weight tied across stages, and the stages it waits for.
        optimizer_s: slowest optimizer step.
        local_steps: steps that the replicas take before the stages' reductions.
        tied_averaged: as `tied`, of what replicas average after their local steps.
        outer_s: slowest step of the outer optimizer, which follows these.
        fragments: how many steps in `local_steps` have reductions of the stages; one of them has `tied_averaged`.
        phased: GPipe: all forwards of a rank come before its backwards.
        separate: no rank serves two routes or two stages; saves asking.
    """

    rank_PS: IntArray
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
    local_steps: int = 1
    tied_averaged: tuple[tuple[float, tuple[int, ...]], ...] = ()
    outer_s: float = 0.0
    fragments: int = 1
    phased: bool = False
    separate: bool = False


@dataclass(frozen=True)
class StepTimes:
    """Seconds at which the parts of a step end, on average: pipeline, all reductions, the whole."""

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
    more = np.maximum(_most_load(arrays), arrays.nic_s_P)
    chunked_PS = np.zeros(compute.shape, dtype=bool) if arrays.separate else _shares_rank(arrays.rank_PS)
    if chunked_PS.any():
        more = np.maximum(more, _chunked_load(arrays, compute, round_trip, chunked_PS))
    slowest = more / np.maximum(arrays.through_PS.max(axis=1) - 1, 1)
    rounds, rest = np.divmod(arrays.through_PS - 1, arrays.in_flight_S)
    waiting = np.where(rounds > 0, rounds * _mean_round_trip(arrays, round_trip) + rest * slowest[:, None], 0.0)
    more = np.maximum(more, waiting.max(axis=1))
    route_end_P = round_trip[:, 0] + more
    pipeline_s = float(route_end_P.max())
    end_PS = np.repeat(route_end_P[:, None], compute.shape[1], axis=1)
    if hop.shape[1]:
        end_PS[:, 1:] -= np.cumsum(arrays.backward_s_PS[:, :-1] + arrays.gradient_s_PE, axis=1)
    end_S = end_PS.max(axis=0)
    reduced_s = _reduced_s(arrays, end_S, chunked=bool(chunked_PS.any()))
    if arrays.local_steps > 1:
        alone = replace(arrays, reduce_s_S=np.zeros_like(end_S), tied_averaged=())
        alone_s = _reduced_s(alone, end_S, chunked=bool(chunked_PS.any()))
        more_s = reduced_s - alone_s
        if arrays.fragments > 1:
            rest_s = _reduced_s(replace(arrays, tied_averaged=()), end_S, chunked=bool(chunked_PS.any()))
            more_s += (arrays.fragments - 1) * (rest_s - alone_s)
        reduced_s = alone_s + more_s / arrays.local_steps
    return StepTimes(pipeline_s, reduced_s, reduced_s + optimizer_seconds(arrays))


def optimizer_seconds(arrays: StepArrays) -> float:
    """Seconds of a step's optimizers, on average."""
    return arrays.optimizer_s + arrays.outer_s / arrays.local_steps


def _reduced_s(arrays: StepArrays, end_S: FloatArray, *, chunked: bool) -> float:
    """When all reductions of a step are done, those of tied weights last and one after the other."""
    done = _reduced(arrays, end_S) if chunked else end_S + arrays.reduce_s_S
    for seconds, stages in (*arrays.tied, *arrays.tied_averaged):
        users = list(stages)
        done[users] = done[users].max() + seconds
    return float(done.max())


def _most_load(arrays: StepArrays) -> FloatArray:
    """Seconds that the busiest device or link of each route needs beyond the first micro-batch."""
    ways = (arrays.activation_wire_s_PE, arrays.gradient_wire_s_PE)
    if not arrays.phased:
        compute = arrays.forward_s_PS + arrays.backward_s_PS
        return np.maximum(_compute_load(arrays, compute), _link_load(arrays, ways))
    forward = np.maximum(_compute_load(arrays, arrays.forward_s_PS), _link_load(arrays, (ways[0], ways[1] * 0.0)))
    backward = np.maximum(_compute_load(arrays, arrays.backward_s_PS), _link_load(arrays, (ways[0] * 0.0, ways[1])))
    return np.asarray(forward + backward, dtype=np.float64)


def _compute_load(arrays: StepArrays, seconds_PS: FloatArray) -> FloatArray:
    return np.asarray(((arrays.through_PS - 1) * seconds_PS).max(axis=1), dtype=np.float64)


def _link_load(arrays: StepArrays, wire_s_2PE: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Busy seconds of the busiest directed link of each route, less the first message."""
    if arrays.rank_PS.shape[1] == 1:
        return np.zeros(len(arrays.rank_PS))
    if arrays.separate:
        slowest = np.maximum(*wire_s_2PE).max(axis=1)
        return np.asarray((arrays.micro_batches_P - 1) * slowest, dtype=np.float64)
    up, down = arrays.rank_PS[:, :-1], arrays.rank_PS[:, 1:]
    size = int(arrays.rank_PS.max()) + 1
    link_2PE = np.array((up * size + down, down * size + up))
    if size > MOST_DENSE_RANKS:
        link_2PE = np.unique(link_2PE, return_inverse=True)[1].reshape(link_2PE.shape)
    wire_2PE = np.array(wire_s_2PE)
    busy_L = np.bincount(link_2PE.reshape(-1), weights=(wire_2PE * arrays.micro_batches_P[:, None]).reshape(-1))
    return np.asarray((busy_L[link_2PE] - wire_2PE).max(axis=(0, 2)), dtype=np.float64)


def _shares_rank(rank_PS: IntArray) -> BoolArray:
    """Whether the rank that a route uses at a stage serves another stage too."""
    stages = np.arange(rank_PS.shape[1])
    serves_NS = np.zeros((int(rank_PS.max()) + 1, rank_PS.shape[1]), dtype=bool)
    serves_NS[rank_PS, stages] = True
    return np.asarray((serves_NS.sum(axis=1) > 1)[rank_PS])


def _chunked_load(
    arrays: StepArrays, compute_PS: FloatArray, round_trip_PS: FloatArray, chunked_PS: BoolArray
) -> FloatArray:
    """What the ranks with several stages add to each route's fill."""
    work_PS = compute_PS * arrays.micro_batches_P[:, None]
    load_N = np.bincount(arrays.rank_PS.reshape(-1), weights=work_PS.reshape(-1))
    # A rank's spare time counts from the first of its stages, whose round trip is the longest.
    spare_PS = load_N[arrays.rank_PS] - round_trip_PS
    for p, path in enumerate(arrays.rank_PS):
        for s in np.flatnonzero(chunked_PS[p]):
            spare_PS[p, s] = spare_PS[p, path == path[s]].min()
    return np.asarray(np.where(chunked_PS, spare_PS, 0.0).max(axis=1), dtype=np.float64)


def _reduced(arrays: StepArrays, end_S: FloatArray) -> FloatArray:
    """When each stage's gradients are summed, where ranks with several stages reduce them one after the other."""
    free_N = np.zeros(int(arrays.rank_PS.max()) + 1)
    for s, ranks in enumerate(arrays.rank_PS.T):
        np.maximum.at(free_N, ranks, end_S[s])
    done = np.empty_like(end_S)
    for s, ranks in enumerate(arrays.rank_PS.T):
        done[s] = free_N[ranks].max() + arrays.reduce_s_S[s]
        free_N[ranks] = done[s]
    return done


def _mean_round_trip(arrays: StepArrays, round_trip_PS: FloatArray) -> FloatArray:
    """Round trip of the micro-batches that share a replica's in-flight depth, over all routes through it."""
    if arrays.separate:
        return round_trip_PS
    weight_PS = np.broadcast_to(arrays.micro_batches_P[:, None], round_trip_PS.shape)
    stages = np.arange(round_trip_PS.shape[1])
    chunk_PS = arrays.rank_PS * len(stages) + stages
    total_C = np.bincount(chunk_PS.reshape(-1), weights=(round_trip_PS * weight_PS).reshape(-1))
    mean_PS = total_C[chunk_PS] / arrays.through_PS
    return np.where(arrays.through_PS == weight_PS, round_trip_PS, mean_PS)
