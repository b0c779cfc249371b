"""Compiled list scheduling: the order of a step's tasks, as in `hetplanner.schedule.order` to the last rounding.

Importing this module imports numba: do it lazily.

Legend of array suffixes: N ranks, C chunks, M micro-batches, S stages, P routes, E boundaries, T tasks, L links.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.simulator.heap_kernels import occupy, pop, push

Array = NDArray[Any]


class ChunkTable(NamedTuple):
    """What list scheduling must know of routes and chunks; rank n's chunks begin at `first_chunk_N[n]`."""

    chunk_PS: Array
    route_M: Array
    rank_C: Array
    stage_C: Array
    limit_C: Array
    first_chunk_N: Array
    forward_s_C: Array
    backward_s_C: Array


class HopTable(NamedTuple):
    """Messages over every boundary of every route, activations then gradients, and the directed link they take."""

    latency_s_2PE: Array
    wire_s_2PE: Array
    link_2PE: Array
    num_links: int


@kernel(forceinline=True)
def _wake_all(num_ranks: int, num_tasks: int) -> tuple[Array, Array, int]:
    """Heap of the moments at which a rank looks for work, the first of every rank in it, and how many these are.

    Each task makes at most two.
    """
    event_s = np.empty(2 * num_tasks + num_ranks + 1)
    event = np.empty(2 * num_tasks + num_ranks + 1, np.int64)
    events = 0
    for n in range(num_ranks):
        events = push(event_s, event, events, 0.0, n)
    return event_s, event, events


@kernel(forceinline=True, allocates=False)
def _carry(hops: HopTable, free_s_L: Array, way: int, p: int, edge: int, now: float) -> float:
    """Sends a message over a boundary of a route; returns when it arrives."""
    served = occupy(free_s_L, hops.link_2PE[way, p, edge], now, hops.wire_s_2PE[way, p, edge])
    return served + hops.latency_s_2PE[way, p, edge]


@kernel
def order_tasks(
    chunks: ChunkTable, hops: HopTable, hold_backwards: bool, first_task_N: Array, stage_T: Array, micro_batch_T: Array
) -> None:
    """List scheduling as in `hetplanner.schedule.order`: fills every rank's tasks in order.

    A task is a forward (`stage_T` = stage) or a backward (`stage_T` = -1 - stage); rank n's are entries
    `first_task_N[n]` to `first_task_N[n + 1]`.
    """
    chunk_PS, route_M, _, stage_C, limit_C, _, forward_s_C, backward_s_C = chunks
    num_ranks = num_chunks = len(stage_C)
    num_stages = chunk_PS.shape[1]
    num_micro_batches = len(route_M)
    # Ready queues of every chunk: a heap of (time, micro-batch) each.
    ready_s_2CM = np.empty((2, num_chunks, num_micro_batches))
    ready_2CM = np.empty((2, num_chunks, num_micro_batches), np.int64)
    size_2C = np.zeros((2, num_chunks), np.int64)
    held_C = np.zeros(num_chunks, np.int64)
    free_s_N = np.zeros(num_ranks)
    link_free_s_L = np.zeros(hops.num_links)
    next_N = first_task_N[:-1].copy()
    forwards_left_N = (first_task_N[1:] - first_task_N[:-1]) // 2
    # A wake-up is dropped if its rank has one at that moment already.
    event_s, event, events = _wake_all(num_ranks, len(stage_T))
    for m in range(num_micro_batches):
        c = chunk_PS[route_M[m], 0]
        size_2C[0, c] = push(ready_s_2CM[0, c], ready_2CM[0, c], size_2C[0, c], 0.0, m)
    while events > 0:
        now, n = event_s[0], event[0]
        events = pop(event_s, event, events)
        if free_s_N[n] > now:
            continue
        c = n  # every rank has one chunk
        may_backward = not hold_backwards or forwards_left_N[n] == 0
        if may_backward and size_2C[1, c] > 0 and ready_s_2CM[1, c, 0] <= now:
            way = 1
        elif size_2C[0, c] > 0 and ready_s_2CM[0, c, 0] <= now and held_C[c] < limit_C[c]:
            way = 0
        else:
            continue
        m = ready_2CM[way, c, 0]
        size_2C[way, c] = pop(ready_s_2CM[way, c], ready_2CM[way, c], size_2C[way, c])
        s, p = stage_C[c], route_M[m]
        micro_batch_T[next_N[n]] = m
        if way == 0:
            stage_T[next_N[n]] = s
            end = now + forward_s_C[c]
            held_C[c] += 1
            forwards_left_N[n] -= 1
        else:
            stage_T[next_N[n]] = -1 - s
            end = now + backward_s_C[c]
            held_C[c] -= 1
        next_N[n] += 1
        free_s_N[n] = end
        if way == 0 and s + 1 == num_stages:
            size_2C[1, c] = push(ready_s_2CM[1, c], ready_2CM[1, c], size_2C[1, c], end, m)
        elif way == 0 or s > 0:
            target = chunk_PS[p, s - 1 if way else s + 1]
            ready = _carry(hops, link_free_s_L, way, p, s - way, end)
            size_2C[way, target] = push(
                ready_s_2CM[way, target], ready_2CM[way, target], size_2C[way, target], ready, m
            )
            if free_s_N[target] <= ready:  # else that rank looks again when it is free
                events = push(event_s, event, events, ready, target)
        events = push(event_s, event, events, end, n)


@kernel
def order_interleaved(
    chunks: ChunkTable, hops: HopTable, sequence_2T2: Array, first_task_N: Array, stage_T: Array, micro_batch_T: Array
) -> None:
    """As `order_tasks`, for ranks that serve several stages.

    Rank n's forwards are the first half of ``sequence_2T2[0, first_task_N[n] : first_task_N[n + 1]]``, its backwards
    of ``sequence_2T2[1, ...]``, as (chunk, micro-batch).
    """
    chunk_PS, route_M, rank_C, stage_C, limit_C, first_chunk_N, forward_s_C, backward_s_C = chunks
    num_ranks, num_chunks = len(first_chunk_N) - 1, len(rank_C)
    num_stages = chunk_PS.shape[1]
    ready_s_2CM = np.full((2, num_chunks, len(route_M)), np.inf)
    held_C = np.zeros(num_chunks, np.int64)
    free_s_N = np.zeros(num_ranks)
    link_free_s_L = np.zeros(hops.num_links)
    done_2N = np.zeros((2, num_ranks), np.int64)
    last_N = np.zeros(num_ranks, np.int64)
    event_s, event, events = _wake_all(num_ranks, len(stage_T))
    for m in range(len(route_M)):
        ready_s_2CM[0, chunk_PS[route_M[m], 0], m] = 0.0
    while events > 0:
        now, n = event_s[0], event[0]
        events = pop(event_s, event, events)
        if free_s_N[n] > now:
            continue
        half = (first_task_N[n + 1] - first_task_N[n]) // 2
        c = -1
        m = -1
        way = -1
        for turn in range(2):
            trial = (1 - last_N[n] + turn) % 2
            if done_2N[trial, n] < half:
                c = sequence_2T2[trial, first_task_N[n] + done_2N[trial, n], 0]
                m = sequence_2T2[trial, first_task_N[n] + done_2N[trial, n], 1]
                if ready_s_2CM[trial, c, m] <= now and (trial == 1 or held_C[c] < limit_C[c]):
                    way = trial
                    break
        if way < 0:
            continue
        last_N[n] = way
        s, p = stage_C[c], route_M[m]
        t = first_task_N[n] + done_2N[0, n] + done_2N[1, n]
        done_2N[way, n] += 1
        micro_batch_T[t] = m
        stage_T[t] = -1 - s if way else s
        end = now + (backward_s_C[c] if way else forward_s_C[c])
        held_C[c] += -1 if way else 1
        free_s_N[n] = end
        if way == 0 and s + 1 == num_stages:
            ready_s_2CM[1, c, m] = end
        elif way == 0 or s > 0:
            target = chunk_PS[p, s - 1 if way else s + 1]
            ready = _carry(hops, link_free_s_L, way, p, s - way, end)
            ready_s_2CM[way, target, m] = ready
            events = push(event_s, event, events, ready, rank_C[target])
        events = push(event_s, event, events, end, n)
