"""A trainer as a process: reads micro-batches and sends them into the first stage."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np

from hetplanner.elastic.peer.trainer import Trainer
from hetplanner.elastic.protocol.messages import CoordinatorToTrainer, Send, Work, Worked, WorkFailed
from hetplanner.elastic.protocol.peer_events import CancelWork, SendWork
from hetplanner.errors import InvalidInput
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.swarm.driver import Driver, now_s
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.certificates import Credentials
from hetplanner.swarm.wire.frames import Frame


class TrainerProcess(Driver):
    """One trainer.

    Args:
        name: unique to the process.
        spec: of the run.
        coordinator: its address.
        credentials: of the swarm; None on loopback.
        slots: micro-batches under way at once.
        seed: for ties in wiring.
        proxy: see Endpoint.
    """

    takes = get_args(CoordinatorToTrainer)

    def __init__(
        self,
        name: str,
        spec: SwarmSpec,
        coordinator: str,
        credentials: Credentials | None,
        slots: int,
        seed: int | None = None,
        proxy: str = "",
    ) -> None:
        super().__init__(credentials, spec.max_part_bytes, proxy=proxy)
        self.name, self.spec, self._coordinator = name, spec, coordinator
        self._batches: Batches = open_batches(spec.train, spec.workload, in_one_text=True)
        self.machine = Trainer(name, coordinator, spec.settings, slots, random.Random(seed))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._sent: dict[int, asyncio.Task[None]] = {}

    async def start(self, host: str, port: int = 0) -> str:
        """Listens. Returns the address."""
        return await self.endpoint.start(host, port)

    def handle(self, event: Any) -> None:
        """See Driver."""
        if self.ends_with(event):
            return
        for action in self.machine.handle(event, now_s()):
            match action:
                case Send(address=address, message=message):
                    self.tell(address, message)
                case SendWork():
                    self._sent[action.work.call] = self.spawn(self._send_work(action))
                case CancelWork(call=call):
                    if (task := self._sent.pop(call, None)) is not None:
                        task.cancel()

    async def _send_work(self, action: SendWork) -> None:
        work = action.work
        until_s = time.monotonic() + work.budget_s
        try:
            loop = asyncio.get_running_loop()
            parts = await loop.run_in_executor(self._reader, self._read, work.version.step, work.micro_batch)
            left_s = until_s - time.monotonic()
            await self.exchange(action.address, work, parts, left_s, self._check_answer, self._coordinator)
        finally:
            self._sent.pop(work.call, None)

    def _read(self, step: int, micro_batch: int) -> tuple[bytes, bytes]:
        inputs, labels, _ = self._batches.draw(step, micro_batch)
        return inputs.numpy().astype(np.int32).tobytes(), labels.numpy().astype(np.int32).tobytes()

    async def _check_answer(self, work: Work, frame: Frame) -> None:
        message = frame.message
        if not isinstance(message, Worked | WorkFailed) or message.call != work.call or frame.parts:
            raise InvalidInput(f"answer: must be to call {work.call}, got {type(message).__name__}")
