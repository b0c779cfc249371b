"""What is legal in a cluster but hardly meant: noted where a person's file is read, never refused.

Files of old versions are read like new ones, so none of this can be a law.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.reading import note
from hetplanner.units import parse_bytes_per_s, short_rate, short_seconds

SLOW_S = 1.0
"""No link on Earth has a higher one-way latency than this; two hops over geostationary satellites take 0.5 s."""
MAX_NOTED = 3
"""Of one kind; the others are counted."""
_IN_BYTES = re.compile(r"\s*[0-9.eE+-]+\s*[kKMGTP]B/s\s*")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH")
Numbers = tuple[float, float]
"""One-way latency in seconds, bandwidth in bytes per second."""
NamedLink = tuple[str, str, Numbers]
"""The kind of a link, its ends in words, and its numbers."""


def note_file(data: Any, place: str) -> None:
    """Notes rates of network links that are written in bytes per second, in a cluster file's data."""
    if not isinstance(data, Mapping):
        return
    found = [
        (f"{field}[{i}].{name}", entry.get(name))
        for field, names in _RATES.items()
        for i, entry in enumerate(_entries(data.get(field)))
        for name in names
    ]
    note_rates(found, place)


_RATES = {
    "site_links": ("bandwidth",),
    "hosts": ("nic_out", "nic_in"),
}


def _entries(value: Any) -> Iterable[Mapping[str, Any]]:
    return (entry if isinstance(entry, Mapping) else {} for entry in value) if isinstance(value, list | tuple) else ()


def note_rates(found: Iterable[tuple[str, Any]], place: str) -> None:
    """Notes those of (where, text) that are written in bytes per second.

    Both units are legal. Network links are sold in bits, memory and NVLink in bytes, and the two differ by eight.
    """
    texts = []
    for where, text in found:
        if not isinstance(text, str) or not _IN_BYTES.fullmatch(text):
            continue
        meant = text.strip().replace("B/s", "bit/s")
        try:
            rate = short_rate(parse_bytes_per_s(text))
            texts.append(f"{where}: {text.strip()!r:.40} is {rate}; if {meant:.40} was meant, write that")
        except InvalidInput:
            continue
    _note_all(texts, place)


def note_cluster(cluster: Cluster, place: str) -> None:
    """Notes latencies that no link has, links given twice with unlike numbers, and names of mixed scripts."""
    note_links(cluster, place)
    names = [("sites", s.name) for s in cluster.sites]
    names += [("hosts", h.id) for h in cluster.hosts] + [("devices", d.id) for d in cluster.devices]
    mixed = {(what, name): _scripts_of(name) for what, name in names if not name.isascii()}
    _note_all(
        [
            f"{what}: {name!r:.60} mixes {' and '.join(scripts)} letters, which look alike; write it in one script"
            for (what, name), scripts in mixed.items()
            if len(scripts) > 1
        ],
        place,
    )


def note_links(cluster: Cluster, place: str, before: Cluster | None = None) -> None:
    """Notes latencies that no link has, and links given twice with unlike numbers; not those of the cluster before."""
    known = set(_named_links(before)) if before is not None else set()
    links = [each for each in _named_links(cluster) if each not in known]
    _note_all(
        [
            f"{where}: {ends}: a one-way latency of {short_seconds(latency)} is more than any link has;"
            f" if ms were meant, write {short_seconds(latency / 1000)}"
            for where, ends, (latency, _) in links
            if latency > SLOW_S
        ],
        place,
    )
    note_twice(links, place)


def _named_links(cluster: Cluster) -> Iterable[NamedLink]:
    for link in cluster.site_links:
        yield "site_links", f"from {link.from_site!r:.60} to {link.to_site!r:.60}", (link.latency, link.bandwidth)
    for inside in cluster.host_links:
        yield "host_links", f"inside {inside.host!r:.60}", (inside.latency, inside.bandwidth)
    for pair in cluster.device_links:
        yield "device_links", f"from {pair.from_device!r:.60} to {pair.to_device!r:.60}", (pair.latency, pair.bandwidth)


def note_twice(links: Iterable[NamedLink], place: str) -> None:
    """Notes links that are given twice with unlike numbers."""
    held: dict[tuple[str, str], Numbers] = {}
    found = []
    for kind, ends, numbers in links:
        before = held.get((kind, ends))
        if before is not None and before != numbers:
            found.append(
                f"{kind}: the link {ends} is given twice, {_words(before)} and then {_words(numbers)}; the later one"
                " holds, remove one"
            )
        held[kind, ends] = numbers
    _note_all(found, place)


def _words(numbers: Numbers) -> str:
    return f"{short_rate(numbers[1])} with {short_seconds(numbers[0])}"


def _scripts_of(name: str) -> list[str]:
    words = {unicodedata.name(c, "").partition(" ")[0] for c in name if c.isalpha()}
    return [script.title() for script in _SCRIPTS if script in words]


def _note_all(texts: list[str], place: str) -> None:
    for text in texts[:MAX_NOTED]:
        note(f"{place}: {text}")
    if len(texts) > MAX_NOTED:
        note(f"{place}: {len(texts) - MAX_NOTED} more like the last")
