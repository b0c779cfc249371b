"""What sites pay for bytes that leave them: by the cluster's file, else by the price list of their provider.

Prices and their sources stand in `egress_prices.csv` beside this module. A price without a source is unknown, not 0.

Legend of array suffixes: S sites in file order, C classes of sites that pay and are paid for alike.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.cluster.catalog import table_rows
from hetplanner.cluster.model import Cluster

SAME_REGION = "same region"
INTERNET = "internet"
STATED = "stated in the cluster"
"""Source of a price that the cluster's own file gives."""

_UNKNOWN, _STATED = -1, -2


@dataclass(frozen=True)
class PriceRow:
    """One row of the price list; regions and destinations are patterns, of which one must fit."""

    provider: str
    regions: tuple[str, ...]
    destinations: tuple[str, ...]
    usd_per_gb: float
    date: str
    source: str


@dataclass(frozen=True)
class EgressPrice:
    """What a GB from one site to another costs.

    Attributes:
        usd_per_gb: None where unknown.
        source: of the price; '' if unknown.
        date: of the source, an ISO date or its beginning; None if the cluster states the price, or it is unknown.
    """

    usd_per_gb: float | None
    source: str = ""
    date: str | None = None


@cache
def price_list() -> tuple[PriceRow, ...]:
    """All rows, in the file's order: the first that fits holds."""
    return tuple(
        PriceRow(
            row["provider"],
            tuple(row["region"].split("|")),
            tuple(row["destination"].split("|")),
            float(row["usd_per_gb"]),
            row["date"],
            row["source"],
        )
        for row in table_rows("egress_prices.csv")
    )


def provider_names() -> tuple[str, ...]:
    """Providers of which the list has prices."""
    return tuple(dict.fromkeys(row.provider for row in price_list()))


@dataclass(frozen=True, eq=False)
class EgressTable:
    """Prices between all sites of a cluster, row pays for what it sends to column; inside a site nothing is paid.

    Attributes:
        class_S: class of every site.
        usd_per_gb_CC: between sites of two classes, or two sites of one; NaN where unknown.
        row_CC: row of the price list, or a negative number: stated in the cluster, or unknown.
    """

    cluster: Cluster
    class_S: IntArray
    usd_per_gb_CC: FloatArray
    row_CC: IntArray

    @staticmethod
    def of(cluster: Cluster) -> "EgressTable":
        """The prices of a cluster's sites."""
        keys = [(s.egress_usd_per_gb, _folded(s.provider), _folded(s.region)) for s in cluster.sites]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        payers = _Payers([key[1] for key in number], [key[2] for key in number])
        row_CC = np.full((len(number), len(number)), _UNKNOWN, dtype=np.int64)
        usd_per_gb_CC = np.full(row_CC.shape, np.nan)
        for (stated, provider, region), i in number.items():
            if stated is not None:
                row_CC[i], usd_per_gb_CC[i] = _STATED, stated
                continue
            for k in reversed(_rows_of(provider, region)):
                fits_C = payers.paid_by(k, i)
                row_CC[i, fits_C], usd_per_gb_CC[i, fits_C] = k, price_list()[k].usd_per_gb
        return EgressTable(cluster, np.array([number[key] for key in keys], dtype=np.int64), usd_per_gb_CC, row_CC)

    def prices_from(self, sender: int) -> list[tuple[EgressPrice, IntArray]]:
        """What a site (by its row) pays: each price, and the rows of the other sites to which it holds."""
        row_S = self.row_CC[self.class_S[sender], self.class_S]
        others = np.flatnonzero(np.arange(len(row_S)) != sender)
        return [
            (self._price(int(row), sender), others[row_S[others] == row]) for row in np.unique(row_S[others]).tolist()
        ]

    def _price(self, row: int, sender: int) -> EgressPrice:
        if row == _UNKNOWN:
            return EgressPrice(None)
        if row == _STATED:
            return EgressPrice(self.cluster.sites[sender].egress_usd_per_gb, STATED)
        found = price_list()[row]
        return EgressPrice(found.usd_per_gb, found.source, found.date)


def has_unknown_prices(cluster: Cluster) -> bool:
    """Whether some traffic between the cluster's sites has an unknown price."""
    prices = EgressTable.of(cluster)
    pairs_CC = np.outer(count_C := np.bincount(prices.class_S), count_C) - np.diag(count_C)
    return bool(((prices.row_CC == _UNKNOWN) & (pairs_CC > 0)).any())


def egress_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """What every site pays for a GB: one mapping per site and price.

    Keys: from (the site), to (names of the receivers; None: all other sites), usd_per_gb (None: unknown), source, date.
    """
    prices = EgressTable.of(cluster)
    rows = []
    for s, site in enumerate(cluster.sites):
        found = prices.prices_from(s)
        for price, receivers in found:
            to = [cluster.sites[r].name for r in receivers] if len(found) > 1 else None
            rows.append({"from": site.name, "to": to} | asdict(price))
    return rows


def price_text(prices: Sequence[EgressPrice]) -> str:
    """'0.01 to 0.02 $/GB', '0 $/GB', 'unknown', or partly so."""
    known = sorted({price.usd_per_gb for price in prices if price.usd_per_gb is not None})
    if not known:
        return "unknown"
    ends = f"{known[0]:g}" if len(known) == 1 else f"{known[0]:g} to {known[-1]:g}"
    return f"{ends} $/GB" + (", to some unknown" if any(p.usd_per_gb is None for p in prices) else "")


def source_text(prices: Sequence[EgressPrice]) -> str:
    """Where prices come from: 'stated in the cluster', or the sources with their dates."""
    sources = dict.fromkeys((f"{p.source}, {p.date}" if p.date else p.source) for p in prices if p.source)
    return "; ".join(sources)


def _folded(name: str | None) -> str | None:
    return None if name is None else name.casefold()


def _rows_of(provider: str | None, region: str | None) -> list[int]:
    """Rows of the list that hold for a sender."""
    rows = enumerate(price_list())
    return [k for k, row in rows if row.provider == provider and _matches(row.regions, region)]


def _matches(patterns: Sequence[str], region: str | None) -> bool:
    """Whether a region is one of these; one that is not stated is only where all are."""
    if region is None:
        return "*" in patterns
    return any(fnmatchcase(region, pattern) for pattern in patterns)


class _Payers:
    """Which classes of sites each row of the price list is about; what a row says of all of them is found once."""

    def __init__(self, providers: Sequence[str | None], regions: Sequence[str | None]) -> None:
        self._regions = regions
        # Numbers, as arrays of them compare fast; an unknown name is no other's equal.
        self._provider_C, self._region_C = _numbered(providers), _numbered(regions)
        self._destined: dict[int, BoolArray] = {}

    def paid_by(self, k: int, sender: int) -> BoolArray:
        """To which classes a sender for whom row k holds pays that row's price."""
        row = price_list()[k]
        same_C = self._provider_C == self._provider_C[sender]
        if INTERNET in row.destinations:
            return ~same_C
        here_C = (self._region_C == self._region_C[sender]) & (self._region_C >= 0)
        if SAME_REGION in row.destinations:
            return same_C & here_C
        if k not in self._destined:
            # A region that is not stated may be any, also one for which another row holds.
            any_region = "*" in row.regions and "*" in row.destinations
            fits = [any_region if r is None else _matches(row.destinations, r) for r in self._regions]
            self._destined[k] = np.array(fits)
        return same_C & ~here_C & self._destined[k]


def _numbered(names: Sequence[str | None]) -> IntArray:
    """The same number for the same name; -1 for None."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([-1 if name is None else number[name] for name in names], dtype=np.int64)
