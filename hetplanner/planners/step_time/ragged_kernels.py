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
from hetplanner.planners.search.kernel_random import next_below, next_uniform
from hetplanner.planners.step_time.kernels import (
    OVERFLOW_PENALTY,
    PIN_PENALTY,
    after_tied,
    depth_of,
    next_user,
    reduce_phase,
    tied_egress_usd,
    tied_phase,
)
from hetplanner.planners.step_time.space import Array, RaggedWork, StepProblem


@kernel
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


@kernel(forceinline=True)
def _load_nics(
    problem: StepProblem, place_N: Array, first_S: Array, cut_S: Array, num_routes: int, work: RaggedWork
) -> None:
    """NIC-busy seconds of every host: of the pipelines over a step, and of one phase of the stages' reductions."""
    work.pipe_H[:] = 0.0
    work.reduce_H[:] = 0.0
    for s in range(len(first_S) - 1):
        size = problem.boundary_K[cut_S[s]]
        for k in range(num_routes if s else 0):
            host = problem.host_D[place_N[work.path_PS[k, s]]]
            other = problem.host_D[place_N[work.path_PS[k, s - 1]]]
            if host != other:
                work.pipe_H[host] += size * work.share_P[k]
                work.pipe_H[other] += size * work.share_P[k]
        count = first_S[s + 1] - first_S[s]
        shard = problem.reduced_KK[cut_S[s], cut_S[s + 1]] / count
        for i in range(first_S[s], first_S[s + 1]):
            work.count_H[problem.host_D[place_N[i]]] += 1
        for i in range(first_S[s], first_S[s + 1]):
            host = problem.host_D[place_N[i]]
            work.reduce_H[host] += shard * (count - work.count_H[host])
        for i in range(first_S[s], first_S[s + 1]):
            work.count_H[problem.host_D[place_N[i]]] = 0
    for h in range(len(work.pipe_H)):
        slower = max(problem.nic_out_H[h], problem.nic_in_H[h])
        work.pipe_H[h] *= slower
        work.reduce_H[h] *= slower


@kernel(forceinline=True)
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


@kernel(forceinline=True)
def _time_route(problem: StepProblem, place_N: Array, load_N: Array, cut_S: Array, k: int, work: RaggedWork) -> None:
    """A route's round trips and drains, its busiest device or link, and its part in each device's mean round trip."""
    num_stages = len(cut_S) - 1
    more = 0.0
    drain = 0.0
    nic_s = 0.0
    for s in range(num_stages):
        i = work.path_PS[k, s]
        a = place_N[i]
        row = problem.class_D[a]
        back = problem.backward_CK[row, cut_S[s + 1]] - problem.backward_CK[row, cut_S[s]]
        seconds = problem.forward_CK[row, cut_S[s + 1]] - problem.forward_CK[row, cut_S[s]] + back
        work.trip_PS[k, s] = seconds
        if s:
            b = place_N[work.path_PS[k, s - 1]]
            size = problem.boundary_K[cut_S[s]]
            there, home = problem.pipe_rate_DD[b, a], problem.pipe_rate_DD[a, b]
            more = max(more, (work.pair_PS[k, s] - 1) * size * max(there, home))
            hop = problem.latency_DD[a, b] + size * home
            drain += hop
            work.trip_PS[k, s - 1] += hop + problem.latency_DD[b, a] + size * there
        work.drain_PS[k, s] = drain
        drain += back
        more = max(more, (load_N[i] - 1) * seconds)
        if problem.has_nics:
            nic_s = max(nic_s, work.pipe_H[problem.host_D[a]])
    work.more_P[k] = max(more, nic_s * (1.0 - 1.0 / work.share_P[k]))
    for s in range(num_stages - 1, -1, -1):
        if s < num_stages - 1:
            work.trip_PS[k, s] += work.trip_PS[k, s + 1]
        i = work.path_PS[k, s]
        work.mean_N[i] += work.trip_PS[k, s] * work.share_P[k] / load_N[i]


@kernel(forceinline=True)
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
        rest = load_N[i] - 1
        if rest >= work.depth_S[s]:
            rounds = rest // work.depth_S[s]
            base = max(base, rounds * work.mean_N[i] + (rest - rounds * work.depth_S[s]) * slowest)
    return work.trip_PS[k, 0] + base


@kernel
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
        count = first_S[s + 1] - first_S[s]
        params = problem.state_KK[cut_S[s], cut_S[s + 1]] / 16.0
        phase = 0.0
        adding = 0.0
        reduced = problem.reduced_KK[cut_S[s], cut_S[s + 1]]
        reduces = count > 1 and reduced > 0
        if reduces:
            phase = reduce_phase(problem, place_N, first_S[s], count, reduced)
        for i in range(first_S[s], first_S[s + 1]):
            a = place_N[i]
            optimizer = max(optimizer, params * problem.optimizer_rate_D[a])
            if reduces:
                adding = max(adding, params * problem.add_rate_D[a])
                if problem.has_nics:
                    phase = max(phase, work.reduce_H[problem.host_D[a]])
        done = work.end_S[s] + (2.0 * phase + adding) * problem.reduce_share
        step = max(step, done)
        work.end_S[s] = done
    for g in range(len(problem.tied_bytes_G)):
        count = _tied_members(problem, place_N, first_S, cut_S, g, work)
        phase = tied_phase(problem, work.member_N, count, problem.tied_bytes_G[g], work.count_H)
        step = max(step, after_tied(problem, cut_S, g, 2.0 * phase * problem.reduce_share, work.end_S))
    value = step + optimizer
    if problem.priced:
        price = 0.0
        for i in range(first_S[num_stages]):
            price += problem.price_D[place_N[i]]
        value = value * price + _egress_usd(problem, place_N, first_S, cut_S, num_routes, work)
    penalty = 1.0 + OVERFLOW_PENALTY * missing
    if problem.has_pins:
        penalty += PIN_PENALTY * _misplaced(problem, place_N, first_S)
    return value * penalty


@kernel(forceinline=True)
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


@kernel
def _egress_usd(
    problem: StepProblem, place_N: Array, first_S: Array, cut_S: Array, num_routes: int, work: RaggedWork
) -> float:
    """Dollars for bytes that leave a site in one step."""
    total = 0.0
    for s in range(len(first_S) - 1):
        size = problem.boundary_K[cut_S[s]]
        for k in range(num_routes if s else 0):
            a, b = place_N[work.path_PS[k, s]], place_N[work.path_PS[k, s - 1]]
            total += size * work.share_P[k] * (problem.egress_DD[a, b] + problem.egress_DD[b, a])
        count = first_S[s + 1] - first_S[s]
        shard = problem.reduced_KK[cut_S[s], cut_S[s + 1]] / count
        for i in range(first_S[s], first_S[s + 1]):
            for j in range(first_S[s], first_S[s + 1]):
                total += 2.0 * problem.reduce_share * shard * problem.egress_DD[place_N[i], place_N[j]]
    for g in range(len(problem.tied_bytes_G)):
        count = _tied_members(problem, place_N, first_S, cut_S, g, work)
        total += tied_egress_usd(problem, work.member_N, count, problem.tied_bytes_G[g])
    return total


@kernel
def _misplaced(problem: StepProblem, place_N: Array, first_S: Array) -> int:
    """How many pinned devices do not serve their stage."""
    count = 0
    for i in range(len(place_N)):
        pin = problem.pin_D[place_N[i]]
        if pin >= 0 and (pin >= len(first_S) - 1 or i < first_S[pin] or i >= first_S[pin + 1]):
            count += 1
    return count


@kernel
def deal_loads(
    problem: StepProblem, place_N: Array, begin: int, stop: int, first: int, end: int, total: int, load_N: Array
) -> None:
    """Micro-batches of a stage's devices in proportion to their speed on its ops (largest remainders, one at least)."""
    work = 0.0
    for i in range(begin, stop):
        row = problem.class_D[place_N[i]]
        seconds = problem.forward_CK[row, end] - problem.forward_CK[row, first]
        seconds += problem.backward_CK[row, end] - problem.backward_CK[row, first]
        work += 1.0 / max(seconds, 1e-30)
    left = total
    exact = np.empty(stop - begin)
    for i in range(begin, stop):
        row = problem.class_D[place_N[i]]
        seconds = problem.forward_CK[row, end] - problem.forward_CK[row, first]
        seconds += problem.backward_CK[row, end] - problem.backward_CK[row, first]
        exact[i - begin] = total / max(seconds, 1e-30) / work
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


@kernel
def _shift(place_N: Array, source: int, target: int) -> None:
    """Takes the device at one position out and puts it in at another."""
    device = place_N[source]
    step = 1 if target > source else -1
    for i in range(source, target, step):
        place_N[i] = place_N[i + step]
    place_N[target] = device


@kernel
def _stage_at(first_S: Array, position: int) -> int:
    """Stage of a position; the number of stages for a spare one."""
    for s in range(1, len(first_S)):
        if position < first_S[s]:
            return s - 1
    return len(first_S) - 1


@kernel
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


@kernel
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
        s = 1 + next_below(state, num_stages - 1)
        moved = cut_S[s] + (1 if next_uniform(state) < 0.5 else -1)
        if moved <= cut_S[s - 1] or moved >= cut_S[s + 1]:
            return False
        cut_S[s] = moved
        return True
    x = next_below(state, num_placed)
    s = _stage_at(first_S, x)
    y = first_S[s] + next_below(state, first_S[s + 1] - first_S[s])
    count = 1 + next_below(state, max(1, load_N[x] // 4))
    if x == y or load_N[x] - count < 1:
        return False
    load_N[x] -= count
    load_N[y] += count
    return True


@kernel
def anneal_ragged(
    problem: StepProblem,
    place_N: Array,
    first_S: Array,
    load_N: Array,
    cut_S: Array,
    total: int,
    num_moves: int,
    hot: float,
    cold: float,
    state: Array,
    work: RaggedWork,
) -> float:
    """Low-temperature annealing of one layout in place: it ends as the best met, whose value is returned."""
    value = evaluate_ragged(problem, place_N, first_S, load_N, cut_S, work)
    best = value
    best_N, best_first, best_load, best_cut = place_N.copy(), first_S.copy(), load_N.copy(), cut_S.copy()
    old_N, old_first, old_load, old_cut = place_N.copy(), first_S.copy(), load_N.copy(), cut_S.copy()
    cooling = (cold / hot) ** (1.0 / max(num_moves - 1, 1))
    temperature = hot * value
    for _ in range(num_moves):
        temperature *= cooling
        if not mutate_ragged(problem, place_N, first_S, load_N, cut_S, total, state):
            continue
        new = evaluate_ragged(problem, place_N, first_S, load_N, cut_S, work)
        if new <= value - temperature * np.log(1.0 - next_uniform(state)):
            value = new
            old_N[:], old_first[:], old_load[:], old_cut[:] = place_N, first_S, load_N, cut_S
            if new < best * (1.0 - 1e-12):
                best = new
                best_N[:], best_first[:], best_load[:], best_cut[:] = place_N, first_S, load_N, cut_S
        else:
            place_N[:], first_S[:], load_N[:], cut_S[:] = old_N, old_first, old_load, old_cut
    place_N[:], first_S[:], load_N[:], cut_S[:] = best_N, best_first, best_load, best_cut
    return best
