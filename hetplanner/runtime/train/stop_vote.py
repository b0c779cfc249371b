"""All ranks agree after which step to end, at no cost on the critical path.

Every step starts a one-number maximum over all ranks of "what was asked for" and looks at it when the step ends:
by then it has long arrived, since no rank ends a step that others have not begun.
"""

import torch
import torch.distributed as dist

from hetplanner.runtime.watch import Request


class StopVote:
    """One vote per step; every rank gets the same answer for the same step."""

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def begin(self, request: Request) -> None:
        """Casts this rank's vote for the step that begins."""
        self._flag[0] = int(request)
        self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, async_op=True)

    def decided(self) -> Request:
        """What anyone had been asked for when the step began."""
        if self._work is not None:
            self._work.wait()
        return Request(int(self._flag[0]))
