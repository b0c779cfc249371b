"""scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels, part of its installation; no download."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetplanner.data.interface import DataKind, Split
from hetplanner.data.need import ImageNeed
from hetplanner.data.pictures import MISSING, check_channels, check_classes, sample_of
from hetplanner.errors import InvalidInput

WORD = "digits"
NUM_CLASSES = 10
EVERY = 10
"""Every tenth digit is for validation."""


@dataclass(frozen=True)
class Digits:
    """The digits of both splits.

    Attributes:
        pixels: uint8 [N, 8, 8] by split.
        classes: int64 [N] by split.
    """

    need: ImageNeed
    pixels: dict[Split, np.ndarray]
    classes: dict[Split, np.ndarray]
    name: str = WORD

    def num_samples(self, split: Split) -> int:
        """Digits of a split."""
        return len(self.classes[split])

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Pictures [B, C, H, W], enlarged when they are asked for."""
        from PIL import Image

        return np.stack([sample_of(Image.fromarray(self.pixels[split][i]), self.need) for i in ids_B])

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Which digit it is [B]."""
        return self.classes[split][ids_B]

    def check(self) -> None:
        """Nothing can be broken."""


def open_digits(path: Path, need: ImageNeed) -> Digits:
    """Loads the digits. Raises InvalidInput: not installed, fewer than ten logits, channels that no picture has."""
    try:
        import PIL  # noqa: F401
        from sklearn.datasets import load_digits
    except ImportError:
        raise InvalidInput(f"data: {WORD}: {MISSING}") from None
    check_channels(need)
    check_classes(WORD, NUM_CLASSES, need)
    found = load_digits()
    pixels_N = np.round(found.images * (255 / 16)).astype(np.uint8)
    classes_N = found.target.astype(np.int64)
    held_out_N = np.arange(len(classes_N)) % EVERY == EVERY - 1
    return Digits(
        need,
        {"train": pixels_N[~held_out_N], "validation": pixels_N[held_out_N]},
        {"train": classes_N[~held_out_N], "validation": classes_N[held_out_N]},
    )


DIGITS = DataKind("digits", f"the word {WORD} (scikit-learn's)", "images", lambda path: False, open_digits, word=WORD)
