"""Compiled kernels of the bound from counts. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices (in the order of their classes), C classes, N counts of a stage, R replicas,
L levels of a hop, G groups of classes, V vectors of used devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.kernels import kernel

Array = NDArray[Any]


@kernel
def least_rows(count_NC: Array, least_DCR: Array, start_C: Array) -> Array:
    """What the dearest member of a stage with such counts pays at least, whichever devices it takes.

    Args:
        count_NC: devices of each class.
        least_DCR: what a device pays to its nearest 0, 1, … devices of each class; infinite beyond their number.
        start_C: first device of each class, and the number of devices.
    """
    num_counts, num_classes = count_NC.shape
    least_N = np.zeros(num_counts)
    for x in range(num_counts):
        for a in range(num_classes):
            taken = count_NC[x, a]
            if taken == 0:
                continue
            size = start_C[a + 1] - start_C[a]
            paid = np.zeros(size)
            for i in range(size):
                for b in range(num_classes):
                    if count_NC[x, b] > 0:
                        paid[i] += least_DCR[start_C[a] + i, b, count_NC[x, b] - (1 if a == b else 0)]
            paid.sort()
            least_N[x] = max(least_N[x], paid[taken - 1])
    return least_N


@kernel
def slots_of(count_C: Array, useful_D: Array, start_C: Array) -> Array:
    """The class of each member of a group, those with the fewest choices first."""
    choices_C = np.full(len(count_C), np.inf)
    for a in range(len(count_C)):
        if count_C[a] > 0:
            useful = useful_D[start_C[a] : start_C[a + 1]].sum()
            choices_C[a] = 1.0
            for k in range(count_C[a]):
                choices_C[a] *= (useful - k) / (k + 1)
    slot_R = np.empty(count_C.sum(), np.int64)
    filled = 0
    for a in np.argsort(choices_C):
        for _ in range(count_C[a]):
            slot_R[filled] = a
            filled += 1
    return slot_R


@kernel
def rest_of(slot_R: Array, useful_D: Array, least_DCR: Array, class_D: Array) -> Array:
    """What each device pays at least to the members from each slot on; a row for each number of filled slots."""
    num_slots, num_devices, num_classes = len(slot_R), len(useful_D), least_DCR.shape[1]
    rest = np.zeros((num_slots + 1, num_devices))
    count_C = np.zeros(num_classes, np.int64)
    for s in range(num_slots - 1, -1, -1):
        count_C[slot_R[s]] += 1
        for i in range(num_devices):
            if useful_D[i]:
                for b in range(num_classes):
                    wanted = count_C[b]
                    # The device itself may be among those that are still to come.
                    while wanted > 0 and b == class_D[i] and not np.isfinite(least_DCR[i, b, wanted]):
                        wanted -= 1
                    if wanted > 0:
                        rest[s, i] += least_DCR[i, b, wanted]
    return rest


@kernel
def useful_devices(count_C: Array, limit: float, least_DCR: Array, class_D: Array) -> Array:
    """Which devices pay no more than a limit to their nearest peers of such counts."""
    useful_D = np.zeros(len(class_D), np.bool_)
    for i in range(len(class_D)):
        a, paid = class_D[i], 0.0
        if count_C[a] > 0:
            for b in range(len(count_C)):
                if count_C[b] > 0:
                    paid += least_DCR[i, b, count_C[b] - (1 if a == b else 0)]
            useful_D[i] = paid <= limit
    return useful_D


@kernel
def can_be_group(
    count_C: Array, limit: float, shared_DD: Array, least_DCR: Array, start_C: Array, class_D: Array, most_nodes: int
) -> bool:
    """False if it is proved that no group with such counts has all its row sums within a limit.

    Devices are chosen one by one. A choice is dropped as soon as a member's paid part and the least that it still
    pays exceed the limit. After so many choices the proof is given up.
    """
    useful_D = useful_devices(count_C, limit, least_DCR, class_D)
    slot_R = slots_of(count_C, useful_D, start_C)
    last = len(slot_R) - 1
    rest = rest_of(slot_R, useful_D, least_DCR, class_D)
    paid_RD = np.zeros((len(slot_R) + 1, len(shared_DD)))
    chosen_R, next_R = np.zeros(len(slot_R), np.int64), np.zeros(len(slot_R), np.int64)
    next_R[0], depth, nodes = start_C[slot_R[0]], 0, 0
    while depth >= 0:
        i = next_R[depth]
        if i >= start_C[slot_R[depth] + 1]:
            depth -= 1
            continue
        next_R[depth] = i + 1
        if not useful_D[i]:
            continue
        nodes += 1
        if nodes > most_nodes:
            return True
        fits = paid_RD[depth, i] + rest[depth + 1, i] <= limit
        for q in range(depth):
            j = chosen_R[q]
            fits = fits and paid_RD[depth, j] + shared_DD[i, j] + rest[depth + 1, j] <= limit
        if not fits:
            continue
        if depth == last:
            return True
        chosen_R[depth] = i
        paid_RD[depth + 1] = paid_RD[depth] + shared_DD[i]
        depth += 1
        next_R[depth] = i + 1 if slot_R[depth] == slot_R[depth - 1] else start_C[slot_R[depth]]
    return False


@kernel
def grade_counts(
    count_NC: Array,
    least_N: Array,
    limit_K: Array,
    shared_DD: Array,
    least_DCR: Array,
    start_C: Array,
    class_D: Array,
    most_nodes: int,
) -> Array:
    """For each stage's counts the number of limits within which it is proved that no group with such counts is."""
    grade_N = np.empty(len(count_NC), np.int64)
    for x in range(len(count_NC)):
        low = np.searchsorted(limit_K, least_N[x])
        high = min(low + 15, len(limit_K))
        while low < high:
            middle = (low + high) // 2
            if can_be_group(count_NC[x], limit_K[middle], shared_DD, least_DCR, start_C, class_D, most_nodes):
                high = middle
            else:
                low = middle + 1
        grade_N[x] = low
    return grade_N


@kernel
def can_flow(from_C: Array, to_C: Array, most_CC: Array) -> bool:
    """Whether devices of one stage can be matched with those of the next, at most so many from class to class."""
    num_classes = len(from_C)
    flow_CC = np.zeros((num_classes, num_classes), np.int64)
    left_C, wanted_C = from_C.copy(), to_C.copy()
    for shift in range(num_classes):
        for a in range(num_classes):
            b = (a + shift) % num_classes
            sent = min(left_C[a], wanted_C[b], most_CC[a, b])
            flow_CC[a, b] = sent
            left_C[a] -= sent
            wanted_C[b] -= sent
    before_a, before_b = np.empty(num_classes, np.int64), np.empty(num_classes, np.int64)
    queue = np.empty(num_classes, np.int64)
    while left_C.sum() > 0:
        before_a[:], before_b[:] = -1, -1
        head, tail, end = 0, 0, -1
        for a in range(num_classes):
            if left_C[a] > 0:
                before_a[a], queue[tail], tail = -2, a, tail + 1
        while head < tail and end < 0:
            a, head = queue[head], head + 1
            for b in range(num_classes):
                if before_b[b] >= 0 or flow_CC[a, b] >= most_CC[a, b]:
                    continue
                before_b[b] = a
                if wanted_C[b] > 0:
                    end = b
                    break
                for c in range(num_classes):
                    if before_a[c] == -1 and flow_CC[c, b] > 0:
                        before_a[c], queue[tail], tail = b, c, tail + 1
        if end < 0:
            return False
        wanted_C[end] -= 1
        b = end
        while True:
            a = before_b[b]
            flow_CC[a, b] += 1
            if before_a[a] == -2:
                left_C[a] -= 1
                break
            b = before_a[a]
            flow_CC[a, b] -= 1
    return True


@kernel
def level_hops(count_NC: Array, most_LCC: Array, level_NN: Array, first: int, end: int) -> None:
    """For rows `first` to `end`: the number of levels that are too low for a hop, for the pairs up to each row."""
    for x in range(first, end):
        for y in range(x + 1):
            low, high = 0, len(most_LCC)
            while low < high:
                middle = (low + high) // 2
                if can_flow(count_NC[x], count_NC[y], most_LCC[middle]):
                    high = middle
                else:
                    low = middle + 1
            level_NN[x, y] = level_NN[y, x] = low


@kernel(fastmath={"nnan", "nsz", "reassoc"})
def extend_walks(
    cost_VN: Array,
    row_of: Array,
    used_VG: Array,
    group_NG: Array,
    stride_G: Array,
    hop_NN: Array,
    out_VN: Array,
    begin: int,
    end: int,
) -> None:
    """Least costs of walks to counts `begin` … `end` with so many devices used, from those with one stage less."""
    for x in range(begin, end):
        for v in range(len(used_VG)):
            code = 0
            for g in range(len(stride_G)):
                left = used_VG[v, g] - group_NG[x, g]
                code = code + left * stride_G[g] if left >= 0 and code >= 0 else -1
            if code < 0 or row_of[code] < 0:
                continue
            before_N, hop_N = cost_VN[row_of[code]], hop_NN[x]
            best = np.float32(np.inf)
            for y in range(len(hop_N)):
                best = min(best, before_N[y] + hop_N[y])
            out_VN[v, x] = best


@kernel(fastmath={"nnan", "nsz", "reassoc"})
def join_walks(one_N: Array, other_N: Array, hop_NN: Array) -> tuple[np.float32, int]:
    """The least cost of two walks and the hop between their ends, and the end of the first."""
    least, end = np.float32(np.inf), -1
    for x in range(len(one_N)):
        if one_N[x] >= least:
            continue
        hop = hop_NN[x]
        best = np.float32(np.inf)
        for y in range(len(hop)):
            best = min(best, other_N[y] + hop[y])
        if one_N[x] + best < least:
            least, end = one_N[x] + best, x
    return least, end
