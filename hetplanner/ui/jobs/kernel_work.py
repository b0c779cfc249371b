"""The planners' kernels that are not compiled yet, and the process that compiles them while people look around."""

import json
import sys
import threading
from collections.abc import Sequence

from hetplanner.ui.jobs.child import Child


class KernelWork:
    """Compiles what is missing in a niced process of its own, once; `ready` counts up to `total` (0: nothing known)."""

    def __init__(self) -> None:
        self.ready = self.total = 0
        self._child: Child | None = None
        self._lock = threading.Lock()

    def begin(self, missing: Sequence[str], total: int) -> None:
        """Starts the process, unless nothing is missing or it was started before."""
        with self._lock:
            if self._child is not None or not missing:
                return
            self.ready, self.total = total - len(missing), total
            self._child = Child([sys.executable, "-m", "hetplanner.planners.search.kernel_parts", *missing])
        threading.Thread(target=self._read, daemon=True, name="kernel-reader").start()

    @property
    def is_going_on(self) -> bool:
        """Whether kernels are being compiled."""
        return self._child is not None and self.ready < self.total and self._child.alive

    @property
    def text(self) -> str:
        """'preparing kernels 3 of 6', empty where none are being prepared."""
        return f"preparing kernels {self.ready + 1} of {self.total}" if self.is_going_on else ""

    @property
    def share(self) -> float:
        """Share of the parts that are ready."""
        return self.ready / self.total if self.total else 1.0

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.kill()

    def _read(self) -> None:
        assert self._child is not None
        for line in self._child.stdout:
            if "ready" in json.loads(line):
                self.ready += 1
        self._child.process.wait()
