"""Documents of tokens, packed to the sequence length: no target and no attention goes from one to the next.

Texts are cut where a sequence is full, and go on in the next one. Conversations (documents with marked answers) stay
whole: a sequence takes as many as fit, in their order, and its rest is padding; only one that is longer than a sequence
is cut. Everything is mapped; what is computed at opening are numbers per document.

Shape legend: B samples of a micro-batch, T tokens, D documents, S samples.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetplanner.data.interface import Split
from hetplanner.data.need import TokenNeed
from hetplanner.data.windows import CHUNK_TOKENS, ArrayStream, Windows, check_ids, check_stream, split_windows
from hetplanner.errors import InvalidInput

IGNORED = -100
"""The label of a token whose target does not count, as `torch.nn.functional.cross_entropy` has it."""
PADDING = 0
"""The id that fills a sequence up; no token of a document sees it, and it has no target."""


@dataclass(frozen=True)
class Documents:
    """The documents of one split.

    Attributes:
        ids: tokens [N] (unsigned integers), those of one document after those of another.
        start_D: where each begins, and behind the last where a next one would (int64 [D + 1], rising).
        answers: which tokens are to be learnt (uint8 [N], 0 for no); None for all.
        length: tokens of a sequence, T.
    """

    ids: np.ndarray
    start_D: np.ndarray
    answers: np.ndarray | None
    length: int

    @property
    def num_tokens(self) -> int:
        """How many."""
        return int(self.start_D[-1] - self.start_D[0])

    @property
    def num_documents(self) -> int:
        """How many."""
        return len(self.start_D) - 1

    @property
    def num_samples(self) -> int:
        """Sequences."""
        return len(self.first_S) - 1

    def part(self, first: int, end: int) -> "Documents":
        """Documents `first` .. `end`."""
        return Documents(self.ids, self.start_D[first : end + 1], self.answers, self.length)

    @cached_property
    def first_S(self) -> np.ndarray:
        """Where each sequence begins, and behind the last where a next one would (int64 [S + 1])."""
        if self.answers is not None:
            return _whole_documents(np.asarray(self.start_D), self.length)
        begin, end = int(self.start_D[0]), int(self.start_D[-1])
        return np.append(np.arange(begin, end, self.length, dtype=np.int64), end)

    @cached_property
    def passed_S(self) -> np.ndarray:
        """How many documents begin before or at each of `first_S` (int64 [S + 1])."""
        return np.searchsorted(self.start_D, self.first_S, side="right")

    def inputs(self, ids_B: np.ndarray) -> np.ndarray:
        """Tokens [B, T] (as `ids` has them), filled up with PADDING."""
        return self._rows(self.ids, ids_B, 0)

    def labels(self, ids_B: np.ndarray) -> np.ndarray:
        """Targets [B, T]: the next token, IGNORED behind a document's last one and where it is not to be learnt."""
        ids_BT = self._rows(self.ids, ids_B, 1)
        out_BT = ids_BT.astype(np.int32 if ids_BT.itemsize <= 2 else np.int64)
        if self.answers is not None:
            # A choice between two values without a branch, which scattered answers would make slow.
            learnt_BT = -(self._rows(self.answers, ids_B, 1) != 0).view(np.int8).astype(out_BT.dtype)
            np.bitwise_xor(out_BT, IGNORED, out=out_BT)
            np.bitwise_and(out_BT, learnt_BT, out=out_BT)
            np.bitwise_xor(out_BT, IGNORED, out=out_BT)
        row_E, end_E = self._ends(ids_B)
        out_BT[row_E, end_E - 1] = IGNORED
        for row_T, length in zip(out_BT, self._lengths(ids_B).tolist(), strict=True):
            row_T[length:] = IGNORED
        return out_BT.astype(np.int64, copy=False)

    def documents(self, ids_B: np.ndarray) -> np.ndarray:
        """Which document of its sequence each token is of [B, T], from 0; padding is one of its own."""
        row_E, end_E = self._ends(ids_B)
        count, size = len(ids_B), len(ids_B) * self.length
        # Runs of equal numbers: one where each row begins, and one behind each end, empty where that is the row's.
        lead_B = np.arange(count) + np.searchsorted(row_E, np.arange(count))
        begin_R = np.empty(count + len(row_E) + 1, dtype=np.int64)
        begin_R[lead_B] = np.arange(0, size, self.length)
        begin_R[np.arange(len(row_E)) + row_E + 1] = row_E * self.length + end_E
        begin_R[-1] = size
        number_R = np.arange(len(begin_R) - 1) - np.repeat(lead_B, np.diff(lead_B, append=len(begin_R) - 1))
        return np.repeat(number_R, np.diff(begin_R)).reshape(count, self.length)

    def num_labels(self, ids_B: np.ndarray) -> int:
        """Targets that count in these samples; as `labels` has them, without reading tokens."""
        if self.answers is None:
            return int(self._lengths(ids_B).sum() - (self.passed_S[ids_B + 1] - self.passed_S[ids_B]).sum())
        row_E, end_E = self._ends(ids_B)
        is_learnt_BT = self._rows(self.answers, ids_B, 1) != 0
        return int(np.count_nonzero(is_learnt_BT) - np.count_nonzero(is_learnt_BT[row_E, end_E - 1]))

    def check(self, need: TokenNeed, name: str) -> None:
        """Looks at ids, and for answers. Raises InvalidInput."""
        check_stream(self.ids, need, name)
        if self.answers is None:
            return
        begin, end = int(self.start_D[0]), int(self.start_D[-1])
        chunks = (self.answers[first : min(end, first + CHUNK_TOKENS)] for first in range(begin, end, CHUNK_TOKENS))
        if not any(chunk.any() for chunk in chunks):
            raise InvalidInput(f"data: {name} marks no token as an answer, so there is nothing to learn; tokenize anew")

    def _lengths(self, ids_B: np.ndarray) -> np.ndarray:
        """Tokens of each sequence [B], without padding."""
        return np.asarray(self.first_S[ids_B + 1] - self.first_S[ids_B])

    def _rows(self, values_N: np.ndarray, ids_B: np.ndarray, shift: int) -> np.ndarray:
        """What stands at the tokens of each sequence, or `shift` places on [B, T]; 0 behind its end."""
        out_BT = np.zeros((len(ids_B), self.length), dtype=values_N.dtype)
        first_B, end_B = self.first_S[ids_B] + shift, self.first_S[ids_B + 1] + shift
        for row_T, first, end in zip(out_BT, first_B.tolist(), end_B.tolist(), strict=True):
            part = values_N[first:end]
            row_T[: len(part)] = part
        return out_BT

    def _ends(self, ids_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where documents end: the row, and how many tokens of it come before the end (1 to T); row by row, [E]."""
        passed_B = self.passed_S[ids_B]
        count_B = self.passed_S[ids_B + 1] - passed_B
        row_E = np.repeat(np.arange(len(ids_B)), count_B)
        end_E = np.arange(len(row_E)) + np.repeat(passed_B - (np.cumsum(count_B) - count_B), count_B)
        return row_E, self.start_D[end_E] - self.first_S[ids_B][row_E]


def _whole_documents(start_D: np.ndarray, length: int) -> np.ndarray:
    """Sequences of whole documents: where each begins, and behind the last where a next one would."""
    length_D = np.diff(start_D)
    if int(length_D.max(initial=0)) > length:  # cut those
        pieces_D = -(-length_D // length)
        number = np.arange(int(pieces_D.sum())) - np.repeat(np.cumsum(pieces_D) - pieces_D, pieces_D)
        start_D = np.append(np.repeat(start_D[:-1], pieces_D) + number * length, start_D[-1])
    # By document, which one no longer fits into a sequence that begins with it.
    next_D = (np.searchsorted(start_D, start_D[:-1] + length, side="right") - 1).tolist()
    chosen, d = [], 0
    while d < len(next_D):
        chosen.append(d)
        d = next_D[d]
    return np.append(start_D[chosen], start_D[-1])


@dataclass(frozen=True)
class PackedDocuments:
    """Documents of both splits; a `Source`."""

    name: str
    need: TokenNeed
    train: Documents
    validation: Documents

    def num_samples(self, split: Split) -> int:
        """Sequences of a split."""
        return self.of(split).num_samples

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Tokens [B, T]. Raises InvalidInput: an id that the model does not know."""
        ids_BT = self.of(split).inputs(ids_B)
        check_ids(ids_BT, self.need, self.name)
        return ids_BT.astype(np.int64)

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Targets [B, T], IGNORED where none counts. Raises InvalidInput: an id that the model does not know."""
        labels_BT = self.of(split).labels(ids_B)
        check_ids(np.maximum(labels_BT, PADDING), self.need, self.name)  # those of `ids` are never below 0
        return labels_BT

    def documents(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Which document of its sequence each token is of [B, T]."""
        return self.of(split).documents(ids_B)

    def num_labels(self, split: Split, ids_B: np.ndarray) -> int:
        """Targets that count in these samples."""
        return self.of(split).num_labels(ids_B)

    def check(self) -> None:
        """Compares ids with the vocabulary, and looks for something to learn. Raises InvalidInput."""
        for documents in (self.train, self.validation):
            documents.check(self.need, self.name)

    def of(self, split: Split) -> Documents:
        """The documents of a split."""
        return self.train if split == "train" else self.validation

    def unpacked(self, why: str) -> Windows:
        """The same tokens as one long text, for what knows no documents.

        Args:
            why: that tokens cannot be left out, and what to do, for the message.

        Raises:
            InvalidInput: answers are marked.
        """
        if self.train.answers is not None:
            raise InvalidInput(f"data: {self.name} marks answers, which alone are to be learnt, but {why}")
        validation = None if self.validation.ids is self.train.ids else ArrayStream(self.validation.ids)
        return split_windows(self.name, self.need, ArrayStream(self.train.ids), validation)


def split_documents(name: str, need: TokenNeed, train: Documents, validation: Documents | None) -> PackedDocuments:
    """Both splits; without documents for validation the last tenth of `train` is it.

    A single document is trained on and validated on.

    Raises:
        InvalidInput: there are no tokens.
    """
    if train.num_tokens < 2:
        raise InvalidInput(f"data: {name} holds {train.num_tokens} tokens to train on; add documents")
    if validation is None or validation.num_tokens < 2:
        end = train.num_documents
        held_out = max(1, end // 10)
        cut = end - held_out if end > 1 else end
        train, validation = train.part(0, cut), train.part(end - held_out, end)
    return PackedDocuments(name, need, train, validation)
