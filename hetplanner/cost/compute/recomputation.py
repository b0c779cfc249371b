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
from numpy.typing import NDArray

from hetplanner.workload.workload import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

INPUT_BYTES = 4.0
"""Of an element: inputs are kept in float32."""


class Recomputation:
    """Segments of a workload's stages.

    Args:
        workload: a captured model has no layers: each of its stages is one segment.

    Attributes:
        input_bytes_O: of one micro-batch's input of a segment that begins there.
        begin_o: by op, where its layer begins.
    """

    def __init__(self, workload: Workload) -> None:
        ops = workload.graph.ops
        self.input_bytes_O = np.array(workload.boundary_elements, dtype=np.float64) * INPUT_BYTES
        kept_o = np.array([op.activation_bytes for op in ops], dtype=np.float64) * workload.micro_batch
        self._kept_O = np.concatenate(([0.0], np.cumsum(kept_o)))
        begins = [workload.program is None and one.layer != two.layer for one, two in pairwise(ops)]
        self.begin_o = np.maximum.accumulate(np.where([True, *begins], np.arange(len(ops)), 0))
        is_begin_O = np.zeros(len(ops) + 1)
        is_begin_O[np.unique(self.begin_o)] = 1.0
        self._inputs_O = np.concatenate(([0.0], np.cumsum(is_begin_O * self.input_bytes_O)))

    def segments(self, first: int, end: int, in_flight: int) -> tuple[tuple[int, int], ...]:
        """First and end op of each segment of a stage that holds so many micro-batches."""
        if not self.is_by_layer(first, end, in_flight):
            return ((first, end),)
        begins = sorted({first, *(int(begin) for begin in self.begin_o[first:end] if begin > first)})
        return tuple(pairwise((*begins, end)))

    def is_by_layer(self, first: int, end: int, in_flight: int) -> bool:
        """Whether its layers are the segments: where they keep less."""
        return in_flight < self.below(first, end)

    def below(self, first: int, end: int) -> float:
        """With fewer micro-batches in flight than this the layers are the segments."""
        saved = self._kept_O[end] - self._kept_O[first] - self.largest(first, end, self._kept_O)
        more = self.inputs(first, end) - self.input_bytes_O[first]
        return float(saved / more) if more > 0 else 0.0

    def inputs(self, first: int, end: int) -> float:
        """Bytes of the inputs of a stage's layers, of one micro-batch."""
        return float(self.input_bytes_O[first] + self._inputs_O[end] - self._inputs_O[first + 1])

    def largest(self, first: int, end: int, kept_O: FloatArray, at_o: FloatArray | None = None) -> float:
        """The greatest of a stage's ops: `at_o` less what is kept in front of the op's segment.

        Args:
            first, end: the stage.
            kept_O: bytes kept before each boundary.
            at_o: by op; None: what is kept up to its end.
        """
        at_o = kept_O[1:] if at_o is None else at_o
        return float((at_o[first:end] - kept_O[np.maximum(self.begin_o[first:end], first)]).max())

    def largest_between(self, edges_K: IntArray, kept_O: FloatArray, at_o: FloatArray | None = None) -> FloatArray:
        """The same of stages between all pairs of cut points."""
        at_o = kept_O[1:] if at_o is None else at_o
        found_KK = np.zeros((len(edges_K), len(edges_K)))
        for k, first in enumerate(edges_K[:-1]):
            above_o = np.maximum.accumulate(at_o[first:] - kept_O[np.maximum(self.begin_o[first:], first)])
            found_KK[k, k + 1 :] = above_o[edges_K[k + 1 :] - first - 1]
        return found_KK

    def inputs_between(self, edges_K: IntArray) -> FloatArray:
        """`inputs` of stages between all pairs of cut points."""
        own_K = self.input_bytes_O[edges_K] - self._inputs_O[np.minimum(edges_K + 1, len(self._inputs_O) - 1)]
        return np.triu(own_K[:, None] + self._inputs_O[edges_K][None, :], 1)

    def below_between(self, edges_K: IntArray) -> FloatArray:
        """`below` of stages between all pairs of cut points."""
        kept_K = self._kept_O[edges_K]
        saved_KK = kept_K[None, :] - kept_K[:, None] - self.largest_between(edges_K, self._kept_O)
        more_KK = self.inputs_between(edges_K) - self.input_bytes_O[edges_K][:, None]
        return np.divide(saved_KK, more_KK, out=np.zeros_like(saved_KK), where=np.triu(more_KK > 0, 1))
