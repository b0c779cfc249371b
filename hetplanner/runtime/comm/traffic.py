"""What a rank has sent to and taken from every other rank, by what it was about, and how long it waited for it."""

from typing import Any

from hetplanner.plan.traffic import LinkTraffic


class Traffic:
    """A rank's counters. Sending and receiving touch different fields, so each may have a thread of its own."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, str], LinkTraffic] = {}

    def count_sent(self, peer: int, role: str, num_bytes: int) -> None:
        """One message handed to the network."""
        link = self._link(peer, role)
        link.sent += 1
        link.sent_bytes += num_bytes

    def count_taken(self, peer: int, role: str, num_bytes: int, wait_s: float, late_s: float) -> None:
        """One message received; `late_s` is 0 for one that was on time."""
        link = self._link(peer, role)
        link.taken += 1
        link.taken_bytes += num_bytes
        link.wait_s += wait_s
        if late_s > 0.0:
            link.late += 1
            link.late_s += late_s

    def _link(self, peer: int, role: str) -> LinkTraffic:
        found = self._links.get((peer, role))
        return found if found is not None else self._links.setdefault((peer, role), LinkTraffic())

    def take(self) -> list[dict[str, Any]]:
        """The counters as plain data, one row for every peer and role; they begin again at 0."""
        links, self._links = self._links, {}
        return [
            {
                "peer": peer,
                "role": role,
                "sent": link.sent,
                "sent_bytes": link.sent_bytes,
                "taken": link.taken,
                "taken_bytes": link.taken_bytes,
                "wait_s": round(link.wait_s, 6),
                "late": link.late,
                "late_s": round(link.late_s, 6),
            }
            for (peer, role), link in sorted(links.items())
        ]
