"""Links of a cluster as `iperf3 -J` has measured them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hetplanner.cluster.link_edits import Numbers, Per, set_links
from hetplanner.cluster.model import Cluster
from hetplanner.cluster.places import meaning
from hetplanner.cluster.plausibility import note_links
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import parse_json


class Measured(NamedTuple):
    """What iperf3 saw, from client to server and back: bytes per second, None where it was not tested.

    Attributes:
        latency_s: half the least round trip of TCP; None where iperf3 does not tell it.
        words: how it was measured.
    """

    there: float | None
    back: float | None
    latency_s: float | None
    words: str


def is_iperf(data: object) -> bool:
    """Whether JSON data is a result of `iperf3 -J`."""
    return isinstance(data, Mapping) and "format" not in data and {"start", "intervals", "end"} <= data.keys()


@reader("result of iperf3", at="place")
def read_iperf(text: str | bytes, place: str = "iperf3") -> Measured:
    """A result of `iperf3 -J` (TCP or UDP, also with `-R` or `--bidir`). Raises InvalidInput."""
    data = parse_json(text, place)
    if not is_iperf(data):
        raise InvalidInput(f"{place}: must be what `iperf3 -J` prints, a JSON object with start, intervals and end")
    if data.get("error"):
        raise InvalidInput(f"{place}: iperf3 failed: {str(data['error'])[:160]!r}; measure again")
    end, asked = _object(data["end"]), _object(_object(data["start"]).get("test_start"))
    rate = next((r for name in ("sum_received", "sum", "sum_sent") if (r := _rate(end.get(name)))), None)
    if rate is None:
        raise InvalidInput(f"{place}: end.sum_received.bits_per_second: must be above 0; measure again, to the end")
    streams = end.get("streams")
    senders = [_object(_object(each).get("sender")) for each in (streams if isinstance(streams, list) else ())]
    trips = [trip for sender in senders if (trip := _positive(sender.get("min_rtt"))) is not None]
    seconds = _positive(asked.get("duration"))
    words = "bandwidth measured by iperf3" + (f", {seconds:.3g} s" if seconds else "")
    latency_s = min(trips) / 2e6 if trips else None
    back = _rate(end.get("sum_received_bidir_reverse"))
    there, back = (None, rate) if asked.get("reverse") in (1, True) else (rate, back)
    return Measured(there, back, latency_s, words)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rate(total: object) -> float | None:
    bits = _positive(_object(total).get("bits_per_second"))
    return bits / 8 if bits else None


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18 else None


def set_measured(cluster: Cluster, measured: Measured, start: str, end: str) -> Cluster:
    """A cluster whose link from `start` (iperf3's client) to `end` has the measured bandwidth, each way tested.

    Args:
        cluster: what to edit.
        measured: by `read_iperf`.
        start, end: sites; or hosts or devices, whose pairs then get links of their own.

    Raises:
        InvalidInput: unknown or equal ends, or a link that is new while iperf3 tells no round trip.
    """
    ends = [_end(cluster, text, side) for text, side in ((start, "from"), (end, "to"))]
    per = "site" if ends[0][0] == ends[1][0] == "site" else "device"
    groups = [[name] if per == "site" else _devices_of(cluster, kind, name) for kind, name in ends]
    if ends[0] == ends[1] or set(groups[0]) & set(groups[1]):
        raise InvalidInput(f"iperf3: from and to must be two places, got {start!r:.60} and {end!r:.60}")
    numbers: dict[tuple[str, str], Numbers] = {}
    for a in groups[0]:
        for b in groups[1]:
            numbers |= {(a, b): (None, measured.there)} if measured.there else {}
            numbers |= {(b, a): (None, measured.back)} if measured.back else {}
    kind: Per = "site" if per == "site" else "device"
    try:
        return _noted(cluster, set_links(cluster, kind, numbers, source="measured", when=measured.words))
    except InvalidInput:  # a new link: its latency is half a round trip, either way
        if measured.latency_s is None:
            raise
    new: dict[tuple[str, str], Numbers] = {}
    for (a, b), (_, bandwidth) in numbers.items():
        new |= {(b, a): (measured.latency_s, bandwidth)} if (b, a) not in numbers else {}
        new[a, b] = (measured.latency_s, bandwidth)
    return _noted(cluster, set_links(cluster, kind, new, source="measured", when=measured.words))


def _noted(before: Cluster, after: Cluster) -> Cluster:
    note_links(after, "iperf3", before)
    return after


def _end(cluster: Cluster, text: str, side: str) -> tuple[str, str]:
    text = " ".join(text.split())
    known: dict[str, Sequence[str]] = {
        "site": [site.name for site in cluster.sites],
        "host": [host.id for host in cluster.hosts],
        "device": cluster.device_ids,
    }
    for kind, names in known.items():
        if text in names:
            return kind, text
    meant = next((name for name in known["site"] if text and meaning(name) == meaning(text)), None)
    if meant is None:
        sites = ", ".join(known["site"][:6])
        raise InvalidInput(
            f"iperf3: {side}: {text!r:.60} is no site, host or device of {cluster.name:.60}; its sites are {sites:.200}"
        )
    return "site", meant


def _devices_of(cluster: Cluster, kind: str, name: str) -> list[str]:
    if kind == "device":
        return [name]
    at = {d: cluster.host_of(d).id if kind == "host" else cluster.site_of(d).name for d in cluster.device_ids}
    return [device for device, place in at.items() if place == name]
