"""Seconds below which no allowed reducer can reduce a bucket among a number of devices, whichever they are.

Derivation, with R devices, a bucket of B bytes, and the closed form of :mod:`hetplanner.cost.reduction`:

    sharded-ps      two phases; a device waits for its (R-1)-th nearest peer at least, and some device of the group is
                    at best the R-th of all; its host's NIC passes R - 1 shards if the host cannot hold the group
    central-ps      the centre hears from its (R-1)-th nearest peer and answers; its NIC passes what its host lacks
    ring            2(R-1) hops are twice a path over R devices; every round passes the slowest wire, and some member's
                    wire is at best the R-th of all
    hierarchical    in one site as sharded-ps; over m sites with at most k members each: the best link between two sites
                    for a k-th (two sites) or twice a km-th of the bucket, or the NICs of the smallest site's members;
                    and two phases inside if there are more members than sites

Legend of array suffixes: D usable devices, Z message sizes, X any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplanner.arrays import BoolArray, FloatArray, IntArray
from hetplanner.cost.bounds.connectivity import Parts, bound_path, largest_parts, spanning_edges
from hetplanner.cost.links import LinkTable
from hetplanner.plan.reducers.names import ReducerName

# Message sizes for which links are compared; sizes between count as the next smaller one.
NUM_SIZES = 13
# With more devices only the best link is looked at (sorting all rows takes too long).
MOST_SORTED = 300


@dataclass(frozen=True)
class ReductionBounds:
    """Bounds for the usable devices (rows `usable`) of a cluster; what calls share is computed once.

    Attributes:
        reducers: those allowed.
        most_bytes: of the largest bucket that will be asked for.
    """

    links: LinkTable
    usable: IntArray
    reducers: tuple[ReducerName, ...]
    most_bytes: float

    def least_s(self, bucket_bytes_X: FloatArray, members: int) -> FloatArray:
        """Least seconds of the best allowed reducer, for buckets of such sizes."""
        if members < 2 or members > len(self.usable):
            return np.zeros(bucket_bytes_X.shape)
        bounds = {
            "sharded-ps": self._sharded_s,
            "ring": self._ring_s,
            "hierarchical": self._hierarchical_s,
            "central-ps": self._central_s,
        }
        return np.asarray(np.min([bounds[name](bucket_bytes_X, members) for name in self.reducers], axis=0))

    def _sharded_s(self, bucket_bytes_X: FloatArray, members: int) -> FloatArray:
        load = (members - 1) * self._nic_s_per_byte(np.where(self._at_host_D < members, self._nic_D, 0.0))
        phase = np.sort(np.maximum(self._waits_ZDD[:, :, members - 2], load), axis=1)[:, members - 1]
        return 2.0 * self._at(phase, bucket_bytes_X / members)

    def _central_s(self, bucket_bytes_X: FloatArray, members: int) -> FloatArray:
        elsewhere_D = np.maximum(members - self._at_host_D, 0)
        load = self._nic_s_per_byte(elsewhere_D * self._nic_both_D)
        return self._at(np.maximum(self._round_trips_ZDD[:, :, members - 2], load).min(axis=1), bucket_bytes_X)

    def _ring_s(self, bucket_bytes_X: FloatArray, members: int) -> FloatArray:
        chunk_X = bucket_bytes_X / members
        walk = 2.0 * bound_path(self._parts_ZE, members)
        wire_X = 2 * (members - 1) * chunk_X * self._best_wires_D[members - 1]
        return np.maximum(self._at(walk, chunk_X), wire_X)

    def _hierarchical_s(self, bucket_bytes_X: FloatArray, members: int) -> FloatArray:
        largest = int(self._at_site_S.max())
        fits_one = largest >= members
        best = self._sharded_s(bucket_bytes_X, members) if fits_one else np.full(bucket_bytes_X.shape, np.inf)
        most, shards = min(members, len(self._at_site_S)), min(members - 1, largest)
        if 2 * largest >= members and most >= 2:
            between_X = self._at(self._crossing_Z, bucket_bytes_X / shards)
            passed_X = bucket_bytes_X / (members // 2)
            inside_X = bucket_bytes_X / shards if members > 2 else None
            best = np.minimum(best, self._spread_s(between_X, passed_X, inside_X))
        if most >= 3:
            # Over m sites: the smallest part of all m, and the least that a member of the smallest site may pass.
            divisions = range(3, most + 1)
            parts = max(min(members - m + 1, largest) * m for m in divisions)
            passed = min((m - 1) / m / (members // m) for m in divisions)
            between_X = 2.0 * self._at(self._crossing_Z, bucket_bytes_X / parts)
            inside_X = bucket_bytes_X / shards if members > most else None
            best = np.minimum(best, self._spread_s(between_X, 2.0 * passed * bucket_bytes_X, inside_X))
        # A network whose devices fit no division has nothing to reduce among so many.
        return np.where(np.isfinite(best), best, 0.0)

    def _spread_s(self, between_X: FloatArray, passed_X: FloatArray, inside_X: FloatArray | None) -> FloatArray:
        """Between sites by the links or the NICs that pass so many bytes; inside with messages of so many, if any."""
        seconds_X = np.maximum(between_X, passed_X * float(self._nic_D.min()))
        return seconds_X if inside_X is None else seconds_X + self._at(self._inside_Z, inside_X)

    def _at(self, seconds_Z: FloatArray, bytes_X: FloatArray) -> FloatArray:
        """The entry of the next smaller message size."""
        found = np.searchsorted(self._bytes_Z, bytes_X * (1 + 1e-12), side="right") - 1
        return np.asarray(seconds_Z[np.maximum(found, 0)])

    def _nic_s_per_byte(self, rate_D: FloatArray) -> FloatArray:
        return self._bytes_Z[:, None] * rate_D[None, :]

    @cached_property
    def _bytes_Z(self) -> FloatArray:
        return np.concatenate(([0.0], np.geomspace(self.most_bytes / 4096, self.most_bytes, NUM_SIZES)))

    @cached_property
    def _at_host_D(self) -> IntArray:
        host_D = self.links.host_D[self.usable]
        return np.bincount(host_D, minlength=len(self.links.nic_out_seconds_per_byte_H))[host_D]

    @cached_property
    def _at_site_S(self) -> IntArray:
        return np.unique(self.links.site_D[self.usable], return_counts=True)[1]

    @cached_property
    def _nic_D(self) -> FloatArray:
        host_D = self.links.host_D[self.usable]
        return np.maximum(self.links.nic_out_seconds_per_byte_H, self.links.nic_in_seconds_per_byte_H)[host_D]

    @cached_property
    def _nic_both_D(self) -> FloatArray:
        host_D = self.links.host_D[self.usable]
        return (self.links.nic_out_seconds_per_byte_H + self.links.nic_in_seconds_per_byte_H)[host_D]

    def _seconds(self, num_bytes: float) -> FloatArray:
        return self._among(self.links.latency_s_DD) + num_bytes * self._among(self.links.seconds_per_byte_DD)

    def _among(self, matrix_DD: FloatArray) -> FloatArray:
        return matrix_DD if is_everybody(self.usable, len(matrix_DD)) else matrix_DD[np.ix_(self.usable, self.usable)]

    @cached_property
    def _off_DD(self) -> BoolArray:
        return ~np.eye(len(self.usable), dtype=bool)

    @cached_property
    def _waits_ZDD(self) -> FloatArray:
        """What a device waits for its peers there or back, the longer, nearest first."""
        return self._sorted_rows(worse=True)

    @cached_property
    def _round_trips_ZDD(self) -> FloatArray:
        """There and back, nearest first."""
        return self._sorted_rows(worse=False)

    def _sorted_rows(self, *, worse: bool) -> FloatArray:
        num_devices = len(self.usable)
        if num_devices > MOST_SORTED:
            best_Z = self._best_Z * (1.0 if worse else 2.0)
            return np.broadcast_to(best_Z[:, None, None], (len(best_Z), num_devices, num_devices - 1))
        rows = []
        for size in self._bytes_Z:
            seconds = self._seconds(float(size))
            both = np.maximum(seconds, seconds.T) if worse else seconds + seconds.T
            rows.append(np.sort(both[self._off_DD].reshape(num_devices, -1), axis=1))
        return np.array(rows)

    @cached_property
    def _parts_ZE(self) -> Parts:
        """Connected parts by the better way of each pair."""
        num_devices = len(self.usable)
        if num_devices > MOST_SORTED:
            # As far as is known, the best link joins any two.
            best_Z = self._best_Z
            return best_Z[:, None], np.full((len(best_Z), 1), num_devices)
        parts = []
        for size in self._bytes_Z:
            seconds = self._seconds(float(size))
            parts.append(largest_parts(spanning_edges(np.minimum(seconds, seconds.T))))
        threshold, largest = (np.array(column) for column in zip(*parts, strict=True))
        return threshold, largest

    @cached_property
    def _best_wires_D(self) -> FloatArray:
        """Seconds per byte of each device's fastest link out, fastest first."""
        rate_DD = self._among(self.links.seconds_per_byte_DD)
        return np.sort(np.min(rate_DD, axis=1, where=self._off_DD, initial=np.inf))

    @property
    def _other_site_DD(self) -> BoolArray:
        site_D = self.links.site_D[self.usable]
        return site_D[:, None] != site_D[None, :]

    @cached_property
    def _crossing_Z(self) -> FloatArray:
        """One message each way between two sites, the better pair."""
        return self._least_pairs(self._other_site_DD)

    @cached_property
    def _inside_Z(self) -> FloatArray:
        """There and back inside a site."""
        return 2.0 * self._least_pairs(self._off_DD & ~self._other_site_DD)

    def _least_pairs(self, mask_DD: BoolArray) -> FloatArray:
        """Latency and wire time of the best links among some pairs, each on its own; 0 if there are none."""
        if not mask_DD.any():
            return np.zeros(len(self._bytes_Z))
        least = (
            float(np.min(self._among(of_pair_DD), where=mask_DD, initial=np.inf))
            for of_pair_DD in (self.links.latency_s_DD, self.links.seconds_per_byte_DD)
        )
        latency, rate = least
        return latency + self._bytes_Z * rate

    @cached_property
    def _best_Z(self) -> FloatArray:
        return self._least_pairs(self._off_DD)


def is_everybody(rows: IntArray, num_devices: int) -> bool:
    """Whether rows are all of a cluster's devices in their order: their part of a matrix is the matrix itself."""
    return len(rows) == num_devices and bool((rows == np.arange(num_devices)).all())
