"""A group whose members are all processes of their `torch.distributed` world, on one host."""

from datetime import timedelta

import torch
import torch.distributed as dist

from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.connect import HUNG_PEER_S, loopback_alone
from hetplanner.runtime.device import named_device
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.workload.tensor_degrees import Sharding


def member_device(name: str, index: int, degree: int, turn: int = 0) -> torch.device:
    """The device of a member: GPUs follow one another, a processor is shared.

    Args:
        name, turn: of the first member's device, see `named_device`.
        index: of the member.
        degree: members of the group.

    Raises:
        InvalidInput: there is no such device, or there are too few GPUs behind the first one.
    """
    first = named_device(name, turn)
    if first.type == "cpu" or degree == 1:
        return first
    count = torch.cuda.device_count()
    if int(first.index) + degree > count:
        raise InvalidInput(
            f"tensor: {degree} devices serve together, from {first} on, and torch sees {count} GPUs here; use fewer, or"
            " device cpu"
        )
    return torch.device("cuda", int(first.index) + index)


def join_members(
    store: dist.Store, index: int, degree: int, device: torch.device, sharding: Sharding = "tensor"
) -> DeviceGroup:
    """A member's end of the group; all members must call it.

    Args:
        store: at which they meet.
        index, degree, sharding: of the member and its group.
        device: of the member.
    """
    timeout = timedelta(seconds=HUNG_PEER_S)
    with loopback_alone():
        dist.init_process_group("gloo", store=store, rank=index, world_size=degree, timeout=timeout)
        on_device = dist.new_group(backend="nccl") if device.type == "cuda" else None
    return DeviceGroup(index, degree, 0, dist.group.WORLD, on_device, sharding)
