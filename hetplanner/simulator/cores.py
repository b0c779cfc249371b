"""Compute slots that the ranks of a machine share: processor sharing, as an operating system gives it.

k tasks on c cores progress at rate min(1, c / k) each.
"""


class SharedCores:
    """Running compute tasks and the time the next one ends."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._left: dict[int, float] = {}
        self._now = 0.0

    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._left)) if self._left else 1.0

    def advance(self, now_s: float) -> None:
        """Lets all running tasks progress up to `now_s`."""
        if now_s > self._now:
            done = (now_s - self._now) * self._rate()
            for rank in self._left:
                self._left[rank] -= done
            self._now = now_s

    def start(self, now_s: float, rank: int, work_s: float) -> None:
        """Starts the one task of a rank; `work_s` is its time when it runs alone."""
        self.advance(now_s)
        self._left[rank] = work_s

    def finish(self, now_s: float, rank: int) -> None:
        """Takes out a task that has ended."""
        self.advance(now_s)
        del self._left[rank]

    def next_end(self) -> tuple[float, int] | None:
        """(time, rank) of the task that ends first if nothing else starts; None when idle."""
        if not self._left:
            return None
        rank = min(self._left, key=lambda r: (self._left[r], r))
        return self._now + max(0.0, self._left[rank]) / self._rate(), rank
