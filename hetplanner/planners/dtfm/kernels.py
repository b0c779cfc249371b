"""Compiled kernels of the search for DT-FM's objective. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, S stages, R replicas, N placed devices (S x R) plus spare ones.

The state is an *ordered* list of stages, so the path over the stages is part of the state and a move touches two
stages and at most four edges; no travelling-salesman problem is solved inside the loop. Between neighbouring
stages the pipelines are matched optimally (bottleneck assignment). ``members_N`` holds the devices group by group
(group g owns ``members_N[g*R:(g+1)*R]``, the tail is spare) and ``order_S`` says which group serves which stage.

What allocates nothing is compiled without reference counts (`allocates=False`), which cost more than the arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel
from hetplanner.planners.dtfm.matching_kernels import match_groups, matching_room
from hetplanner.planners.search.kernel_random import cooling_factor, copy_into, draw_limit, next_below, next_uniform

Array = NDArray[Any]

# Kinds of moves.
NOTHING, EXCHANGE, REVERSAL, DEAL = -1, 0, 1, 2


@kernel(allocates=False)
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
    room = matching_room(num_replicas)
    for a in range(num_stages):
        edge_SS[a, a] = 0.0
        for b in range(a + 1, num_stages):
            value, _ = match_groups(pp_DD, members_N, a, b, num_replicas, np.inf, *room)
            edge_SS[a, b] = value
            edge_SS[b, a] = value


@kernel(allocates=False)
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


@kernel(forceinline=True, allocates=False)
def _reverse(values: Array, first: int, end: int) -> None:
    """Turns a stretch around."""
    for k in range((end - first) // 2):
        a, b = first + k, end - 1 - k
        values[a], values[b] = values[b], values[a]


@kernel(allocates=False)
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
                    _reverse(order_S, i, j + 1)
                    improved = True
    length = 0.0
    for i in range(num - 1):
        length += edge_SS[order_S[i], order_S[i + 1]]
    return length


@kernel
def score_population(
    dp_DD: Array, pp_DD: Array, members_PN: Array, order_PS: Array, cost_P: Array, num_stages: int, num_replicas: int,
    exact_stages: int,
) -> None:  # fmt: skip
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


class _Chain(NamedTuple):
    """A placement that is annealed, its seconds, and the move on trial.

    Attributes:
        dp_DD, pp_DD, members_N, order_S, room: costs, placement, and what matchings work with.
        stage_of_G, shared_G: where a group is on the path; its data-parallel seconds.
        edge_E, soft_E: seconds of an edge of the path and its part in the guide.
        new_shared_G, new_edge_E, new_soft_E, touched_G, touched_E: groups and edges that a move touched, new seconds.
        kept_N, dealt_N: devices of a stretch before it is dealt anew, and after.
    """

    dp_DD: Array
    pp_DD: Array
    members_N: Array
    order_S: Array
    room: tuple[Array, Array, Array, Array]
    stage_of_G: Array
    shared_G: Array
    edge_E: Array
    soft_E: Array
    new_shared_G: Array
    new_edge_E: Array
    new_soft_E: Array
    touched_G: Array
    touched_E: Array
    kept_N: Array
    dealt_N: Array


class _Move(NamedTuple):
    """A move: its kind, two positions or a stretch's first stage and length, how many groups and edges it touched."""

    kind: int
    first: int
    second: int
    num_groups: int
    num_edges: int


@kernel(forceinline=True, allocates=False)
def _match_edge(chain: _Chain, edge: int, limit: float) -> tuple[float, float]:
    """Seconds of an edge of the path (above ``limit`` a bound) and its part in the guide."""
    one, two = chain.order_S[edge], chain.order_S[edge + 1]
    value, nearest = match_groups(chain.pp_DD, chain.members_N, one, two, len(chain.room[1]), limit, *chain.room)
    return value, 2.0 * np.sqrt(value * nearest)


@kernel(forceinline=True, allocates=False)
def _begin(chain: _Chain) -> tuple[float, float, float]:
    """Fills in the seconds of all groups and edges: ``(cost, soft part of the guide, slowest group)``."""
    num_stages = len(chain.order_S)
    cost = 0.0
    soft = 0.0
    worst = 0.0
    for s in range(num_stages):
        g = chain.order_S[s]
        chain.stage_of_G[g] = s
        chain.shared_G[g] = share_gradients(chain.dp_DD, chain.members_N, g, len(chain.room[1]))
        worst = max(worst, chain.shared_G[g])
        soft += chain.shared_G[g] / num_stages
        if s:
            value, extra = _match_edge(chain, s - 1, np.inf)
            chain.edge_E[s - 1] = value
            chain.soft_E[s - 1] = extra
            cost += value
            soft += extra
    return cost + worst, soft, worst


@kernel(forceinline=True, allocates=False)
def _touch_edge(chain: _Chain, count: int, edge: int) -> int:
    """Notes an edge, if the path has it; returns how many are noted."""
    if 0 <= edge < len(chain.order_S) - 1:
        chain.touched_E[count] = edge
        count += 1
    return count


@kernel(allocates=True)
def _deal(kept_N: Array, count: int, mode: int, pivot_row: Array, dealt_N: Array) -> None:
    """Deals the devices of ``count`` stages: sorted, then round-robin (mode 0) or in blocks."""
    total = len(kept_N)
    pool = np.sort(kept_N)
    keys = np.empty(total)
    for t in range(total):
        keys[t] = pivot_row[pool[t]]
    rank = np.argsort(keys, kind="mergesort")
    size = total // count
    for t in range(total):
        stage, slot = (t % count, t // count) if mode == 0 else (t // size, t % size)
        dealt_N[stage * size + slot] = pool[rank[t]]


@kernel(forceinline=True, allocates=False)
def _put_back(chain: _Chain, first: int, count: int, source_N: Array) -> None:
    """Gives consecutive stages the devices listed."""
    num = len(chain.room[1])
    for s in range(count):
        copy_into(chain.members_N[chain.order_S[first + s] * num :], source_N[s * num : (s + 1) * num])


@kernel(forceinline=True, allocates=False)
def _try_move(chain: _Chain, state: Array) -> _Move:
    """Makes a random move."""
    members_N, order_S, num_replicas = chain.members_N, chain.order_S, len(chain.room[1])
    num_stages, num_devices = len(order_S), len(members_N)
    num_placed = num_stages * num_replicas
    num_edges = 0
    draw = next_uniform(state)
    if draw < 0.06 and num_stages > 2:
        first = next_below(state, num_stages - 1)
        count = 2 + next_below(state, num_stages - 1 - first)
        if count == num_stages:
            return _Move(NOTHING, 0, 0, 0, 0)
        _reverse(order_S, first, first + count)
        num_edges = _touch_edge(chain, num_edges, first - 1)
        num_edges = _touch_edge(chain, num_edges, first + count - 1)
        return _Move(REVERSAL, first, count, 0, num_edges)
    if draw < 0.063 and num_stages > 1 and num_replicas > 1:
        first = next_below(state, num_stages - 1)
        count = 2 + next_below(state, num_stages - 1 - first)
        for s in range(count):
            g = order_S[first + s]
            chain.touched_G[s] = g
            copy_into(chain.kept_N[s * num_replicas :], members_N[g * num_replicas : (g + 1) * num_replicas])
        mode = next_below(state, 2)
        pivot_row = chain.pp_DD[next_below(state, num_devices)]
        _deal(chain.kept_N[: count * num_replicas], count, mode, pivot_row, chain.dealt_N)
        _put_back(chain, first, count, chain.dealt_N)
        for e in range(first - 1, first + count):
            num_edges = _touch_edge(chain, num_edges, e)
        return _Move(DEAL, first, count, count, num_edges)
    x = next_below(state, num_placed)
    y = next_below(state, num_devices)
    gx, gy = x // num_replicas, y // num_replicas
    if gx == gy and y < num_placed:
        return _Move(NOTHING, 0, 0, 0, 0)
    members_N[x], members_N[y] = members_N[y], members_N[x]
    sx = chain.stage_of_G[gx]
    chain.touched_G[0] = gx
    num_edges = _touch_edge(chain, num_edges, sx - 1)
    num_edges = _touch_edge(chain, num_edges, sx)
    if y >= num_placed:
        return _Move(EXCHANGE, x, y, 1, num_edges)
    sy = chain.stage_of_G[gy]
    chain.touched_G[1] = gy
    if sy - 1 != sx:
        num_edges = _touch_edge(chain, num_edges, sy - 1)
    if sy != sx - 1:
        num_edges = _touch_edge(chain, num_edges, sy)
    return _Move(EXCHANGE, x, y, 2, num_edges)


@kernel(forceinline=True, allocates=False)
def _share_anew(chain: _Chain, num_groups: int, worst: float, soft: float) -> tuple[float, float]:
    """Slowest group and soft part once the touched groups are summed anew."""
    if num_groups == 0:
        return worst, soft
    num_stages = len(chain.shared_G)
    copy_into(chain.new_shared_G, chain.shared_G)
    for t in range(num_groups):
        g = chain.touched_G[t]
        chain.new_shared_G[g] = share_gradients(chain.dp_DD, chain.members_N, g, len(chain.room[1]))
        soft += (chain.new_shared_G[g] - chain.shared_G[g]) / num_stages
    worst = 0.0
    for g in range(num_stages):
        worst = max(worst, chain.new_shared_G[g])
    return worst, soft


@kernel(forceinline=True, allocates=False)
def _match_anew(
    chain: _Chain, num_edges: int, cost: float, soft: float, allowed: float, guide_weight: float
) -> tuple[bool, float, float]:
    """Whether the guide stays within what is allowed once the touched edges are matched anew; cost and soft part."""
    for t in range(num_edges):
        cost -= chain.edge_E[chain.touched_E[t]]
        soft -= chain.soft_E[chain.touched_E[t]]
    # New soft terms are not negative, so what is known so far bounds the guide from below.
    for t in range(num_edges):
        limit = allowed - cost - guide_weight * soft
        value, extra = _match_edge(chain, chain.touched_E[t], limit)
        if value > limit:
            return False, cost, soft
        chain.new_edge_E[t] = value
        chain.new_soft_E[t] = extra
        cost += value
        soft += extra
    return cost + guide_weight * soft <= allowed, cost, soft


@kernel(forceinline=True, allocates=False)
def _accept(chain: _Chain, move: _Move) -> None:
    """Takes over what was computed of a move on trial."""
    if move.kind == REVERSAL:
        end = move.first + move.second
        _reverse(chain.edge_E, move.first, end - 1)
        _reverse(chain.soft_E, move.first, end - 1)
        for s in range(move.first, end):
            chain.stage_of_G[chain.order_S[s]] = s
    for t in range(move.num_edges):
        chain.edge_E[chain.touched_E[t]] = chain.new_edge_E[t]
        chain.soft_E[chain.touched_E[t]] = chain.new_soft_E[t]
    for t in range(move.num_groups):
        chain.shared_G[chain.touched_G[t]] = chain.new_shared_G[chain.touched_G[t]]


@kernel(forceinline=True, allocates=False)
def _undo(chain: _Chain, move: _Move) -> None:
    """Makes a move undone."""
    _, first, second, _, _ = move
    if move.kind == EXCHANGE:
        chain.members_N[first], chain.members_N[second] = chain.members_N[second], chain.members_N[first]
    elif move.kind == REVERSAL:
        _reverse(chain.order_S, first, first + second)
    else:
        _put_back(chain, first, second, chain.kept_N)


@kernel
def anneal(
    dp_DD: Array, pp_DD: Array, members_N: Array, order_S: Array, num_replicas: int, num_moves: int, hot: float,
    cold: float, guide_weight: float, state: Array, best_N: Array, best_order_S: Array,
) -> float:  # fmt: skip
    """Low-temperature annealing of one placement; returns the best cost met (kept in ``best_*``).

    Moves: swap two devices (of two stages, or of a stage and the spare ones), reverse a stretch of stages, re-deal
    a stretch of stages. The guide ``cost + guide_weight * (mean dp + 2 sum sqrt(edge * nearest))`` removes the
    plateaus of two nested maxima. A move is dropped as soon as its partial cost exceeds what would be accepted.
    """
    stages, edges, placed = len(order_S), max(len(order_S) - 1, 1), len(order_S) * num_replicas
    chain = _Chain(
        dp_DD, pp_DD, members_N, order_S, matching_room(num_replicas),
        np.empty(stages, np.int64), np.empty(stages), np.empty(edges), np.empty(edges),
        np.empty(stages), np.empty(edges), np.empty(edges), np.empty(stages, np.int64), np.empty(edges, np.int64),
        np.empty(placed, np.int64), np.empty(placed, np.int64),
    )  # fmt: skip
    return _anneal(chain, num_moves, hot, cold, guide_weight, state, best_N, best_order_S)


@kernel(allocates=False)
def _anneal(
    chain: _Chain, num_moves: int, hot: float, cold: float, guide_weight: float, state: Array, best_N: Array,
    best_order_S: Array,
) -> float:  # fmt: skip
    """The annealing itself."""
    cost, soft, worst = _begin(chain)
    guide = cost + guide_weight * soft
    best = cost
    copy_into(best_N, chain.members_N)
    copy_into(best_order_S, chain.order_S)
    if len(chain.members_N) < 2:
        return best
    cooling = cooling_factor(hot, cold, num_moves)
    temperature = hot * cost
    for _ in range(num_moves):
        temperature *= cooling
        allowed = draw_limit(guide, temperature, state)
        move = _try_move(chain, state)
        if move.kind == NOTHING:
            continue
        new_worst, new_soft = _share_anew(chain, move.num_groups, worst, soft)
        new_cost = cost - worst + new_worst
        accepted, new_cost, new_soft = _match_anew(chain, move.num_edges, new_cost, new_soft, allowed, guide_weight)
        if not accepted:
            _undo(chain, move)
            continue
        _accept(chain, move)
        cost, soft, worst = new_cost, new_soft, new_worst
        guide = cost + guide_weight * soft
        if cost < best - 1e-12:
            best = cost
            copy_into(best_N, chain.members_N)
            copy_into(best_order_S, chain.order_S)
    return best


@kernel
def cross_over(
    mother_N: Array, mother_order_S: Array, father_N: Array, father_order_S: Array, num_replicas: int, num_cuts: int,
    state: Array, child_N: Array,
) -> None:  # fmt: skip
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
    room = matching_room(num_replicas)
    column_of_R = room[1]
    both = np.empty(2 * num_replicas, np.int64)
    for s in range(num_stages):
        base = order_S[s] * num_replicas
        if s == 0:
            placed_SR[0] = members_N[base : base + num_replicas]
            continue
        both[:num_replicas] = placed_SR[s - 1]
        both[num_replicas:] = members_N[base : base + num_replicas]
        match_groups(pair_DD, both, 0, 1, num_replicas, np.inf, *room)
        for i in range(num_replicas):
            placed_SR[s, i] = both[num_replicas + column_of_R[i]]
