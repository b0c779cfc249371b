"""Compiled annealing of large placements for DT-FM's objective: matchings are repaired, not computed anew.

Importing this module imports numba: do it lazily. Legend of array suffixes: D devices, S stages, R replicas, E edges
between neighbouring stages, N placed devices (stage by stage) plus spare ones.

A swap of two devices changes one row or column of the cost table of at most four edges. The optimal matching of the
rest still holds, so only the changed ends look for a new mate (a minimax augmenting path), and then the worst matched
pair is replaced while a better way exists. That is exact, and for a hundred replicas a hundred times faster than
matching from scratch. State of an edge: `work_ERR` its table, `low_row_ER` and `low_column_ER` the least of every row
and column, `column_of_ER` and `row_of_ER` the matching.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.planners.dtfm.kernels import share_gradients
from hetplanner.planners.dtfm.matching_kernels import find_mate, match_groups, matching_room
from hetplanner.planners.search.kernel_random import cooling_factor, draw_limit, next_below, next_uniform

Array = NDArray[Any]

# Share of moves that begin at the slowest pair of an edge, and of those that take a device of near number.
AIMED = 0.5
NEAR = 0.7
# Near are numbers within this part of all.
NEAR_PART = 16

# This file stays as it is, long and with its own `find_mate` and `set_column`: taken apart, or shared with
# `matching_kernels`, LLVM inlines it otherwise, and moves of a thousand devices took 4 to 12 % longer.


@kernel
def score_in_order(
    dp_DD: Array, pp_DD: Array, members_PN: Array, cost_P: Array, num_stages: int, num_replicas: int
) -> None:
    """Costs of many placements with the stages in the order given."""
    room = matching_room(num_replicas)
    for p in range(len(members_PN)):
        worst = 0.0
        path = 0.0
        for s in range(num_stages):
            worst = max(worst, share_gradients(dp_DD, members_PN[p], s, num_replicas))
            if s:
                value, _ = match_groups(pp_DD, members_PN[p], s - 1, s, num_replicas, np.inf, *room)
                path += value
        cost_P[p] = worst + path


@kernel
def set_row(work_RR: Array, low_row_R: Array, low_column_R: Array, row: int, new_R: Array) -> None:
    """Replaces a row of an edge's table and keeps the least of every row and column."""
    low = np.inf
    num = len(new_R)
    for j in range(num):
        old = work_RR[row, j]
        value = new_R[j]
        work_RR[row, j] = value
        low = min(low, value)
        if value <= low_column_R[j]:
            low_column_R[j] = value
        elif old == low_column_R[j]:
            least = np.inf
            for i in range(num):
                least = min(least, work_RR[i, j])
            low_column_R[j] = least
    low_row_R[row] = low


@kernel
def set_column(work_RR: Array, low_row_R: Array, low_column_R: Array, column: int, new_R: Array) -> None:
    """Replaces a column of an edge's table and keeps the least of every row and column."""
    low = np.inf
    num = len(new_R)
    for i in range(num):
        old = work_RR[i, column]
        value = new_R[i]
        work_RR[i, column] = value
        low = min(low, value)
        if value <= low_row_R[i]:
            low_row_R[i] = value
        elif old == low_row_R[i]:
            least = np.inf
            for j in range(num):
                least = min(least, work_RR[i, j])
            low_row_R[i] = least
    low_column_R[column] = low


@kernel
def replace_worst(
    work_RR: Array, column_of_R: Array, row_of_R: Array, worst_row: int, parent_R: Array, queue_R: Array,
    done_R: Array,
) -> bool:  # fmt: skip
    """Finds the row of the worst pair another mate over pairs that are all better; False if there is none."""
    num = len(column_of_R)
    goal = column_of_R[worst_row]
    value = work_RR[worst_row, goal]
    for j in range(num):
        done_R[j] = False
    head = 0
    tail = 1
    queue_R[0] = worst_row
    while head < tail:
        row = queue_R[head]
        head += 1
        for j in range(num):
            if done_R[j] or work_RR[row, j] >= value:
                continue
            done_R[j] = True
            parent_R[j] = row
            if j != goal:
                queue_R[tail] = row_of_R[j]
                tail += 1
                continue
            pick = j
            while True:
                at = parent_R[pick]
                previous = column_of_R[at]
                column_of_R[at] = pick
                row_of_R[pick] = at
                if at == worst_row:
                    return True
                pick = previous
    return False


@kernel
def settle(
    work_RR: Array, low_row_R: Array, low_column_R: Array, column_of_R: Array, row_of_R: Array, limit: float,
    dist_R: Array, parent_R: Array, queue_R: Array, done_R: Array,
) -> tuple[float, float, int]:  # fmt: skip
    """Matches what is unmatched and makes the matching optimal.

    Returns ``(bottleneck, mean of row and column minima, row of the bottleneck)``; a bottleneck above `limit` is a
    bound, and the matching is then not complete.
    """
    num = len(column_of_R)
    floor = 0.0
    total = 0.0
    for i in range(num):
        floor = max(floor, max(low_row_R[i], low_column_R[i]))
        total += low_row_R[i] + low_column_R[i]
    nearest = total / (2 * num)
    if floor > limit:
        return floor, nearest, 0
    bound = floor
    for i in range(num):
        if column_of_R[i] >= 0:
            bound = max(bound, work_RR[i, column_of_R[i]])
    for i in range(num):
        if column_of_R[i] < 0:
            found = find_mate(work_RR, column_of_R, row_of_R, i, bound, limit, dist_R, parent_R, done_R)
            bound = max(bound, found)
            if found > limit:
                return bound, nearest, 0
    while True:
        worst_row = 0
        value = -1.0
        for i in range(num):
            if work_RR[i, column_of_R[i]] > value:
                value = work_RR[i, column_of_R[i]]
                worst_row = i
        if value <= floor or not replace_worst(work_RR, column_of_R, row_of_R, worst_row, parent_R, queue_R, done_R):
            return value, nearest, worst_row


@kernel
def swap_sums(
    dp_DD: Array, members_N: Array, sum_N: Array, base: int, slot: int, new_device: int, num_replicas: int, out_R: Array
) -> float:
    """Data-parallel sums of a stage's members once `slot` holds another device; returns the greatest."""
    left = dp_DD[members_N[base + slot]]
    joined = dp_DD[new_device]
    worst = 0.0
    own = 0.0
    for i in range(num_replicas):
        device = members_N[base + i]
        if i == slot:
            continue
        value = sum_N[base + i] - left[device] + joined[device]
        own += joined[device]
        out_R[i] = value
        worst = max(worst, value)
    own += joined[new_device]
    out_R[slot] = own
    return max(worst, own)


@kernel
def anneal_large(
    dp_DD: Array, pp_DD: Array, members_N: Array, num_stages: int, num_replicas: int, num_moves: int, hot: float,
    cold: float, guide_weight: float, state: Array, best_N: Array,
) -> float:  # fmt: skip
    """Annealing by swaps of two devices, the stages keeping their order; returns the best cost met (in ``best_N``).

    `members_N` holds the stages in the order of the path, then spare devices, and is changed. The guide is that of
    :func:`hetplanner.planners.dtfm.kernels.anneal`. Half of the moves begin at the slowest pair of an edge, most take
    a device of near number (numbers follow the network, so it has like links, only other luck).
    """
    num_placed = num_stages * num_replicas
    num_devices = len(members_N)
    num_edges = num_stages - 1
    size = max(num_edges, 1)
    work_ERR = np.empty((size, num_replicas, num_replicas), pp_DD.dtype)
    low_row_ER = np.empty((size, num_replicas))
    low_column_ER = np.empty((size, num_replicas))
    column_of_ER = np.full((size, num_replicas), -1, np.int32)
    row_of_ER = np.full((size, num_replicas), -1, np.int32)
    kept_work_4R = np.empty((4, 2, num_replicas), pp_DD.dtype)
    kept_low_4R = np.empty((4, 2, num_replicas))
    kept_mate_4R = np.empty((4, 2, num_replicas), np.int32)
    row_4 = np.empty(4, np.int64)
    column_4 = np.empty(4, np.int64)
    edge_4 = np.empty(4, np.int64)
    value_4 = np.empty(4)
    soft_4 = np.empty(4)
    worst_row_4 = np.empty(4, np.int64)
    dist_R = np.empty(num_replicas)
    parent_R = np.empty(num_replicas, np.int32)
    queue_R = np.empty(num_replicas + 1, np.int32)
    done_R = np.empty(num_replicas, np.bool_)
    fresh_R = np.empty(num_replicas, pp_DD.dtype)
    sum_N = np.zeros(num_placed)
    sum_2R = np.empty((2, num_replicas))
    place_D = np.empty(num_devices, np.int64)
    shared_S = np.zeros(num_stages)
    edge_E = np.zeros(size)
    soft_E = np.zeros(size)
    worst_row_E = np.zeros(size, np.int64)
    for t in range(num_devices):
        place_D[members_N[t]] = t
    cost = 0.0
    soft = 0.0
    worst = 0.0
    for s in range(num_stages):
        base = s * num_replicas
        for i in range(num_replicas):
            row = dp_DD[members_N[base + i]]
            total = 0.0
            for j in range(num_replicas):
                total += row[members_N[base + j]]
            sum_N[base + i] = total
            shared_S[s] = max(shared_S[s], total)
        worst = max(worst, shared_S[s])
        soft += shared_S[s] / num_stages
    for e in range(num_edges):
        a = e * num_replicas
        b = a + num_replicas
        low_column_ER[e] = np.inf
        for i in range(num_replicas):
            row = pp_DD[members_N[a + i]]
            low = np.inf
            for j in range(num_replicas):
                value = row[members_N[b + j]]
                work_ERR[e, i, j] = value
                low = min(low, value)
                low_column_ER[e, j] = min(low_column_ER[e, j], value)
            low_row_ER[e, i] = low
        edge_E[e], nearest, worst_row_E[e] = settle(
            work_ERR[e], low_row_ER[e], low_column_ER[e], column_of_ER[e], row_of_ER[e], np.inf,
            dist_R, parent_R, queue_R, done_R,
        )  # fmt: skip
        soft_E[e] = 2.0 * np.sqrt(edge_E[e] * nearest)
        cost += edge_E[e]
        soft += soft_E[e]
    cost += worst
    guide = cost + guide_weight * soft
    best = cost
    best_N[:] = members_N
    if num_stages * num_replicas < 2 or num_devices < 2 or (num_stages < 2 and num_devices == num_placed):
        return best
    window = max(2, num_devices // NEAR_PART)
    cooling = cooling_factor(hot, cold, num_moves)
    temperature = hot * cost
    for _ in range(num_moves):
        temperature *= cooling
        allowed = draw_limit(guide, temperature, state)
        if num_edges and next_uniform(state) < AIMED:
            e = next_below(state, num_edges)
            i = worst_row_E[e]
            x = e * num_replicas + i
            if next_uniform(state) < 0.5:
                x = (e + 1) * num_replicas + column_of_ER[e, i]
        else:
            x = next_below(state, num_placed)
        if next_uniform(state) < NEAR:
            other = members_N[x] - window + next_below(state, 2 * window + 1)
            if other < 0 or other >= num_devices:
                continue
            y = place_D[other]
        else:
            y = next_below(state, num_devices)
        sx = x // num_replicas
        sy = y // num_replicas if y < num_placed else -1
        if sx == sy:
            continue
        dx = members_N[x]
        dy = members_N[y]
        # Data-parallel terms first: they are cheap and refuse many moves.
        new_x = swap_sums(
            dp_DD, members_N, sum_N, sx * num_replicas, x - sx * num_replicas, dy, num_replicas, sum_2R[0]
        )
        new_soft = soft + (new_x - shared_S[sx]) / num_stages
        new_y = 0.0
        if sy >= 0:
            new_y = swap_sums(
                dp_DD, members_N, sum_N, sy * num_replicas, y - sy * num_replicas, dx, num_replicas, sum_2R[1]
            )
            new_soft += (new_y - shared_S[sy]) / num_stages
        new_worst = max(new_x, new_y)
        for s in range(num_stages):
            if s != sx and s != sy:
                new_worst = max(new_worst, shared_S[s])
        new_cost = cost - worst + new_worst
        num_touched = 0
        for t in range(2):
            s = sx if t == 0 else sy
            if s < 0:
                continue
            for e in (s - 1, s):
                if e < 0 or e >= num_edges:
                    continue
                found = -1
                for k in range(num_touched):
                    if edge_4[k] == e:
                        found = k
                if found < 0:
                    found = num_touched
                    num_touched += 1
                    edge_4[found] = e
                    row_4[found] = -1
                    column_4[found] = -1
                    new_cost -= edge_E[e]
                    new_soft -= soft_E[e]
                slot = (x if t == 0 else y) - s * num_replicas
                if e == s:
                    row_4[found] = slot
                else:
                    column_4[found] = slot
        members_N[x] = dy
        members_N[y] = dx
        accepted = new_cost + guide_weight * new_soft <= allowed
        changed = 0
        while accepted and changed < num_touched:
            k = changed
            e = edge_4[k]
            room = allowed - new_cost - guide_weight * new_soft
            row = row_4[k]
            column = column_4[k]
            work_RR = work_ERR[e]
            kept_low_4R[k, 0] = low_row_ER[e]
            kept_low_4R[k, 1] = low_column_ER[e]
            kept_mate_4R[k, 0] = column_of_ER[e]
            kept_mate_4R[k, 1] = row_of_ER[e]
            changed += 1
            if row >= 0:
                kept_work_4R[k, 0] = work_RR[row]
                source = pp_DD[members_N[e * num_replicas + row]]
                for j in range(num_replicas):
                    fresh_R[j] = source[members_N[(e + 1) * num_replicas + j]]
                if column >= 0:
                    # The column is set below; here its old entry keeps the minima right.
                    fresh_R[column] = work_RR[row, column]
                set_row(work_RR, low_row_ER[e], low_column_ER[e], row, fresh_R)
            if column >= 0:
                for i in range(num_replicas):
                    kept_work_4R[k, 1, i] = work_RR[i, column]
                source = pp_DD[members_N[(e + 1) * num_replicas + column]]
                for i in range(num_replicas):
                    fresh_R[i] = source[members_N[e * num_replicas + i]]
                set_column(work_RR, low_row_ER[e], low_column_ER[e], column, fresh_R)
            if row >= 0:
                mate = column_of_ER[e, row]
                column_of_ER[e, row] = -1
                row_of_ER[e, mate] = -1
            if column >= 0 and row_of_ER[e, column] >= 0:
                mate = row_of_ER[e, column]
                row_of_ER[e, column] = -1
                column_of_ER[e, mate] = -1
            value, nearest, worst_row_4[k] = settle(
                work_RR, low_row_ER[e], low_column_ER[e], column_of_ER[e], row_of_ER[e], room,
                dist_R, parent_R, queue_R, done_R,
            )  # fmt: skip
            value_4[k] = value
            soft_4[k] = 2.0 * np.sqrt(value * nearest)
            new_cost += value
            new_soft += soft_4[k]
            if value > room or new_cost + guide_weight * new_soft > allowed:
                accepted = False
        if accepted:
            for k in range(num_touched):
                e = edge_4[k]
                edge_E[e] = value_4[k]
                soft_E[e] = soft_4[k]
                worst_row_E[e] = worst_row_4[k]
            sum_N[sx * num_replicas : (sx + 1) * num_replicas] = sum_2R[0]
            shared_S[sx] = new_x
            if sy >= 0:
                sum_N[sy * num_replicas : (sy + 1) * num_replicas] = sum_2R[1]
                shared_S[sy] = new_y
            place_D[dx] = y
            place_D[dy] = x
            cost = new_cost
            soft = new_soft
            worst = new_worst
            guide = cost + guide_weight * soft
            if cost < best - 1e-9:
                best = cost
                best_N[:] = members_N
            continue
        members_N[x] = dx
        members_N[y] = dy
        for k in range(changed):
            e = edge_4[k]
            if column_4[k] >= 0:
                for i in range(num_replicas):
                    work_ERR[e, i, column_4[k]] = kept_work_4R[k, 1, i]
            if row_4[k] >= 0:
                work_ERR[e, row_4[k]] = kept_work_4R[k, 0]
            low_row_ER[e] = kept_low_4R[k, 0]
            low_column_ER[e] = kept_low_4R[k, 1]
            column_of_ER[e] = kept_mate_4R[k, 0]
            row_of_ER[e] = kept_mate_4R[k, 1]
    return best
