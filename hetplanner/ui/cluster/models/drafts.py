"""Drafts: the history of one edited cluster, kept by the server so that a reload finds it again.

Two pages may have the same draft open (its id stands in the address). Every change counts its version up; a page
that has not seen the newest version may not build upon what it shows, so that no edit is lost unsaid.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from hetplanner.cluster.model import Cluster

MAX_STEPS = 100
MAX_WEIGHT = 600_000
"""Most devices and links in the steps of a draft, all steps together: two clusters of 512 devices with every link
given one by one, thousands of the usual ones."""
MAX_DRAFTS = 64
MAX_TOTAL_WEIGHT = 2_000_000

_DERIVED = tuple(name for name, value in vars(Cluster).items() if isinstance(value, cached_property))


@dataclass(frozen=True)
class Step:
    """A state of the draft, and in words what led to it. No cluster: nothing is drawn yet."""

    cluster: Cluster | None
    excluded: tuple[str, ...] = ()
    words: str = ""

    @property
    def weight(self) -> int:
        """Devices and links it holds."""
        return 1 + (len(self.cluster.devices) + len(self.cluster.links) if self.cluster is not None else 0)

    def without_matrices(self) -> "Step":
        """The same, without what the cluster derives when asked: matrices of old steps would fill the memory."""
        if self.cluster is None:
            return self
        lean = self.cluster.model_copy()
        for name in _DERIVED:
            lean.__dict__.pop(name, None)
        return Step(lean, self.excluded, self.words)


class Draft:
    """Steps, where one stands among them, and how often that changed."""

    def __init__(self, first: Step, draft_id: str = "") -> None:
        self.id = draft_id or secrets.token_urlsafe(9)
        self.steps = [first]
        self.at = 0
        self.version = 0
        self.said = ""
        """The newest change in words."""
        self.lock = threading.RLock()

    @property
    def step(self) -> Step:
        """Where one stands."""
        return self.steps[self.at]

    @property
    def weight(self) -> int:
        """Devices and links of all steps."""
        return sum(step.weight for step in self.steps)

    def push(self, step: Step) -> None:
        """A new step; what had been undone is forgotten, and so are the oldest steps beyond the limits."""
        self.steps = [*self.steps[: self.at + 1], step]
        while len(self.steps) > 2 and (len(self.steps) > MAX_STEPS or self.weight > MAX_WEIGHT):
            del self.steps[0]
            self.at -= 1
        self._stand(len(self.steps) - 1, step.words)

    def undo(self) -> str:
        """One step back; what was undone, in words ('' if there is nothing)."""
        words = self.step.words
        if self.at == 0:
            return ""
        self._stand(self.at - 1, f"undone: {words}")
        return words

    def redo(self) -> str:
        """One step forth; what was done again, in words ('' if there is nothing)."""
        if self.at + 1 == len(self.steps):
            return ""
        self._stand(self.at + 1, f"done again: {self.steps[self.at + 1].words}")
        return self.step.words

    def _stand(self, at: int, said: str) -> None:
        self.steps[self.at] = self.step.without_matrices()
        self.at, self.said = at, said
        self.version += 1


class Files(Protocol):
    """Where drafts outlive the server; `hetplanner.ui.cluster.models.draft_files.DraftFiles` in the app."""

    def note(self, draft: Draft) -> None:
        """A draft has changed."""
        ...

    def load(self, draft_id: str) -> Draft | None:
        """A draft as it was last written."""
        ...


class DraftStore:
    """The drafts of this server by id; the one untouched for longest goes first.

    Args:
        files: where they are also kept, and found again; None keeps them in memory alone.
    """

    def __init__(self, most: int = MAX_DRAFTS, most_weight: int = MAX_TOTAL_WEIGHT, files: Files | None = None) -> None:
        self._most, self._most_weight, self._files = most, most_weight, files
        self._drafts: OrderedDict[str, Draft] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, draft: Draft) -> None:
        """Keeps a draft that has changed, or marks it as used just now."""
        if self._files is not None:
            self._files.note(draft)
        with self._lock:
            self._drafts[draft.id] = draft
            self._drafts.move_to_end(draft.id)
            while len(self._drafts) > 1 and (
                len(self._drafts) > self._most or sum(d.weight for d in self._drafts.values()) > self._most_weight
            ):
                self._drafts.popitem(last=False)

    def get(self, draft_id: str) -> Draft | None:
        """A draft by its id, or None. One of an earlier server comes without its history."""
        with self._lock:  # two pages must not read two
            if draft_id not in self._drafts and self._files is not None:
                found = self._files.load(draft_id)
                if found is not None:
                    self._drafts[draft_id] = found
            return self._drafts.get(draft_id)
