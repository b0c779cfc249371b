"""Bytes of live tensors, counted from outside: every storage that an operator makes, until it is freed."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class LiveBytes(TorchDispatchMode):
    """Counts inside of `with`.

    Attributes:
        now, peak: bytes of storages that were made inside and are alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, int] = {}

    def leave_out(self, *tensors: torch.Tensor) -> None:
        """Tensors that were there before."""
        for tensor in tensors:
            self._seen[tensor.untyped_storage()._cdata] = 0

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._seen.pop(key, None)
            self.now -= size

        weakref.finalize(storage, gone)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Performs the operator and counts its outputs."""
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._note, out)
        return out
