"""Alpha-beta links between devices, with the host's NIC as a ceiling and a shared resource.

    message seconds = latency + bytes x max(1 / bandwidth, 1 / NIC out of the sender, 1 / NIC in of the receiver)
    NIC busy        = bytes of all its devices' messages to other hosts / NIC, the busier way
    egress dollars  = bytes from one site to another x the price of that way, where it is known

Source: alpha-beta model (Hockney 1994); NICs as in :mod:`hetplanner.simulator.network`.

Legend of array suffixes: L link rules of the cluster, D devices in file order, H hosts, C classes of sites that pay
for their traffic alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.egress import EgressTable
from hetplanner.cluster.model import NO_LINK_S, Cluster

# Inverse of the slowest bandwidth that a link may have.
NO_LINK_S_PER_BYTE = 1.0


@dataclass(frozen=True)
class LinkTable:
    """Directed links, row from, column to; hosts' NICs; dollars per byte from one site to another (NaN: unknown).

    The two tables of all pairs are made when first read: plans of thousands of devices get by with :meth:`latency_s`
    and :meth:`seconds_per_byte` of the pairs that talk to each other.
    """

    cluster: Cluster
    host_D: IntArray
    nic_out_seconds_per_byte_H: FloatArray
    nic_in_seconds_per_byte_H: FloatArray
    egress_class_D: IntArray
    egress_usd_per_byte_CC: FloatArray
    site_D: IntArray

    @staticmethod
    def of(cluster: Cluster) -> LinkTable:
        """Reads the links of a cluster; a link between hosts is never faster than either NIC.

        Where there is no link both numbers are the greatest that a link may have: no step is so long, so searches
        leave such pairs, and sums stay finite.
        """
        egress = EgressTable.of(cluster)
        return LinkTable(
            cluster=cluster,
            host_D=cluster.host_index_D,
            nic_out_seconds_per_byte_H=_inverse([h.nic_out for h in cluster.hosts]),
            nic_in_seconds_per_byte_H=_inverse([h.nic_in for h in cluster.hosts]),
            egress_class_D=egress.class_S[cluster.site_index_D],
            egress_usd_per_byte_CC=egress.usd_per_gb_CC / 1e9,
            site_D=cluster.site_index_D,
        )

    def with_rules(self, latency_s_L: FloatArray, seconds_per_byte_L: FloatArray) -> LinkTable:
        """The same hosts with other numbers for every rule of `Cluster.links`; NICs stay ceilings.

        A batch axis in front of the rules makes a batch of tables: `latency_s` and `seconds_per_byte` have it, too.
        """
        table = replace(self)
        # In place of the cached properties.
        table.__dict__["_latency_s_of_rule"] = _with_last(latency_s_L, NO_LINK_S)
        table.__dict__["_seconds_per_byte_of_rule"] = _with_last(seconds_per_byte_L, NO_LINK_S_PER_BYTE)
        if latency_s_L.ndim == 1:
            table.__dict__["latency_s_DD"] = table._latency_s_of_rule[self.cluster.link_index_DD]
        return table

    @cached_property
    def latency_s_DD(self) -> FloatArray:
        """One-way latency of every pair."""
        return np.ascontiguousarray(np.minimum(self.cluster.latency_s_DD, NO_LINK_S))

    @cached_property
    def seconds_per_byte_DD(self) -> FloatArray:
        """Inverse bandwidth of every pair."""
        everybody = np.arange(len(self.host_D))
        seconds = self._seconds_per_byte_of_rule[self.cluster.link_index_DD]
        return self._under_nics(seconds, everybody[:, None], everybody[None, :])

    def latency_s(self, source: IntArray, target: IntArray) -> FloatArray:
        """One-way latency of some pairs of devices."""
        return np.asarray(self._latency_s_of_rule[..., self.cluster.link_index_DD[source, target]])

    def seconds_per_byte(self, source: IntArray, target: IntArray) -> FloatArray:
        """Inverse bandwidth of some pairs of devices."""
        seconds = self._seconds_per_byte_of_rule[..., self.cluster.link_index_DD[source, target]]
        return self._under_nics(seconds, source, target)

    def _under_nics(self, seconds: FloatArray, source: IntArray, target: IntArray) -> FloatArray:
        """Inverse bandwidths of links, where a NIC is slower its own."""
        if not self.has_nics:
            return np.asarray(seconds)
        one, two = self.host_D[source], self.host_D[target]
        ceiling = np.maximum(self.nic_out_seconds_per_byte_H[one], self.nic_in_seconds_per_byte_H[two])
        return np.where(one != two, np.maximum(seconds, ceiling), seconds)

    # The last two entries are those of the diagonal and of no link: see `Cluster.link_index_DD`.

    @cached_property
    def _latency_s_of_rule(self) -> FloatArray:
        return np.array([*(k.latency for k in self.cluster.links), 0.0, NO_LINK_S])

    @cached_property
    def _seconds_per_byte_of_rule(self) -> FloatArray:
        return np.array([*(1.0 / k.bandwidth for k in self.cluster.links), 0.0, NO_LINK_S_PER_BYTE])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Of a batch of tables, see `with_rules`; () for one table."""
        return self._seconds_per_byte_of_rule.shape[:-1]

    @property
    def has_nics(self) -> bool:
        """Whether any host limits the sum of its devices' traffic."""
        return bool(self.nic_out_seconds_per_byte_H.any() or self.nic_in_seconds_per_byte_H.any())

    def nic_seconds(self, source: IntArray, target: IntArray, num_bytes: FloatArray) -> FloatArray:
        """Seconds for which transfers keep each host's NIC busy, the busier way (0 where there is no limit)."""
        crossing = self.host_D[source] != self.host_D[target]
        moved = np.where(crossing, num_bytes, 0.0)
        size = len(self.nic_out_seconds_per_byte_H)
        sent = np.bincount(self.host_D[source], weights=moved, minlength=size)
        received = np.bincount(self.host_D[target], weights=moved, minlength=size)
        return np.maximum(sent * self.nic_out_seconds_per_byte_H, received * self.nic_in_seconds_per_byte_H)

    def egress_usd_per_byte(self, source: IntArray, target: IntArray) -> FloatArray:
        """Dollars for a byte between some pairs of devices: 0 inside a site, NaN where the price is unknown."""
        price = self.egress_usd_per_byte_CC[self.egress_class_D[source], self.egress_class_D[target]]
        return np.where(self.site_D[source] != self.site_D[target], price, 0.0)

    def egress_usd(self, source: IntArray, target: IntArray, num_bytes: FloatArray) -> float:
        """Dollars for bytes between sites, as far as their prices are known."""
        return float(np.sum(num_bytes * np.nan_to_num(self.egress_usd_per_byte(source, target))))


def _with_last(values_L: FloatArray, nowhere: float) -> FloatArray:
    """Numbers of rules, followed by those of the diagonal and of no link."""
    last = np.broadcast_to([0.0, nowhere], (*values_L.shape[:-1], 2))
    return np.concatenate((values_L, last), axis=-1)


def _inverse(rates: list[float | None]) -> FloatArray:
    return np.array([0.0 if rate is None else 1.0 / rate for rate in rates], dtype=np.float64)
