"""Large clusters made small: sites by the profile of a device's links, an order along them, groups of near devices.

With thousands of devices a dendrogram of all pairs takes too long. Here a device is the row of its message times to
some landmark devices on a logarithmic scale: devices of one site have almost equal rows, however the single links
jitter. Sites are found among the landmarks alone, and every device joins the nearest.

Legend of array suffixes: D devices, L landmarks, K sites, G groups, M members of a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray

Array = NDArray[Any]

LARGE = 1000
"""From so many devices on, orders and searches work on groups first."""
LANDMARKS = 256
# Inside a site of at most so many devices a dendrogram brings hosts together.
MOST_LINKED = 1024
# Directions this much above the edge of the noise are kept; devices of one site lie within this many times what noise
# alone parts them, or their times differ by less than this (natural log).
EDGE = 1.1
WITHIN = 2.0
ALIKE = 0.05
# Sites are split again (racks, hosts) this often at most.
MOST_LEVELS = 3


def find_sites(seconds_DD: Array) -> IntArray:
    """Numbers each device's site, from 0 in order of first appearance.

    The noise of single links is told from sites by random-matrix theory: of D x L noisy numbers no direction is
    stronger than sigma (sqrt(D) + sqrt(L)), so the rows are read in the directions that are.

    Args:
        seconds_DD: seconds of a message between two devices; symmetric, the diagonal is not read.

    Source: Gavish and Donoho, The optimal hard threshold for singular values is 4/sqrt(3), 2014 (the bulk's edge).
    """
    from scipy.cluster import hierarchy

    num_devices = len(seconds_DD)
    count = min(LANDMARKS, num_devices)
    landmarks = np.random.default_rng(num_devices).permutation(num_devices)[:count]
    point_DF, noise = _profiles(seconds_DD, landmarks)
    near = max(WITHIN * noise * np.sqrt(2.0 * point_DF.shape[1]), ALIKE * np.sqrt(count))
    tree = hierarchy.linkage(point_DF[landmarks], "average")
    label_L = hierarchy.fcluster(tree, near, "distance")
    centre_KF = np.array([point_DF[landmarks[label_L == k]].mean(axis=0) for k in np.unique(label_L)])
    apart_DK = (centre_KF**2).sum(axis=1)[None, :] - 2.0 * point_DF @ centre_KF.T
    _, first, label_D = np.unique(apart_DK.argmin(axis=1), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[label_D].astype(np.int64)


def sort_devices(seconds_DD: Array) -> tuple[IntArray, IntArray]:
    """An order of the devices in which near ones stand together, and each device's site.

    Args:
        seconds_DD: as in :func:`find_sites`.

    Returns:
        ``(order_D, site_D)``: the site of device ``order_D[i]`` is ``site_D[order_D[i]]``.
    """
    site_D = find_sites(seconds_DD)
    members = [np.flatnonzero(site_D == k) for k in range(int(site_D.max()) + 1)]
    between_KK = np.array([[_mean_seconds(seconds_DD, a, b) for b in members] for a in members])
    order = [_sort_site(seconds_DD, members[k], MOST_LEVELS - 1) for k in _leaves(between_KK)]
    return np.concatenate(order), site_D


def group_devices(order_D: IntArray, site_D: IntArray, size: int) -> IntArray:
    """Cuts an order into groups of equal size, each inside one site as far as possible.

    Args:
        order_D: devices, near ones together.
        site_D: every device's site.
        size: devices of a group.

    Returns:
        Devices as ``group_GM``, the groups along the order; what fills no group is left out.
    """
    site_along = site_D[order_D]
    starts = np.flatnonzero(np.diff(site_along, prepend=-1))
    groups: list[IntArray] = []
    left: list[IntArray] = []
    for run in np.split(order_D, starts[1:]):
        whole = len(run) // size * size
        groups.extend(run[:whole].reshape(-1, size))
        left.append(run[whole:])
    rest = np.concatenate(left)
    groups.extend(rest[: len(rest) // size * size].reshape(-1, size))
    place = np.argsort(order_D)
    groups.sort(key=lambda group: float(place[group].mean()))
    return np.array(groups, dtype=np.int64).reshape(-1, size)


def list_leaves(tree: FloatArray) -> IntArray:
    """Leaves of a dendrogram from left to right; scipy's own takes milliseconds to check its argument."""
    num_leaves = len(tree) + 1
    children = tree[:, :2].astype(np.int64).tolist()
    leaves, stack = [], [2 * num_leaves - 2]
    while stack:
        node = stack.pop()
        if node < num_leaves:
            leaves.append(node)
        else:
            stack.extend(reversed(children[node - num_leaves]))
    return np.array(leaves, dtype=np.int64)


def _profiles(seconds_DD: Array, landmarks: IntArray) -> tuple[FloatArray, float]:
    """Rows of log times to the landmarks in the directions above the noise, and the noise of one time."""
    rows_DL = np.array(seconds_DD[:, landmarks], dtype=np.float64)
    # A landmark's time to itself says nothing: it counts as the time to its nearest peer.
    itself = landmarks, np.arange(len(landmarks))
    rows_DL[itself] = np.inf
    rows_DL[itself] = rows_DL[landmarks].min(axis=1)
    finite = rows_DL[np.isfinite(rows_DL)]
    ceiling = float(finite.max()) if finite.size else 1.0
    rows_DL = np.log(np.clip(rows_DL, ceiling * 1e-9, ceiling * 10.0))
    rows_DL -= rows_DL.mean(axis=0)
    power, directions = np.linalg.eigh(rows_DL.T @ rows_DL)
    strength = np.sqrt(np.maximum(power[::-1], 0.0))
    noise = float(np.median(strength)) / np.sqrt(len(rows_DL))
    edge = EDGE * noise * (np.sqrt(len(rows_DL)) + np.sqrt(len(landmarks)))
    kept = max(1, int((strength > max(edge, 1e-6 * strength[0])).sum()))
    return rows_DL @ directions[:, ::-1][:, :kept], noise


def _mean_seconds(seconds_DD: Array, one: IntArray, two: IntArray) -> float:
    """Mean seconds between two sites, from an even sample of their devices."""
    a, b = one[:: max(1, len(one) // 32)], two[:: max(1, len(two) // 32)]
    return float(seconds_DD[np.ix_(a, b)].mean())


def _sort_site(seconds_DD: Array, member_D: IntArray, levels: int) -> IntArray:
    """The devices of one site, those of one rack or host together."""
    if len(member_D) < 3:
        return member_D
    inside = seconds_DD[np.ix_(member_D, member_D)]
    if len(member_D) <= MOST_LINKED:
        return member_D[_leaves(inside.astype(np.float64))]
    if not levels:
        return member_D
    part_D = find_sites(inside)
    return np.concatenate(
        [_sort_site(seconds_DD, member_D[part_D == k], levels - 1) for k in range(int(part_D.max()) + 1)]
    )


def _leaves(seconds_KK: FloatArray) -> IntArray:
    """Leaves of the average-linkage dendrogram of logarithmic times."""
    if len(seconds_KK) < 3:
        return np.arange(len(seconds_KK))
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    apart = np.log1p(seconds_KK / max(float(np.median(seconds_KK)), 1e-300))
    np.fill_diagonal(apart, 0.0)
    tree = hierarchy.linkage(squareform(apart, checks=False), "average")
    return list_leaves(tree)
