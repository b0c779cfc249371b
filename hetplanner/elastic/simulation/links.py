"""Links of the event simulation that are cut for a while, between two processes that both live."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations


class CutPairs:
    """Pairs of addresses, each with the time until which neither reaches the other."""

    def __init__(self) -> None:
        self._until_s: dict[frozenset[str], float] = {}

    def cut(self, one: str, two: str, until_s: float) -> None:
        """Cuts a link; one that is cut already stays so at least as long."""
        link = frozenset((one, two))
        self._until_s[link] = max(until_s, self._until_s.get(link, until_s))

    def are_parted(self, one: str, two: str, now_s: float) -> bool:
        """Whether the link between two addresses is cut at a time in seconds."""
        return bool(self._until_s) and now_s < self._until_s.get(frozenset((one, two)), now_s)

    def parted_of(self, addresses: Collection[str], now_s: float) -> set[str]:
        """Of these addresses those that cannot reach another of them."""
        return {a for pair in combinations(addresses, 2) if self.are_parted(*pair, now_s) for a in pair}
