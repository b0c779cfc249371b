"""What a person does on the map, as the page tells it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

GestureKind = Literal["tap", "drag", "link", "box", "key"]
Key = Literal["undo", "redo", "delete", "escape"]
MAX_NAME = 200


class Gesture(NamedTuple):
    """One gesture.

    Attributes:
        kind: a tap, the end of a drag of a site, of one from site to site, or of one that spans a box, or a key.
        site: name of the site that was hit, or where the link that was hit or drawn begins, '' if none was; of a key,
            what it means (`Key`).
        device: id of the device that was hit, '' if none was.
        x, y: where, in Web-Mercator metres.
        shift: whether Shift was held.
        reach: metres (as x and y) within which a site counts as hit: a few pixels of the map as it is zoomed.
        other: where the link that was hit or drawn ends, '' if none was.
        x2, y2: the corner of a box across from x, y.
    """

    kind: GestureKind
    site: str = ""
    device: str = ""
    x: float = 0.0
    y: float = 0.0
    shift: bool = False
    reach: float = 0.0
    other: str = ""
    x2: float = 0.0
    y2: float = 0.0

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are."""
        return all(map(math.isfinite, (self.x, self.y, self.reach, self.x2, self.y2)))


def gesture_of(columns: Mapping[str, Sequence[Any]]) -> Gesture | None:
    """The gesture in the first row; None for what is no gesture: a browser may send anything."""
    try:
        row: dict[str, Any] = {name: columns[name][0] for name in Gesture._fields}
        row |= {name: str(row[name])[:MAX_NAME] for name in ("site", "device", "other")}
        row |= {name: float(row[name]) for name in ("x", "y", "reach", "x2", "y2")}
        gesture = Gesture(**row | {"shift": bool(row["shift"])})
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    known = isinstance(gesture.kind, str) and gesture.kind in get_args(GestureKind)
    return gesture if known and gesture.is_finite else None
