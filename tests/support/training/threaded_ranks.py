"""All ranks of a plan as threads of this process, over mailboxes instead of a network: weights can be looked at."""

import queue
import threading
from contextlib import suppress

import torch

from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.transport import HEADER_BYTES
from hetplanner.runtime.comm.wire import CPU
from hetplanner.runtime.model.chunk import build_chunks
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.executor import Executor
from tests.support.processes.patience import HANG_S


class Mailboxes(dict):
    """A queue under every name; of two threads that ask for a new one both get the same."""

    def __init__(self):
        self.making = threading.Lock()

    def __getitem__(self, name):
        with self.making:
            return self.setdefault(name, queue.Queue())


class MailTransport:
    """The transport's interface between threads; what was sent must be what the receiver expects."""

    emulator, num_held, num_posted, device = None, 0, 0, CPU

    def __init__(self, rank, messages):
        self.rank, self.messages, self.sent_bytes, self.announced = rank, messages, 0, []

    def buffer(self, num_bytes, topic=None):
        return torch.empty(HEADER_BYTES + num_bytes, dtype=torch.uint8)

    def payload(self, message):
        return message[HEADER_BYTES:]

    def expect(self, messages):
        self.announced.extend(messages)

    def send(self, message, peer, topic, index):
        assert self.messages[self.rank, peer, topic, index].empty(), "two messages under one name"
        self.messages[self.rank, peer, topic, index].put(message.clone())
        self.sent_bytes += message.numel() - HEADER_BYTES

    def receive(self, expected):
        with suppress(ValueError):
            self.announced.remove(expected)
        name = (expected.peer, self.rank, expected.topic, expected.index)
        data = self.messages[name].get(timeout=HANG_S)[HEADER_BYTES:]
        assert data.numel() == expected.num_bytes
        return data

    def release(self, delivered):
        pass

    def end_step(self):
        assert not self.announced, "announced and never taken"


class Silent:
    """Telemetry that nobody reads."""

    def span(self, *args, **options):
        pass


class ThreadedRanks:
    """Executors of all ranks of a plan."""

    def __init__(self, plan: Plan, config: TrainConfig) -> None:
        messages, batches = Mailboxes(), open_batches(config, plan.problem.workload)
        self.plan = plan
        self.executors = [
            Executor(
                plan,
                r,
                config,
                build_chunks(plan, r, config),
                MailTransport(r, messages),
                batches,
                Silent(),
                batches.orders["train"],
            )
            for r in range(len(plan.ranks))
        ]

    def run_step(self, step: int) -> float:
        """One step on all ranks; the mean loss."""
        stats = self.each(lambda executor: executor.run_step(step))
        return sum(s.loss_sum or 0.0 for s in stats) / sum(s.num_tokens for s in stats)

    def each(self, work):
        """Does something on all ranks at once; their answers."""
        answers = {}
        threads = [
            threading.Thread(target=lambda r=r, e=e: answers.__setitem__(r, work(e)))
            for r, e in enumerate(self.executors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == len(threads), "a rank failed"
        return [answers[r] for r in range(len(threads))]

    def weights(self, stage: int) -> list[torch.Tensor]:
        """The flat weights of a stage, by replica."""
        ranks = [self.plan.rank_at(stage, r) for r in range(len(self.plan.stages[stage].replicas))]
        return [self.executors[r].chunk_of(stage).model.flat.detach().clone() for r in ranks]

    def tied(self, stage: int, owner: str) -> list[torch.Tensor]:
        """The copies of a weight tied across stages, by replica of a stage."""
        model = self.executors[self.plan.rank_at(stage, 0)].chunk_of(stage).model
        return [flat[slice(*model.tied[owner])] for flat in self.weights(stage)]
