"""From a picture to a sample: the program's shape, values from -1 to 1. Pillow is loaded when it is needed."""

from typing import TYPE_CHECKING

import numpy as np

from hetplanner.data.need import ImageNeed
from hetplanner.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 3: "RGB"}
MISSING = "this kind of data needs scikit-learn and Pillow; install them with `pip install 'hetplanner[vision]'`"


def check_channels(need: ImageNeed) -> None:
    """Pictures have one channel or three. Raises InvalidInput."""
    if need.channels not in MODES:
        raise InvalidInput(
            f"workload {need.workload}: pictures have 1 or 3 channels, its inputs have {need.channels}; capture it with"
            " such an example input"
        )


def sample_of(picture: "Image", need: ImageNeed) -> np.ndarray:
    """float32 [C, H, W]: resized so that it covers the shape, and cut around the middle."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(picture.convert(MODES[need.channels]), (need.width, need.height), Image.Resampling.BILINEAR)
    values_HWC = np.asarray(fitted, dtype=np.float32).reshape(need.height, need.width, need.channels)
    return np.ascontiguousarray(values_HWC.transpose(2, 0, 1)) / np.float32(127.5) - np.float32(1)


def check_classes(name: str, num_classes: int, need: ImageNeed) -> None:
    """Every class needs a logit. Raises InvalidInput."""
    if need.classes is not None and num_classes > need.classes:
        raise InvalidInput(
            f"data: {name} has {num_classes} classes, but workload {need.workload} tells {need.classes} apart; take"
            " fewer classes, or capture the model with more"
        )
