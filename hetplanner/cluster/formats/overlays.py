"""Tables that change the current cluster: their names are its sites or its devices, and only what they name changes.

Shape legend: N names of a table, D devices.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from hetplanner.cluster.formats.device_table import inventory_of
from hetplanner.cluster.formats.matrices import Matrix, Quantity, TableSource, read_matrix, read_source
from hetplanner.cluster.formats.tables import GBIT_S, read_overrides
from hetplanner.cluster.inference import infer_links
from hetplanner.cluster.link_edits import Numbers, set_links
from hetplanner.cluster.model import Cluster, Source
from hetplanner.cluster.places import meaning
from hetplanner.cluster.plausibility import note_links
from hetplanner.errors import InvalidInput

QUANTITIES: tuple[Quantity, ...] = ("bandwidth", "latency")


def fits(like: Cluster, table: TableSource) -> bool:
    """Whether a table's names are those of sites or devices of a cluster, or its rows as many as its devices."""
    matrix = read_matrix(table, "bandwidth")
    if matrix.labels is None:
        return len(matrix.values_NN) == len(like.devices)
    return bool(_names_in(like, matrix.labels)[1])


def laid_onto(like: Cluster, tables: Mapping[str, TableSource], round_trip: bool, source: Source) -> Cluster:
    """`like` with what the tables say: bandwidth and latency, or one of them, then overrides.

    Args:
        like: the current cluster.
        tables: by kind: bandwidth, latency, overrides.
        round_trip: latencies are round trips and are halved.
        source: how the numbers are known.

    Raises:
        InvalidInput: names that are not all sites or all devices of `like`, or a bad table.
    """
    result = _with_numbers(like, tables, round_trip, source)
    if "overrides" in tables:
        for per in ("site", "host", "device"):
            result = set_links(result, per, read_overrides(tables["overrides"], per, round_trip), source=source)
    note_links(result, next(read_source(table)[0] for table in tables.values()), like)
    return result


def _with_numbers(like: Cluster, tables: Mapping[str, TableSource], round_trip: bool, source: Source) -> Cluster:
    given = [quantity for quantity in QUANTITIES if quantity in tables]
    if not given:
        return like
    first = read_matrix(tables[given[0]], given[0])
    if first.labels is not None:
        per, names = _names_in(like, first.labels)
        if not names:
            raise InvalidInput(_unknown_names(like, first, given))
    else:
        by_site = len(first.values_NN) == len(like.sites) != len(like.devices)
        per, names = ("site", [s.name for s in like.sites]) if by_site else ("device", list(like.device_ids))
    found = {quantity: _in_si(like, tables[quantity], quantity, per, names, round_trip) for quantity in given}
    if per == "device" and set(names) == set(like.device_ids):
        return _all_pairs(like, names, found, source, first.place)
    values = [found.get(quantity, np.full((len(names), len(names)), np.nan)) for quantity in ("latency", "bandwidth")]
    there_NN = np.isfinite(values[0]) | np.isfinite(values[1])
    if per == "device":
        np.fill_diagonal(there_NN, False)
    numbers: dict[tuple[str, str], Numbers] = {
        (names[a], names[b]): (_number(values[0][a, b]), _number(values[1][a, b]))
        for a, b in np.argwhere(there_NN).tolist()
    }
    return set_links(like, "site" if per == "site" else "device", numbers, source=source)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _names_in(like: Cluster, labels: Sequence[str]) -> tuple[str, list[str]]:
    """What a table's names are ('site' or 'device') and whose; no names where some of them are neither.

    Devices come first where the names are all of them: a device is often called as its site.
    """
    sites = [site.name for site in like.sites]
    if set(labels) <= set(like.device_ids) and (len(labels) == len(like.devices) or not set(labels) <= set(sites)):
        return "device", list(labels)
    names = list(_sites_called(labels, sites).values())
    return "site", (names if len(names) == len(set(names)) == len(labels) else [])


def _sites_called(labels: Sequence[str], sites: Sequence[str]) -> dict[str, str]:
    """The site by every label that means one: by its name, else by its city or its letters."""
    exact, meant = set(sites), {meaning(site): site for site in reversed(sites)}
    found = {label: label if label in exact else meant.get(meaning(label), "") for label in labels}
    return {label: site for label, site in found.items() if site}


def _unknown_names(like: Cluster, matrix: Matrix, given: Sequence[Quantity]) -> str:
    labels = matrix.labels or ()
    sites = [site.name for site in like.sites]
    known = {*like.device_ids, *_sites_called(labels, sites)}
    strange = [name for name in labels if name not in known] or labels
    both = "" if len(given) > 1 else "; for a new cluster of these names give bandwidth and latency together"
    return (
        f"{matrix.place}: row {strange[0]!r:.60} is no site and no device of {like.name:.60}; its sites"
        f" are {', '.join(sites[:6]):.200}{', …' if len(sites) > 6 else ''}{both}"
    )


def _in_si(
    like: Cluster, table: TableSource, quantity: Quantity, per: str, names: Sequence[str], round_trip: bool
) -> np.ndarray:
    """The table's values in the order of `names`, in SI units."""
    matrix = read_matrix(table, quantity, diagonal=per == "site")
    if matrix.labels is not None and per == "site":
        sites = _sites_called(matrix.labels, names)
        matrix = dataclasses.replace(matrix, labels=tuple(sites.get(label, label) for label in matrix.labels))
    values_NN = matrix.in_order(names)
    # Dividing keeps decimals exact: 67 / 1000 is the number written 0.067.
    return values_NN * GBIT_S if quantity == "bandwidth" else values_NN / (2000 if round_trip else 1000)


def _all_pairs(
    like: Cluster, names: Sequence[str], found: Mapping[Quantity, np.ndarray], source: Source, place: str
) -> Cluster:
    """All links anew from tables of all devices; what the tables do not say stays."""
    order = [names.index(device) for device in like.device_ids]
    given = {quantity: values_DD[np.ix_(order, order)] for quantity, values_DD in found.items()}
    if len(given) < 2:
        missing = "latency" if "bandwidth" in given else "bandwidth"
        if like.has_gaps:
            raise InvalidInput(f"{place}: {like.name} has pairs without a link; give the {missing} table as well")
        # One measured number does not make the other one measured.
        if source == "measured" and {link.source for link in like.links} != {"measured"}:
            source = "assumed"
    links = infer_links(
        inventory_of(like),
        latency_s_DD=given.get("latency", like.latency_s_DD),
        bandwidth_bytes_per_s_DD=given.get("bandwidth", like.bandwidth_bytes_per_s_DD),
        source=source,
        when=None,
    )
    return like.replace(**{name: tuple(group) for name, group in links.items()})
