"""The link matrix as an image, ordered by site."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetplanner.cluster.model import Cluster
from hetplanner.units import short_rate, short_seconds

What = Literal["bandwidth", "latency"]


@dataclass(frozen=True)
class LinkMatrix:
    """Links of all ordered pairs, devices grouped by site (D devices; row from, column to; row 0 on top).

    Attributes:
        value_DD: Mbit/s or ms; NaN on the diagonal.
        rule_DD: row of the link in `rule_texts` and `rule_sources`.
        rule_texts: value with its unit.
        rule_sources: measured, specified or assumed, and when.
        ids: device of every row.
        site_names, site_centres, site_edges: sites along the axes; edges lie between two sites.
    """

    value_DD: np.ndarray
    rule_DD: np.ndarray
    rule_texts: tuple[str, ...]
    rule_sources: tuple[str, ...]
    ids: tuple[str, ...]
    site_names: tuple[str, ...]
    site_centres: tuple[float, ...]
    site_edges: tuple[float, ...]


def link_matrix(cluster: Cluster, what: What = "bandwidth") -> LinkMatrix:
    """The matrix of one quantity. Texts are made once per rule, not once per pair: cheap at 512 devices."""
    order = np.argsort(cluster.site_index_D, kind="stable")
    if what == "bandwidth":
        numbers = [k.bandwidth * 8 / 1e6 for k in cluster.links]
        texts = [short_rate(k.bandwidth) for k in cluster.links]
    else:
        numbers = [k.latency * 1e3 for k in cluster.links]
        texts = [short_seconds(k.latency) for k in cluster.links]
    sources = [k.source + (f", {k.when}" if k.when else "") for k in cluster.links]
    counts = np.bincount(cluster.site_index_D, minlength=len(cluster.sites))
    present = np.flatnonzero(counts)
    ends = np.cumsum(counts[present])
    # The diagonal (-2 in the cluster) is the extra entry at the end; a Cluster has no unconnected pairs (-1).
    given_DD = cluster.link_index_DD[np.ix_(order, order)]
    rule_DD = np.where(given_DD < 0, len(numbers), given_DD)
    return LinkMatrix(
        value_DD=np.array([*numbers, np.nan])[rule_DD],
        rule_DD=rule_DD,
        rule_texts=(*texts, "the device itself"),
        rule_sources=(*sources, "–"),
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
