"""How far each rank's monotonic clock is from the first rank's, by messages there and back before the first step.

The shortest of several round trips bounds the error: half of it, whichever way took longer (Cristian 1989).
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.comm.transport import Topic, tag_of

ROUND_TRIPS = 8


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Seconds by which this rank's monotonic clock is ahead of rank 0's, and by how much that may be wrong."""

    ahead_s: float
    error_s: float


def clock_offset(rank: int, world_size: int) -> ClockOffset:
    """This rank's offset; every rank must call it at the same time."""
    if rank:
        return _ask_first_rank()
    for other in range(1, world_size):
        for i in range(ROUND_TRIPS):
            dist.recv(_blank(), other, tag=tag_of(Topic.PROBE, i))
            dist.send(torch.tensor([time.monotonic()], dtype=torch.float64), other, tag=tag_of(Topic.PROBE, i))
    return ClockOffset(0.0, 0.0)


def _ask_first_rank() -> ClockOffset:
    found = []
    for i in range(ROUND_TRIPS):
        sent_s = time.monotonic()
        dist.send(_blank(), 0, tag=tag_of(Topic.PROBE, i))
        answer = _blank()
        dist.recv(answer, 0, tag=tag_of(Topic.PROBE, i))
        back_s = time.monotonic()
        found.append(ClockOffset((sent_s + back_s) / 2 - float(answer[0]), (back_s - sent_s) / 2))
    return min(found[1:], key=lambda offset: offset.error_s)  # the first waited for its turn


def _blank() -> Tensor:
    return torch.zeros(1, dtype=torch.float64)
