"""Compiled exact fits of a layout's cut and shares, and its annealing. Importing this imports numba: do it lazily.

Legend of array suffixes and the state as in :mod:`hetplanner.planners.step_time.kernels`.
"""

from __future__ import annotations

import numpy as np

from hetplanner.kernels import kernel
from hetplanner.planners import pins
from hetplanner.planners.search.kernel_random import cooling_factor, copy_into, draw_limit, next_below, next_uniform
from hetplanner.planners.step_time.kernels import evaluate, fit_depth, has_backward, refresh_route, route_end, update
from hetplanner.planners.step_time.space import Array, StepProblem, StepWork

honour_pins = kernel(pins.honour_pins)


@kernel
def fit_cut(problem: StepProblem, place_N: Array, share_R: Array, num_stages: int, cut_S: Array) -> bool:
    """Cuts the model so that the busiest stage is least busy and every stage holds a micro-batch; exact, by DP.

    A stage is as busy as its busiest replica (seconds x share). False (and ``cut_S`` untouched) if no cut fits.
    """
    num_replicas = len(share_R)
    num_cuts = len(problem.boundary_K)
    most = share_R.max()
    # What counts of a class of devices in a stage is the largest share that one of them takes.
    share_C = np.empty(len(problem.forward_CK))
    best = np.full((num_stages + 1, num_cuts), np.inf)
    last = np.zeros((num_stages + 1, num_cuts), np.int64)
    best[0, 0] = 0.0
    trial = np.empty(num_stages + 1, np.int64)
    for s in range(num_stages):
        share_C[:] = 0.0
        for p in range(num_replicas):
            row = problem.class_D[place_N[s * num_replicas + p]]
            share_C[row] = max(share_C[row], share_R[p] / most)
        for end in range(s + 1, num_cuts - (num_stages - 1 - s)):
            for first in range(s, end):
                if best[s, first] == np.inf or best[s, first] >= best[s + 1, end]:
                    continue
                busy = 0.0
                for row in range(len(share_C)):
                    if share_C[row] > 0.0:
                        seconds = problem.forward_CK[row, end] - problem.forward_CK[row, first]
                        if has_backward(problem, end):
                            seconds += problem.backward_CK[row, end] - problem.backward_CK[row, first]
                        busy = max(busy, seconds * share_C[row])
                value = max(best[s, first], busy)
                if value >= best[s + 1, end]:
                    continue
                trial[s] = first
                trial[s + 1] = end
                _, missing = fit_depth(problem, place_N, trial, s, num_replicas)
                if missing > 0:
                    continue
                best[s + 1, end] = value
                last[s + 1, end] = first
    if best[num_stages, num_cuts - 1] == np.inf:
        return False
    end = num_cuts - 1
    for s in range(num_stages, 0, -1):
        cut_S[s] = end
        end = last[s, end]
    cut_S[0] = 0
    return True


@kernel
def fit_shares(
    problem: StepProblem, place_N: Array, cut_S: Array, num_micro_batches: int, share_R: Array, work: StepWork
) -> None:
    """Deals micro-batches one by one to the pipeline that would end first."""
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    for s in range(num_stages):
        work.depth_S[s], _ = fit_depth(problem, place_N, cut_S, s, num_replicas)
    next_end = np.empty(num_replicas)
    each = np.empty(num_replicas)
    for p in range(num_replicas):
        share_R[p] = 1
        refresh_route(problem, place_N, cut_S, p, num_replicas, 1, work)
        each[p] = work.load_R[p]
        next_end[p] = route_end(p, 1, 0.0, work)
    for _ in range(num_micro_batches - num_replicas):
        pick = 0
        for p in range(1, num_replicas):
            # Among equals the least loaded goes first.
            if next_end[p] < next_end[pick] or (next_end[p] == next_end[pick] and share_R[p] < share_R[pick]):
                pick = p
        share_R[pick] += 1
        work.load_R[pick] = share_R[pick] * each[pick]
        next_end[pick] = route_end(pick, share_R[pick], 0.0, work)


@kernel
def refit(
    problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, num_micro_batches: int, work: StepWork
) -> float:
    """Fits cut and shares to a placement in turn and keeps what is better; returns the value."""
    num_stages = len(cut_S) - 1
    value, _ = evaluate(problem, place_N, cut_S, share_R, work)
    cut = cut_S.copy()
    share = share_R.copy()
    for turn in range(4):
        if turn % 2 == 0:
            fit_cut(problem, place_N, share, num_stages, cut)
        elif len(share_R) > 1:
            fit_shares(problem, place_N, cut, num_micro_batches, share, work)
        else:
            continue
        trial, _ = evaluate(problem, place_N, cut, share, work)
        if trial < value:
            value = trial
            cut_S[:] = cut
            share_R[:] = share
    return value


@kernel
def score_layouts(
    problem: StepProblem, place_PN: Array, cut_PS: Array, share_PR: Array, num_micro_batches: int, fit: bool,
    value_P: Array, work: StepWork,
) -> None:  # fmt: skip
    """Scores many layouts; with ``fit`` cut and shares are fitted to each first."""
    for i in range(len(place_PN)):
        if fit:
            value_P[i] = refit(problem, place_PN[i], cut_PS[i], share_PR[i], num_micro_batches, work)
        else:
            value_P[i], _ = evaluate(problem, place_PN[i], cut_PS[i], share_PR[i], work)


@kernel(forceinline=True, allocates=False)
def shift_cut(cut_S: Array, state: Array) -> int:
    """Moves a random inner cut by one place, if there is room; returns the stage behind it, or 0."""
    s = 1 + next_below(state, len(cut_S) - 2)
    moved = cut_S[s] + (1 if next_uniform(state) < 0.5 else -1)
    if moved <= cut_S[s - 1] or moved >= cut_S[s + 1]:
        return 0
    cut_S[s] = moved
    return s


@kernel(forceinline=True, allocates=False)
def shift_load(load: Array, source: int, target: int, state: Array) -> bool:
    """Moves a random number of micro-batches from one entry to another, if the first keeps one."""
    count = 1 + next_below(state, max(1, load[source] // 4))
    if source == target or load[source] - count < 1:
        return False
    load[source] -= count
    load[target] += count
    return True


@kernel(forceinline=True, allocates=False)
def mutate(place_N: Array, cut_S: Array, share_R: Array, state: Array, work: StepWork) -> bool:
    """One random change other than a swap of two devices; False if it changed nothing.

    Reverses a stretch of stages, exchanges a stretch of two pipelines, deals a stretch of stages anew, shifts a cut,
    or moves micro-batches between two pipelines. Marks what it touched as stale.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    draw = next_uniform(state)
    if draw < 0.35 and num_stages > 1:
        s = shift_cut(cut_S, state)
        if s == 0:
            return False
        work.stale_S[s - 1] = True
        work.stale_S[s] = True
        work.stale_R[:] = True
        return True
    if draw < 0.6 and num_replicas > 1:
        p = next_below(state, num_replicas)
        q = next_below(state, num_replicas)
        if not shift_load(share_R, p, q, state):
            return False
        work.stale_R[p] = True
        work.stale_R[q] = True
        return True
    if num_stages < 2:
        return False
    first = next_below(state, num_stages)
    end = first + 1 + next_below(state, num_stages - first)
    if draw < 0.75:
        for k in range((end - first) // 2):
            for p in range(num_replicas):
                a = (first + k) * num_replicas + p
                b = (end - 1 - k) * num_replicas + p
                place_N[a], place_N[b] = place_N[b], place_N[a]
        work.stale_S[first:end] = True
        work.stale_R[:] = True
        return end - first > 1
    p = next_below(state, num_replicas)
    q = next_below(state, num_replicas)
    if p == q:
        return False
    if draw < 0.95:
        for s in range(first, end):
            a = s * num_replicas + p
            b = s * num_replicas + q
            place_N[a], place_N[b] = place_N[b], place_N[a]
        # The stages keep their members.
        work.stale_R[p] = True
        work.stale_R[q] = True
        return True
    if end - first < 2:
        return False
    _deal_anew(place_N, first * num_replicas, end - first, num_replicas)
    work.stale_S[first:end] = True
    work.stale_R[:] = True
    return True


@kernel(allocates=True)
def _deal_anew(place_N: Array, base: int, count: int, num_replicas: int) -> None:
    """Deals the devices of a stretch of stages anew: sorted, round-robin, which gives equal stages."""
    pool = np.sort(place_N[base : base + count * num_replicas])
    for t in range(count * num_replicas):
        place_N[base + (t % count) * num_replicas + t // count] = pool[t]


@kernel(forceinline=True, allocates=False)
def _touch(position: int, num_stages: int, num_replicas: int, work: StepWork) -> None:
    stage = position // num_replicas
    if stage < num_stages:
        work.stale_S[stage] = True
        work.stale_R[position % num_replicas] = True


@kernel(forceinline=True, allocates=False)
def _keep(work: StepWork, kept: StepWork, stale_S: Array, stale_R: Array, everything: bool) -> None:
    """Copies what a move touched from one set of results to another."""
    for s in range(len(stale_S)):
        if stale_S[s] or everything:
            kept.depth_S[s] = work.depth_S[s]
            kept.missing_S[s] = work.missing_S[s]
            kept.phase_S[s] = work.phase_S[s]
            kept.adding_S[s] = work.adding_S[s]
            kept.optimizer_S[s] = work.optimizer_S[s]
    for p in range(len(stale_R)):
        if stale_R[p] or everything:
            kept.load_R[p] = work.load_R[p]
            for s in range(len(stale_S)):
                kept.trip_SR[s, p] = work.trip_SR[s, p]
                kept.drain_SR[s, p] = work.drain_SR[s, p]
        # A depth or NIC that changed moves the ends of pipelines that were not touched.
        kept.nic_R[p] = work.nic_R[p]
        kept.end_R[p] = work.end_R[p]
    for g in range(len(work.tied_G)):
        kept.tied_G[g] = work.tied_G[g]


@kernel(forceinline=True, allocates=False)
def move(place_N: Array, cut_S: Array, share_R: Array, state: Array, work: StepWork) -> tuple[bool, int, int]:
    """One random change: whether there was one, and the positions if it swapped two devices (else -1).

    Marks what it touched as stale.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    if next_uniform(state) < 0.75 and len(place_N) > 1:
        x = next_below(state, num_stages * num_replicas)
        y = next_below(state, len(place_N))
        place_N[x], place_N[y] = place_N[y], place_N[x]
        if x != y:
            _touch(x, num_stages, num_replicas, work)
            _touch(y, num_stages, num_replicas, work)
        return x != y, x, y
    changed = mutate(place_N, cut_S, share_R, state, work)
    if not changed:
        work.stale_S[:] = False
        work.stale_R[:] = False
    return changed, -1, -1


@kernel(forceinline=True, allocates=False)
def copy_layout(
    place_N: Array, cut_S: Array, share_R: Array, to_N: Array, to_S: Array, to_R: Array, x: int, y: int
) -> None:
    """Copies a layout to another, from which it differs by what `move` did."""
    if x >= 0:
        to_N[x] = place_N[x]
        to_N[y] = place_N[y]
        return
    copy_into(to_N, place_N)
    copy_into(to_S, cut_S)
    copy_into(to_R, share_R)


@kernel
def anneal(
    problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, num_moves: int, hot: float, cold: float,
    guide_weight: float, state: Array, best_N: Array, best_S: Array, best_R: Array, work: StepWork, kept: StepWork,
) -> float:  # fmt: skip
    """Low-temperature annealing of one layout; the best met is kept in ``best_*`` and its value returned.

    ``kept`` holds the results of the layout accepted last, from which ``work`` is restored after a rejected move.
    """
    return _anneal(
        problem, place_N, cut_S, share_R, num_moves, hot, cold, guide_weight, state, best_N, best_S, best_R, work, kept,
        place_N.copy(), cut_S.copy(), share_R.copy(), work.stale_S.copy(), work.stale_R.copy(),
    )  # fmt: skip


@kernel(allocates=False)
def _anneal(
    problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, num_moves: int, hot: float, cold: float,
    guide_weight: float, state: Array, best_N: Array, best_S: Array, best_R: Array, work: StepWork, kept: StepWork,
    old_N: Array, old_S: Array, old_R: Array, stale_S: Array, stale_R: Array,
) -> float:  # fmt: skip
    """The annealing itself, which allocates nothing; ``old_*`` are the layout accepted last."""
    value, soft = evaluate(problem, place_N, cut_S, share_R, work)
    _keep(work, kept, stale_S, stale_R, True)
    guide = value + guide_weight * soft
    best = value
    copy_layout(place_N, cut_S, share_R, best_N, best_S, best_R, -1, -1)
    cooling = cooling_factor(hot, cold, num_moves)
    temperature = hot * value
    for _ in range(num_moves):
        temperature *= cooling
        changed, x, y = move(place_N, cut_S, share_R, state, work)
        if not changed:
            continue
        copy_into(stale_S, work.stale_S)
        copy_into(stale_R, work.stale_R)
        new_value, new_soft = update(problem, place_N, cut_S, share_R, work)
        new_guide = new_value + guide_weight * new_soft
        if new_guide <= draw_limit(guide, temperature, state):
            guide = new_guide
            _keep(work, kept, stale_S, stale_R, False)
            copy_layout(place_N, cut_S, share_R, old_N, old_S, old_R, x, y)
            if new_value < best * (1.0 - 1e-12):
                best = new_value
                copy_layout(place_N, cut_S, share_R, best_N, best_S, best_R, -1, -1)
        else:
            _keep(kept, work, stale_S, stale_R, False)
            copy_layout(old_N, old_S, old_R, place_N, cut_S, share_R, x, y)
    return best
