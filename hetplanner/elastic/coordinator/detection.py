"""Which peers have fallen silent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FailureDetector(Generic[Key]):
    """Signs of life against a limit of silence.

    Silence counts only while the detector itself looked: a coordinator that was stopped or starved finds old signs,
    which say nothing about the others.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard_s: dict[Key, float] = {}
        self._looked_s: float | None = None

    def hear(self, key: Key, now_s: float) -> None:
        """Takes a sign of life."""
        self._heard_s[key] = now_s

    def heard_s(self, key: Key) -> float:
        """When a key was heard last; before all time if it is not watched."""
        return self._heard_s.get(key, float("-inf"))

    def forget(self, key: Key) -> None:
        """Watches a key no longer."""
        self._heard_s.pop(key, None)

    def find_silent(self, now_s: float) -> list[Key]:
        """Peers that have been silent for too long, in the order of being heard first; call it regularly."""
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if gap_s > self._silence_s / 2:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        return [key for key, heard_s in self._heard_s.items() if now_s - heard_s > self._silence_s]
