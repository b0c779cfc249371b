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
        reach: metres (as x and y) within which a site counts as hit: a few pixels of the map as it is zoomed.
    """

    kind: GestureKind
    site: str = ""
    device: str = ""
    x: float = 0.0
    y: float = 0.0
    shift: bool = False
    reach: float = 0.0


def gesture_of(columns: Mapping[str, Sequence[Any]]) -> Gesture | None:
    """The gesture in the first row; None for what is no gesture: a browser may send anything."""
    try:
        kind, site, device, x, y, shift, reach = (columns[name][0] for name in Gesture._fields)
        names = str(site)[:MAX_NAME], str(device)[:MAX_NAME]
        gesture = Gesture(kind, *names, float(x), float(y), bool(shift), float(reach))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    known = isinstance(kind, str) and kind in get_args(GestureKind)
    return gesture if known and all(map(math.isfinite, (gesture.x, gesture.y, gesture.reach))) else None
