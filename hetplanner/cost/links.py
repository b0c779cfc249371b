"""Alpha-beta links between devices, with the host's NIC as a ceiling and a shared resource.

Legend of array suffixes: D devices in file order, H hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetplanner.cluster.model import NO_LINK_S, Cluster

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class LinkTable:
    """Directed links, row from, column to; hosts' NICs; dollars per byte that leaves a site."""

    latency_s_DD: FloatArray
    seconds_per_byte_DD: FloatArray
    host_D: IntArray
    nic_out_seconds_per_byte_H: FloatArray
    nic_in_seconds_per_byte_H: FloatArray
    egress_usd_per_byte_D: FloatArray
    site_D: IntArray

    @staticmethod
    def of(cluster: Cluster) -> LinkTable:
        """Reads the links of a cluster; a link between hosts is never faster than either NIC.

        Where there is no link both numbers are the greatest that a link may have: no step is so long, so searches
        leave such pairs, and sums stay finite.
        """
        host = cluster.host_index_D
        nic_out = _inverse([h.nic_out for h in cluster.hosts])
        nic_in = _inverse([h.nic_in for h in cluster.hosts])
        seconds = 1.0 / np.maximum(cluster.bandwidth_bytes_per_s_DD, 1.0)
        between = host[:, None] != host[None, :]
        ceiling = np.maximum(nic_out[host][:, None], nic_in[host][None, :])
        egress = np.array([s.egress_usd_per_gb / 1e9 for s in cluster.sites])
        return LinkTable(
            latency_s_DD=np.ascontiguousarray(np.minimum(cluster.latency_s_DD, NO_LINK_S)),
            seconds_per_byte_DD=np.where(between, np.maximum(seconds, ceiling), seconds),
            host_D=host,
            nic_out_seconds_per_byte_H=nic_out,
            nic_in_seconds_per_byte_H=nic_in,
            egress_usd_per_byte_D=egress[cluster.site_index_D],
            site_D=cluster.site_index_D,
        )

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

    def egress_usd(self, source: IntArray, target: IntArray, num_bytes: FloatArray) -> float:
        """Dollars for bytes that leave a site."""
        leaving = self.site_D[source] != self.site_D[target]
        return float(np.sum(np.where(leaving, num_bytes * self.egress_usd_per_byte_D[source], 0.0)))


def _inverse(rates: list[float | None]) -> FloatArray:
    return np.array([0.0 if rate is None else 1.0 / rate for rate in rates], dtype=np.float64)
