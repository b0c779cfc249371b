"""Compiled kernels: what a packed plan's ranks do, and the time it takes. Importing this module imports numba: do it
lazily.

The kernels follow `hetplanner.simulator.engine` to the last rounding (property tests hold them equal) but make no
spans; `hetplanner.simulator.replay` does, from what `run_timed` may keep. A rank's program is a list of instructions,
each of which may wait for one message, then compute, then hand one message over. Without NICs every directed link is
fed by one rank in the order of its program, so ranks run ahead of one another as far as messages allow (data flow);
with NICs the ranks advance in the order of time.

Legend of array suffixes: N ranks, M micro-batches, S stages, T tasks, I instructions of all ranks, X messages, L links,
H hosts, K steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.simulator.heap_kernels import occupy, pop, push

Array = NDArray[Any]

# Not yet handed over.
UNSENT = -1.0
# Kinds of instructions: handling messages, forwards and backwards, adding up gradients, the optimizer's step.
HANDLING, COMPUTE, REDUCE, STEP = 0, 1, 2, 3


@kernel
def lower_tasks(
    first_task_N: Array, stage_T: Array, micro_batch_T: Array, num_stages: int, num_micro_batches: int,
    forward_s_SN: Array, backward_s_SN: Array, encode_s_N: Array, decode_s_N: Array, waits_s_X: Array,
    first_tail_N: Array, tail: tuple[Array, Array, Array, Array, Array], first_N: Array, end_N: Array,
    program: tuple[Array, Array, Array, Array, Array],
) -> None:  # fmt: skip
    """Turns ordered tasks into instructions: receive and decode, compute, encode and send; appends every rank's tail.

    Message e * M + m carries micro-batch m's activation over boundary e, message (E + e) * M + m its gradient. A
    program is (wait, work, send, action, kind) of every instruction; rank n's begins at `first_N[n]`, and `end_N[n]`
    is filled in. Where coding takes no time, receiving, computing and sending are one instruction; `waits_s_X`, if
    not empty, is for how long a sender waits behind a message.
    """
    wait_I, work_I, send_I, action_I, kind_I = program
    num_edges = num_stages - 1
    for n in range(len(end_N)):
        i = first_N[n]
        action = 0
        for t in range(first_task_N[n], first_task_N[n + 1]):
            m = micro_batch_T[t]
            if stage_T[t] >= 0:
                s = stage_T[t]
                work = forward_s_SN[s, n]
                taken = (s - 1) * num_micro_batches + m if s > 0 else -1
                sent = s * num_micro_batches + m if s < num_edges else -1
            else:
                s = -1 - stage_T[t]
                work = backward_s_SN[s, n]
                taken = (num_edges + s) * num_micro_batches + m if s < num_edges else -1
                sent = (num_edges + s - 1) * num_micro_batches + m if s > 0 else -1
            if taken >= 0:
                wait_I[i] = taken
                if decode_s_N[n] > 0.0:
                    work_I[i] = decode_s_N[n]
                    action_I[i] = action
                    i += 1
                action += 1
            work_I[i] = work
            action_I[i] = action
            kind_I[i] = COMPUTE
            action += 1
            if sent >= 0:
                if encode_s_N[n] > 0.0:
                    i += 1
                    work_I[i] = encode_s_N[n]
                    action_I[i] = action
                send_I[i] = sent
                if len(waits_s_X):
                    i += 1
                    work_I[i] = waits_s_X[sent]
                    action_I[i] = action
                action += 1
            i += 1
        for t in range(first_tail_N[n], first_tail_N[n + 1]):
            wait_I[i], work_I[i], send_I[i] = tail[0][t], tail[1][t], tail[2][t]
            action_I[i] = action + tail[3][t]
            kind_I[i] = tail[4][t]
            i += 1
        end_N[n] = i


@kernel
def run_free(
    first_N: Array, end_N: Array, wait_I: Array, work_KI: Array, send_I: Array, link_X: Array, wire_s_KX: Array,
    latency_s_KX: Array, target_X: Array, num_links: int, steps: int, end_s_KN: Array,
) -> int:  # fmt: skip
    """Times programs where no host has a NIC; returns the number of ranks that ended all steps.

    `work_KI`, `wire_s_KX` and `latency_s_KX` have one row for all steps or one a step.
    """
    num_ranks, num_messages = len(first_N), len(link_X)
    arrival_s_X = np.full(steps * num_messages, UNSENT)
    busy_s_L = np.zeros(num_links)
    now_s_N = np.zeros(num_ranks)
    next_N = first_N.copy()
    step_N = np.zeros(num_ranks, np.int64)
    parked_N = np.full(num_ranks, -1, np.int64)
    stack = np.arange(num_ranks - 1, -1, -1)
    height = num_ranks
    vary_work, vary_wire = len(work_KI) > 1, len(wire_s_KX) > 1
    done = 0
    while height > 0:
        height -= 1
        n = stack[height]
        now = now_s_N[n]
        i = next_N[n]
        end = end_N[n]
        k = step_N[n]
        blocked = False
        while k < steps:
            work_I = work_KI[k if vary_work else 0]
            wire_s_X = wire_s_KX[k if vary_wire else 0]
            latency_s_X = latency_s_KX[k if vary_wire else 0]
            offset = k * num_messages
            while i < end:
                x = wait_I[i]
                if x >= 0:
                    arrival = arrival_s_X[offset + x]
                    if arrival < 0.0:
                        parked_N[n] = offset + x
                        blocked = True
                        break
                    now = max(now, arrival)
                now += work_I[i]
                x = send_I[i]
                if x >= 0:
                    arrival_s_X[offset + x] = occupy(busy_s_L, link_X[x], now, wire_s_X[x]) + latency_s_X[x]
                    target = target_X[x]
                    if parked_N[target] == offset + x:
                        parked_N[target] = -1
                        stack[height] = target
                        height += 1
                i += 1
            if blocked:
                break
            end_s_KN[k, n] = now
            k += 1
            i = first_N[n]
        now_s_N[n] = now
        next_N[n] = i
        step_N[n] = k
        if k == steps:
            done += 1
    return done


class _Network(NamedTuple):
    """Messages of a step and what they pass: links, and NICs as `run_timed` takes them; until when each is busy."""

    link_X: Array
    wire_s_KX: Array
    latency_s_KX: Array
    out_X: Array
    out_s_KX: Array
    in_X: Array
    in_s_KX: Array
    link_busy_s_L: Array
    out_busy_s_H: Array
    in_busy_s_H: Array


@kernel(forceinline=True, allocates=False)
def _carry(network: _Network, row: int, x: int, now: float) -> float:
    """Sends a message; returns when it arrives."""
    served = occupy(network.link_busy_s_L, network.link_X[x], now, network.wire_s_KX[row, x])
    if network.out_X[x] >= 0:
        served = max(served, occupy(network.out_busy_s_H, network.out_X[x], now, network.out_s_KX[row, x]))
    if network.in_X[x] >= 0:
        served = max(served, occupy(network.in_busy_s_H, network.in_X[x], now, network.in_s_KX[row, x]))
    return served + network.latency_s_KX[row, x]


class _Ranks(NamedTuple):
    """Where every rank stands.

    Attributes:
        next_N, step_N: instruction and step.
        phase_N: 0 about to wait, 1 about to compute, 2 has computed.
        parked_N: the message that it waits for and that was not yet handed over, -1 for none.
    """

    next_N: Array
    step_N: Array
    phase_N: Array
    parked_N: Array


@kernel
def run_timed(
    first_N: Array, end_N: Array, wait_I: Array, work_KI: Array, send_I: Array, link_X: Array, wire_s_KX: Array,
    latency_s_KX: Array, target_X: Array, num_links: int, out_X: Array, out_s_KX: Array, in_X: Array, in_s_KX: Array,
    num_hosts: int, steps: int, arrival_s_X: Array, end_s_KI: Array, end_s_KN: Array,
) -> int:  # fmt: skip
    """Times programs over shared NICs, in the order of (time, rank); returns how many ranks ended all steps.

    `out_X`, `in_X` are the hosts whose NICs a message passes, -1 where there is none or it knows no limit.
    `arrival_s_X` has room for the messages of all steps and is `UNSENT`; `end_s_KI`, where it has rows, is filled with
    the end of every instruction.
    """
    num = len(first_N)
    network = _Network(
        link_X, wire_s_KX, latency_s_KX, out_X, out_s_KX, in_X, in_s_KX,
        np.zeros(num_links), np.zeros(num_hosts), np.zeros(num_hosts),
    )  # fmt: skip
    ranks = _Ranks(first_N.copy(), np.zeros(num, np.int64), np.zeros(num, np.int64), np.full(num, -1, np.int64))
    return _run_timed(
        first_N, end_N, wait_I, work_KI, send_I, target_X, steps, arrival_s_X, end_s_KI, end_s_KN, network, ranks,
        np.empty(num + 1), np.empty(num + 1, np.int64),
    )  # fmt: skip


@kernel(allocates=False)
def _run_timed(
    first_N: Array, end_N: Array, wait_I: Array, work_KI: Array, send_I: Array, target_X: Array, steps: int,
    arrival_s_X: Array, end_s_KI: Array, end_s_KN: Array, network: _Network, ranks: _Ranks, event_s: Array,
    event: Array,
) -> int:  # fmt: skip
    """The events of `run_timed`: a rank that goes on, by time and rank."""
    next_N, step_N, phase_N, parked_N = ranks
    num_messages = len(target_X)
    vary_work, vary_wire, keeps = len(work_KI) > 1, len(network.wire_s_KX) > 1, len(end_s_KI) > 0
    done = 0
    events = 0
    for n in range(len(first_N)):
        events = push(event_s, event, events, 0.0, n)
    while events > 0:
        now, n = event_s[0], event[0]
        events = pop(event_s, event, events)
        i, k, phase = next_N[n], step_N[n], phase_N[n]
        while True:
            if i == end_N[n]:
                end_s_KN[k, n] = now
                k += 1
                i = first_N[n]
                if k == steps:
                    done += 1
                    break
                if i == end_N[n]:
                    continue
            offset = k * num_messages
            if phase == 0:
                x = wait_I[i]
                phase = 1
                if x >= 0:
                    arrival = arrival_s_X[offset + x]
                    if arrival < 0.0:
                        parked_N[n] = offset + x
                        break
                    if arrival > now:
                        events = push(event_s, event, events, arrival, n)
                        break
            if phase == 1:
                phase = 2
                work = work_KI[k if vary_work else 0, i]
                if work > 0.0:
                    events = push(event_s, event, events, now + work, n)
                    break
            phase = 0
            if keeps:
                end_s_KI[k, i] = now
            x = send_I[i]
            i += 1
            if x < 0:
                continue
            arrival = _carry(network, k if vary_wire else 0, x, now)
            arrival_s_X[offset + x] = arrival
            target = target_X[x]
            if parked_N[target] == offset + x:
                parked_N[target] = -1
                events = push(event_s, event, events, arrival, target)
        next_N[n] = i
        step_N[n] = k
        phase_N[n] = phase
    return done
