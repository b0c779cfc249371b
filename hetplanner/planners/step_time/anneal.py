"""Compiled exact fits of a layout's cut and shares, and its annealing. Importing this imports numba: do it lazily.

Legend of array suffixes and the state as in :mod:`hetplanner.planners.step_time.kernels`.
"""

from __future__ import annotations

import numpy as np

from hetplanner.kernels import kernel
from hetplanner.planners import pins
from hetplanner.planners.search.kernel_random import next_below, next_uniform
from hetplanner.planners.step_time.kernels import evaluate, fit_depth, refresh_route, route_end, update
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
    for _ in range(2):
        fit_cut(problem, place_N, share, num_stages, cut)
        trial, _ = evaluate(problem, place_N, cut, share, work)
        if trial < value:
            value = trial
            cut_S[:] = cut
            share_R[:] = share
        if len(share_R) > 1:
            fit_shares(problem, place_N, cut, num_micro_batches, share, work)
            trial, _ = evaluate(problem, place_N, cut, share, work)
            if trial < value:
                value = trial
                cut_S[:] = cut
                share_R[:] = share
    return value


@kernel
def score_layouts(
    problem: StepProblem,
    place_PN: Array,
    cut_PS: Array,
    share_PR: Array,
    num_micro_batches: int,
    fit: bool,
    value_P: Array,
    work: StepWork,
) -> None:
    """Scores many layouts; with ``fit`` cut and shares are fitted to each first."""
    for i in range(len(place_PN)):
        if fit:
            value_P[i] = refit(problem, place_PN[i], cut_PS[i], share_PR[i], num_micro_batches, work)
        else:
            value_P[i], _ = evaluate(problem, place_PN[i], cut_PS[i], share_PR[i], work)


@kernel(forceinline=True)
def mutate(place_N: Array, cut_S: Array, share_R: Array, state: Array, work: StepWork) -> bool:
    """One random change other than a swap of two devices; False if it changed nothing.

    Reverses a stretch of stages, exchanges a stretch of two pipelines, deals a stretch of stages anew, shifts a cut,
    or moves micro-batches between two pipelines. Marks what it touched as stale.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    draw = next_uniform(state)
    if draw < 0.35 and num_stages > 1:
        s = 1 + next_below(state, num_stages - 1)
        step = 1 if next_uniform(state) < 0.5 else -1
        moved = cut_S[s] + step
        if moved <= cut_S[s - 1] or moved >= cut_S[s + 1]:
            return False
        cut_S[s] = moved
        work.stale_S[s - 1] = True
        work.stale_S[s] = True
        work.stale_R[:] = True
        return True
    if draw < 0.6 and num_replicas > 1:
        p = next_below(state, num_replicas)
        q = next_below(state, num_replicas)
        count = 1 + next_below(state, max(1, share_R[p] // 4))
        if p == q or share_R[p] - count < 1:
            return False
        share_R[p] -= count
        share_R[q] += count
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
    # Deal the stretch anew: sorted devices round-robin, which gives equal stages.
    count = end - first
    if count < 2:
        return False
    base = first * num_replicas
    pool = np.sort(place_N[base : base + count * num_replicas])
    for t in range(count * num_replicas):
        place_N[base + (t % count) * num_replicas + t // count] = pool[t]
    work.stale_S[first:end] = True
    work.stale_R[:] = True
    return True


@kernel(forceinline=True)
def _touch(position: int, num_stages: int, num_replicas: int, work: StepWork) -> None:
    stage = position // num_replicas
    if stage < num_stages:
        work.stale_S[stage] = True
        work.stale_R[position % num_replicas] = True


@kernel(forceinline=True)
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


@kernel
def anneal(
    problem: StepProblem,
    place_N: Array,
    cut_S: Array,
    share_R: Array,
    num_moves: int,
    hot: float,
    cold: float,
    guide_weight: float,
    state: Array,
    best_N: Array,
    best_S: Array,
    best_R: Array,
    work: StepWork,
    kept: StepWork,
) -> float:
    """Low-temperature annealing of one layout; the best met is kept in ``best_*`` and its value returned.

    ``kept`` holds the results of the layout accepted last, from which ``work`` is restored after a rejected move.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    num_placed, num_devices = num_stages * num_replicas, len(place_N)
    value, soft = evaluate(problem, place_N, cut_S, share_R, work)
    stale_S = work.stale_S.copy()
    stale_R = work.stale_R.copy()
    _keep(work, kept, stale_S, stale_R, True)
    guide = value + guide_weight * soft
    best = value
    best_N[:] = place_N
    best_S[:] = cut_S
    best_R[:] = share_R
    old_N = place_N.copy()
    old_S = cut_S.copy()
    old_R = share_R.copy()
    cooling = (cold / hot) ** (1.0 / max(num_moves - 1, 1))
    temperature = hot * value
    for _ in range(num_moves):
        temperature *= cooling
        x = 0
        y = 0
        swapped = next_uniform(state) < 0.75 and num_devices > 1
        if swapped:
            x = next_below(state, num_placed)
            y = next_below(state, num_devices)
            if x == y:
                continue
            place_N[x], place_N[y] = place_N[y], place_N[x]
            _touch(x, num_stages, num_replicas, work)
            _touch(y, num_stages, num_replicas, work)
        elif not mutate(place_N, cut_S, share_R, state, work):
            work.stale_S[:] = False
            work.stale_R[:] = False
            continue
        stale_S[:] = work.stale_S
        stale_R[:] = work.stale_R
        new_value, new_soft = update(problem, place_N, cut_S, share_R, work)
        new_guide = new_value + guide_weight * new_soft
        if new_guide <= guide - temperature * np.log(1.0 - next_uniform(state)):
            guide = new_guide
            _keep(work, kept, stale_S, stale_R, False)
            if swapped:
                old_N[x] = place_N[x]
                old_N[y] = place_N[y]
            else:
                old_N[:] = place_N
                old_S[:] = cut_S
                old_R[:] = share_R
            if new_value < best * (1.0 - 1e-12):
                best = new_value
                best_N[:] = place_N
                best_S[:] = cut_S
                best_R[:] = share_R
        else:
            _keep(kept, work, stale_S, stale_R, False)
            if swapped:
                place_N[x], place_N[y] = place_N[y], place_N[x]
            else:
                place_N[:] = old_N
                cut_S[:] = old_S
                share_R[:] = old_R
    return best
