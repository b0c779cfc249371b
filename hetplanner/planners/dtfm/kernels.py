"""Compiled kernels of the search for DT-FM's objective. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, S stages, R replicas, N placed devices (S x R) plus spare ones.

The state is an *ordered* list of stages, so the path over the stages is part of the state and a move touches two
stages and at most four edges; no travelling-salesman problem is solved inside the loop. Between neighbouring
stages the pipelines are matched optimally (bottleneck assignment). ``members_N`` holds the devices group by group
(group g owns ``members_N[g*R:(g+1)*R]``, the tail is spare) and ``order_S`` says which group serves which stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.planners.search.kernel_random import next_below, next_uniform

Array = NDArray[Any]


@kernel
def match_groups(
    pp_DD: Array,
    members_N: Array,
    first: int,
    second: int,
    num_replicas: int,
    limit: float,
    work_RR: Array,
    column_of_R: Array,
    row_of_R: Array,
    scratch_R3: Array,
) -> tuple[float, float]:
    """Bottleneck matching of two groups: minimax augmentation above the row/column-minimum bound.

    Returns ``(value, nearest)``: the bottleneck, or a bound above ``limit`` as soon as it is known to exceed it,
    and the mean of the row and column minima (a smooth companion of the bottleneck).
    """
    a, b = first * num_replicas, second * num_replicas
    dist, parent, done = scratch_R3[0], scratch_R3[1], scratch_R3[2]
    bound = 0.0
    total = 0.0
    for j in range(num_replicas):
        dist[j] = np.inf
    for i in range(num_replicas):
        row = pp_DD[members_N[a + i]]
        low = np.inf
        for j in range(num_replicas):
            value = row[members_N[b + j]]
            work_RR[i, j] = value
            low = min(low, value)
            dist[j] = min(dist[j], value)
        bound = max(bound, low)
        total += low
    for j in range(num_replicas):
        bound = max(bound, dist[j])
        total += dist[j]
        row_of_R[j] = -1
    nearest = total / (2 * num_replicas)
    if bound > limit:
        return bound, nearest
    unmatched = 0
    for i in range(num_replicas):
        column_of_R[i] = -1
        for j in range(num_replicas):
            if row_of_R[j] < 0 and work_RR[i, j] <= bound:
                row_of_R[j] = i
                column_of_R[i] = j
                break
        if column_of_R[i] < 0:
            unmatched += 1
    if unmatched == 0:
        return bound, nearest
    for start in range(num_replicas):
        if column_of_R[start] >= 0:
            continue
        for j in range(num_replicas):
            dist[j] = max(work_RR[start, j], bound)
            parent[j] = start
            done[j] = 0.0
        while True:
            pick = -1
            low = np.inf
            for j in range(num_replicas):
                if done[j] == 0.0 and dist[j] < low:
                    low = dist[j]
                    pick = j
                    if low <= bound and row_of_R[j] < 0:
                        break
            if low > limit:
                return low, nearest
            done[pick] = 1.0
            row = row_of_R[pick]
            if row < 0:
                break
            for j in range(num_replicas):
                if done[j] == 0.0:
                    value = max(low, work_RR[row, j])
                    if value < dist[j]:
                        dist[j] = value
                        parent[j] = row
        bound = max(bound, dist[pick])
        while True:
            row = int(parent[pick])
            previous = column_of_R[row]
            column_of_R[row] = pick
            row_of_R[pick] = row
            if row == start:
                break
            pick = previous
    return bound, nearest


@kernel
def share_gradients(dp_DD: Array, members_N: Array, group: int, num_replicas: int) -> float:
    """Data-parallel seconds of one group: its slowest member's sum over the others."""
    base = group * num_replicas
    worst = 0.0
    for i in range(num_replicas):
        row = dp_DD[members_N[base + i]]
        total = 0.0
        for j in range(num_replicas):
            total += row[members_N[base + j]]
        worst = max(worst, total)
    return worst


@kernel
def fill_edges(pp_DD: Array, members_N: Array, edge_SS: Array, num_stages: int, num_replicas: int) -> None:
    """Bottleneck edge between every two groups, into the symmetric ``edge_SS``."""
    work_RR = np.empty((num_replicas, num_replicas))
    column_of_R = np.empty(num_replicas, np.int64)
    row_of_R = np.empty(num_replicas, np.int64)
    scratch_R3 = np.empty((3, num_replicas))
    for a in range(num_stages):
        edge_SS[a, a] = 0.0
        for b in range(a + 1, num_stages):
            value, _ = match_groups(
                pp_DD, members_N, a, b, num_replicas, np.inf, work_RR, column_of_R, row_of_R, scratch_R3
            )
            edge_SS[a, b] = value
            edge_SS[b, a] = value


@kernel
def shortest_path(edge_SS: Array, order_S: Array, best_full: Array, last_full: Array) -> float:
    """Exact open path over all groups (Held-Karp) into ``order_S``; scratch tables are 2^S x S."""
    num = len(edge_SS)
    full = 1 << num
    for mask in range(full):
        for j in range(num):
            best_full[mask, j] = np.inf
    for j in range(num):
        best_full[1 << j, j] = 0.0
        last_full[1 << j, j] = -1
    for mask in range(1, full):
        for j in range(num):
            here = best_full[mask, j]
            if here == np.inf:
                continue
            for k in range(num):
                if mask & (1 << k):
                    continue
                value = here + edge_SS[j, k]
                if value < best_full[mask | (1 << k), k]:
                    best_full[mask | (1 << k), k] = value
                    last_full[mask | (1 << k), k] = j
    mask = full - 1
    pick = 0
    for j in range(1, num):
        if best_full[mask, j] < best_full[mask, pick]:
            pick = j
    length = best_full[mask, pick]
    for step in range(num - 1, -1, -1):
        order_S[step] = pick
        previous = last_full[mask, pick]
        mask ^= 1 << pick
        pick = previous
    return length


@kernel
def improve_path(edge_SS: Array, order_S: Array) -> float:
    """2-opt on an open path, for more stages than Held-Karp can hold."""
    num = len(order_S)
    improved = True
    while improved:
        improved = False
        for i in range(num - 1):
            for j in range(i + 1, num):
                before = 0.0
                after = 0.0
                if i > 0:
                    before += edge_SS[order_S[i - 1], order_S[i]]
                    after += edge_SS[order_S[i - 1], order_S[j]]
                if j < num - 1:
                    before += edge_SS[order_S[j], order_S[j + 1]]
                    after += edge_SS[order_S[i], order_S[j + 1]]
                if after < before - 1e-12:
                    order_S[i : j + 1] = order_S[i : j + 1][::-1].copy()
                    improved = True
    length = 0.0
    for i in range(num - 1):
        length += edge_SS[order_S[i], order_S[i + 1]]
    return length


@kernel
def score_population(
    dp_DD: Array,
    pp_DD: Array,
    members_PN: Array,
    order_PS: Array,
    cost_P: Array,
    num_stages: int,
    num_replicas: int,
    exact_stages: int,
) -> None:
    """Full evaluation of many placements; the stage order of each is optimised in place."""
    edge_SS = np.empty((num_stages, num_stages))
    small = num_stages <= exact_stages
    size = 1 << num_stages if small else 1
    best_full = np.empty((size, num_stages))
    last_full = np.empty((size, num_stages), np.int64)
    for p in range(len(members_PN)):
        shared = 0.0
        for g in range(num_stages):
            shared = max(shared, share_gradients(dp_DD, members_PN[p], g, num_replicas))
        fill_edges(pp_DD, members_PN[p], edge_SS, num_stages, num_replicas)
        if small:
            length = shortest_path(edge_SS, order_PS[p], best_full, last_full)
        else:
            length = improve_path(edge_SS, order_PS[p])
        cost_P[p] = shared + length


@kernel
def deal_segment(
    members_N: Array, order_S: Array, first: int, count: int, num_replicas: int, mode: int, pivot_row: Array, out: Array
) -> None:
    """Re-deals the devices of ``count`` consecutive stages: sorted, then round-robin (mode 0) or in blocks."""
    total = count * num_replicas
    keys = np.empty(total)
    pool = np.empty(total, np.int64)
    for s in range(count):
        base = order_S[first + s] * num_replicas
        for i in range(num_replicas):
            pool[s * num_replicas + i] = members_N[base + i]
    pool.sort()
    for t in range(total):
        keys[t] = pivot_row[pool[t]]
    rank = np.argsort(keys, kind="mergesort")
    for t in range(total):
        stage, slot = (t % count, t // count) if mode == 0 else (t // num_replicas, t % num_replicas)
        out[stage * num_replicas + slot] = pool[rank[t]]


@kernel
def anneal(
    dp_DD: Array,
    pp_DD: Array,
    members_N: Array,
    order_S: Array,
    num_replicas: int,
    num_moves: int,
    hot: float,
    cold: float,
    guide_weight: float,
    state: Array,
    best_N: Array,
    best_order_S: Array,
) -> float:
    """Low-temperature annealing of one placement; returns the best cost met (kept in ``best_*``).

    Moves: swap two devices (of two stages, or of a stage and the spare ones), reverse a stretch of stages, re-deal
    a stretch of stages. The guide ``cost + guide_weight * (mean dp + 2 sum sqrt(edge * nearest))`` removes the
    plateaus of two nested maxima. A move is dropped as soon as its partial cost exceeds what would be accepted.
    """
    num_stages = len(order_S)
    num_placed = num_stages * num_replicas
    num_devices = len(members_N)
    work_RR = np.empty((num_replicas, num_replicas))
    column_of_R = np.empty(num_replicas, np.int64)
    row_of_R = np.empty(num_replicas, np.int64)
    scratch_R3 = np.empty((3, num_replicas))
    stage_of_G = np.empty(num_stages, np.int64)
    shared_G = np.empty(num_stages)
    new_shared_G = np.empty(num_stages)
    edge_E = np.zeros(max(num_stages - 1, 1))
    soft_E = np.zeros(max(num_stages - 1, 1))
    new_edge_E = np.zeros(max(num_stages - 1, 1))
    new_soft_E = np.zeros(max(num_stages - 1, 1))
    touched_E = np.empty(max(num_stages - 1, 1), np.int64)
    touched_G = np.empty(num_stages, np.int64)
    dealt = np.empty(num_placed, np.int64)
    kept = np.empty(num_placed, np.int64)
    cost = 0.0
    soft = 0.0
    worst = 0.0
    for s in range(num_stages):
        g = order_S[s]
        stage_of_G[g] = s
        shared_G[g] = share_gradients(dp_DD, members_N, g, num_replicas)
        worst = max(worst, shared_G[g])
        soft += shared_G[g] / num_stages
        if s:
            value, nearest = match_groups(
                pp_DD, members_N, order_S[s - 1], g, num_replicas, np.inf,
                work_RR, column_of_R, row_of_R, scratch_R3,
            )  # fmt: skip
            edge_E[s - 1] = value
            soft_E[s - 1] = 2.0 * np.sqrt(value * nearest)
            cost += value
            soft += soft_E[s - 1]
    cost += worst
    guide = cost + guide_weight * soft
    best = cost
    best_N[:] = members_N
    best_order_S[:] = order_S
    if num_devices < 2:
        return best
    cooling = (cold / hot) ** (1.0 / max(num_moves - 1, 1))
    temperature = hot * cost
    for _ in range(num_moves):
        temperature *= cooling
        allowed = guide - temperature * np.log(1.0 - next_uniform(state))
        draw = next_uniform(state)
        num_touched = 0
        num_groups = 0
        x = 0
        y = 0
        first = 0
        count = 0
        kind = 0
        if draw < 0.06 and num_stages > 2:
            kind = 1
            first = next_below(state, num_stages - 1)
            count = 2 + next_below(state, num_stages - 1 - first)
            if count == num_stages:
                continue
            order_S[first : first + count] = order_S[first : first + count][::-1].copy()
            if first > 0:
                touched_E[num_touched] = first - 1
                num_touched += 1
            if first + count < num_stages:
                touched_E[num_touched] = first + count - 1
                num_touched += 1
        elif draw < 0.063 and num_stages > 1 and num_replicas > 1:
            kind = 2
            first = next_below(state, num_stages - 1)
            count = 2 + next_below(state, num_stages - 1 - first)
            for s in range(count):
                base = order_S[first + s] * num_replicas
                kept[s * num_replicas : (s + 1) * num_replicas] = members_N[base : base + num_replicas]
            deal_segment(
                members_N, order_S, first, count, num_replicas, next_below(state, 2),
                pp_DD[next_below(state, num_devices)], dealt,
            )  # fmt: skip
            for s in range(count):
                base = order_S[first + s] * num_replicas
                members_N[base : base + num_replicas] = dealt[s * num_replicas : (s + 1) * num_replicas]
                touched_G[num_groups] = order_S[first + s]
                num_groups += 1
            for e in range(max(first - 1, 0), min(first + count, num_stages - 1)):
                touched_E[num_touched] = e
                num_touched += 1
        else:
            x = next_below(state, num_placed)
            y = next_below(state, num_devices)
            gx, gy = x // num_replicas, y // num_replicas
            if gx == gy and y < num_placed:
                continue
            if y < num_placed and num_replicas == 1 and num_stages < 2:
                continue
            members_N[x], members_N[y] = members_N[y], members_N[x]
            touched_G[0] = gx
            num_groups = 1
            sx = stage_of_G[gx]
            if sx > 0:
                touched_E[num_touched] = sx - 1
                num_touched += 1
            if sx < num_stages - 1:
                touched_E[num_touched] = sx
                num_touched += 1
            if y < num_placed:
                touched_G[1] = gy
                num_groups = 2
                sy = stage_of_G[gy]
                if sy > 0 and sy - 1 != sx:
                    touched_E[num_touched] = sy - 1
                    num_touched += 1
                if sy < num_stages - 1 and sy != sx - 1:
                    touched_E[num_touched] = sy
                    num_touched += 1
        # New data-parallel terms, then edges one by one with an early way out.
        new_worst = worst
        new_soft = soft
        if num_groups:
            new_worst = 0.0
            for g in range(num_stages):
                new_shared_G[g] = shared_G[g]
            for t in range(num_groups):
                g = touched_G[t]
                new_shared_G[g] = share_gradients(dp_DD, members_N, g, num_replicas)
                new_soft += (new_shared_G[g] - shared_G[g]) / num_stages
            for g in range(num_stages):
                new_worst = max(new_worst, new_shared_G[g])
        new_cost = cost - worst + new_worst
        for t in range(num_touched):
            new_cost -= edge_E[touched_E[t]]
            new_soft -= soft_E[touched_E[t]]
        # New soft terms are not negative, so what is known so far bounds the guide from below.
        accepted = True
        for t in range(num_touched):
            room = allowed - new_cost - guide_weight * new_soft
            e = touched_E[t]
            value, nearest = match_groups(
                pp_DD, members_N, order_S[e], order_S[e + 1], num_replicas, room,
                work_RR, column_of_R, row_of_R, scratch_R3,
            )  # fmt: skip
            if value > room:
                accepted = False
                break
            new_edge_E[t] = value
            new_soft_E[t] = 2.0 * np.sqrt(value * nearest)
            new_cost += value
            new_soft += new_soft_E[t]
        if accepted and new_cost + guide_weight * new_soft <= allowed:
            if kind == 1:
                inner = edge_E[first : first + count - 1]
                inner[:] = inner[::-1].copy()
                inner_soft = soft_E[first : first + count - 1]
                inner_soft[:] = inner_soft[::-1].copy()
                for s in range(first, first + count):
                    stage_of_G[order_S[s]] = s
            for t in range(num_touched):
                edge_E[touched_E[t]] = new_edge_E[t]
                soft_E[touched_E[t]] = new_soft_E[t]
            for t in range(num_groups):
                shared_G[touched_G[t]] = new_shared_G[touched_G[t]]
            cost = new_cost
            soft = new_soft
            worst = new_worst
            guide = cost + guide_weight * soft
            if cost < best - 1e-12:
                best = cost
                best_N[:] = members_N
                best_order_S[:] = order_S
        elif kind == 0:
            members_N[x], members_N[y] = members_N[y], members_N[x]
        elif kind == 1:
            order_S[first : first + count] = order_S[first : first + count][::-1].copy()
        else:
            for s in range(count):
                base = order_S[first + s] * num_replicas
                members_N[base : base + num_replicas] = kept[s * num_replicas : (s + 1) * num_replicas]
    return best


@kernel
def cross_over(
    mother_N: Array,
    mother_order_S: Array,
    father_N: Array,
    father_order_S: Array,
    num_replicas: int,
    num_cuts: int,
    state: Array,
    child_N: Array,
) -> None:
    """Five-point crossover on the device-to-stage string, with size repair (DT-FM's, on aligned stages).

    Stages are aligned by their position on each parent's path, read in the direction in which more devices agree.
    The child's group g is the mother's stage g of her path.
    """
    num_stages = len(mother_order_S)
    num_placed = num_stages * num_replicas
    num_devices = len(mother_N)
    stage_of_mother = np.full(num_devices, num_stages, np.int64)
    stage_of_father = np.full(num_devices, num_stages, np.int64)
    for s in range(num_stages):
        for i in range(num_replicas):
            stage_of_mother[mother_N[mother_order_S[s] * num_replicas + i]] = s
            stage_of_father[father_N[father_order_S[s] * num_replicas + i]] = s
    straight = 0
    flipped = 0
    for d in range(num_devices):
        straight += stage_of_mother[d] == stage_of_father[d]
        flipped += stage_of_mother[d] == num_stages - 1 - stage_of_father[d]
    if flipped > straight:
        for d in range(num_devices):
            if stage_of_father[d] < num_stages:
                stage_of_father[d] = num_stages - 1 - stage_of_father[d]
    cuts = np.empty(num_cuts, np.int64)
    for c in range(num_cuts):
        cuts[c] = next_below(state, num_devices)
    cuts.sort()
    label = np.empty(num_devices, np.int64)
    size = np.zeros(num_stages + 1, np.int64)
    cut = 0
    for d in range(num_devices):
        while cut < num_cuts and cuts[cut] <= d:
            cut += 1
        label[d] = stage_of_father[d] if cut % 2 else stage_of_mother[d]
        size[label[d]] += 1
    shuffled = np.arange(num_devices)
    for i in range(num_devices - 1, 0, -1):
        j = next_below(state, i + 1)
        shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
    short = 0
    for t in range(num_devices):
        d = shuffled[t]
        room = num_replicas if label[d] < num_stages else num_devices - num_placed
        if size[label[d]] <= room:
            continue
        while size[short] >= (num_replicas if short < num_stages else num_devices - num_placed):
            short += 1
        size[label[d]] -= 1
        label[d] = short
        size[short] += 1
    fill = np.zeros(num_stages + 1, np.int64)
    for d in range(num_devices):
        g = label[d]
        child_N[g * num_replicas + fill[g]] = d
        fill[g] += 1


@kernel
def align_columns(pair_DD: Array, members_N: Array, order_S: Array, num_replicas: int, placed_SR: Array) -> None:
    """Writes the stages in path order and lines their devices up so that every edge is a bottleneck matching."""
    num_stages = len(order_S)
    work_RR = np.empty((num_replicas, num_replicas))
    column_of_R = np.empty(num_replicas, np.int64)
    row_of_R = np.empty(num_replicas, np.int64)
    scratch_R3 = np.empty((3, num_replicas))
    both = np.empty(2 * num_replicas, np.int64)
    for s in range(num_stages):
        base = order_S[s] * num_replicas
        if s == 0:
            placed_SR[0] = members_N[base : base + num_replicas]
            continue
        both[:num_replicas] = placed_SR[s - 1]
        both[num_replicas:] = members_N[base : base + num_replicas]
        match_groups(pair_DD, both, 0, 1, num_replicas, np.inf, work_RR, column_of_R, row_of_R, scratch_R3)
        for i in range(num_replicas):
            placed_SR[s, i] = both[num_replicas + column_of_R[i]]
