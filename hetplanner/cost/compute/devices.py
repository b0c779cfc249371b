"""The numbers that the cost model reads of every device, resolved from the cluster and the GPU catalog.

Legend of array suffixes: D devices in file order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.catalog import plain_kind, resolve_device
from hetplanner.cluster.model import Cluster, DType


@dataclass(frozen=True)
class DeviceTable:
    """One row per device; ``class_D`` numbers devices that are equal to the cost model."""

    rate_flops_per_s_D: FloatArray
    memory_bytes_D: FloatArray
    memory_bandwidth_bytes_per_s_D: FloatArray
    price_usd_per_s_D: FloatArray
    update_s_per_weight_D: FloatArray
    """Seconds of the optimizer's step for each trained weight."""
    class_D: IntArray
    kind_D: tuple[str, ...]
    """Names in the catalog; of a kind that it doesn't know the cluster file's."""
    degree_D: IntArray
    """Devices of a host that serve in this one's place: 1 unless it leads a group."""
    sharding_D: IntArray
    """What they divide: its number in `SHARDINGS`; 0 for a single device."""
    ring_s_per_byte_D: FloatArray
    ring_latency_s_D: FloatArray
    """Of the links between the members of a group."""
    launch_s: float = 0.0
    """Of an operator, see `TransferCost.launch`."""

    @staticmethod
    def of(cluster: Cluster, dtype: DType, update_bytes: float, profiled: Collection[str] = ()) -> DeviceTable:
        """Resolves every device of a cluster.

        Args:
            cluster: the cluster.
            dtype: number format of the training arithmetic, which picks the peak rate.
            update_bytes: that the optimizer reads and writes for each trained weight.
            profiled: kinds that are told apart whatever their numbers, as a profile has their seconds.

        Returns:
            Rates already times the efficiency, memory already less the reserve; an unknown price is NaN.

        Raises:
            InvalidInput: if neither the file nor the catalog knows a number.
        """
        rows, names = [], []
        for device in cluster.devices:
            spec = resolve_device(device)
            names.append(plain_kind(device.kind))
            rows.append(
                (
                    spec.flops_per_s(dtype) * spec.efficiency,
                    max(spec.memory_bytes - spec.reserve_bytes, 0.0),
                    spec.memory_bandwidth_bytes_per_s,
                    np.nan if spec.price_usd_per_hour is None else spec.price_usd_per_hour / 3600.0,
                )
            )
        table = np.array(rows, dtype=np.float64)
        known = np.nan_to_num(table, nan=-1.0)
        if profiled:
            own = {name: k + 1 for k, name in enumerate(sorted(profiled))}
            known = np.column_stack((known, [own.get(name, 0) for name in names]))
        _, class_D = np.unique(known, axis=0, return_inverse=True)
        rate, memory, bandwidth, price = (np.ascontiguousarray(column) for column in table.T)
        update_s = update_bytes / bandwidth
        alone, nothing = np.ones(len(names), dtype=np.int64), np.zeros(len(names))
        return DeviceTable(
            rate,
            memory,
            bandwidth,
            price,
            update_s,
            class_D.reshape(-1),
            tuple(names),
            alone,
            0 * alone,
            nothing,
            nothing,
            cluster.transfer.launch if cluster.transfer else 0.0,
        )

    def scaled(self, rate_D: FloatArray, memory_D: FloatArray) -> DeviceTable:
        """The same devices with each one's arithmetic rate and memory bandwidth times a factor."""
        rows = np.stack((self.class_D, rate_D, memory_D), axis=1)
        class_D = np.unique(rows, axis=0, return_inverse=True)[1]
        return replace(
            self,
            rate_flops_per_s_D=self.rate_flops_per_s_D * rate_D,
            memory_bandwidth_bytes_per_s_D=self.memory_bandwidth_bytes_per_s_D * memory_D,
            update_s_per_weight_D=self.update_s_per_weight_D / memory_D,
            class_D=class_D.reshape(-1),
        )

    @cached_property
    def first_of_class(self) -> IntArray:
        """One device of each class."""
        return np.unique(self.class_D, return_index=True)[1]
