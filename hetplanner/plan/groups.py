"""Worker groups: devices of one host that serve one replica of a stage together, by tensor parallelism."""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from pydantic import Field

from hetplanner.cluster.model import Cluster, nearest_names
from hetplanner.schema import Name, Noun
from hetplanner.workload.workload import Workload

TensorDegree = Literal[1, 2, 4, 8]
DEGREES: tuple[TensorDegree, ...] = (1, 2, 4, 8)


class WorkerGroup(Noun):
    """Devices of one host and kind. A plan names the group by its first device.

    Attributes:
        devices: their number is the degree of tensor parallelism.
    """

    devices: Annotated[tuple[Name, ...], Field(min_length=2, max_length=DEGREES[-1])]

    @property
    def leader(self) -> str:
        """The device by which plans name the group."""
        return self.devices[0]

    @property
    def degree(self) -> int:
        """Devices that share each layer."""
        return len(self.devices)


def why_not(workload: Workload, degree: int) -> str:
    """Why a workload's layers cannot be shared by so many devices, with what can; '' if they can.

    Source: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053): heads and columns of a layer are divided.
    Korthikanti et al. 2022 (arXiv 2205.05198): so are the tokens of a sequence.
    """
    if degree == 1:
        return ""
    shape = workload.transformer
    if shape is None:
        return f"{workload.name!r:.60} is a captured model, whose layers are not divided; use degree 1"
    if workload.fine_tuning is not None and workload.fine_tuning.adapters is not None:
        return "adapters are not divided; use degree 1"
    if shape.boundary_layers is not None:
        return "compression-aware layers are not divided; use degree 1"
    if degree not in DEGREES:
        return f"the degree must be 1, 2, 4 or 8, got {degree}"
    if shape.num_kv_heads % degree:
        fitting = [d for d in DEGREES if shape.num_kv_heads % d == 0 and shape.heads % d == 0]
        what = "heads" if shape.num_kv_heads == shape.heads else "key/value heads"
        return f"{shape.num_kv_heads} {what} are no multiple of {degree}; use {fitting[-1]}"
    if workload.seq_len % degree:
        fitting = [d for d in DEGREES if workload.seq_len % d == 0]
        return f"{workload.seq_len} tokens are no multiple of {degree}; use {fitting[-1]}, or other tokens"
    return ""


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
        why = why_not(workload, group.degree)
        if why:
            raise ValueError(f"{place}: tensor parallelism over {group.degree} devices: {why}")
