"""Pairs of a source and its target, for models of an encoder and a decoder: each document is a sample of its own.

A document's tokens in front of the first one to be learnt are the source, the others the target. Either is cut after T
tokens, and filled up with the model's padding, which no token of the encoder sees and no target is.

Shape legend: B samples of a micro-batch, T tokens of encoder and decoder each.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetplanner.data.documents import IGNORED, PADDING, Documents
from hetplanner.data.interface import Split
from hetplanner.data.need import TokenNeed
from hetplanner.data.windows import check_ids
from hetplanner.workload.task import Pairs


@dataclass(frozen=True)
class PairedDocuments:
    """Documents with answers of both splits, as pairs; a `Source`."""

    name: str
    need: TokenNeed
    task: Pairs
    train: Documents
    validation: Documents

    @property
    def length(self) -> int:
        """T."""
        return self.need.seq_len // 2

    def num_samples(self, split: Split) -> int:
        """Pairs of a split."""
        return self._of(split).num_documents

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """The source, then what the decoder reads: the start token and the target [B, 2T]; raises InvalidInput."""
        out_BT = np.full((len(ids_B), 2 * self.length), self.task.pad_token, dtype=np.int64)
        out_BT[:, self.length] = self.task.start_token
        for row_T, (source, target, _) in zip(out_BT, self._pairs(split, ids_B), strict=True):
            row_T[: len(source)] = source
            read = target[: self.length - 1]
            row_T[self.length + 1 : self.length + 1 + len(read)] = read
        check_ids(out_BT, self.need, self.name)
        return out_BT

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """The target [B, T], IGNORED behind its end and where it is not to be learnt; raises InvalidInput."""
        out_BT = np.full((len(ids_B), self.length), IGNORED, dtype=np.int64)
        for row_T, (_, target, learnt) in zip(out_BT, self._pairs(split, ids_B), strict=True):
            row_T[: len(target)] = np.where(learnt, target, IGNORED)
        check_ids(np.maximum(out_BT, PADDING), self.need, self.name)
        return out_BT

    def num_labels(self, split: Split, ids_B: np.ndarray) -> int:
        """Targets that count in these samples."""
        return sum(int(np.count_nonzero(learnt)) for _, _, learnt in self._pairs(split, ids_B))

    def check(self) -> None:
        """Compares ids with the vocabulary, and looks for something to learn. Raises InvalidInput."""
        for documents in (self.train, self.validation):
            documents.check(self.need, self.name)

    def _of(self, split: Split) -> Documents:
        return self.train if split == "train" else self.validation

    def _pairs(self, split: Split, ids_B: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(source, target, which of the target are to be learnt), each at most T."""
        documents, most = self._of(split), self.length
        assert documents.answers is not None
        for first, end in zip(documents.start_D[ids_B].tolist(), documents.start_D[ids_B + 1].tolist(), strict=True):
            learnt = documents.answers[first:end] != 0
            cut = int(learnt.argmax()) if learnt.any() else end - first
            ids = documents.ids[first:end].astype(np.int64)
            yield ids[:cut][:most], ids[cut:][:most], learnt[cut:][:most]
