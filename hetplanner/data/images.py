"""A folder of images: one sub-folder per class, classes numbered by name.

Shape legend: B samples of a micro-batch, C channels, H height, W width.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetplanner.data.interface import DataKind, Split, is_file, is_held_out
from hetplanner.data.need import ImageNeed
from hetplanner.data.pictures import MISSING, check_channels, check_classes, sample_of
from hetplanner.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP")
"""Decoders that may see a file, whatever its name says."""
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp"))
MAX_IMAGES = 10_000_000
MAX_PIXELS = 50_000_000
"""A small file can claim to be a picture that fills the memory; cameras stay below this."""
CHECKED_BYTES = 16 * 2**20
"""A check decodes about this much, spread over the files."""


@dataclass(frozen=True)
class ImageFolder:
    """Pictures by split: path and class."""

    name: str
    need: ImageNeed
    files: dict[Split, list[tuple[Path, int]]]

    def num_samples(self, split: Split) -> int:
        """Pictures of a split."""
        return len(self.files[split])

    def inputs(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Pictures [B, C, H, W]; nothing else is read. Raises InvalidInput naming a file that is none."""
        return np.stack([_decoded(self.files[split][i][0], self.need) for i in ids_B])

    def labels(self, split: Split, ids_B: np.ndarray) -> np.ndarray:
        """Classes [B], from the folders' names; no file is read."""
        return np.array([self.files[split][i][1] for i in ids_B], dtype=np.int64)

    def check(self) -> None:
        """Decodes pictures spread over the folder. Raises InvalidInput naming the first broken one."""
        paths = [path for part in self.files.values() for path, _ in part]
        left = CHECKED_BYTES
        for index in _spread(len(paths)):
            _decoded(paths[index], self.need)
            left -= paths[index].stat().st_size
            if left <= 0:
                return


def _spread(count: int) -> list[int]:
    """All indices, far ones first: the bits of a counter read backwards."""
    bits = max(1, (count - 1).bit_length())
    return [i for n in range(1 << bits) if (i := int(f"{n:0{bits}b}"[::-1], 2)) < count]


def _decoded(path: Path, need: ImageNeed) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is lower
            with Image.open(path, formats=FORMATS) as picture:
                _check_pixels(path, picture)
                picture.draft("RGB", (need.width, need.height))  # a JPEG can be decoded small
                return sample_of(picture, need)
    except UnidentifiedImageError:
        raise InvalidInput(f"data: {path} is no image ({', '.join(FORMATS)}); replace or remove it") from None
    except Image.DecompressionBombError:
        raise _too_large(path, "more than Pillow opens") from None
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: a broken PNG
        raise InvalidInput(f"data: {path} cannot be decoded: {error}; replace or remove it") from None


def _check_pixels(path: Path, picture: "Image") -> None:
    if picture.width * picture.height > MAX_PIXELS:
        raise _too_large(path, f"{picture.width} × {picture.height}")


def _too_large(path: Path, size: str) -> InvalidInput:
    return InvalidInput(f"data: {path} has {size} pixels, at most {MAX_PIXELS} are read; make it smaller")


def open_images(path: Path, need: ImageNeed) -> ImageFolder:
    """Lists the pictures; about a tenth of them (by their names) is for validation.

    Raises:
        InvalidInput: Pillow is missing, there are no pictures, more classes than logits, or channels it cannot have.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InvalidInput(f"data: {path}: {MISSING}") from None
    check_channels(need)
    found: list[tuple[Path, int]] = []
    classes = _class_folders(path)
    check_classes(str(path), len(classes), need)
    for label, folder in enumerate(classes):
        found += [(p, label) for p in _pictures(folder)]
        if len(found) > MAX_IMAGES:
            raise InvalidInput(f"data: {path} holds more than {MAX_IMAGES} images; give a part of it")
    files: dict[Split, list[tuple[Path, int]]] = {"train": [], "validation": []}
    for p, label in found:
        files["validation" if is_held_out(p.relative_to(path).as_posix()) else "train"].append((p, label))
    if not all(files.values()):  # a handful of pictures
        files = {"train": found, "validation": found[::10]}
    return ImageFolder(str(path), need, files)


def _class_folders(path: Path) -> list[Path]:
    """Sub-folders with pictures, by name."""
    return sorted(f for f in _folders(path) if _has_pictures(f))


def _folders(path: Path) -> list[Path]:
    try:
        return [Path(e.path) for e in os.scandir(path) if os.path.isdir(e) and not e.name.startswith(".")]
    except OSError as error:
        raise InvalidInput(f"data: {path} cannot be read: {error.strerror}; make it readable") from None


def _pictures(folder: Path) -> list[Path]:
    names = sorted(e.name for e in os.scandir(folder) if is_file(e) and not e.name.startswith("."))
    return [folder / n for n in names if Path(n).suffix.lower() in SUFFIXES]


def _has_pictures(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(Path(e.name).suffix.lower() in SUFFIXES for e in entries)
    except OSError as error:
        raise InvalidInput(f"data: {folder} cannot be read: {error.strerror}; make it readable") from None


def _accepts(path: Path) -> bool:
    return path.is_dir() and any(_has_pictures(f) for f in _folders(path))


IMAGES = DataKind("images", "a folder with a sub-folder of images for each class", "images", _accepts, open_images)
