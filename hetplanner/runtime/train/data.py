"""Micro-batches as tensors, from any kind of data (`hetplanner.data`).

Shape legend: B samples of a micro-batch, T tokens, C channels, H height, W width.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hetplanner.data.documents import PackedDocuments
from hetplanner.data.held_out import HeldOut
from hetplanner.data.interface import Source, Split
from hetplanner.data.order import SampleOrder
from hetplanner.data.pairs import PairedDocuments
from hetplanner.data.registry import open_data, open_stream
from hetplanner.data.tasks import inputs_and_labels
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import Batch
from hetplanner.workload.program import Program
from hetplanner.workload.task import Continuation, HiddenTokens, Pairs
from hetplanner.workload.workload import Workload

PARTS = ("inputs", "labels", "documents")
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

    def draw(self, step: int, micro_batch: int, split: Split = "train", *, reads: Container[str] = PARTS) -> Batch:
        """One micro-batch; its documents only where the data knows them.

        Args:
            step, micro_batch: which; micro-batches are numbered over all replicas.
            split: training or validation.
            reads: what is needed of the parts; others are empty, and no file is touched for them.
        """
        ids_B = self.sample_ids(step, micro_batch, split)
        if self.program is not None and (task := self.made_of_windows) is not None:
            return self._with_task(task, self.program.num_targets, split, step, ids_B)
        inputs = torch.from_numpy(self.source.inputs(split, ids_B)) if "inputs" in reads else torch.empty(0)
        labels = torch.from_numpy(self.source.labels(split, ids_B)) if "labels" in reads else torch.empty(0)
        packed = self.packed
        knows_documents = isinstance(packed, PackedDocuments) or (
            isinstance(packed, HeldOut) and packed.knows_documents
        )
        if packed is None or isinstance(packed, PairedDocuments) or not knows_documents or "documents" not in reads:
            return Batch(inputs, labels)
        return Batch(inputs, labels, torch.from_numpy(packed.documents(split, ids_B)))

    @property
    def made_of_windows(self) -> HiddenTokens | Continuation | None:
        """A task whose inputs and labels are made of windows of one long text."""
        task = self.program.task if self.program is not None else None
        return None if isinstance(task, Pairs) else task

    @property
    def packed(self) -> PackedDocuments | PairedDocuments | HeldOut | None:
        """The data, where its samples differ in how many targets count; those that do not are IGNORED."""
        source = self.source
        if self.made_of_windows is not None:
            return None  # every sample has as many targets
        if isinstance(source, HeldOut) and source.counts_labels:
            return source
        return source if isinstance(source, PackedDocuments | PairedDocuments) else None

    def num_labels(self, step: int, micro_batches: Iterable[int], split: Split = "train") -> int:
        """Targets that count in micro-batches of a step; data that knows no documents has no others.

        Every rank comes to the same count from the order of the samples: nothing is sent for it.
        """
        packed = self.packed
        assert packed is not None
        return sum(packed.num_labels(split, self.sample_ids(step, m, split)) for m in micro_batches)

    @property
    def most_evaluated(self) -> int:
        """Global batches for validation without a sample twice; at least one."""
        return max(1, self.source.num_samples("validation") // (self.micro_batch * self.num_micro_batches))

    def num_labels_of_step(self, step: int) -> int:
        """Targets that count in the whole global batch."""
        return self.num_labels(step, range(self.num_micro_batches))

    def _with_task(
        self, task: HiddenTokens | Continuation, num_targets: int, split: Split, step: int, ids_B: np.ndarray
    ) -> Batch:
        seed = self.seed if split == "train" else VALIDATION_SEED
        window = self.source.inputs(split, ids_B)
        made = inputs_and_labels(task, window, num_targets=num_targets, seed=seed, step=step, ids_B=ids_B)
        return Batch(torch.from_numpy(made[0]), torch.from_numpy(made[1]))

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


def open_batches(config: TrainConfig, workload: Workload, *, in_one_text: bool = False) -> Batches:
    """The micro-batches of a run; with `in_one_text` documents are not told apart.

    Raises:
        InvalidInput: the data does not fit the workload, or marks answers where all is one text.
    """
    return _batches((open_stream if in_one_text else open_data)(config.data, workload), config, workload)


def open_held_out(config: TrainConfig, workload: Workload) -> Batches | None:
    """What a run is evaluated on, if that is other data than the validation split of its own. Raises InvalidInput."""
    if config.eval_data is None:
        return None
    return _batches(HeldOut(open_data(config.eval_data, workload)), config, workload)


def _batches(source: Source, config: TrainConfig, workload: Workload) -> Batches:
    return Batches(source, config.seed, workload.micro_batch, workload.num_micro_batches, workload.program)
