"""The members of a group that are measured: processes of this host, which the measuring process starts and ends."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hetplanner.errors import InvalidInput
from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.device import named_device
from hetplanner.runtime.device_group.group import DeviceGroup

LOOPBACK, START_S = "127.0.0.1", 120.0


def member_device(name: str, index: int, degree: int) -> torch.device:
    """The device of a member: a processor is shared, GPUs are taken in turn. Raises InvalidInput: too few GPUs."""
    if degree == 1:
        return named_device(name)
    first = named_device(name if name in ("auto", "cpu") else "cuda")
    count = torch.cuda.device_count() if first.type == "cuda" else degree
    if count < degree:
        raise InvalidInput(f"tensor: {degree} devices share a layer, and torch sees {count} GPUs here")
    return named_device(first.type, index)


@contextmanager
def measuring_group(degree: int, device: torch.device, command: Sequence[str]) -> Iterator[DeviceGroup]:
    """The leader's end of a group, whose other members are started; they have ended when this does.

    Args:
        degree: number of members.
        device: of the leader.
        command: of a member; its degree, number and the port where the members meet are appended.
    """
    if degree == 1:
        yield DeviceGroup()
        return
    store = store_at(LOOPBACK, 0, timedelta(seconds=START_S), is_master=True)
    members = [
        subprocess.Popen([*command, str(degree), str(index), str(store.port)], stdout=subprocess.DEVNULL)
        for index in range(1, degree)
    ]
    try:
        yield _joined(store, 0, degree, device)
        dist.destroy_process_group()
    finally:
        for member in members:
            member.terminate()
            member.wait()


def joined_group(degree: int, index: int, port: int, device: torch.device) -> DeviceGroup:
    """A member's end."""
    store = store_at(LOOPBACK, port, timedelta(seconds=START_S), is_master=False)
    return _joined(store, index, degree, device)


def _joined(store: dist.Store, index: int, degree: int, device: torch.device) -> DeviceGroup:
    dist.init_process_group("gloo", store=store, rank=index, world_size=degree, timeout=timedelta(seconds=START_S))
    on_device = dist.new_group(backend="nccl") if device.type == "cuda" else None
    return DeviceGroup(index, degree, 0, dist.group.WORLD, on_device)


def member_command(module: str, request: str) -> list[str]:
    """What starts a member."""
    return [sys.executable, "-m", module, request]
