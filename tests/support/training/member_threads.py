"""The members of a group as threads of one process, which exchange through a list."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.workload.tensor_degrees import Sharding

Result = TypeVar("Result")
WAIT_S = 60.0


@dataclass
class _Meeting:
    degree: int
    box: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier, self.box = threading.Barrier(self.degree), [torch.empty(0)] * self.degree


@dataclass(frozen=True)
class MemberThread(DeviceGroup):
    """A member's end."""

    meeting: _Meeting = field(default_factory=lambda: _Meeting(1))

    def _all(self, mine: Tensor) -> list[Tensor]:
        self.meeting.box[self.index] = mine.detach().clone()
        self.meeting.barrier.wait(WAIT_S)
        found = list(self.meeting.box)
        self.meeting.barrier.wait(WAIT_S)
        return found

    def _exchange(self, out: Tensor, parts: Tensor) -> None:
        for here, theirs in zip(out, self._all(parts), strict=True):
            here.copy_(theirs[self.index])

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """As of the base."""
        everything = torch.stack(self._all(x))
        return x.copy_(everything.amax(0) if op == dist.ReduceOp.MAX else everything.sum(0))


def as_members(degree: int, work: Callable[[DeviceGroup], Result], sharding: Sharding = "tensor") -> Sequence[Result]:
    """What each member of a group returns, by its number; the first error of any is raised."""
    meeting = _Meeting(degree)
    groups = [MemberThread(index, degree, 0, None, None, sharding, meeting) for index in range(degree)]

    def done(group: DeviceGroup) -> Result:
        try:
            return work(group)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(degree) as threads:
        futures = [threads.submit(done, group) for group in groups]
        broken = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(broken, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]
