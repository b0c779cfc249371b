"""The rule by which emulated links are busy, shared by the simulator and the emulator. Real ones: `fair_network`.

A transfer from rank a to rank b passes the directed link a→b and, between hosts, the NIC of a's host (out) and
the NIC of b's host (in). Each of the three serves its transfers one after the other in the order in which they
are handed over, bytes / its own rate each, and is never idle while something is handed over; the message arrives
when the last of the three has served it, plus the one-way latency. Links inside one host use no NIC.

Shape legend: N ranks, C clocks (N·N links, then one outgoing and one incoming NIC per host).
Source: ours (design §4).
"""

from collections.abc import Sequence

import numpy as np

from hetplanner.cluster.model import Cluster


class NetworkClock:
    """When every link and NIC between devices of a cluster is free again.

    Args:
        cluster: gives links and NICs.
        devices: ids of the devices that the ranks are on.
        busy_until_s_C: the clocks; None starts them at 0. A shared-memory array lets several processes
            use one set of clocks (they must then lock around `reserve`).
    """

    def __init__(self, cluster: Cluster, devices: Sequence[str], busy_until_s_C: np.ndarray | None = None) -> None:
        rows = np.array([cluster.device_index(d) for d in devices])
        self._n = len(rows)
        latency_s_NN = cluster.latency_s_DD[np.ix_(rows, rows)]
        rate_NN = cluster.bandwidth_bytes_per_s_DD[np.ix_(rows, rows)]
        if cluster.has_gaps:
            # A plan's own messages never pass a gap; the few bytes of norms are relayed by a third rank.
            gap_NN = rate_NN == 0
            latency_s_NN = np.where(gap_NN, 2.0 * latency_s_NN[~gap_NN].max(), latency_s_NN)
            rate_NN = np.where(gap_NN, rate_NN[~gap_NN].min(), rate_NN)
        self.latency_s: list[list[float]] = latency_s_NN.tolist()
        self._link_rate: list[list[float]] = rate_NN.tolist()
        self._host: list[int] = cluster.host_index_D[rows].tolist()
        self._nic_out = [h.nic_out or float("inf") for h in cluster.hosts]
        self._nic_in = [h.nic_in or float("inf") for h in cluster.hosts]
        self._passed: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        if busy_until_s_C is not None:
            self._busy = busy_until_s_C
        else:
            self._busy = np.zeros(self.num_clocks(cluster, devices))

    @staticmethod
    def num_clocks(cluster: Cluster, devices: Sequence[str]) -> int:
        """Length of the clock array."""
        return len(devices) ** 2 + 2 * len(cluster.hosts)

    def reserve(
        self, now_s: float, source: int, target: int, num_bytes: float, factor: float = 1.0
    ) -> tuple[float, float]:
        """Books a transfer. Returns (start_s, arrival_s). `factor`: how much longer than usual all of it takes."""
        num_bytes *= factor
        passed = self.passed(source, target)
        served = max([self._serve(clock, now_s, num_bytes, rate) for clock, rate in passed])
        slowest = min(rate for _, rate in passed)
        return served - num_bytes / slowest, served + self.latency_s[source][target] * factor

    def passed(self, source: int, target: int) -> tuple[tuple[int, float], ...]:
        """What a transfer passes, link and NICs: the clock and the rate of each."""
        found = self._passed.get((source, target))
        if found is None:
            found = ((source * self._n + target, self._link_rate[source][target]),)
            host_a, host_b = self._host[source], self._host[target]
            if host_a != host_b:
                out = self._n * self._n + host_a
                into = self._n * self._n + len(self._nic_out) + host_b
                found += ((out, self._nic_out[host_a]), (into, self._nic_in[host_b]))
            self._passed[source, target] = found
        return found

    def wire_s(self, source: int, target: int, num_bytes: int) -> float:
        """Seconds that a message needs on the slowest of link and NICs when they are free."""
        return num_bytes / min(rate for _, rate in self.passed(source, target))

    def _serve(self, clock: int, now_s: float, num_bytes: float, rate: float) -> float:
        """Queues a transfer at one link or NIC; returns when it has been served."""
        end = max(now_s, float(self._busy[clock])) + num_bytes / rate
        self._busy[clock] = end
        return end
