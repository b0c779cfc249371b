"""Checkpoints that are written beside the steps: a thread copies the state, then writes the copy.

The thread copies while the next micro-batches compute. The optimizer waits for the copy before it changes a weight.
What ranks tell each other about a checkpoint goes through a process group of its own.

`torch.distributed.checkpoint.async_save` does not fit. It finishes a checkpoint on one rank, where every host has a
folder to finish. It keeps a pickle beside the tensors. Its stagers copy before the next step may begin, and importing
them takes every rank 0.7 s.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.runtime.comm.connect import HUNG_PEER_S

Result = TypeVar("Result")


class Background(Generic[Result]):
    """One rank's thread, with memory for one copy of its state. All ranks must make it at once.

    Attributes:
        group: of all ranks; only the thread uses it.
    """

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=HUNG_PEER_S))
        self._copies: dict[str, Tensor] = {}
        self._copied = threading.Event()
        self._copied.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._work: Future[Result] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is something that goes on."""
        return self._work is not None and not self._work.done()

    def begin(self, tensors: Mapping[str, Tensor], write: Callable[[dict[str, Tensor]], Result]) -> None:
        """Copies tensors to main memory, then writes them. What was begun before must have been taken.

        Args:
            tensors: the same ones each time; they must not change before `wait_for_copy` returns.
            write: called in the thread with the copies, which are its own until it returns.
        """
        assert self._work is None
        self._copied.clear()
        self._work = self._thread.submit(self._perform, tensors, write)

    def wait_for_copy(self) -> None:
        """Until the tensors may change."""
        self._copied.wait()

    def take(self) -> Result | None:
        """What `write` has returned, once, as soon as it has; None: nothing was begun. Raises what it has raised."""
        work, self._work = self._work, None
        return None if work is None else work.result()

    def check(self) -> None:
        """Raises what `write` has raised, if it has."""
        if self._work is not None and self._work.done():
            self._work.result()

    def _perform(self, tensors: Mapping[str, Tensor], write: Callable[[dict[str, Tensor]], Result]) -> Result:
        try:
            for name, tensor in tensors.items():
                if name not in self._copies:
                    self._copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                self._copies[name].copy_(tensor.detach())
        finally:
            self._copied.set()
        return write(dict(self._copies))
