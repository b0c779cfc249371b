"""Checkpoints that are written beside the steps: one thread copies the state, another one writes the copy.

The copy is made while the next micro-batches compute. The optimizer waits for it before it changes a weight. The thread
that writes has a lower priority. What ranks tell each other about a checkpoint goes through a group of its own.

`torch.distributed.checkpoint.async_save` does not fit. It finishes a checkpoint on one rank, where every host has a
folder to finish. It keeps a pickle beside the tensors. Its stagers copy before the next step may begin, and importing
them takes every rank 0.7 s.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.liveness.priority import work_in_background_thread
from hetplanner.runtime.comm.connect import HUNG_PEER_S

Result = TypeVar("Result")


class Background(Generic[Result]):
    """One rank's threads, with memory for one copy of its state. All ranks must make it at once.

    Attributes:
        group: of all ranks; only the thread that writes uses it.
        waited_s: for the last copy.
    """

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=HUNG_PEER_S))
        self._copies: dict[str, Tensor] = {}
        # The optimizer waits for the copy, so that has the priority of the steps.
        self._copier = ThreadPoolExecutor(1, "checkpoint-copy")
        self._writer = ThreadPoolExecutor(1, "checkpoint-write", initializer=work_in_background_thread)
        self.waited_s = 0.0
        self._copying: Future[None] | None = None
        self._writing: Future[Result] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is something that goes on."""
        return self._writing is not None and not self._writing.done()

    def begin(self, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], Result]) -> None:
        """Copies tensors to main memory, then writes them. What was begun before must have been taken.

        Args:
            tensors: the same ones each time; they must not change before `wait_for_copy` returns.
            write: called in a thread with the copies, which are its own until it returns.
        """
        assert self._writing is None
        self.waited_s = 0.0
        self._copying = copying = self._copier.submit(self._copy, tensors)

        def write_copies() -> Result:
            copying.result()
            return write(self._copies)

        self._writing = self._writer.submit(write_copies)

    def wait_for_copy(self) -> None:
        """Until the tensors may change."""
        if self._copying is not None:
            began_s = time.monotonic()
            self._copying.exception()
            self._copying, self.waited_s = None, time.monotonic() - began_s

    def take(self) -> Result | None:
        """Waits for what `write` returns, and gives it once; None: nothing was begun. Raises what it has raised."""
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def check(self) -> None:
        """Raises what `write` has raised, if it has."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name not in self._copies:
                self._copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._copies[name].copy_(tensor.detach())
