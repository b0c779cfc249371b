"""Links that are cut between live peers: what they report of one another, and which peer has to leave.

The coordinator reaches both, so that to it both live. But two peers of one stage that cannot reach one another fail
every all-reduce of it, for as long as the link is cut. One of them leaves and rests before it may join again.
Between peers of different stages no peer has to leave: senders turn to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hetplanner.elastic.protocol.identity import Member

CONFIRM_S = 0.7
"""A link counts as cut if it is still said to be so long after both peers have been heard of since the first word of
it: none of them died, and a peer that was only stopped for a while has had time for a new connection."""
STALE_S = 3.0
"""A cut link is reported again and again; one that is not reported for so long works again."""
REST_S, MOST_REST_S = 2.0, 60.0
"""A removed peer may join again after so long, the next time after twice as long."""

Link = tuple[Member, Member]
"""The earlier incarnation first."""


@dataclass
class _Cut:
    first_s: float
    last_s: float
    by: Member
    alive_s: float | None = None
    is_confirmed: bool = False


class CutLinks:
    """What a coordinator knows of links between peers that do not work."""

    def __init__(self) -> None:
        self._cuts: dict[Link, _Cut] = {}
        self._news: list[tuple[Member, Member]] = []
        self._rests: Counter[str] = Counter()
        self._until_s: dict[str, float] = {}

    def take_news(self) -> list[tuple[Member, Member]]:
        """Links found to be cut since the last call, though both their peers live: who said so first, and of whom."""
        news, self._news = self._news, []
        return news

    def report(self, by: Member, of: Member, now_s: float) -> None:
        """A peer cannot reach another."""
        one, two = sorted((by, of), key=lambda member: member.incarnation)
        self._cuts.setdefault((one, two), _Cut(now_s, now_s, by)).last_s = now_s

    def forget(self, member: Member) -> None:
        """A peer is gone."""
        self._cuts = {link: cut for link, cut in self._cuts.items() if member not in link}

    def tick(self, now_s: float, heard_s: Callable[[Member], float]) -> None:
        """Confirms cuts and forgets those that no peer reports any more. `heard_s`: when a peer was heard of last."""
        self._cuts = {link: cut for link, cut in self._cuts.items() if now_s - cut.last_s <= STALE_S}
        for link, cut in self._cuts.items():
            if cut.alive_s is None and min(map(heard_s, link)) > cut.first_s:
                cut.alive_s = now_s
            if cut.is_confirmed or cut.alive_s is None or cut.last_s - cut.alive_s < CONFIRM_S:
                continue
            cut.is_confirmed = True
            self._news.append((cut.by, link[link[0] == cut.by]))

    def peer_to_remove(self, are_mates: Callable[[Link], bool]) -> Member | None:
        """The peer to remove so that peers of a stage reach one another: the one with most cuts, else the latest."""
        links = [link for link, cut in self._cuts.items() if cut.is_confirmed and are_mates(link)]
        counts = Counter(member for link in links for member in link)
        return max(counts, key=lambda member: (counts[member], member.incarnation), default=None)

    def rest(self, peer: str, now_s: float) -> None:
        """A peer had to go."""
        self._until_s[peer] = now_s + min(MOST_REST_S, REST_S * 2 ** self._rests[peer])
        self._rests[peer] += 1

    def is_resting(self, peer: str, now_s: float) -> bool:
        """Whether it is too early for a peer to come again."""
        return now_s < self._until_s.get(peer, now_s)
