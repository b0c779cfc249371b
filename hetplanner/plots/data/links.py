"""The link matrix as an image, ordered by site."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetplanner.cluster.model import Cluster

What = Literal["bandwidth", "latency"]


@dataclass(frozen=True)
class LinkMatrix:
    """Links of all ordered pairs, devices grouped by site (D devices; row from, column to; row 0 on top).

    Attributes:
        value_DD: Mbit/s or ms; NaN on the diagonal.
        source_DD: index into `sources`.
        sources: measured, specified or assumed, and when; the last stands for the diagonal.
        ids: device of every row.
        site_names, site_centres, site_edges: sites along the axes; edges lie between two sites.
    """

    value_DD: np.ndarray
    source_DD: np.ndarray
    sources: tuple[str, ...]
    ids: tuple[str, ...]
    site_names: tuple[str, ...]
    site_centres: tuple[float, ...]
    site_edges: tuple[float, ...]


def link_matrix(cluster: Cluster, what: What = "bandwidth") -> LinkMatrix:
    """The matrix of one quantity."""
    order = np.argsort(cluster.site_index_D, kind="stable")
    given_DD = cluster.link_index_DD[np.ix_(order, order)]
    numbers = [k.bandwidth * 8 / 1e6 if what == "bandwidth" else k.latency * 1e3 for k in cluster.links]
    # Few sources are told apart, whatever the number of links: texts are not repeated per pair.
    known = [k.source + (f", {k.when}" if k.when else "") for k in cluster.links]
    row = {text: i for i, text in enumerate(dict.fromkeys(known))}
    # The diagonal (-2 in the cluster) and pairs without a link (-1) are the extra entries at the end.
    rule_DD = np.where(given_DD < 0, len(numbers) + 2 + given_DD, given_DD)
    counts = np.bincount(cluster.site_index_D, minlength=len(cluster.sites))
    present = np.flatnonzero(counts)
    ends = np.cumsum(counts[present])
    return LinkMatrix(
        value_DD=np.array([*numbers, np.nan, np.nan])[rule_DD],
        source_DD=np.array([*(row[text] for text in known), len(row), len(row) + 1], dtype=np.int32)[rule_DD],
        sources=(*row, "the device itself", "no link"),
        ids=tuple(cluster.devices[i].id for i in order),
        site_names=tuple(cluster.sites[i].name for i in present),
        site_centres=tuple((ends - counts[present] / 2).tolist()),
        site_edges=tuple(float(e) for e in ends[:-1]),
    )


def colour_limits(value_DD: np.ndarray) -> tuple[float, float]:
    """Smallest and largest positive value, kept apart so that a logarithmic scale exists."""
    positive = value_DD[np.isfinite(value_DD) & (value_DD > 0)]
    if not positive.size:
        return 0.1, 10.0
    low, high = float(positive.min()), float(positive.max())
    return (low, high) if high > low * 1.01 else (low / 1.5, high * 1.5)
