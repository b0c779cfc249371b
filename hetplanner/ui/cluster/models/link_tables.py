"""Region × region tables of the Cluster page: cells as texts, edits of a cell or of a pasted block."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import param

from hetplanner.cluster import link_edits
from hetplanner.cluster.formats.matrices import Quantity
from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster
from hetplanner.errors import HetplannerError
from hetplanner.ui.cluster.models.links import LinksModel, typed_number
from hetplanner.units import short_rate, short_seconds

MAX_TABLE_SITES = 40
"""Beyond, a table is too long to read: the heat map and the form edit."""
MAX_SHOWN_ERRORS = 5

Cell = tuple[Quantity, int, int]


class LinkTables(param.Parameterized):
    """Tables of bandwidth (Gbit/s) and one-way latency (ms) between sites, the diagonal inside a site.

    `errors` holds what was typed and why it was refused, by (quantity, row, column); such a cell keeps its text.
    """

    errors: Any = param.Parameter(default={})

    def __init__(self, links: LinksModel, **params: Any) -> None:
        super().__init__(**params)
        self.links = links
        links.editor.param.watch(self._cluster_changed, "cluster")

    def _cluster_changed(self, *_: Any) -> None:
        if self.errors:
            self.errors = {}

    def write(self, quantity: Quantity, row: int, column: int, texts: Sequence[Sequence[str]]) -> bool:
        """A block of cells, its corner at (row, column): typed into one, or pasted over several. All or nothing.

        A blank cell removes the link between two sites. Where the block does not hold the other direction as well, it
        follows if the form says symmetric.
        """
        cluster = self.links.cluster
        if cluster is None:
            return False
        size = len(cluster.sites)
        cells = {
            (row + i, column + j): text.strip()
            for i, line in enumerate(texts[:size])
            for j, text in enumerate(line[:size])
            if 0 <= row + i < size and 0 <= column + j < size
        }
        if not cells:
            return False
        numbers, errors = _numbers(quantity, cells)
        if errors:
            self.errors = errors
            return False
        first = next(iter(cells))
        names = [site.name for site in cluster.sites]
        known = {pair: (names[pair[0]], names[pair[1]]) for pair in numbers}
        words = f"{quantity} of {len(cells)} links between sites"
        if len(cells) == 1:
            words = _words(quantity, LinkEnds("site", *known[first]), numbers[first])
        values = {known[pair]: _values(quantity, number) for pair, number in numbers.items()}
        if self.links.symmetric:
            values |= {(end, start): value for (start, end), value in values.items() if (end, start) not in values}
        source = self.links.source

        def change(newest: Cluster | None) -> Cluster | None:
            return None if newest is None else link_edits.set_links(newest, "site", values, source=source)

        try:
            self.links.editor.edit(change, words)
        except HetplannerError as error:
            self.errors = {(quantity, *first): (cells[first], str(error)[:400])}
            return False
        self.errors = {}
        return True

    def choose(self, row: int, column: int) -> None:
        """The link of a cell goes into the form."""
        cluster = self.links.cluster
        if cluster is not None and 0 <= row < len(cluster.sites) and 0 <= column < len(cluster.sites):
            self.links.choose(LinkEnds("site", cluster.sites[row].name, cluster.sites[column].name))

    @property
    def error_text(self) -> str:
        """What was refused, a line for every cell."""
        cluster = self.links.cluster
        if cluster is None or not self.errors:
            return ""
        names = [site.name for site in cluster.sites]
        lines = [f"{names[i]} → {names[j]}: {why}" for (_, i, j), (_, why) in self.errors.items()]
        more = len(lines) - MAX_SHOWN_ERRORS
        return "\n".join(lines[:MAX_SHOWN_ERRORS] + ([f"… and {more} more"] if more > 0 else []))

    def content(self, quantity: Quantity) -> dict[str, Any]:
        """A table as the page draws it: names, and rows of [text, how known, title, error]; empty if too large."""
        cluster = self.links.cluster
        if cluster is None or len(cluster.sites) > MAX_TABLE_SITES:
            return {"names": [], "rows": [], "chosen": None}
        rules = {(k.from_site, k.to_site): k for k in cluster.site_links}
        single_SS = _single_links_SS(cluster)
        names = [site.name for site in cluster.sites]
        rows: list[list[list[str]]] = []
        for i, start in enumerate(names):
            row = []
            for j, end in enumerate(names):
                link = rules.get((start, end))
                text = _number_text(quantity, link) if link else ""
                typed, why = self.errors.get((quantity, i, j), (text, ""))
                row.append([typed, link.source if link else "", _title(start, end, link, int(single_SS[i, j])), why])
            rows.append(row)
        return {"names": names, "rows": rows, "chosen": self.chosen}

    @property
    def chosen(self) -> list[int] | None:
        """Row and column of the link in the form, if it is one of sites."""
        cluster, ends = self.links.cluster, self.links.selected
        if cluster is None or ends is None or ends.per != "site":
            return None
        row = {site.name: i for i, site in enumerate(cluster.sites)}
        return [row[ends.start], row[ends.end]] if {ends.start, ends.end} <= row.keys() else None


def _numbers(
    quantity: Quantity, cells: dict[tuple[int, int], str]
) -> tuple[dict[tuple[int, int], float | None], dict[Cell, tuple[str, str]]]:
    """Typed cells as numbers (None where blank), and those that are none."""
    numbers: dict[tuple[int, int], float | None] = {}
    errors: dict[Cell, tuple[str, str]] = {}
    for pair, text in cells.items():
        try:
            numbers[pair] = typed_number(quantity, text) if text else None
        except HetplannerError as error:
            errors[quantity, *pair] = (text[:60], str(error))
    return numbers, errors


def _values(quantity: Quantity, number: float | None) -> link_edits.Numbers | None:
    if number is None:
        return None
    return (None, number) if quantity == "bandwidth" else (number, None)


def _words(quantity: Quantity, ends: LinkEnds, number: float | None) -> str:
    if number is None:
        return f"removed the link {ends.text}"
    return f"link {ends.text}: {(short_rate if quantity == 'bandwidth' else short_seconds)(number)}"


def _number_text(quantity: Quantity, link: Any) -> str:
    return f"{link.bandwidth * 8 / 1e9:.4g}" if quantity == "bandwidth" else f"{link.latency * 1e3:.4g}"


def _title(start: str, end: str, link: Any, singles: int) -> str:
    """What stands in the hover of a cell."""
    ends = LinkEnds("site", start, end).text
    if link is None:
        return f"{ends}: no link"
    text = f"{ends}: {short_rate(link.bandwidth)}, {short_seconds(link.latency)}; {link_edits.known_text(link)}"
    text += f"; before it was edited {link.replaces}" if link.replaces else ""
    return text + (f"; {singles} links of single devices stand above it" if singles else "")


def _single_links_SS(cluster: Cluster) -> np.ndarray:
    """How many pairs of devices between two sites have a link of their own."""
    count_SS = np.zeros((len(cluster.sites), len(cluster.sites)), dtype=np.int64)
    if cluster.device_links:
        start, end = np.nonzero(link_edits.overridden_DD(cluster))
        np.add.at(count_SS, (cluster.site_index_D[start], cluster.site_index_D[end]), 1)
    return count_SS
