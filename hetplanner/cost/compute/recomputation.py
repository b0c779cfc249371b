"""What a stage that recomputes keeps: the input of each of its layers, or that of the stage alone.

By layers, a micro-batch keeps the input of each layer, and its backward computes one layer again at a time. As one
segment it keeps one input, and its backward computes the whole stage again. Both compute the forward twice. With few
micro-batches in flight layers take less memory, with many one segment does.

Source: Chen et al. 2016 (arXiv 1604.06174), section 3; the choice by micro-batches in flight is ours.

Legend of array suffixes: o ops, O op boundaries, K cut points.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.compute.sharded import gathering_bytes_o, summing_bytes
from hetplanner.workload.optimizers import ELEMENTWISE, FLOAT_BYTES, SLICE_ELEMENTS
from hetplanner.workload.transformer_graph import LOSS_ELEMENTS
from hetplanner.workload.workload import Workload

LOSS_BYTES = 16
"""Temporaries of the loss for each logit that is computed at once."""


class Recomputation:
    """What a micro-batch's backward needs, and the segments of stages that recompute.

    Args:
        workload: a captured model has no layers: each of its stages is one segment.
        members: of the largest group that divides samples: each gathers the matrix of a product; 0 where none does.
        times_o: by op, how often its tensors are there.

    Attributes:
        input_bytes_O: of one micro-batch's input of a segment that begins there, in float32.
        begin_o: by op, where its layer begins.
        working_o: bytes in the backward of each op beside what is kept. The gradient of a weight is there by itself
            before it is added, in the dtype of the product.
        update_o: bytes that the optimizer's step of each op needs beside its states, when nothing is kept.
    """

    def __init__(self, workload: Workload, members: int = 0, times_o: FloatArray | float = 1.0) -> None:
        ops = workload.graph.ops
        self.input_bytes_O = np.array(workload.boundary_elements, dtype=np.float64) * FLOAT_BYTES
        begins = [workload.program is None and one.layer != two.layer for one, two in pairwise(ops)]
        self.begin_o = np.maximum.accumulate(np.where([True, *begins], np.arange(len(ops)), 0))
        is_begin_O = np.zeros(len(ops) + 1)
        is_begin_O[np.unique(self.begin_o)] = 1.0
        self._inputs_O = _prefix(is_begin_O * self.input_bytes_O)
        self._kept_O = _prefix(np.array([op.activation_bytes for op in ops], dtype=np.float64) * workload.micro_batch)
        largest_o = np.array([op.largest_weight for op in ops], dtype=np.float64)
        of_weight_o = np.array([FLOAT_BYTES if op.kind == "embedding" else workload.dtype_bytes for op in ops])
        working_o = np.array([op.working_bytes for op in ops], dtype=np.float64) * workload.micro_batch * times_o
        if members:
            gathering_o = gathering_bytes_o(workload, members)
            self.working_o = working_o + np.maximum(largest_o * summing_bytes(members), gathering_o)
        else:
            self.working_o = working_o + largest_o * of_weight_o
        if workload.program is None:
            together = max(1, members)
            self.working_o[-1] += LOSS_BYTES * min(LOSS_ELEMENTS * together, workload.output_elements[-2])
            # In the head's backward the gradient of the logits stands where they were, which the loss keeps.
            self.working_o[-2] += ops[-1].activation_bytes * workload.micro_batch
        if workload.optimizer in ELEMENTWISE:
            largest_o = np.minimum(largest_o, SLICE_ELEMENTS)
        self._below: dict[tuple[int, int], float] = {}
        self.update_o = 2.0 * FLOAT_BYTES * largest_o

    def segments(self, first: int, end: int, in_flight: int) -> tuple[tuple[int, int], ...]:
        """First and end op of each segment of a stage that holds so many micro-batches."""
        if not self.is_by_layer(first, end, in_flight):
            return ((first, end),)
        begins = sorted({first, *(int(begin) for begin in self.begin_o[first:end] if begin > first)})
        return tuple(pairwise((*begins, end)))

    def is_by_layer(self, first: int, end: int, in_flight: int) -> bool:
        """Whether its layers are the segments: where that takes less memory."""
        return in_flight < self.below(first, end)

    def below(self, first: int, end: int) -> float:
        """With fewer micro-batches in flight than this the layers are the segments."""
        if (first, end) not in self._below:
            self._below[first, end] = self._compared(first, end)
        return self._below[first, end]

    def _compared(self, first: int, end: int) -> float:
        whole, layers = (self.backward(first, end, self._kept_O, by_layer=by_layer) for by_layer in (False, True))
        more = self.inputs(first, end) - self.input_bytes_O[first]
        return float((whole - layers) / more) if more > 0 else 0.0

    def below_between(self, edges_K: IntArray) -> FloatArray:
        """`below` of stages between all pairs of cut points."""
        whole_KK, layers_KK = (
            self.backward_between(edges_K, self._kept_O, by_layer=by_layer) for by_layer in (False, True)
        )
        more_KK = self.inputs_between(edges_K) - self.input_bytes_O[edges_K][:, None]
        return np.divide(whole_KK - layers_KK, more_KK, out=np.zeros_like(more_KK), where=np.triu(more_KK > 0, 1))

    def inputs(self, first: int, end: int) -> float:
        """Bytes of the inputs of a stage's layers, of one micro-batch."""
        return float(self.input_bytes_O[first] + self._inputs_O[end] - self._inputs_O[first + 1])

    def inputs_between(self, edges_K: IntArray) -> FloatArray:
        """`inputs` of stages between all pairs of cut points."""
        own_K = self.input_bytes_O[edges_K] - self._inputs_O[np.minimum(edges_K + 1, len(self._inputs_O) - 1)]
        return np.triu(own_K[:, None] + self._inputs_O[edges_K][None, :], 1)

    def largest(self, first: int, end: int, kept_O: FloatArray) -> float:
        """Bytes that one micro-batch keeps of the largest of a stage's layers.

        Args:
            first, end: the stage.
            kept_O: bytes kept before each boundary.
        """
        return float((kept_O[first + 1 : end + 1] - self._in_front(first, kept_O)[: end - first]).max())

    def backward(self, first: int, end: int, kept_O: FloatArray, *, by_layer: bool) -> float:
        """Most bytes of one micro-batch in its backward or of the update: of the stage, or of one of its layers."""
        in_front = self._in_front(first, kept_O)[: end - first] if by_layer else kept_O[first]
        at_o = kept_O[first + 1 : end + 1] + self.working_o[first:end]
        return float(max((at_o - in_front).max(), self.update_o[first:end].max()))

    def backward_between(self, edges_K: IntArray, kept_O: FloatArray, *, by_layer: bool) -> FloatArray:
        """`backward` of stages between all pairs of cut points."""
        at_o, found_KK = kept_O[1:] + self.working_o, np.zeros((len(edges_K), len(edges_K)))
        for k, first in enumerate(edges_K[:-1]):
            above_o = at_o[first:] - (self._in_front(first, kept_O) if by_layer else kept_O[first])
            most_o = np.maximum.accumulate(np.maximum(above_o, self.update_o[first:]))
            found_KK[k, k + 1 :] = most_o[edges_K[k + 1 :] - first - 1]
        return found_KK

    def _in_front(self, first: int, kept_O: FloatArray) -> FloatArray:
        """By op from `first` on: bytes kept in front of its layer, or of the stage that begins inside it."""
        return kept_O[np.maximum(self.begin_o[first:], first)]


def _prefix(values: FloatArray) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(values)))
