"""Worker groups: devices of one host that serve one replica of a stage together."""

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from hetplanner.cluster.model import Cluster, nearest_names
from hetplanner.schema import Name, Noun
from hetplanner.workload.tensor_degrees import DEGREES, SHARDING_WORDS, Sharding, why_not
from hetplanner.workload.workload import Workload


class WorkerGroup(Noun):
    """Devices of one host and kind. A plan names the group by its first device.

    Attributes:
        devices: their number is the group's degree.
        sharding: what they divide: the layers (tensor parallelism); or the samples of a micro-batch, with gradients
            and optimizer states (ZeRO 2) or weights, too (ZeRO 3).
    """

    devices: Annotated[tuple[Name, ...], Field(min_length=2, max_length=DEGREES[-1])]
    sharding: Annotated[Sharding, Field(exclude_if=lambda value: value == "tensor")] = "tensor"

    @property
    def leader(self) -> str:
        """The device by which plans name the group."""
        return self.devices[0]

    @property
    def degree(self) -> int:
        """Devices that serve together."""
        return len(self.devices)


def check_groups(
    groups: Sequence[WorkerGroup], cluster: Cluster, workload: Workload, excluded: Collection[str]
) -> None:
    """Refuses groups that no plan can have.

    Raises:
        ValueError: naming the group, and what would work.
    """
    known, taken = set(cluster.device_ids), set[str]()
    for i, group in enumerate(groups):
        place = f"groups[{i}]"
        for device in group.devices:
            if device not in known:
                raise ValueError(f"{place}: unknown device {device!r:.60}; {nearest_names(device, known)}")
            if device in excluded:
                raise ValueError(f"{place}: device {device!r:.60} is excluded; leave it out of the group")
            if device in taken:
                raise ValueError(f"{place}: device {device!r:.60} is in two groups; a device has one place")
            taken.add(device)
        hosts = {cluster.host_of(device).id for device in group.devices}
        if len(hosts) > 1:
            raise ValueError(
                f"{place}: its devices are of the hosts {', '.join(sorted(hosts))[:120]}; a group is of one host"
            )
        kinds = {cluster.devices[cluster.device_index(device)].kind for device in group.devices}
        if len(kinds) > 1:
            raise ValueError(f"{place}: its devices are of the kinds {', '.join(sorted(kinds))[:120]}; use one kind")
        why = why_not(workload, group.degree, group.sharding)
        if why:
            raise ValueError(f"{place}: {SHARDING_WORDS[group.sharding]} over {group.degree} devices: {why}")
