"""The members of a group that are measured: processes of this host, which the measuring process starts and ends."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hetplanner.errors import InvalidInput
from hetplanner.profiles.model import Collective
from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.device import named_device
from hetplanner.runtime.device_group.group import DeviceGroup

LOOPBACK, START_S = "127.0.0.1", 120.0
LEAST_ROUNDS = 8


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


def collective_seconds(group: DeviceGroup, device: torch.device, size: int, window_s: float) -> dict[Collective, float]:
    """Median seconds of each collective between the members, which must all call it.

    Args:
        group: of two or more.
        device: of this member.
        size: bytes of the whole tensor.
        window_s: seconds of measuring.
    """
    elements = size // 4 // group.degree * group.degree
    whole, part = torch.randn(1, elements, 1, device=device), torch.randn(1, elements // group.degree, 1, device=device)
    calls: dict[Collective, Callable[[], object]] = {
        "all-gather": lambda: group.all_gather(part),
        "reduce-scatter": lambda: group.reduce_scatter(whole),
        "all-reduce": lambda: group.all_reduce(whole.clone()),
    }
    seconds: dict[Collective, list[float]] = {name: [] for name in calls}
    began_s, rounds = time.perf_counter(), 0
    while group.of_leader(rounds < LEAST_ROUNDS or time.perf_counter() - began_s < window_s):
        for name, call in calls.items():
            start_s = _now_s(device)
            call()
            seconds[name].append(_now_s(device) - start_s)
        rounds += 1
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def member_command(module: str, request: str) -> list[str]:
    """What starts a member."""
    return [sys.executable, "-m", module, request]
