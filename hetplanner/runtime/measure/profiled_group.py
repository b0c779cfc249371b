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

from hetplanner.profiles.model import Collective
from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.runtime.device_group.one_host import join_members

LOOPBACK, START_S = "127.0.0.1", 120.0
LEAST_ROUNDS = 8


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
        yield join_members(store, 0, degree, device)
        dist.destroy_process_group()
    finally:
        for member in members:
            member.terminate()
            member.wait()


def joined_group(degree: int, index: int, port: int, device: torch.device) -> DeviceGroup:
    """A member's end."""
    store = store_at(LOOPBACK, port, timedelta(seconds=START_S), is_master=False)
    return join_members(store, index, degree, device)


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
