"""Compiled kernels of the search on the closed form of a step. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, C device classes, K cut points (op boundaries where a stage may end, both ends
included), S stages, R replicas, N placed devices (S x R, stage by stage) plus spare ones.

State: ``place_N`` (``place_N[s*R + p]`` serves stage s of pipeline p), ``cut_S`` (S + 1 indices into the cut points)
and ``share_R`` (micro-batches of each pipeline). The numbers are those of `hetplanner.cost.closed_form`; a test holds
the two equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hetplanner.planners.kernel_random import next_below, next_uniform

Array = NDArray[Any]
# Depth and end of every stage, and four rows per host: scratch that the caller makes once.
Work = tuple[Array, Array, Array]


class StepProblem(NamedTuple):
    """All that a search never changes; links in seconds per byte, for pipelines with each link's best codec."""

    class_D: Array
    forward_CK: Array
    backward_CK: Array
    boundary_K: Array
    state_K: Array
    kept_K: Array
    reduced_K: Array
    tied_bytes: float
    memory_D: Array
    optimizer_rate_D: Array
    add_rate_D: Array
    latency_DD: Array
    pipe_rate_DD: Array
    reduce_rate_DD: Array
    host_D: Array
    nic_out_H: Array
    nic_in_H: Array
    price_D: Array
    egress_DD: Array
    has_nics: bool
    priced: bool
    recompute: bool


# A layout that does not fit costs this many steps per share of memory that is missing, so that the search leaves it.
OVERFLOW_PENALTY = 20.0


@njit(cache=True)
def fit_depth(problem: StepProblem, place_N: Array, cut_S: Array, stage: int, num_replicas: int) -> tuple[int, float]:
    """Micro-batches that every replica of a stage can hold, and the share of memory missing for even one."""
    first, end = cut_S[stage], cut_S[stage + 1]
    state = problem.state_K[end] - problem.state_K[first]
    buffers = 2.0 * (problem.boundary_K[first] + problem.boundary_K[end])
    each = problem.kept_K[end] - problem.kept_K[first]
    if problem.recompute:
        buffers += each
        each = problem.boundary_K[first]
    depth = 1 << 30
    missing = 0.0
    for p in range(num_replicas):
        memory = problem.memory_D[place_N[stage * num_replicas + p]]
        room = memory - state - buffers
        if room < each:
            missing += min((each - room) / max(memory, 1.0), 10.0)
            depth = 1
        elif each > 0:
            depth = min(depth, int(room / each))
    return max(depth, 1), missing


@njit(cache=True)
def reduce_phase(problem: StepProblem, place_N: Array, first: int, count: int, num_bytes: float) -> float:
    """Slowest link of one phase among ``count`` devices from position ``first``, each owning one shard."""
    shard = num_bytes / count
    worst = 0.0
    for i in range(count):
        a = place_N[first + i]
        for j in range(count):
            b = place_N[first + j]
            if a != b:
                worst = max(worst, problem.latency_DD[a, b] + shard * problem.reduce_rate_DD[a, b])
    return worst


@njit(cache=True)
def route_seconds(
    problem: StepProblem,
    place_N: Array,
    cut_S: Array,
    depth_S: Array,
    num_replicas: int,
    p: int,
    num_micro_batches: int,
    nic_s: float,
) -> float:
    """End of pipeline p's last backward."""
    num_stages = len(cut_S) - 1
    round_trip = 0.0
    slowest = 0.0
    for s in range(num_stages):
        a = place_N[s * num_replicas + p]
        row = problem.class_D[a]
        seconds = problem.forward_CK[row, cut_S[s + 1]] - problem.forward_CK[row, cut_S[s]]
        seconds += problem.backward_CK[row, cut_S[s + 1]] - problem.backward_CK[row, cut_S[s]]
        slowest = max(slowest, seconds)
        if s:
            b = place_N[(s - 1) * num_replicas + p]
            size = problem.boundary_K[cut_S[s]]
            slowest = max(slowest, size * max(problem.pipe_rate_DD[a, b], problem.pipe_rate_DD[b, a]))
    rest = num_micro_batches - 1
    more = max(rest * slowest, nic_s)
    if rest > 0:
        slowest = more / rest
    base = more
    for s in range(num_stages - 1, -1, -1):
        a = place_N[s * num_replicas + p]
        row = problem.class_D[a]
        if s < num_stages - 1:
            b = place_N[(s + 1) * num_replicas + p]
            size = problem.boundary_K[cut_S[s + 1]]
            round_trip += problem.latency_DD[a, b] + problem.latency_DD[b, a]
            round_trip += size * (problem.pipe_rate_DD[a, b] + problem.pipe_rate_DD[b, a])
        round_trip += problem.forward_CK[row, cut_S[s + 1]] - problem.forward_CK[row, cut_S[s]]
        round_trip += problem.backward_CK[row, cut_S[s + 1]] - problem.backward_CK[row, cut_S[s]]
        if rest >= depth_S[s]:
            rounds = rest // depth_S[s]
            base = max(base, rounds * round_trip + (rest - rounds * depth_S[s]) * slowest)
    return round_trip + base


@njit(cache=True)
def _tied_member(place_N: Array, num_stages: int, num_replicas: int, index: int) -> int:
    """The first stage's devices, then the last's: who uses a weight that embedding and head share."""
    return place_N[index] if index < num_replicas else place_N[(num_stages - 2) * num_replicas + index]


@njit(cache=True)
def load_nics(
    problem: StepProblem,
    place_N: Array,
    cut_S: Array,
    share_R: Array,
    out_H: Array,
    in_H: Array,
    reduce_out_H: Array,
    reduce_in_H: Array,
) -> None:
    """NIC-busy seconds of every host: of the pipelines over a step (into ``out_H``), and of one phase of the stages'
    reductions (``reduce_out_H``) and of those of tied weights (``reduce_in_H``); ``in_H`` is scratch.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    out_H[:] = 0.0
    in_H[:] = 0.0
    reduce_out_H[:] = 0.0
    reduce_in_H[:] = 0.0
    for s in range(num_stages):
        shard = (problem.reduced_K[cut_S[s + 1]] - problem.reduced_K[cut_S[s]]) / num_replicas
        for p in range(num_replicas):
            a = place_N[s * num_replicas + p]
            ha = problem.host_D[a]
            if s:
                b = place_N[(s - 1) * num_replicas + p]
                hb = problem.host_D[b]
                if ha != hb:
                    size = problem.boundary_K[cut_S[s]] * share_R[p]
                    out_H[ha] += size
                    in_H[ha] += size
                    out_H[hb] += size
                    in_H[hb] += size
            for q in range(num_replicas):
                b = place_N[s * num_replicas + q]
                if problem.host_D[b] != ha:
                    reduce_out_H[ha] += shard
                    reduce_in_H[problem.host_D[b]] += shard
    for h in range(len(out_H)):
        out_H[h] = max(out_H[h] * problem.nic_out_H[h], in_H[h] * problem.nic_in_H[h])
        reduce_out_H[h] = max(reduce_out_H[h] * problem.nic_out_H[h], reduce_in_H[h] * problem.nic_in_H[h])
    # Tied weights follow when their stages are through, so the two kinds of reduction do not share the NICs.
    in_H[:] = 0.0
    reduce_in_H[:] = 0.0
    if problem.tied_bytes > 0 and num_stages > 1:
        shard = problem.tied_bytes / (2 * num_replicas)
        for i in range(2 * num_replicas):
            a = _tied_member(place_N, num_stages, num_replicas, i)
            for j in range(2 * num_replicas):
                b = _tied_member(place_N, num_stages, num_replicas, j)
                if problem.host_D[a] != problem.host_D[b]:
                    in_H[problem.host_D[a]] += shard
                    reduce_in_H[problem.host_D[b]] += shard
        for h in range(len(out_H)):
            reduce_in_H[h] = max(in_H[h] * problem.nic_out_H[h], reduce_in_H[h] * problem.nic_in_H[h])


@njit(cache=True)
def egress_usd(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array) -> float:
    """Dollars for bytes that leave a site in one step."""
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    total = 0.0
    for s in range(num_stages):
        shard = (problem.reduced_K[cut_S[s + 1]] - problem.reduced_K[cut_S[s]]) / num_replicas
        for p in range(num_replicas):
            a = place_N[s * num_replicas + p]
            if s:
                b = place_N[(s - 1) * num_replicas + p]
                size = problem.boundary_K[cut_S[s]] * share_R[p]
                total += size * (problem.egress_DD[a, b] + problem.egress_DD[b, a])
            for q in range(num_replicas):
                total += 2.0 * shard * problem.egress_DD[a, place_N[s * num_replicas + q]]
    if problem.tied_bytes > 0 and num_stages > 1:
        shard = problem.tied_bytes / (2 * num_replicas)
        for i in range(2 * num_replicas):
            a = _tied_member(place_N, num_stages, num_replicas, i)
            for j in range(2 * num_replicas):
                total += 2.0 * shard * problem.egress_DD[a, _tied_member(place_N, num_stages, num_replicas, j)]
    return total


@njit(cache=True)
def evaluate(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, work: Work) -> tuple[float, float]:
    """Closed form of one layout: ``(value, soft)``; the soft part (means where the value has maxima) guides."""
    depth_S, end_S, nic_4H = work
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    missing = 0.0
    for s in range(num_stages):
        depth_S[s], lack = fit_depth(problem, place_N, cut_S, s, num_replicas)
        missing += lack
        end_S[s] = 0.0
    nic_4H[:] = 0.0
    if problem.has_nics:
        load_nics(problem, place_N, cut_S, share_R, nic_4H[0], nic_4H[1], nic_4H[2], nic_4H[3])
    soft = 0.0
    for p in range(num_replicas):
        nic_s = 0.0
        if problem.has_nics:
            for s in range(num_stages):
                nic_s = max(nic_s, nic_4H[0, problem.host_D[place_N[s * num_replicas + p]]])
            nic_s *= 1.0 - 1.0 / share_R[p]
        end = route_seconds(problem, place_N, cut_S, depth_S, num_replicas, p, share_R[p], nic_s)
        soft += end / num_replicas
        for s in range(num_stages):
            a = place_N[s * num_replicas + p]
            if s:
                b = place_N[(s - 1) * num_replicas + p]
                end -= problem.latency_DD[a, b] + problem.boundary_K[cut_S[s]] * problem.pipe_rate_DD[a, b]
            end_S[s] = max(end_S[s], end)
            row = problem.class_D[a]
            end -= problem.backward_CK[row, cut_S[s + 1]] - problem.backward_CK[row, cut_S[s]]
    step = 0.0
    optimizer = 0.0
    tied_ready = 0.0
    for s in range(num_stages):
        reduced = problem.reduced_K[cut_S[s + 1]] - problem.reduced_K[cut_S[s]]
        params = (problem.state_K[cut_S[s + 1]] - problem.state_K[cut_S[s]]) / 16.0
        phase = 0.0
        adding = 0.0
        if num_replicas > 1:
            phase = reduce_phase(problem, place_N, s * num_replicas, num_replicas, reduced)
        for p in range(num_replicas):
            a = place_N[s * num_replicas + p]
            optimizer = max(optimizer, params * problem.optimizer_rate_D[a])
            if num_replicas > 1:
                adding = max(adding, params * problem.add_rate_D[a])
                if problem.has_nics:
                    phase = max(phase, nic_4H[2, problem.host_D[a]])
        done = end_S[s] + 2.0 * phase + adding
        soft += (2.0 * phase + adding) / num_stages
        step = max(step, done)
        if s == 0 or s == num_stages - 1:
            tied_ready = max(tied_ready, done)
    if problem.tied_bytes > 0 and num_stages > 1:
        step = max(step, tied_ready + 2.0 * _tied_phase(problem, place_N, num_stages, num_replicas, nic_4H[3]))
    value = step + optimizer
    if problem.priced:
        price = 0.0
        for i in range(num_stages * num_replicas):
            price += problem.price_D[place_N[i]]
        egress = egress_usd(problem, place_N, cut_S, share_R)
        value = value * price + egress
        soft = soft * price + egress
    penalty = 1.0 + OVERFLOW_PENALTY * missing
    return value * penalty, soft * penalty


@njit(cache=True)
def _tied_phase(problem: StepProblem, place_N: Array, num_stages: int, num_replicas: int, tied_s_H: Array) -> float:
    """Embedding and head share a weight: their replicas reduce it together."""
    shard = problem.tied_bytes / (2 * num_replicas)
    worst = 0.0
    for i in range(2 * num_replicas):
        a = _tied_member(place_N, num_stages, num_replicas, i)
        worst = max(worst, tied_s_H[problem.host_D[a]])
        for j in range(2 * num_replicas):
            b = _tied_member(place_N, num_stages, num_replicas, j)
            if a != b:
                worst = max(worst, problem.latency_DD[a, b] + shard * problem.reduce_rate_DD[a, b])
    return worst


@njit(cache=True)
def fit_cut(problem: StepProblem, place_N: Array, share_R: Array, num_stages: int, cut_S: Array) -> bool:
    """Cuts the model so that the busiest stage is least busy and every stage holds a micro-batch; exact, by DP.

    A stage is as busy as its busiest replica (seconds x share). False (and ``cut_S`` untouched) if no cut fits.
    """
    num_replicas = len(share_R)
    num_cuts = len(problem.boundary_K)
    most = share_R.max()
    best = np.full((num_stages + 1, num_cuts), np.inf)
    last = np.zeros((num_stages + 1, num_cuts), np.int64)
    best[0, 0] = 0.0
    trial = np.empty(num_stages + 1, np.int64)
    for s in range(num_stages):
        for end in range(s + 1, num_cuts - (num_stages - 1 - s)):
            for first in range(s, end):
                if best[s, first] == np.inf or best[s, first] >= best[s + 1, end]:
                    continue
                busy = 0.0
                for p in range(num_replicas):
                    row = problem.class_D[place_N[s * num_replicas + p]]
                    seconds = problem.forward_CK[row, end] - problem.forward_CK[row, first]
                    seconds += problem.backward_CK[row, end] - problem.backward_CK[row, first]
                    busy = max(busy, seconds * share_R[p] / most)
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


@njit(cache=True)
def fit_shares(
    problem: StepProblem, place_N: Array, cut_S: Array, num_micro_batches: int, share_R: Array, work: Work
) -> None:
    """Deals micro-batches one by one to the pipeline that would end first."""
    depth_S = work[0]
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    for s in range(num_stages):
        depth_S[s], _ = fit_depth(problem, place_N, cut_S, s, num_replicas)
    next_end = np.empty(num_replicas)
    for p in range(num_replicas):
        share_R[p] = 1
        next_end[p] = route_seconds(problem, place_N, cut_S, depth_S, num_replicas, p, 2, 0.0)
    for _ in range(num_micro_batches - num_replicas):
        pick = 0
        for p in range(1, num_replicas):
            # Among equals the least loaded goes first.
            if next_end[p] < next_end[pick] or (next_end[p] == next_end[pick] and share_R[p] < share_R[pick]):
                pick = p
        share_R[pick] += 1
        next_end[pick] = route_seconds(problem, place_N, cut_S, depth_S, num_replicas, pick, share_R[pick] + 1, 0.0)


@njit(cache=True)
def refit(
    problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, num_micro_batches: int, work: Work
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


@njit(cache=True)
def score_layouts(
    problem: StepProblem,
    place_PN: Array,
    cut_PS: Array,
    share_PR: Array,
    num_micro_batches: int,
    fit: bool,
    value_P: Array,
    work: Work,
) -> None:
    """Scores many layouts; with ``fit`` cut and shares are fitted to each first."""
    for i in range(len(place_PN)):
        if fit:
            value_P[i] = refit(problem, place_PN[i], cut_PS[i], share_PR[i], num_micro_batches, work)
        else:
            value_P[i], _ = evaluate(problem, place_PN[i], cut_PS[i], share_PR[i], work)


@njit(cache=True)
def mutate(place_N: Array, cut_S: Array, share_R: Array, state: Array) -> bool:
    """One random change other than a swap of two devices; False if it changed nothing.

    Reverses a stretch of stages, exchanges a stretch of two pipelines, deals a stretch of stages anew, shifts a cut,
    or moves micro-batches between two pipelines.
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
        return True
    if draw < 0.6 and num_replicas > 1:
        p = next_below(state, num_replicas)
        q = next_below(state, num_replicas)
        count = 1 + next_below(state, max(1, share_R[p] // 4))
        if p == q or share_R[p] - count < 1:
            return False
        share_R[p] -= count
        share_R[q] += count
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
        return True
    # Deal the stretch anew: sorted devices round-robin, which gives equal stages.
    count = end - first
    if count < 2:
        return False
    base = first * num_replicas
    pool = np.sort(place_N[base : base + count * num_replicas])
    for t in range(count * num_replicas):
        place_N[base + (t % count) * num_replicas + t // count] = pool[t]
    return True


@njit(cache=True)
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
    work: Work,
) -> float:
    """Low-temperature annealing of one layout; the best met is kept in ``best_*`` and its value returned."""
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    num_placed, num_devices = num_stages * num_replicas, len(place_N)
    value, soft = evaluate(problem, place_N, cut_S, share_R, work)
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
        elif not mutate(place_N, cut_S, share_R, state):
            continue
        new_value, new_soft = evaluate(problem, place_N, cut_S, share_R, work)
        new_guide = new_value + guide_weight * new_soft
        if new_guide <= guide - temperature * np.log(1.0 - next_uniform(state)):
            guide = new_guide
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
        elif swapped:
            place_N[x], place_N[y] = place_N[y], place_N[x]
        else:
            place_N[:] = old_N
            cut_S[:] = old_S
            share_R[:] = old_R
    return best
