"""Pictures that cannot be learned by heart: scikit-learn's digits, each drawn many times, moved and with noise.

Every picture is new, so a training loss falls to what the noise leaves of the digits and stays there.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIDE = 16
MOST_SHIFT = 2


def write_noisy_digits(folder: Path, count: int, noise: float, seed: int = 0) -> Path:
    """Writes `count` PNG files of 16 × 16 pixels, a sub-folder for each class.

    Args:
        folder: is made.
        count: pictures.
        noise: standard deviation of what is added to every pixel, in units of its 0 to 255.
        seed: of the choice of digits, their moves and their noise.

    Returns:
        The folder.
    """
    digits = load_digits()
    rng = np.random.default_rng(seed)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    for k in range(count):
        i = int(rng.integers(len(digits.target)))
        picture = Image.fromarray((digits.images[i] * 255 / 16).astype(np.uint8)).resize((SIDE, SIDE), Image.BILINEAR)
        moved = np.roll(np.asarray(picture, dtype=float), rng.integers(-MOST_SHIFT, MOST_SHIFT + 1, 2), axis=(0, 1))
        noisy = np.clip(moved + noise * rng.standard_normal(moved.shape), 0, 255)
        Image.fromarray(noisy.astype(np.uint8)).save(folder / str(digits.target[i]) / f"{k:06d}.png")
    return folder
