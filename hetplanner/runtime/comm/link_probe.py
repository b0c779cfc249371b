"""What the links between hosts carry, measured by the ranks before the first step, over the connections they will use.

All ranks go through the same experiments in lockstep: latencies first, then one connection at a time, in rounds in
which every host takes part at most once, then all connections out of a host, and all into one, at the same time. A
host whose connections carry less together than one by one has a NIC (or a way out of its site) that they share. What a
host cannot send at once does not count as a limit of the host that it sends to.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.cluster.measured import Measured, MeasuredLink, MeasuredNic
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import host_of_rank
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.runtime.comm.clocks import ClockOffset
from hetplanner.runtime.comm.receive_order import sent_messages
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.comm.wire import HostWire, Work
from hetplanner.schedule.order import make_schedule

PINGS = 15
LEAST_BYTES, FIRST_BYTES, GROWTH, MOST_BYTES = 2**13, 2**15, 4, 2**23
"""Of one message; the first of a burst is not timed, as what a queue or a token bucket takes at once says nothing."""
MESSAGES, MESSAGES_TOGETHER = 5, 15
BEST_OF = 2
"""Bursts that are believed; a busy machine makes some slower than the link."""
ENOUGH_S, TOGETHER_S = 0.25, 0.4
"""A burst that takes so long is believed; what bursts of several connections take where none limits another."""
SHARED = 0.85
"""Connections that carry less than this share of their sum one by one are limited together."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A connection from one rank to another, on hosts of these names."""

    source: int
    target: int
    from_host: str
    to_host: str


def measure_links(
    plan: Plan, rank: int, clock: ClockOffset, wire: HostWire, wait: Callable[[], None] = lambda: None
) -> Measured:
    """Measures the links between hosts that the plan's messages pass; every rank must call it at the same time.

    Args:
        plan: what will run.
        rank: this one.
        clock: this rank's.
        wire: what will carry messages, over one connection to each rank or several.
        wait: called between experiments, to show that this rank gets on.

    Returns:
        The same on all ranks; without links if all ranks are on one host.
    """
    flows = _flows(plan)
    probe = _Probe(rank, clock, wire, wait)
    links = _measure_one_by_one(probe, list(_one_each(flows)))
    nics = _measure_together(probe, flows, links)
    return Measured(links=tuple(links.values()), nics=nics, measured_unix_s=time.time())


def _flows(plan: Plan) -> list[Flow]:
    """Every pair of ranks on two hosts of which one sends the other anything."""
    messages = sent_messages(
        make_schedule(plan).actions, reduction_groups(plan), plan.problem.workload.num_micro_batches
    )
    hosts = [host_of_rank(plan, rank) for rank in range(len(plan.ranks))]
    return [Flow(a, b, hosts[a], hosts[b]) for a, b in sorted(messages) if hosts[a] != hosts[b]]


def _one_each(flows: Iterable[Flow]) -> Iterable[Flow]:
    """One connection for every host and host that it sends to."""
    seen: set[tuple[str, str]] = set()
    for flow in flows:
        if (flow.from_host, flow.to_host) not in seen:
            seen.add((flow.from_host, flow.to_host))
            yield flow


def _rounds(groups: Iterable[Sequence[Flow]]) -> list[list[Sequence[Flow]]]:
    """The groups in rounds; within one round no host takes part in two of them."""
    rounds: list[tuple[set[str], list[Sequence[Flow]]]] = []
    for group in groups:
        hosts = {host for flow in group for host in (flow.from_host, flow.to_host)}
        free = next((one for one in rounds if not one[0] & hosts), None)
        if free is None:
            rounds.append((hosts, [group]))
        else:
            free[0].update(hosts)
            free[1].append(group)
    return [groups for _, groups in rounds]


def _measure_one_by_one(probe: "_Probe", flows: list[Flow]) -> dict[tuple[str, str], MeasuredLink]:
    found = {}
    for groups in _rounds([flow] for flow in flows):
        together = [flow for group in groups for flow in group]
        latencies_s, rates = probe.latencies(together), probe.rates(together)
        for flow, latency_s, rate in zip(together, latencies_s, rates, strict=True):
            key = flow.from_host, flow.to_host
            found[key] = MeasuredLink(from_host=key[0], to_host=key[1], latency_s=latency_s, bandwidth_bytes_per_s=rate)
    return found


def _measure_together(
    probe: "_Probe", flows: list[Flow], links: dict[tuple[str, str], MeasuredLink]
) -> tuple[MeasuredNic, ...]:
    """Every host's connections at once: those out of it, then those into it."""
    alone = {key: link.bandwidth_bytes_per_s for key, link in links.items()}
    out = _sums(probe, _by_host(flows, "from_host"), alone)
    into = _sums(probe, _by_host(flows, "to_host"), alone)
    nics = []
    for host in sorted(out.keys() | into.keys()):
        sent = [flow for flow in flows if flow.from_host == host]
        taken = [flow for flow in flows if flow.to_host == host]
        could_send = sum(alone[flow.from_host, flow.to_host] for flow in sent)
        could_take = _could_take(taken, alone, out)
        nics.append(
            MeasuredNic(
                host=host,
                out_bytes_per_s=out.get(host),
                in_bytes_per_s=into.get(host),
                out_is_shared=host in out and out[host] < SHARED * could_send,
                in_is_shared=host in into and into[host] < SHARED * could_take,
            )
        )
    return tuple(nics)


def _by_host(flows: Sequence[Flow], end: str) -> dict[str, list[Flow]]:
    """The connections of every host that has several at this end."""
    ordered = sorted(flows, key=lambda flow: getattr(flow, end))
    groups = {host: list(group) for host, group in groupby(ordered, key=lambda flow: getattr(flow, end))}
    return {host: group for host, group in groups.items() if len(group) > 1}


def _could_take(taken: Sequence[Flow], alone: dict[tuple[str, str], float], out: dict[str, float]) -> float:
    """Bytes per second that the others could send a host together, as far as their own NICs let them."""
    of_host: dict[str, float] = {}
    for flow in taken:
        of_host[flow.from_host] = of_host.get(flow.from_host, 0.0) + alone[flow.from_host, flow.to_host]
    return sum(min(rate, out.get(host, rate)) for host, rate in of_host.items())


def _sums(probe: "_Probe", groups: dict[str, list[Flow]], alone: dict[tuple[str, str], float]) -> dict[str, float]:
    """Bytes per second of each host's connections at once.

    Each sends for as long as it would alone, so that all end at about the same time; where they share a limit it is
    used up to the end of the last.
    """
    found: dict[str, float] = {}
    for together in _rounds(groups.values()):
        flows = [flow for group in together for flow in group]
        sizes = [_size(alone[flow.from_host, flow.to_host]) for flow in flows]
        bursts = dict(zip(flows, probe.bursts(flows, sizes, MESSAGES_TOGETHER), strict=True))
        found |= {host: _sum([bursts[flow] for flow in group]) for host, group in groups.items() if group in together}
    return found


def _size(rate: float) -> int:
    """Bytes of a message of a burst at so many bytes per second."""
    return int(min(max(rate * TOGETHER_S / MESSAGES_TOGETHER, LEAST_BYTES), MOST_BYTES))


def _sum(bursts: Sequence["Burst"]) -> float:
    """Bytes per second of all, from the arrival of the first message to that of the last."""
    begin_s, end_s = min(burst.first_s for burst in bursts), max(burst.last_s for burst in bursts)
    return sum(burst.bytes_since(begin_s) for burst in bursts) / max(end_s - begin_s, 1e-9)


@dataclass(frozen=True, slots=True)
class Burst:
    """Messages of one connection: how many of how many bytes, and when its target had the first and the last.

    Times are by rank 0's clock, in seconds.
    """

    count: int
    num_bytes: int
    first_s: float
    last_s: float

    @property
    def seconds(self) -> float:
        """From the first message to the last."""
        return self.last_s - self.first_s

    def bytes_since(self, begin_s: float) -> float:
        """Bytes that arrived since then; of the first message as much as the others' pace says."""
        each_s = max(self.seconds / (self.count - 1), 1e-9)
        return self.num_bytes * (self.count - 1 + min(1.0, max(0.0, self.first_s - begin_s) / each_s))


class _Probe:
    """One rank's part in the experiments; what it measures is told to all."""

    def __init__(self, rank: int, clock: ClockOffset, wire: HostWire, wait: Callable[[], None]) -> None:
        self.rank, self._clock, self._wire, self._wait = rank, clock, wire, wait

    def latencies(self, flows: Sequence[Flow]) -> list[float]:
        """One-way seconds of an empty message: half of the shortest way there and back."""
        mine = [self._ping(flow) if self.rank in (flow.source, flow.target) else 0.0 for flow in flows]
        return self._told([0.0 if self.rank != flow.source else s for flow, s in zip(flows, mine, strict=True)])

    def _ping(self, flow: Flow) -> float:
        byte = torch.zeros(1, dtype=torch.uint8)
        shortest_s = float("inf")
        for i in range(PINGS):
            if self.rank == flow.target:
                dist.recv(byte, flow.source, tag=tag_of(Topic.PROBE, i))
                dist.send(byte, flow.source, tag=tag_of(Topic.PROBE, i))
                continue
            began_s = time.monotonic()
            dist.send(byte, flow.target, tag=tag_of(Topic.PROBE, i))
            dist.recv(byte, flow.target, tag=tag_of(Topic.PROBE, i))
            shortest_s = min(shortest_s, time.monotonic() - began_s)
        return shortest_s / 2

    def rates(self, flows: Sequence[Flow]) -> list[float]:
        """Bytes per second of each connection, no two of which share a host: bursts grow until they are long enough."""
        found: dict[Flow, list[float]] = {flow: [] for flow in flows}
        num_bytes = FIRST_BYTES
        while left := [flow for flow in flows if len(found[flow]) < BEST_OF]:
            bursts = zip(left, self.bursts(left, [num_bytes] * len(left), MESSAGES), strict=True)
            believed = [(f, b) for f, b in bursts if b.seconds >= ENOUGH_S or num_bytes >= MOST_BYTES]
            for flow, burst in believed:
                found[flow].append(_sum([burst]))
            if not believed:  # earlier bursts do not count: a disturbed one may have taken long enough by chance
                num_bytes *= GROWTH
        return [max(found[flow]) for flow in flows]

    def bursts(self, flows: Sequence[Flow], sizes: Sequence[int], count: int) -> list[Burst]:
        """All connections send at the same time.

        Args:
            flows: the connections.
            sizes: bytes of each one's messages.
            count: messages of each.
        """
        mine = [(i, flow) for i, flow in enumerate(flows) if flow.target == self.rank]
        taken = {i: self._post(flow, sizes[i], count) for i, flow in mine}
        sent = [(flow, torch.empty(n, dtype=torch.uint8)) for flow, n in zip(flows, sizes, strict=True)]
        dist.barrier()  # receives are posted, and nothing else is under way
        works = [
            self._wire.send(data, flow.target, tag_of(Topic.PROBE, m))[0]
            for m in range(count)
            for flow, data in sent
            if flow.source == self.rank
        ]
        times_s = [0.0] * (2 * len(flows))
        threads = [threading.Thread(target=_time, args=(posted, times_s, i)) for i, (posted, _) in taken.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for work in works:
            work.wait()
        told = self._told([s - self._clock.ahead_s if s else 0.0 for s in times_s])
        return [Burst(count, n, *ends) for n, ends in zip(sizes, zip(told[::2], told[1::2], strict=True), strict=True)]

    def _post(self, flow: Flow, num_bytes: int, count: int) -> tuple[list[Work], list[Tensor]]:
        posted = [self._wire.receive(num_bytes, flow.source, tag_of(Topic.PROBE, m)) for m in range(count)]
        return [work for work, _ in posted], [data for _, data in posted]

    def _told(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of all ranks, each of which knows some and has 0 for the others."""
        row = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(row)
        self._wait()
        return [float(number) for number in row]


def _time(works: Sequence[Work], times_s: list[float], i: int) -> None:
    """Waits for one connection's messages, in a thread: another connection's may take longer."""
    works[0].wait()
    times_s[2 * i] = time.monotonic()
    for work in works[1:]:
        work.wait()
    times_s[2 * i + 1] = time.monotonic()
