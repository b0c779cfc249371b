"""Which hosts measure with one another, and when: rounds in which no measurement takes part of another one's link."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple


class Match(NamedTuple):
    """Two hosts that measure the links between them."""

    first: str
    second: str


def matches(site_of: Mapping[str, str], *, all_pairs: bool = False) -> list[Match]:
    """The pairs of hosts to measure, in an order that packs well into rounds.

    Hosts of one site meet each other. Between two sites every host of the larger one meets one host of the other, since
    they share the way between the sites; with `all_pairs` it meets each.

    Args:
        site_of: the site of every host, in file order.
    """
    members: dict[str, list[str]] = {}
    for host, site in site_of.items():
        members.setdefault(site, []).append(host)
    found = [match for hosts in members.values() for match in _round_robin(hosts)]
    for first, second in combinations(members.values(), 2):
        small, large = sorted((first, second), key=len)
        turns = len(small) if all_pairs else 1
        found += [Match(small[(i + turn) % len(small)], host) for turn in range(turns) for i, host in enumerate(large)]
    return found


def _round_robin(hosts: Sequence[str]) -> Iterator[Match]:
    """All pairs, by the circle method: each run of half as many pairs as hosts names every host once at most."""
    circle: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in range(len(circle) - 1):
        for i in range(len(circle) // 2):
            first, second = circle[i], circle[-1 - i]
            if first is not None and second is not None:
                yield Match(first, second)
        circle.insert(1, circle.pop())


def rounds(of: Sequence[Match], site_of: Mapping[str, str]) -> list[list[Match]]:
    """The matches in rounds: within one no host takes part twice, and no site has two links to other sites in use."""
    found: list[tuple[set[tuple[str, str]], list[Match]]] = []
    for match in of:
        takes = {("host", match.first), ("host", match.second)}
        sites = {site_of[match.first], site_of[match.second]}
        if len(sites) > 1:
            takes |= {("site", site) for site in sites}
        free = next((one for one in found if not one[0] & takes), None)
        if free is None:
            found.append((takes, [match]))
        else:
            free[0].update(takes)
            free[1].append(match)
    return [together for _, together in found]
