"""Has hosts measure each other and themselves: connects to all, and goes through the rounds.

Measurements of one round take place at the same time, the two directions of a link one after the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

from hetplanner.cluster.catalog import find_kind
from hetplanner.cluster.formats.gpu_lists import Gpu, kind_of_gpu
from hetplanner.cluster.model import Device
from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.asking import at_once
from hetplanner.hosts.checks import Found, told_at_once
from hetplanner.hosts.connection import ANSWER_S, Connection
from hetplanner.hosts.probe.devices import MEASURE_S
from hetplanner.hosts.probe.record import ProbedDevice, ProbedLink, ProbedTogether, Record
from hetplanner.hosts.probe.rounds import Match, matches, rounds
from hetplanner.hosts.transport import SshTransport, Unfit, Unreachable
from hetplanner.launchers.hosts_file import PlacedHost
from hetplanner.schema import checked

PINGS = 100
STREAMS = 4
"""Connections at once over one link."""
LEAST_S, MOST_S = 0.6, 3.0
ROUND_TRIPS = 20
"""A stream lasts so many of them, that TCP may find its window, but no longer than `MOST_S`."""
BEST_OF = 2
"""Streams of which the faster one is believed: a busy machine makes some slower than the link."""
STREAMS_OF_LINKS = 4 * BEST_OF
"""After each other in a round of links: two directions, each over one connection and over several."""
MOST_PARTNERS = 8
"""Hosts that one host sends to at once."""
MOST_OF_SITE = 16
ResultT = TypeVar("ResultT")


class Job(NamedTuple):
    """One round, for the progress bar: how many there are, and what this one measures.

    Attributes:
        streams_done, streams_left: streams after each other in the rounds before, and in this one and those to come.
    """

    done: int
    total: int
    words: str
    streams_done: int = 0
    streams_left: int = 0


class Flow(NamedTuple):
    """A stream to be measured: from a host to another one, over so many connections."""

    source: str
    target: str
    connections: int = 1


class Probe:
    """An open connection to each of several hosts.

    Args:
        hosts: all of them.
        site_of: their sites; empty: links are not measured.
        ssh_config: for ssh; None: the user's own.

    Raises:
        InvalidInput: everything that is wrong with any of them.
    """

    def __init__(self, hosts: Sequence[PlacedHost], site_of: Mapping[str, str], ssh_config: str | None) -> None:
        self.hosts, self.site_of = {host.name: host for host in hosts}, dict(site_of)
        self._connections: dict[str, Connection] = {}
        self._doors: dict[str, dict[str, Any]] = {}
        self._round_trip_s: dict[frozenset[str], float] = {}
        self._names = 0

        def open_one(host: PlacedHost) -> Found:
            try:
                self._connections[host.name] = connection = Connection(host, SshTransport(ssh_config))
                self._doors[host.name] = {"address": host.address} | connection.ask(
                    "stream-listen", address=host.address
                )
            except (Unreachable, Unfit) as error:
                return Found(host, error=error)
            return Found(host)

        found = at_once(open_one, hosts)
        wrong = [(name, str(one.error)) for name, one in found.items() if one.error is not None]
        if wrong:
            self.close()
            raise InvalidInput(told_at_once(wrong))

    def close(self) -> None:
        """Ends all connections, and with them what measures on the hosts."""
        for connection in self._connections.values():
            connection.close()

    # -- the whole ------------------------------------------------------------------------------------

    def run(
        self,
        record: Record,
        devices_of: Mapping[str, Sequence[Device]],
        *,
        all_pairs: bool,
        tell: Callable[[Record, Job], bool],
    ) -> Record:
        """Measures what a record lacks.

        Args:
            record: what is known already.
            devices_of: every host's devices; empty: they are not measured.
            all_pairs: every pair of hosts, also of different sites.
            tell: called before the first round and after each, with all that is known; False ends the probe.

        Returns:
            What is known at the end.

        Raises:
            RunError: a host went away, or refused to measure.
        """
        jobs = list(self._jobs(record, devices_of, all_pairs))
        streams_done, streams_left = 0, sum(streams for _, streams, _ in jobs)
        for done, (words, streams, act) in enumerate(jobs):
            if not tell(record, Job(done, len(jobs), words, streams_done, streams_left)):
                return record
            record = act(record)
            streams_done, streams_left = streams_done + streams, streams_left - streams
        tell(record, Job(len(jobs), len(jobs), "", streams_done, 0))
        return record

    def _jobs(
        self, record: Record, devices_of: Mapping[str, Sequence[Device]], all_pairs: bool
    ) -> Iterable[tuple[str, int, Callable[[Record], Record]]]:
        """Words, streams after each other, and what to do, of every round."""
        known = {one.device for one in record.devices}
        left = {host: of for host, of in devices_of.items() if not {one.id for one in of} <= known}
        if left:
            yield "devices", 0, lambda now: now.replace(devices=(*now.devices, *self._devices(left)))
        paired = {(link.from_host, link.to_host) for link in record.links}
        wanted = matches(self.site_of, all_pairs=all_pairs)
        unmet = [one for one in wanted if one not in paired or (one.second, one.first) not in paired]
        for one_round in rounds(unmet, self.site_of):
            words = f"links, {len(one_round)} at once" if len(one_round) > 1 else "links"

            def meet(now: Record, one_round: list[Match] = one_round) -> Record:
                return now.replace(links=(*now.links, *self._links(one_round)))

            yield words, STREAMS_OF_LINKS, meet
        together = {(one.host, one.site, one.way) for one in record.together}
        for way in ("out", "in"):
            for host in self.hosts:
                if len(self.site_of) > 2 and (host, None, way) not in together:
                    yield f"network card of {host}", BEST_OF, self._of_host(host, way)
            for site in dict.fromkeys(self.site_of.values()):
                if self._has_uplink(site) and (None, site, way) not in together:
                    yield f"way {way} of {site}", BEST_OF, self._of_site(site, way)

    def _has_uplink(self, site: str) -> bool:
        members = sum(one == site for one in self.site_of.values())
        return 1 < members < len(self.site_of)

    # -- devices --------------------------------------------------------------------------------------

    def _devices(self, devices_of: Mapping[str, Sequence[Device]]) -> list[ProbedDevice]:
        def ask(host: PlacedHost) -> list[ProbedDevice]:
            devices = devices_of[host.name]
            answer = self._ask(host.name, "probe-devices", answer_s=MEASURE_S + ANSWER_S, count=len(devices))
            return _named(host.name, devices, answer["devices"])

        found = at_once(ask, [self.hosts[name] for name in devices_of])
        return [one for of_host in found.values() for one in of_host]

    # -- links ----------------------------------------------------------------------------------------

    def _links(self, of: Sequence[Match]) -> list[ProbedLink]:
        """Both directions of these pairs."""
        times_s = dict(zip(of, self._each(lambda one: self._ping(*one), of), strict=True))
        ways = [[(one.first, one.second) for one in of], [(one.second, one.first) for one in of]]
        found = []
        for pairs in ways:
            rates = self._best([Flow(*pair) for pair in pairs])
            several = self._best([Flow(*pair, STREAMS) for pair in pairs])
            for one, pair, rate, more in zip(of, pairs, rates, several, strict=True):
                low, *_, high = quantiles(times_s[one], n=10)
                fields = {
                    "from_host": pair[0],
                    "to_host": pair[1],
                    "latency_s": median(times_s[one]) / 2,
                    "latency_spread_s": (high - low) / 2,
                    "bytes_per_s": rate,
                    "several_bytes_per_s": more,
                    "streams": STREAMS,
                }
                found.append(checked(ProbedLink, fields, f"{pair[0]} → {pair[1]}"))
        return found

    def _ping(self, first: str, second: str) -> list[float]:
        answer = self._ask(first, "stream-ping", **self._doors[second], count=PINGS)
        times_s = [float(each) for each in answer["round_trips_s"]]
        if len(times_s) < PINGS:
            raise RunError(f"host {second} stopped to answer host {first}")
        self._round_trip_s[frozenset((first, second))] = median(times_s)
        return times_s

    def _best(self, flows: Sequence[Flow]) -> list[float]:
        """Bytes per second of each flow, all at once, the best of several times."""
        tries = [self._rates(flows) for _ in range(BEST_OF)]
        return [max(rates) for rates in zip(*tries, strict=True)]

    def _rates(self, flows: Sequence[Flow]) -> list[float]:
        """Bytes per second of each flow, all at once."""
        seconds = max(self._seconds(flow) for flow in flows)
        named: dict[Flow, list[str]] = {}
        for flow in flows:
            named[flow] = [self._new_name() for _ in range(flow.connections)]
        by_source: dict[str, list[dict[str, Any]]] = {}
        by_target: dict[str, list[str]] = {}
        for flow, names in named.items():
            by_source.setdefault(flow.source, []).extend({**self._doors[flow.target], "name": name} for name in names)
            by_target.setdefault(flow.target, []).extend(names)

        def send(source: str) -> None:
            self._ask(source, "stream-send", streams=by_source[source], seconds=seconds)

        self._each(send, list(by_source))
        counts: dict[str, Any] = {}
        for target in by_target:
            counts |= self._ask(target, "stream-counts", names=by_target[target], wait_s=seconds)["counts"]
        return [sum(_rate(flow, counts[name]) for name in names) for flow, names in named.items()]

    def _seconds(self, flow: Flow) -> float:
        trip_s = self._round_trip_s.get(frozenset((flow.source, flow.target)), MOST_S / ROUND_TRIPS)
        return min(max(LEAST_S, ROUND_TRIPS * trip_s), MOST_S)

    # -- at once --------------------------------------------------------------------------------------

    def _of_host(self, host: str, way: str) -> Callable[[Record], Record]:
        """All connections out of a host, or into it, at once."""

        def act(now: Record) -> Record:
            flows = _flows(now, lambda source, target: host == (source if way == "out" else target))
            flows = dict(sorted(flows.items(), key=lambda item: -item[1])[:MOST_PARTNERS])
            return self._add_together(now, {"host": host, "way": way}, flows)

        return act

    def _of_site(self, site: str, way: str) -> Callable[[Record], Record]:
        """A connection of every host of a site to other sites, or from them, at once."""

        def is_ours(source: str, target: str) -> bool:
            inner, outer = (source, target) if way == "out" else (target, source)
            return self.site_of[inner] == site != self.site_of[outer]

        def act(now: Record) -> Record:
            flows: dict[Flow, float] = {}
            seen: set[str] = set()
            for flow, rate in sorted(_flows(now, is_ours).items(), key=lambda item: -item[1]):
                if not {flow.source, flow.target} & seen:
                    flows[flow] = rate
                    seen |= {flow.source, flow.target}
            return self._add_together(now, {"site": site, "way": way}, dict(list(flows.items())[:MOST_OF_SITE]))

        return act

    def _add_together(self, now: Record, fields: dict[str, Any], alone: Mapping[Flow, float]) -> Record:
        if len(alone) < 2:
            return now
        fields |= {
            "connections": len(alone),
            "one_by_one_bytes_per_s": sum(alone.values()),
            "together_bytes_per_s": max(sum(self._rates(list(alone))) for _ in range(BEST_OF)),
        }
        return now.replace(together=(*now.together, checked(ProbedTogether, fields, "connections at once")))

    # -- asking ---------------------------------------------------------------------------------------

    def _ask(self, host: str, do: str, *, answer_s: float = ANSWER_S, **header: Any) -> dict[str, Any]:
        """What a host answers. Raises RunError with the host's name."""
        try:
            answer = self._connections[host].ask(do, answer_s=answer_s, **header)
        except (Unreachable, Unfit) as error:
            raise RunError(f"host {host}: {error}") from None
        if "failed" in answer:
            raise RunError(f"host {host}: {str(answer['failed'])[:500]}")
        return answer

    def _each(self, act: Callable[[Any], ResultT], of: Sequence[Any]) -> list[ResultT]:
        """Does something for all at the same time."""
        with ThreadPoolExecutor(len(of)) as pool:
            return list(pool.map(act, of))

    def _new_name(self) -> str:
        self._names += 1
        return str(self._names)


def _named(host: str, devices: Sequence[Device], rows: Sequence[dict[str, Any]]) -> list[ProbedDevice]:
    """Measured rows as devices of the cluster: in order, and by kind where a host has several. Raises RunError."""
    kinds = {device.kind for device in devices}
    left, found = list(rows), []
    for device in devices:
        fits = [row for row in left if len(kinds) == 1 or _is_kind(row["name"], device.kind)]
        if not fits:
            there = ", ".join(sorted({str(row["name"])[:100] for row in rows}))
            raise RunError(f"host {host}: the cluster has {device.kind} there, and it has {there}; correct the cluster")
        left.remove(fits[0])
        found.append(checked(ProbedDevice, {"device": device.id} | fits[0], f"host {host}"))
    return found


def _is_kind(name: str, kind: str) -> bool:
    found, meant = kind_of_gpu(Gpu(name)), find_kind(kind)
    return found is not None and found == meant


def _flows(record: Record, is_wanted: Callable[[str, str], bool]) -> dict[Flow, float]:
    """Measured links from one host to another, and what one connection carried."""
    return {
        Flow(link.from_host, link.to_host): link.bytes_per_s
        for link in record.links
        if is_wanted(link.from_host, link.to_host)
    }


def _rate(flow: Flow, count: dict[str, Any] | None) -> float:
    rate = count and count.get("bytes_per_s")
    if not isinstance(rate, int | float) or isinstance(rate, bool) or rate <= 0:
        raise RunError(f"{flow.source} → {flow.target}: nothing arrived; the network between them is broken")
    return float(rate)
