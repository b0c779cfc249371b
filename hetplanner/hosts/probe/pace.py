"""How long a probe still takes, told from how long its rounds took so far."""

import math
import time
from collections.abc import Callable

from hetplanner.hosts.probe.measuring import Job
from hetplanner.units import short_seconds

STEP_S = 5
"""A time that is only estimated is told in steps of so much."""


class Pace:
    """Counts streams, since a round of links has more of them than a round of network cards.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent_s = 0.0
        self._before: tuple[float, int] | None = None

    def left_s(self, job: Job) -> float | None:
        """Seconds until all rounds are done; None as long as no stream was measured.

        Args:
            job: the round that begins now; each is told of once.
        """
        now_s = self._clock()
        if self._before is not None and job.streams_done > self._before[1]:
            self._spent_s += now_s - self._before[0]
        self._before = now_s, job.streams_done
        return self._spent_s / job.streams_done * job.streams_left if job.streams_done else None


def left_text(left_s: float | None) -> str:
    """'about 25 s left', or '' where that is not known."""
    return f"about {short_seconds(STEP_S * math.ceil(left_s / STEP_S))} left" if left_s else ""
