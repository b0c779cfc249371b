"""Micro-batches as tensors, from any kind of data (`hetplanner.data`).

Shape legend: B samples of a micro-batch, T tokens, C channels, H height, W width.
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hetplanner.data.interface import Source, Split
from hetplanner.data.order import SampleOrder
from hetplanner.data.registry import open_data
from hetplanner.data.tasks import inputs_and_labels
from hetplanner.plan.train import TrainConfig
from hetplanner.workload.program import Program
from hetplanner.workload.task import Continuation, HiddenTokens
from hetplanner.workload.workload import Workload

VALIDATION_SEED = 0
"""Validation takes the same samples whatever the run's seed is, so that runs can be compared."""


COMPARED_SAMPLES = 16
"""Of a split, by which hosts find out whether they read the same data."""


@dataclass(frozen=True)
class Batches:
    """Draws micro-batches; micro-batch m of step t is a pure function of (seed, t, m), whatever the plan.

    Attributes:
        source: opened data.
        seed: of the order.
        micro_batch: samples in one.
        num_micro_batches: micro-batches of a step over all replicas.
        program: of a captured model; its task makes inputs and labels of token windows.
    """

    source: Source
    seed: int
    micro_batch: int
    num_micro_batches: int
    program: Program | None = None

    def draw(
        self, step: int, micro_batch: int, split: Split = "train", *, reads: Container[str] = ("inputs", "labels")
    ) -> tuple[Tensor, Tensor]:
        """Inputs (int64 [B, T] or float32 [B, C, H, W]) and labels (int64 [B, T] or [B]) of one micro-batch.

        Args:
            step, micro_batch: which; micro-batches are numbered over all replicas.
            split: training or validation.
            reads: what is needed of the two; the other is empty, and no file is touched for it.
        """
        ids_B = self.sample_ids(step, micro_batch, split)
        if self.program is not None and self.program.task is not None:
            return self._posed(self.program.task, self.program.num_targets, split, step, ids_B)
        inputs = torch.from_numpy(self.source.inputs(split, ids_B)) if "inputs" in reads else torch.empty(0)
        labels = torch.from_numpy(self.source.labels(split, ids_B)) if "labels" in reads else torch.empty(0)
        return inputs, labels

    def _posed(
        self, task: HiddenTokens | Continuation, num_targets: int, split: Split, step: int, ids_B: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        seed = self.seed if split == "train" else VALIDATION_SEED
        window = self.source.inputs(split, ids_B)
        made = inputs_and_labels(task, window, num_targets=num_targets, seed=seed, step=step, ids_B=ids_B)
        return torch.from_numpy(made[0]), torch.from_numpy(made[1])

    def sample_ids(self, step: int, micro_batch: int, split: Split = "train") -> np.ndarray:
        """Which samples these are [B] (int64): one id is one sample for ever, and returns once an epoch."""
        return self.orders[split].ids(step, micro_batch)

    def sample_bytes(self) -> bytes:
        """Numbers of samples and some of them: the same on hosts whose data are the same, and hardly ever else."""
        parts = []
        for split in ("train", "validation"):
            count = self.source.num_samples(split)
            ids_B = np.unique(np.linspace(0, count - 1, COMPARED_SAMPLES).astype(np.int64))
            inputs, labels = self.source.inputs(split, ids_B), self.source.labels(split, ids_B)
            parts += [str(count).encode(), inputs.tobytes(), labels.tobytes()]
        return b" ".join(parts)

    @cached_property
    def orders(self) -> dict[Split, SampleOrder]:
        """Which samples a micro-batch takes, by split."""
        seeds: dict[Split, int] = {"train": self.seed, "validation": VALIDATION_SEED}
        return {
            split: SampleOrder(self.source.num_samples(split), seed, self.micro_batch, self.num_micro_batches)
            for split, seed in seeds.items()
        }


def open_batches(config: TrainConfig, workload: Workload) -> Batches:
    """The micro-batches of a run. Raises InvalidInput when its data does not fit the workload."""
    source = open_data(config.data, workload)
    return Batches(source, config.seed, workload.micro_batch, workload.num_micro_batches, workload.program)
