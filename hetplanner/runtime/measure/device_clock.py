"""When a device does its work: a GPU does it behind the calls that begin it."""

import time
from collections.abc import Callable

import torch

Mark = float | torch.cuda.Event
"""A point of time: monotonic seconds, or where it is in a GPU's stream."""


class DeviceClock:
    """Takes marks before and after work.

    Args:
        device: that does the work.

    Attributes:
        is_late: whether marks are known only when the device has got there.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_late = device.type == "cuda"

    def mark(self) -> Mark:
        """When the device has done all that it was asked for so far."""
        if not self.is_late:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settled(self) -> Callable[[Mark], float]:
        """Waits until the device has done everything. Returns what tells the monotonic seconds of earlier marks."""
        now = self.mark()
        if not isinstance(now, float):
            now.synchronize()
        now_s = time.monotonic()

        def seconds(mark: Mark) -> float:
            if isinstance(mark, float):
                return mark
            assert not isinstance(now, float)
            return now_s - mark.elapsed_time(now) / 1e3

        return seconds
