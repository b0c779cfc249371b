"""Tokens that members collect for a product are not kept for its backward: they are collected again.

torch keeps the factors of a product until its backward. Of collected tokens each member keeps its own instead, so
that what a group keeps does not grow with its members.

Source: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor


@dataclass(slots=True)
class _Collected:
    """Tokens that were collected once; `uses` backward calls want them again."""

    part: Tensor
    collect: Callable[[Tensor], Tensor]
    uses: int = 0
    whole: Tensor | None = None

    def again(self) -> Tensor:
        """All tokens; dropped behind the last use."""
        whole = self.collect(self.part) if self.whole is None else self.whole
        self.uses -= 1
        self.whole = whole if self.uses else None
        return whole


@dataclass(frozen=True, slots=True)
class _View:
    collected: _Collected
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Regathering:
    """What a stage's forward has collected and is still there."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[ref[Tensor], _Collected]] = {}

    def note(self, whole: Tensor, part: Tensor, collect: Callable[[Tensor], Tensor]) -> None:
        """Tells that `whole` is `collect(part)`."""
        self._live[whole.untyped_storage().data_ptr()] = ref(whole), _Collected(part.detach(), collect)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside, a backward's factors that were collected are kept as the member's own part."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            try:
                yield
            finally:
                self._live.clear()

    def _pack(self, tensor: Tensor) -> Tensor | _View:
        whole, collected = self._live.get(tensor.untyped_storage().data_ptr(), (None, None))
        if whole is None or collected is None or whole() is None:
            return tensor
        collected.uses += 1
        return _View(collected, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    @staticmethod
    def _unpack(kept: Tensor | _View) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return kept.collected.again().as_strided(kept.size, kept.stride, kept.offset)
