"""Communities of the network: devices with like links, found without being told the sites.

Ratios between wide-area links are small (two to six), so modularity on raw bandwidths merges sites. Here a device is
the row of its message times to all others on a logarithmic scale; devices of one site have almost equal rows. The rows
are projected onto their principal directions (SVD) and clustered by k-means; a dendrogram of the link times gives a
second proposal. Of all proposals the one with the best mean silhouette of the link times stays.

Legend of array suffixes: D devices, F principal directions, K communities.
"""

from __future__ import annotations

import warnings

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.planners.network.coarsen import LARGE, find_sites

MOST_COMMUNITIES = 32
# Directions that hold this share of the rows' variance are kept.
KEPT_VARIANCE = 0.999
# Below this mean silhouette, and where links differ by less than this (natural log), there is but one community.
LEAST_SILHOUETTE = 0.25
ALIKE = 0.05


def find_communities(seconds_DD: FloatArray) -> IntArray:
    """Numbers each device's community, from 0 in order of first appearance; of a thousand and more by landmarks.

    Args:
        seconds_DD: seconds of a message between two devices; symmetric, the diagonal is not read.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    num_devices = len(seconds_DD)
    one = np.zeros(num_devices, dtype=np.int64)
    if num_devices < 3:
        return one
    if num_devices >= LARGE:
        return find_sites(seconds_DD)
    log_DD = _log_seconds(seconds_DD)
    if log_DD.max() < ALIKE:
        return one
    points_DF = _profiles(log_DD)
    tree = hierarchy.linkage(squareform(log_DD, checks=False), "average")
    best, best_silhouette = one, LEAST_SILHOUETTE
    for count in range(2, min(MOST_COMMUNITIES, num_devices - 1) + 1):
        # As many directions as communities: the others hold the noise of single links.
        for label in (_cluster(points_DF[:, :count], count), hierarchy.fcluster(tree, count, "maxclust") - 1):
            found = _silhouette(log_DD, label)
            if found > best_silhouette + 1e-9:
                best, best_silhouette = label, found
    return _in_order(best)


def _log_seconds(seconds_DD: FloatArray) -> FloatArray:
    """Log message times above the fastest link's; a device is as near to itself as its nearest peer."""
    filled = seconds_DD.copy()
    np.fill_diagonal(filled, np.where(np.eye(len(filled), dtype=bool), np.inf, filled).min(axis=1))
    floor = max(float(filled.max()) * 1e-9, 1e-300)
    logs = np.log(np.maximum(filled, floor))
    return np.asarray(logs - logs.min())


def _profiles(log_DD: FloatArray) -> FloatArray:
    """The rows in their principal directions."""
    rows = log_DD - log_DD.mean(axis=0)
    left, size, _ = np.linalg.svd(rows, full_matrices=False)
    share = np.cumsum(size**2) / max(float((size**2).sum()), 1e-300)
    kept = int(np.searchsorted(share, KEPT_VARIANCE)) + 1
    return np.asarray(left[:, :kept] * size[:kept])


def _cluster(points_DF: FloatArray, count: int) -> IntArray:
    """The k-means partition with the least inertia, started from Ward's dendrogram and farthest-first."""
    from scipy.cluster import hierarchy
    from scipy.cluster.vq import kmeans2

    grown = hierarchy.fcluster(hierarchy.linkage(points_DF, "ward"), count, "maxclust")
    starts = [
        np.array([points_DF[grown == c].mean(axis=0) for c in np.unique(grown)]),
        _farthest_first(points_DF, count),
    ]
    best, least = np.zeros(len(points_DF), dtype=np.int64), np.inf
    for start in starts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fewer distinct rows than clusters leave one empty
            centre, label = kmeans2(points_DF, start, minit="matrix", missing="warn", check_finite=False)
        inertia = float(((points_DF - centre[label]) ** 2).sum())
        if inertia < least:
            best, least = label.astype(np.int64), inertia
    return best


def _farthest_first(points_DF: FloatArray, count: int) -> FloatArray:
    """Centres that each lie as far as possible from those before: one in every well-separated group."""
    chosen = [int(np.argmin(((points_DF - points_DF.mean(axis=0)) ** 2).sum(axis=1)))]
    near = ((points_DF - points_DF[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(near)))
        near = np.minimum(near, ((points_DF - points_DF[chosen[-1]]) ** 2).sum(axis=1))
    return points_DF[chosen]


def _silhouette(log_DD: FloatArray, label_D: IntArray) -> float:
    """Mean over devices of (log time to the nearest other community - to the own) / the larger; a singleton counts 0.

    On link times, not on the distance of rows: that would prefer two continents to ten cities as soon as links are
    noisy.
    """
    _, label = np.unique(label_D, return_inverse=True)
    size = np.bincount(label).astype(np.float64)
    if len(size) < 2:
        return -1.0
    member = np.zeros((len(label), len(size)))
    member[np.arange(len(label)), label] = 1.0
    total = log_DD @ member
    own = (total[np.arange(len(label)), label] - np.diagonal(log_DD)) / np.maximum(size[label] - 1, 1)
    mean = total / size
    mean[np.arange(len(label)), label] = np.inf
    other = mean.min(axis=1)
    larger = np.maximum(np.maximum(own, other), 1e-300)
    return float(np.where(size[label] > 1, (other - own) / larger, 0.0).mean())


def _in_order(label_D: IntArray) -> IntArray:
    _, first, label = np.unique(label_D, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[label].astype(np.int64)
