"""Changes instead of activations: both ends of a boundary remember every sample, and what travels is how its
activation differs from that memory, quantised. As training converges changes shrink, and the error with them.

Memories start as zeros, so the first visit carries the activation itself, with the plain codec's error, in as many
bytes as any other. Both ends add up the same decoded bytes in the same order and so remember the same; nothing is
saved in checkpoints, a resumed run starts from zeros on all ranks. Validation leaves memories alone.

The gain needs activations that move slowly from visit to visit: dropout in front of the boundary, or replicas that
take turns at a sample (each link remembers only what it carried itself), spoil it.

Shape legend: B samples of a micro-batch, E elements of one sample.

Source: Wang et al. 2022 (AQ-SGD, arXiv 2206.01299, algorithm 1); there the first visit is sent without compression.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hetplanner.codecs.torch_codecs import TensorCodec
from hetplanner.runtime.model.layout import crossing_tensors
from hetplanner.workload.workload import Workload

ROW_BYTES = 2
"""Memories are float16: rounding them adds to the next change, not to what is handed on."""


class SampleMemory:
    """The last decoded activation of every sample whose id is below `num_rows`; zeros before its first visit.

    Samples beyond it, and tensors that are not made of one part for each sample, are never remembered: what they
    "change" from is zero always. Which they are follows from sizes alone, so both ends agree.

    Args:
        workload: gives shapes.
        boundary: index of the first op behind it.
        num_samples: of the training data.
        most_bytes: that the memory may take.
        device: where activations are.
    """

    def __init__(
        self, workload: Workload, boundary: int, num_samples: int, most_bytes: int, device: torch.device
    ) -> None:
        size, first, column = workload.micro_batch, 0, 0
        self._spans: list[tuple[slice, slice]] = []  # of the flat tensor, and of a row
        for tensor in crossing_tensors(workload, boundary):
            if tensor.shape and tensor.shape[0] % size == 0:
                width = tensor.num_elements // size
                self._spans.append((slice(first, first + tensor.num_elements), slice(column, column + width)))
                column += width
            first += tensor.num_elements
        self.num_elements, self._size = first, size
        self.num_rows = min(num_samples, most_bytes // (ROW_BYTES * column)) if column else 0
        # Pages of zeros take no memory until they are written.
        blank = torch.from_numpy(np.zeros((self.num_rows, column), dtype=np.float16))
        self.row_NE = blank if device.type == "cpu" else blank.to(device)

    def recall(self, ids_B: np.ndarray) -> Tensor:
        """What is remembered of a micro-batch's samples, as one flat float32 tensor."""
        flat = torch.zeros(self.num_elements, device=self.row_NE.device)
        for known_E, place_E in self._places(ids_B, flat):
            place_E.copy_(known_E)
        return flat

    def remember(self, ids_B: np.ndarray, y: Tensor) -> None:
        """Takes the decoded activation. Of a sample that is there twice the last holds; what is no number is 0."""
        most = torch.finfo(torch.float16).max
        for known_E, place_E in self._places(ids_B, y):
            known_E.copy_(place_E).nan_to_num_(0.0, most, -most)

    def _places(self, ids_B: np.ndarray, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pieces of rows and where they are in the flat tensor. Sample by sample: rows are long, and indexing by
        tensors takes several times longer.
        """
        for of_flat, of_row in self._spans:
            place_BE = flat[of_flat].view(self._size, -1)
            for b, sample in enumerate(ids_B.tolist()):
                if sample < self.num_rows:
                    yield self.row_NE[sample, of_row], place_BE[b]


@dataclass(frozen=True)
class ChangeCodec:
    """One micro-batch's passage: a tensor codec of its changes.

    Attributes:
        codec: of changes.
        memory: this end's.
        ids_B: which samples these are.
    """

    codec: TensorCodec
    memory: SampleMemory
    ids_B: np.ndarray

    def encode(self, x: Tensor, out: Tensor) -> None:
        """Encodes what has changed, and remembers what the other end will."""
        known = self.memory.recall(self.ids_B)
        self.codec.encode(x.detach().reshape(-1) - known, out)
        self.memory.remember(self.ids_B, known.add_(self.codec.decode(out, x.numel())))

    def decode(self, data: Tensor, num_elements: int) -> Tensor:
        """Adds the change to what was remembered, and remembers the sum."""
        y = self.memory.recall(self.ids_B).add_(self.codec.decode(data, num_elements))
        self.memory.remember(self.ids_B, y)
        return y


@dataclass(frozen=True)
class ChangingEnd:
    """One end of a boundary whose codec has `delta`."""

    codec: TensorCodec
    memory: SampleMemory

    def visit(self, ids_B: np.ndarray) -> ChangeCodec:
        """The codec of one micro-batch."""
        return ChangeCodec(self.codec, self.memory, ids_B)
