"""Data that is for evaluation alone: all of its samples, whichever split its own kind would put them into."""

from dataclasses import dataclass

import numpy as np

from hetplanner.data.documents import PackedDocuments
from hetplanner.data.interface import Source, Split
from hetplanner.data.pairs import PairedDocuments


@dataclass(frozen=True)
class HeldOut:
    """A `Source` whose splits are both the whole of another's: its training samples, then those for validation."""

    whole: Source

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.whole.name

    @property
    def knows_documents(self) -> bool:
        """Whether documents are told apart."""
        return isinstance(self.whole, PackedDocuments)

    @property
    def counts_labels(self) -> bool:
        """Whether samples differ in how many of their targets count."""
        return isinstance(self.whole, PackedDocuments | PairedDocuments)

    def num_samples(self, split: Split) -> int:
        """All samples."""
        return self.whole.num_samples("train") + self.whole.num_samples("validation")

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """What the model reads. Raises InvalidInput naming a broken file."""
        return self._joined("inputs", ids_B)

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """What it shall say. Raises InvalidInput naming a broken file."""
        return self._joined("labels", ids_B)

    def documents(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Which document of its sequence each token is of; only where they are told apart."""
        return self._joined("documents", ids_B)

    def num_labels(self, split: Split, ids_B: np.ndarray) -> int:
        """Targets that count; only where `counts_labels`."""
        assert isinstance(self.whole, PackedDocuments | PairedDocuments)
        return sum(self.whole.num_labels(part, ids) for part, _, ids in self._parts(ids_B))

    def check(self) -> None:
        """Reads a bounded share of the data. Raises InvalidInput."""
        self.whole.check()

    def _parts(self, ids_B: np.ndarray) -> list[tuple[Split, np.ndarray, np.ndarray]]:
        """(split, places in the micro-batch, ids in the split)."""
        count = self.whole.num_samples("train")
        is_first_B = ids_B < count
        parts: list[tuple[Split, np.ndarray, np.ndarray]] = [
            ("train", is_first_B, ids_B[is_first_B]),
            ("validation", ~is_first_B, ids_B[~is_first_B] - count),
        ]
        return [part for part in parts if part[1].any()]

    def _joined(self, what: str, ids_B: np.ndarray) -> np.ndarray:
        parts = [(where, getattr(self.whole, what)(split, ids)) for split, where, ids in self._parts(ids_B)]
        found = np.empty((len(ids_B), *parts[0][1].shape[1:]), dtype=parts[0][1].dtype)
        for where, values in parts:
            found[where] = values
        return found
