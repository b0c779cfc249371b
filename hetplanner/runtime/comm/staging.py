"""Copies between a GPU and pinned host memory, on streams of their own: the GPU goes on computing beside them.

gloo reads and writes host memory. A message is copied there once the GPU has computed it, and a thread hands it to
gloo when the copy is done: the rank meanwhile begins the work that follows.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

import torch
from torch import Tensor


class Work(Protocol):
    """What is under way: the part of torch's `Work` that is used here."""

    def wait(self) -> object:
        """Until it is done. Raises RuntimeError: the other rank is lost."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way."""

    delivered: Event

    def wait(self) -> None:
        """Until the message is delivered, or its receiver is lost."""
        self.delivered.wait()


class Deliveries:
    """A thread that waits for sends one after the other and lets go of their buffers.

    gloo does not tell whether a send is complete except by waiting for it, which must never hold a rank up. Without
    the thread the buffers of a reduction, as large as the weights, would be there until the end of the next step.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Work, Tensor, Event]] = SimpleQueue()
        Thread(target=self._run, name="deliveries", daemon=True).start()

    def add(self, work: Work, message: Tensor, delivered: Event | None = None) -> Delivery:
        """Keeps the message until it is delivered."""
        delivered = delivered or Event()
        self._queue.put((work, message, delivered))
        return Delivery(delivered)

    def _run(self) -> None:
        while True:
            self._wait(*self._queue.get())

    @staticmethod
    def _wait(work: Work, message: Tensor, delivered: Event) -> None:
        with suppress(RuntimeError):  # the peer is lost, which this rank learns when it waits for its messages
            work.wait()
        delivered.set()


@dataclass(frozen=True, slots=True)
class _Copy:
    """A message on its way to host memory; it keeps the GPU's memory until the copy is done."""

    message: Tensor
    staged: Tensor
    done: torch.cuda.Event
    begin: Callable[[Tensor], Work]
    delivered: Event


class Staging:
    """The copies of one GPU.

    Args:
        device: the GPU.
        deliveries: takes what is handed to gloo.
    """

    def __init__(self, device: torch.device, deliveries: Deliveries) -> None:
        self._device, self._deliveries = device, deliveries
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._queue: SimpleQueue[_Copy] = SimpleQueue()
        Thread(target=self._run, name="staging", daemon=True).start()

    def send(self, message: Tensor, begin: Callable[[Tensor], Work]) -> Delivery:
        """Copies a message to host memory when the current stream has computed it.

        Args:
            message: on the GPU; nothing may change it any more.
            begin: hands the copy to gloo; another thread calls it.
        """
        staged = torch.empty(message.numel(), dtype=torch.uint8, pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            staged.copy_(message, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        copy = _Copy(message, staged, done, begin, Event())
        self._queue.put(copy)
        return Delivery(copy.delivered)

    def to_device(self, data: Tensor) -> Tensor:
        """Bytes of pinned memory on the GPU; the current stream waits for them, this thread does not."""
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._in):
            here = data.to(self._device, non_blocking=True)
        current.wait_stream(self._in)
        here.record_stream(current)
        return here

    def _run(self) -> None:
        while True:
            self._hand_over(self._queue.get())

    def _hand_over(self, copy: _Copy) -> None:
        try:
            copy.done.synchronize()
            work = copy.begin(copy.staged)
        except RuntimeError:  # the peer is lost, see `Deliveries`
            copy.delivered.set()
            return
        self._deliveries.add(work, copy.staged, copy.delivered)
