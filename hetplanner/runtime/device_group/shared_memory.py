"""Host memory that all members of a group see, on Linux.

A reduction between replicas and a checkpoint take a stage's numbers in the order in which a single device has them. The
leader handles them there for all members, so that neither knows of groups. Pages that are not written take no memory.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.device_group.group import DeviceGroup


def shared_zeros(size: int, dtype: torch.dtype, group: DeviceGroup) -> Tensor:
    """A tensor [size] of zeros in memory that the members share; all of them must call it.

    It is freed with the last member that holds it.
    """
    handle = os.memfd_create(f"hetplanner-{group.leader}") if group.is_leader else -1
    if group.is_leader:
        os.ftruncate(handle, max(1, size) * dtype.itemsize)
    told = torch.tensor([os.getpid(), handle])
    dist.broadcast(told, src=group.leader, group=group.handle)
    pid, number = told.tolist()
    found = torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=size, dtype=dtype)
    group.barrier()  # all have it
    if group.is_leader:
        os.close(handle)
    return found
