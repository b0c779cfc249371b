"""Lower priority for work in the background. No torch."""

import contextlib
import os
import sys
import threading
from pathlib import Path

NICENESS = 10
AUTOGROUP = Path("/proc/self/autogroup")


def work_in_background(autogroup: Path = AUTOGROUP) -> None:
    """Gives this process a lower priority than the processes that answer a person.

    Linux shares the processors between sessions first (`sched_autogroup`, see sched(7)), and niceness counts only
    inside one. A process with a session of its own therefore lowers the priority of the session, too.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # a kernel without autogroups, or another system
        if os.getsid(0) == os.getpid():
            autogroup.write_text(f"{NICENESS}")


def work_in_background_thread() -> None:
    """Gives the thread that calls it a lower priority than the others of its process; on Linux."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + NICENESS)
