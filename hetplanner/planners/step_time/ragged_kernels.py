"""Compiled search over layouts whose stages have unlike numbers of replicas. Imports numba: do it lazily.

Legend of array suffixes: D devices, K cut points, H hosts, S stages, N placed devices (stage by stage) plus spare ones,
P routes.

State: ``place_N``, ``first_S`` (where each stage's devices begin, S + 1 entries), ``load_N`` (micro-batches of each
placed device; every stage has the same sum) and ``cut_S``. Routes follow from these: both sides of a boundary lay their
loads out one after the other, and a route is what overlaps, as in
:func:`hetplanner.planners.baselines.swarm.overlap_routes`.
"""

from __future__ import annotations

import numpy as np

from hetplanner.kernels import kernel
from hetplanner.planners.search.kernel_random import cooling_factor, draw_limit, next_below, next_uniform
from hetplanner.planners.step_time.anneal import shift_cut, shift_load
from hetplanner.planners.step_time.kernels import (
    OVERFLOW_PENALTY,
    PIN_PENALTY,
    after_tied,
    compute_seconds,
    depth_of,
    load_pipe,
    load_reduction,
    next_user,
    price_devices,
    reduction_seconds,
    rounds_seconds,
    slow_down,
    tied_egress_usd,
    tied_phase,
    update_seconds,
)
from hetplanner.planners.step_time.space import Array, RaggedWork, StepProblem


@kernel(allocates=False)
def lay_routes(first_S: Array, load_N: Array, work: RaggedWork) -> int:
    """Positions that every route uses (``path_PS``) and its micro-batches (``share_P``); returns how many there are."""
    num_stages = len(first_S) - 1
    for s in range(num_stages):
        work.at_S[s] = first_S[s]
        work.left_S[s] = load_N[first_S[s]]
    count = 0
    while work.at_S[0] < first_S[1]:
        share = work.left_S[0]
        for s in range(1, num_stages):
            share = min(share, work.left_S[s])
        work.share_P[count] = share
        for s in range(num_stages):
            work.path_PS[count, s] = work.at_S[s]
            work.left_S[s] -= share
            if work.left_S[s] == 0:
                work.at_S[s] += 1
                if work.at_S[s] < first_S[s + 1]:
                    work.left_S[s] = load_N[work.at_S[s]]
        count += 1
    return count


@kernel(forceinline=True, allocates=False)
def _load_nics(
    problem: StepProblem, place_N: Array, first_S: Array, cut_S: Array, num_routes: int, work: RaggedWork
) -> None:
    """NIC-busy seconds of every host: of the pipelines over a step, and of one phase of the stages' reductions."""
    work.pipe_2H[:] = 0.0
    work.reduce_H[:] = 0.0
    for s in range(len(first_S) - 1):
        for k in range(num_routes if s else 0):
            device, other = place_N[work.path_PS[k, s]], place_N[work.path_PS[k, s - 1]]
            load_pipe(problem, device, other, cut_S[s], work.share_P[k], work.pipe_2H)
        count, num_bytes = first_S[s + 1] - first_S[s], problem.reduced_KK[cut_S[s], cut_S[s + 1]]
        load_reduction(problem, place_N, first_S[s], count, num_bytes, work.count_H, work.reduce_H)
    slow_down(problem, work.pipe_2H, work.reduce_H)


@kernel(forceinline=True, allocates=False)
def _count_messages(num_stages: int, num_routes: int, work: RaggedWork) -> None:
    """Micro-batches over every route's links; routes between the same two devices follow one another."""
    for s in range(1, num_stages):
        k = 0
        while k < num_routes:
            end = k
            total = 0
            while (
                end < num_routes
                and work.path_PS[end, s] == work.path_PS[k, s]
                and work.path_PS[end, s - 1] == work.path_PS[k, s - 1]
            ):
                total += work.share_P[end]
                end += 1
            work.pair_PS[k:end, s] = total
            k = end


@kernel(forceinline=True, allocates=False)
def _time_route(problem: StepProblem, place_N: Array, load_N: Array, cut_S: Array, k: int, work: RaggedWork) -> None:
    """A route's round trips and drains, its busiest device or link, and its part in each device's mean round trip."""
    num_stages = len(cut_S) - 1
    more = 0.0
    drain = 0.0
    nic_s = 0.0
    for s in range(num_stages):
        i = work.path_PS[k, s]
        a = place_N[i]
        seconds, back = compute_seconds(problem, a, cut_S[s], cut_S[s + 1])
        work.trip_PS[k, s] = seconds
        if s:
            b = place_N[work.path_PS[k, s - 1]]
            there = problem.boundary_K[cut_S[s]] * problem.pipe_rate_DD[b, a]
            home = problem.gradient_K[cut_S[s]] * problem.pipe_rate_DD[a, b]
            more = max(more, (work.pair_PS[k, s] - 1) * max(there, home))
            hop = problem.latency_DD[a, b] + home
            drain += hop
            work.trip_PS[k, s - 1] += hop + problem.latency_DD[b, a] + there
        work.drain_PS[k, s] = drain
        drain += back
        more = max(more, (load_N[i] - 1) * seconds)
        if problem.has_nics:
            nic_s = max(nic_s, work.pipe_2H[0, problem.host_D[a]])
    work.more_P[k] = max(more, nic_s * (1.0 - 1.0 / work.share_P[k]))
    for s in range(num_stages - 1, -1, -1):
        if s < num_stages - 1:
            work.trip_PS[k, s] += work.trip_PS[k, s + 1]
        i = work.path_PS[k, s]
        work.mean_N[i] += work.trip_PS[k, s] * work.share_P[k] / load_N[i]


@kernel(forceinline=True, allocates=False)
def _route_end(load_N: Array, k: int, work: RaggedWork) -> float:
    """End of a route's last backward."""
    num_stages = len(work.depth_S)
    more = work.more_P[k]
    most = 0
    for s in range(num_stages):
        most = max(most, load_N[work.path_PS[k, s]])
    slowest = more / max(most - 1, 1)
    base = more
    for s in range(num_stages):
        i = work.path_PS[k, s]
        base = max(base, rounds_seconds(load_N[i] - 1, work.depth_S[s], work.mean_N[i], slowest))
    return work.trip_PS[k, 0] + base


@kernel(allocates=False)
def evaluate_ragged(
    problem: StepProblem, place_N: Array, first_S: Array, load_N: Array, cut_S: Array, work: RaggedWork
) -> float:
    """Closed form of one layout."""
    num_stages = len(first_S) - 1
    num_routes = lay_routes(first_S, load_N, work)
    missing = 0.0
    for s in range(num_stages):
        work.depth_S[s], lack = depth_of(problem, place_N, first_S[s], first_S[s + 1], cut_S[s], cut_S[s + 1])
        missing += lack
        work.end_S[s] = 0.0
    if problem.has_nics:
        _load_nics(problem, place_N, first_S, cut_S, num_routes, work)
    _count_messages(num_stages, num_routes, work)
    work.mean_N[:] = 0.0
    for k in range(num_routes):
        _time_route(problem, place_N, load_N, cut_S, k, work)
    for k in range(num_routes):
        end = _route_end(load_N, k, work)
        for s in range(num_stages):
            work.end_S[s] = max(work.end_S[s], end - work.drain_PS[k, s])
    step = 0.0
    optimizer = 0.0
    for s in range(num_stages):
        begin, count = first_S[s], first_S[s + 1] - first_S[s]
        updating, adding, phase = update_seconds(problem, place_N, begin, count, cut_S[s], cut_S[s + 1])
        optimizer = max(optimizer, updating)
        done = work.end_S[s] + reduction_seconds(
            problem, place_N, begin, count, problem.reduced_KK[cut_S[s], cut_S[s + 1]], phase, adding, work.reduce_H
        )
        step = max(step, done)
        work.end_S[s] = done
    for g in range(len(problem.tied_bytes_G)):
        count = _tied_members(problem, place_N, first_S, cut_S, g, work)
        phase = tied_phase(problem, work.member_N, count, problem.tied_bytes_G[g], work.count_H)
        step = max(step, after_tied(problem, cut_S, g, 2.0 * phase * problem.reduce_share, work.end_S))
    value = step + optimizer
    if problem.priced:
        price = price_devices(problem, place_N, first_S[num_stages])
        value = value * price + _egress_usd(problem, place_N, first_S, cut_S, num_routes, work)
    penalty = 1.0 + OVERFLOW_PENALTY * missing
    if problem.has_pins:
        penalty += PIN_PENALTY * _misplaced(problem, place_N, first_S)
    return value * penalty


@kernel(forceinline=True, allocates=False)
def _tied_members(
    problem: StepProblem, place_N: Array, first_S: Array, cut_S: Array, group: int, work: RaggedWork
) -> int:
    """The devices of all stages that use a tied weight: how many (0 if it is one stage)."""
    count = 0
    stages = 0
    before = -1
    for user in range(problem.tied_GM.shape[1]):
        stage = next_user(problem, cut_S, group, user, max(before, 0))
        if stage < 0:
            break
        if stage != before:
            stages += 1
            for i in range(first_S[stage], first_S[stage + 1]):
                work.member_N[count] = place_N[i]
                count += 1
        before = stage
    return count if stages > 1 else 0


@kernel(allocates=False)
def _egress_usd(
    problem: StepProblem, place_N: Array, first_S: Array, cut_S: Array, num_routes: int, work: RaggedWork
) -> float:
    """Dollars for bytes that leave a site in one step."""
    total = 0.0
    for s in range(len(first_S) - 1):
        there, home = problem.boundary_K[cut_S[s]], problem.gradient_K[cut_S[s]]
        for k in range(num_routes if s else 0):
            a, b = place_N[work.path_PS[k, s]], place_N[work.path_PS[k, s - 1]]
            total += work.share_P[k] * (home * problem.egress_DD[a, b] + there * problem.egress_DD[b, a])
        count = first_S[s + 1] - first_S[s]
        shard = problem.reduced_KK[cut_S[s], cut_S[s + 1]] / count
        for i in range(first_S[s], first_S[s + 1]):
            for j in range(first_S[s], first_S[s + 1]):
                total += 2.0 * problem.reduce_share * shard * problem.egress_DD[place_N[i], place_N[j]]
    for g in range(len(problem.tied_bytes_G)):
        count = _tied_members(problem, place_N, first_S, cut_S, g, work)
        total += tied_egress_usd(problem, work.member_N, count, problem.tied_bytes_G[g])
    return total


@kernel(allocates=False)
def _misplaced(problem: StepProblem, place_N: Array, first_S: Array) -> int:
    """How many pinned devices do not serve their stage."""
    count = 0
    for i in range(len(place_N)):
        pin = problem.pin_D[place_N[i]]
        if pin >= 0 and (pin >= len(first_S) - 1 or i < first_S[pin] or i >= first_S[pin + 1]):
            count += 1
    return count


@kernel(allocates=True)
def deal_loads(
    problem: StepProblem, place_N: Array, begin: int, stop: int, first: int, end: int, total: int, load_N: Array
) -> None:
    """Micro-batches of a stage's devices in proportion to their speed on its ops (largest remainders, one at least)."""
    work = 0.0
    exact = np.empty(stop - begin)
    for i in range(begin, stop):
        seconds, _ = compute_seconds(problem, place_N[i], first, end)
        exact[i - begin] = max(seconds, 1e-30)
        work += 1.0 / exact[i - begin]
    left = total
    for i in range(begin, stop):
        exact[i - begin] = total / exact[i - begin] / work
        load_N[i] = max(1, int(exact[i - begin]))
        left -= load_N[i]
    while left != 0:
        step = 1 if left > 0 else -1
        pick = -1
        for i in range(begin, stop):
            if step < 0 and load_N[i] == 1:
                continue
            lack = step * (exact[i - begin] - load_N[i])
            if pick < 0 or lack > step * (exact[pick - begin] - load_N[pick]):
                pick = i
        load_N[pick] += step
        left -= step


@kernel(allocates=False)
def _shift(place_N: Array, source: int, target: int) -> None:
    """Takes the device at one position out and puts it in at another."""
    device = place_N[source]
    step = 1 if target > source else -1
    for i in range(source, target, step):
        place_N[i] = place_N[i + step]
    place_N[target] = device


@kernel(allocates=False)
def _stage_at(first_S: Array, position: int) -> int:
    """Stage of a position; the number of stages for a spare one."""
    for s in range(1, len(first_S)):
        if position < first_S[s]:
            return s - 1
    return len(first_S) - 1


@kernel(allocates=False)
def give_device(
    problem: StepProblem, place_N: Array, first_S: Array, load_N: Array, cut_S: Array, total: int, state: Array
) -> bool:
    """Moves a device from one stage (or the spare ones) to another; both deal their micro-batches anew."""
    num_stages = len(first_S) - 1
    x = next_below(state, len(place_N))
    source = _stage_at(first_S, x)
    target = next_below(state, num_stages + 1)
    if source == target or (source < num_stages and first_S[source + 1] - first_S[source] < 2):
        return False
    if target < num_stages and first_S[target + 1] - first_S[target] >= total:
        return False
    begin = first_S[target] if target < num_stages else first_S[num_stages]
    size = first_S[target + 1] - begin if target < num_stages else len(place_N) - begin
    y = begin + next_below(state, size + 1)
    # Once taken out, the device leaves a gap that those behind close.
    y = y - 1 if y > x else y
    _shift(place_N, x, y)
    _shift(load_N, x, y)
    for s in range(min(source, target) + 1, max(source, target) + 1):
        first_S[s] += 1 if source > target else -1
    for s in (source, target):
        if s < num_stages:
            deal_loads(problem, place_N, first_S[s], first_S[s + 1], cut_S[s], cut_S[s + 1], total, load_N)
    return True


@kernel(allocates=False)
def mutate_ragged(
    problem: StepProblem, place_N: Array, first_S: Array, load_N: Array, cut_S: Array, total: int, state: Array
) -> bool:
    """One random change: gives a device away, swaps two, shifts a cut, or moves micro-batches inside a stage."""
    num_stages = len(first_S) - 1
    num_placed = first_S[num_stages]
    draw = next_uniform(state)
    if draw < 0.25:
        return give_device(problem, place_N, first_S, load_N, cut_S, total, state)
    if draw < 0.7:
        x, y = next_below(state, num_placed), next_below(state, len(place_N))
        if x == y:
            return False
        place_N[x], place_N[y] = place_N[y], place_N[x]
        s, t = _stage_at(first_S, x), _stage_at(first_S, y)
        if problem.class_D[place_N[x]] != problem.class_D[place_N[y]]:
            if s == t:
                load_N[x], load_N[y] = load_N[y], load_N[x]
            else:
                deal_loads(problem, place_N, first_S[s], first_S[s + 1], cut_S[s], cut_S[s + 1], total, load_N)
                if t < num_stages:
                    deal_loads(problem, place_N, first_S[t], first_S[t + 1], cut_S[t], cut_S[t + 1], total, load_N)
        return True
    if draw < 0.85 and num_stages > 1:
        return shift_cut(cut_S, state) > 0
    x = next_below(state, num_placed)
    s = _stage_at(first_S, x)
    y = first_S[s] + next_below(state, first_S[s + 1] - first_S[s])
    return shift_load(load_N, x, y, state)


@kernel
def anneal_ragged(
    problem: StepProblem, place_N: Array, first_S: Array, load_N: Array, cut_S: Array, total: int, num_moves: int,
    hot: float, cold: float, state: Array, work: RaggedWork,
) -> float:  # fmt: skip
    """Low-temperature annealing of one layout in place: it ends as the best met, whose value is returned."""
    value = evaluate_ragged(problem, place_N, first_S, load_N, cut_S, work)
    best = value
    best_N, best_first, best_load, best_cut = place_N.copy(), first_S.copy(), load_N.copy(), cut_S.copy()
    old_N, old_first, old_load, old_cut = place_N.copy(), first_S.copy(), load_N.copy(), cut_S.copy()
    cooling = cooling_factor(hot, cold, num_moves)
    temperature = hot * value
    for _ in range(num_moves):
        temperature *= cooling
        if not mutate_ragged(problem, place_N, first_S, load_N, cut_S, total, state):
            continue
        new = evaluate_ragged(problem, place_N, first_S, load_N, cut_S, work)
        if new <= draw_limit(value, temperature, state):
            value = new
            old_N[:], old_first[:], old_load[:], old_cut[:] = place_N, first_S, load_N, cut_S
            if new < best * (1.0 - 1e-12):
                best = new
                best_N[:], best_first[:], best_load[:], best_cut[:] = place_N, first_S, load_N, cut_S
        else:
            place_N[:], first_S[:], load_N[:], cut_S[:] = old_N, old_first, old_load, old_cut
    place_N[:], first_S[:], load_N[:], cut_S[:] = best_N, best_first, best_load, best_cut
    return best
