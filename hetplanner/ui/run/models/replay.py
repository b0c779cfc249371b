"""Which steps the per-rank timeline shows: the newest as they come, or earlier ones."""

from typing import Any

import param

from hetplanner.plan.trace import Trace
from hetplanner.runs.reading.reader import RunReader


class ReplayModel(param.Parameterized):
    """Follows the newest steps until a person pauses or scrolls back."""

    following = param.Boolean(default=True)
    step = param.Integer(default=0, bounds=(0, None), doc="The latest step shown.")
    count = param.Integer(default=3, bounds=(1, 20), doc="Steps shown at once.")
    last = param.Integer(default=0, doc="The latest step there is.")
    changed = param.Event()

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.reader: RunReader | None = None
        self.trace: Trace | None = None
        self._moving = False
        self.param.watch(self._scrolled, "step")
        self.param.watch(self._shown, "count")
        self.param.watch(self._toggled, "following")

    def open(self, reader: RunReader | None) -> None:
        """Shows another run, its newest steps first."""
        self.reader, self.trace = reader, None
        self._move(0)
        self.last, self.following = 0, True
        self.param.trigger("changed")

    def news(self) -> None:
        """There may be new steps: takes them if the user has not scrolled back."""
        steps = self.reader.steps() if self.reader is not None else []
        if not steps:
            return
        self.last = steps[-1].step
        if self.following and (self.trace is None or self.step != self.last):
            self._move(self.last)
            self._shown()

    def earlier(self) -> None:
        """As many steps back as are shown."""
        self.step = max(self.count - 1, self.step - self.count)

    def later(self) -> None:
        """As many steps on; at the end the newest are followed again."""
        if self.step + self.count >= self.last:
            self.following = True
        else:
            self.step += self.count

    def _move(self, step: int) -> None:
        self._moving = True
        self.step = step
        self._moving = False

    def _scrolled(self, *_: Any) -> None:
        if not self._moving:
            self.following = False
            self._shown()

    def _toggled(self, event: Any) -> None:
        if event.new and self.step != self.last:
            self._move(self.last)
            self._shown()

    def _shown(self, *_: Any) -> None:
        if self.reader is None:
            return
        trace = self.reader.trace(self.count, until=self.step)
        if trace.spans or self.trace is not None:
            self.trace = trace
            self.param.trigger("changed")
