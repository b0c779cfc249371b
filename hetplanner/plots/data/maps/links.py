"""The link matrix as an image, ordered by site."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster, LinkValue
from hetplanner.plots.theme import SOURCE_COLOURS

What = Literal["bandwidth", "latency", "known"]
KNOWN = tuple(SOURCE_COLOURS)
"""How a link can be known: what the numbers of the quantity `known` stand for."""


@dataclass(frozen=True)
class LinkMatrix:
    """Links of all ordered pairs, devices grouped by site (D devices; row from, column to; row 0 on top).

    Attributes:
        value_DD: Mbit/s, ms, or an index into `KNOWN`; NaN on the diagonal and without a link.
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
    numbers = [_number(k, what) for k in cluster.links]
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


def _number(link: LinkValue, what: What) -> float:
    if what == "known":
        return float(KNOWN.index(link.source))
    return link.bandwidth * 8 / 1e6 if what == "bandwidth" else link.latency * 1e3


Span = tuple[float, float]


def block_of(cluster: Cluster, ends: LinkEnds) -> tuple[Span, Span] | None:
    """Where a link is in the matrix: first and end row, first and end column; None if none of its devices are there."""
    order = np.argsort(cluster.site_index_D, kind="stable")
    spans = [_span(cluster, order, ends.per, name) for name in (ends.start, ends.end)]
    return None if spans[0] is None or spans[1] is None else (spans[0], spans[1])


def _span(cluster: Cluster, order: np.ndarray, per: str, name: str) -> Span | None:
    if per == "site":
        here = np.array([site.name == name for site in cluster.sites])[cluster.site_index_D[order]]
    elif per == "host":
        here = np.array([host.id == name for host in cluster.hosts])[cluster.host_index_D[order]]
    else:
        here = np.array([cluster.devices[i].id == name for i in order])
    rows = np.flatnonzero(here)
    return (float(rows[0]), float(rows[-1] + 1)) if len(rows) else None


def colour_limits(value_DD: np.ndarray) -> tuple[float, float]:
    """Smallest and largest positive value, kept apart so that a logarithmic scale exists."""
    positive = value_DD[np.isfinite(value_DD) & (value_DD > 0)]
    if not positive.size:
        return 0.1, 10.0
    low, high = float(positive.min()), float(positive.max())
    return (low, high) if high > low * 1.01 else (low / 1.5, high * 1.5)
