"""How long tests wait: until it is there. Limits stand for a hang, or grow with what else the machine does."""

import os
import time
from collections.abc import Callable

# Nothing that goes on takes so long, however busy the machine.
HANG_S = 600.0


def until(
    condition: Callable[[], object], what: object = "what was waited for did not come", seconds: float = HANG_S
) -> None:
    """Returns once a condition holds; `what` is said, or asked, if that takes as long as a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)


def stretched(seconds: float) -> float:
    """A limit that holds on a quiet machine, times the processes that wait for each core of this one."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
