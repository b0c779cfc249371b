"""What a person does on the map, as the page tells it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

GestureKind = Literal["tap", "drag", "key"]
Key = Literal["undo", "redo", "delete", "escape"]
MAX_NAME = 200


class Gesture(NamedTuple):
    """One gesture.

    Attributes:
        kind: a tap, the end of a drag, or a key.
        site: name of the site that was hit, '' if none was; of a key, what it means (`Key`).
        device: id of the device that was hit, '' if none was.
        x, y: where, in Web-Mercator metres.
        shift: whether Shift was held.
    """

    kind: GestureKind
    site: str = ""
    device: str = ""
    x: float = 0.0
    y: float = 0.0
    shift: bool = False


def gesture_of(columns: Mapping[str, Sequence[Any]]) -> Gesture | None:
    """The gesture in the first row; None for what is no gesture: a browser may send anything."""
    try:
        kind, site, device, x, y, shift = (columns[name][0] for name in Gesture._fields)
        gesture = Gesture(kind, str(site)[:MAX_NAME], str(device)[:MAX_NAME], float(x), float(y), bool(shift))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    known = isinstance(kind, str) and kind in get_args(GestureKind)
    return gesture if known and math.isfinite(gesture.x) and math.isfinite(gesture.y) else None
