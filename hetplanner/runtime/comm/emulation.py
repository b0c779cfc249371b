"""Links of a cluster emulated between processes of one machine, by the simulator's own rule.

In a static run the sender books the transfer on clocks that all ranks share (a memory-mapped file under a lock) and
stamps the arrival time into the message; the receiver holds the message until then. Both read the machine's monotonic
clock.
A message that really arrives after its stamp is *late*: the machine could not keep up with the link it emulates.
"""

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hetplanner.atomic_files import write_whole
from hetplanner.cluster.model import Cluster
from hetplanner.simulator.network import NetworkClock

CLOCK_FILE = "emulation.clocks"
LATE_S = 0.5e-3
"""Deliveries that miss their stamp by less than this are the operating system's wake-up time, not counted."""


PATIENCE_S = 0.05
"""A process that holds the clocks for longer was stopped in the middle; the others stop waiting for it."""


def create_clocks(cluster: Cluster, devices: Sequence[str], run_dir: Path) -> None:
    """Writes the clock file, all links free. One process calls it before the others open it."""
    write_whole(run_dir / CLOCK_FILE, bytes(8 * NetworkClock.num_clocks(cluster, devices)))


class LinkEmulator:
    """One process's access to the shared clocks.

    Args:
        cluster: whose links are emulated.
        devices: ids of those that the ranks are on.
        run_dir: holds the clocks.

    Attributes:
        draining: when set, nothing is delayed any more and held messages are let go (a stop was asked for).
        late, late_s: deliveries after their stamp since `take_lateness`, and by how much in sum.
    """

    def __init__(self, cluster: Cluster, devices: Sequence[str], run_dir: Path) -> None:
        self.draining = threading.Event()
        self.late, self.late_s = 0, 0.0
        self._fd = os.open(run_dir / CLOCK_FILE, os.O_RDWR)
        self._map = mmap.mmap(self._fd, 8 * NetworkClock.num_clocks(cluster, devices))
        self._clock = NetworkClock(cluster, devices, np.frombuffer(self._map, dtype=np.float64))
        self._threads = threading.Lock()  # the file's lock is the whole process's

    def book(self, source: int, target: int, num_bytes: float, ready_s: float | None = None) -> tuple[float, float]:
        """Books a transfer; (start, arrival) on the monotonic clock.

        Args:
            source, target: ranks.
            num_bytes: of the message.
            ready_s: when the sender handed it over; None: now.
        """
        with self._locked():
            return self._clock.reserve(time.monotonic() if ready_s is None else ready_s, source, target, num_bytes)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            until_s = time.monotonic() + PATIENCE_S
            while not self._try_lock() and time.monotonic() < until_s:
                time.sleep(1e-4)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

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
