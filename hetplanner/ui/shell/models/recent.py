"""What a person can go back to, as a page shows it: what one looks at does not change under the pointer."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import param

from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.shell.models.calls import Calls
from hetplanner.ui.shell.models.recent_files import KINDS, RecentEntry, RecentFiles
from hetplanner.ui.shell.models.session import Session

LOOK_EVERY_S = 5.0
TITLES = {"clusters": "Clusters", "searches": "Searches", "plans": "Kept plans", "runs": "Runs"}
EMPTY = {
    "clusters": "None drawn or opened yet.",
    "searches": "None yet; press Search.",
    "plans": "None yet; keep one on Plan.",
    "runs": "None yet; launch one on Run.",
}
READING = "Reading …"


class RecentModel(param.Parameterized):
    """Looks once after the page was made, and again while another page is in sight.

    Attributes:
        entries: entries by kind, newest first; None before the first look.
        room: entries that the longest list has room for; 0 where there is nothing to go back to.
    """

    entries = param.Dict(default=None, allow_None=True)
    room = param.Integer(default=0)

    def __init__(
        self,
        session: Session,
        service: SearchService,
        home: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._files = RecentFiles(service, home)
        self._calls = Calls(session)
        self._clock = clock
        self._due_s = clock()
        self._in_sight = True
        self.room = self._files.number()

    def beat(self, in_sight: bool) -> None:
        """Takes what was found, and looks again when it is time.

        Args:
            in_sight: whether a person looks at the list.
        """
        self._in_sight = in_sight
        self._calls.take()
        if not self._calls and not self._is_settled and self._clock() >= self._due_s:
            self._due_s = self._clock() + LOOK_EVERY_S
            self._calls.make(self._files.look, self._take, self._failed)

    @property
    def _is_settled(self) -> bool:
        return self._in_sight and self.entries is not None

    def _take(self, found: dict[str, tuple[RecentEntry, ...]]) -> None:
        if self._is_settled:
            return  # the person came back meanwhile
        if not self._in_sight:
            self.room = max(map(len, found.values()))
        self.entries = found

    def _failed(self, _: str) -> None:
        self._due_s = float("inf")  # the log has it; once is enough

    def columns(self) -> list[dict[str, Any]]:
        """What the card shows: for every kind its title, what it says without entries, and rows (key, name, words)."""
        found = self.entries or {}
        empty = READING if self.entries is None and self.room else ""
        return [
            {
                "kind": kind,
                "title": TITLES[kind],
                "empty": empty or EMPTY[kind],
                "rows": [_row(e) for e in found.get(kind, ())],
            }
            for kind in KINDS
        ]


def _row(entry: RecentEntry) -> dict[str, str]:
    words = " · ".join(filter(None, (entry.words, when_text(entry.at_s))))
    return {"key": entry.key, "name": entry.name, "words": words, "title": entry.title}


def when_text(unix_s: float, now_s: float | None = None) -> str:
    """'14:32' of today, '20 Nov 14:32' of this year, else '20 Nov 2025'; '' for a time that is not known."""
    if unix_s <= 0:
        return ""
    try:
        then, now = time.localtime(unix_s), time.localtime(now_s)
    except (ValueError, OverflowError, OSError):  # of a file that says so
        return ""
    today, this_year = then[:3] == now[:3], then[0] == now[0]
    return time.strftime("%H:%M" if today else "%d %b %H:%M" if this_year else "%d %b %Y", then)
