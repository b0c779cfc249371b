"""Links of the plan emulated between processes of one machine, by the simulator's own rule.

The sender books the transfer on clocks that all ranks share (a memory-mapped file under a lock) and stamps the
arrival time into the message; the receiver holds the message until then. Both read the machine's monotonic clock.
A message that really arrives after its stamp is *late*: the machine could not keep up with the link it emulates.
"""

import fcntl
import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np

from hetplanner.plan.model import Plan
from hetplanner.simulator.network import NetworkClock

CLOCK_FILE = "emulation.clocks"
LATE_S = 0.5e-3
"""Deliveries that miss their stamp by less than this are the operating system's wake-up time, not counted."""


def create_clocks(plan: Plan, run_dir: Path) -> None:
    """Writes the clock file, all links free. One rank calls it before the others open it."""
    (run_dir / CLOCK_FILE).write_bytes(bytes(8 * NetworkClock.num_clocks(plan)))


class LinkEmulator:
    """One rank's access to the shared clocks.

    Attributes:
        draining: when set, nothing is delayed any more and held messages are let go (a stop was asked for).
        late, late_s: deliveries after their stamp since `take_lateness`, and by how much in sum.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self.draining = threading.Event()
        self.late, self.late_s = 0, 0.0
        self._fd = os.open(run_dir / CLOCK_FILE, os.O_RDWR)
        self._map = mmap.mmap(self._fd, 8 * NetworkClock.num_clocks(plan))
        self._clock = NetworkClock(plan, np.frombuffer(self._map, dtype=np.float64))

    def book(self, source: int, target: int, num_bytes: int) -> tuple[float, float]:
        """Books a transfer that is ready now; (start, arrival) on the monotonic clock."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            return self._clock.reserve(time.monotonic(), source, target, num_bytes)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def hold(self, arrival_s: float, asked_s: float) -> float:
        """Waits until a message that is here may be seen. Returns by how many seconds it was late, else 0.

        Args:
            arrival_s: its stamp.
            asked_s: when the receiver began to wait for it.
        """
        now = time.monotonic()
        if now < arrival_s:
            self.draining.wait(arrival_s - now)
        # One that was asked for after its stamp, and was there at once, was not late.
        elif (by := now - max(arrival_s, asked_s)) > LATE_S and not self.draining.is_set():
            self.late += 1
            self.late_s += by
            return by
        return 0.0

    def take_lateness(self) -> tuple[int, float]:
        """Late deliveries and their sum of seconds since the last call."""
        taken = self.late, self.late_s
        self.late, self.late_s = 0, 0.0
        return taken
