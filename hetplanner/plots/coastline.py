"""The world's coast and borders in Web-Mercator metres: an offline map, no tile server.

The outlines are Natural Earth's 1:50 m land and country borders (public domain, naturalearthdata.com), stored as
rings of integer steps of 0.01°, the first pair absolute, and cut at the antimeridian.
"""

import json
import math
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetplanner.arrays import FloatArray

EARTH_RADIUS_M = 6_378_137.0
WORLD_WIDTH_M = 2 * np.pi * EARTH_RADIUS_M
MAX_LATITUDE = 85.0
"""Web Mercator ends here; the poles are infinitely far away."""

Ring = tuple[NDArray[np.float32], NDArray[np.float32]]


def mercator(longitude: ArrayLike, latitude: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Web-Mercator metres (x east, y north) of points in degrees; latitudes beyond ±85° are drawn at ±85°."""
    degrees = np.clip(np.asarray(latitude, dtype=np.float64), -MAX_LATITUDE, MAX_LATITUDE)
    x = EARTH_RADIUS_M * np.radians(np.asarray(longitude, dtype=np.float64))
    return x, EARTH_RADIUS_M * np.log(np.tan(np.pi / 4 + np.radians(degrees) / 2))


def degrees(x: float, y: float) -> tuple[float, float]:
    """Longitude and latitude of a point in Web-Mercator metres; the longitude is within ±180°."""
    longitude = math.degrees(x / EARTH_RADIUS_M)
    latitude = math.degrees(2 * math.atan(math.exp(min(max(y / EARTH_RADIUS_M, -4.0), 4.0))) - math.pi / 2)
    return (longitude + 180) % 360 - 180, min(max(latitude, -MAX_LATITUDE), MAX_LATITUDE)


@cache
def land_rings() -> tuple[Ring, ...]:
    """Closed outlines of land. Land near the antimeridian comes twice, so that a map may look beyond it."""
    return _with_copies("land")


@cache
def border_lines() -> tuple[Ring, ...]:
    """Country borders on land, as open lines."""
    return _with_copies("borders")


@cache
def _stored() -> dict[str, list[list[int]]]:
    data: dict[str, list[list[int]]] = json.loads(
        (files("hetplanner.plots") / "coastline_50m.json").read_text(encoding="utf-8")
    )
    return data


def _decoded(steps: list[int]) -> Ring:
    degrees = np.cumsum(np.asarray(steps, dtype=np.int64).reshape(-1, 2), axis=0) / 100
    x, y = mercator(degrees[:, 0], degrees[:, 1])
    return x.astype(np.float32), y.astype(np.float32)


def _with_copies(kind: str) -> tuple[Ring, ...]:
    """Rings, and once more beyond the far edge what lies within 80° of the antimeridian."""
    width = np.float32(WORLD_WIDTH_M)
    near_the_edge = width * np.float32((180 - 80) / 360)
    rings: list[Ring] = []
    for x, y in map(_decoded, _stored()[kind]):
        rings.append((x, y))
        if x.max() > near_the_edge:
            rings.append((x - width, y))
        if x.min() < -near_the_edge:
            rings.append((x + width, y))
    return tuple(rings)
