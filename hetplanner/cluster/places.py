"""Cities and cloud regions by name, for sites that a person adds: an own small list, no network."""

import difflib
import math
import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from hetplanner.cluster.catalog import table_rows
from hetplanner.cluster.distance import EARTH_RADIUS_KM
from hetplanner.errors import InvalidInput

_COORDINATES = re.compile(r"\s*([-+]?\d{1,3}(?:\.\d+)?)\s*[,; ]\s*([-+]?\d{1,3}(?:\.\d+)?)\s*")


@dataclass(frozen=True)
class Place:
    """A named point; latitude and longitude in degrees."""

    name: str
    country: str
    latitude: float
    longitude: float
    aliases: tuple[str, ...] = ()


def _key(name: str) -> str:
    """Letters and digits alone: case, accents, blanks and hyphens do not matter."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(c for c in plain if c.isalnum())


@cache
def places() -> tuple[Place, ...]:
    """All of them, in the list's order."""
    return tuple(
        Place(
            r["name"],
            r["country"],
            float(r["latitude"]),
            float(r["longitude"]),
            tuple(filter(None, r["aliases"].split("|"))),
        )
        for r in table_rows("places.csv")
    )


@cache
def _by_key() -> dict[str, Place]:
    """By letters and digits; by full spelling too, as "us-west-2" and "us-west2" are of two clouds."""
    keyed = {_key(name): place for place in reversed(places()) for name in (*place.aliases, place.name)}
    return keyed | {name.casefold(): place for place in places() for name in place.aliases}


def _look_up(name: str) -> Place | None:
    return _by_key().get(name.strip().casefold()) or _by_key().get(_key(name))


def place_named(text: str) -> Place:
    """A city, a cloud region ("eu-central-1"), or a point given as "latitude, longitude" (its name is then '').

    Raises:
        InvalidInput: a name that is not in the list, with the nearest ones, or degrees out of range.
    """
    point = _COORDINATES.fullmatch(text)
    if point:
        latitude, longitude = map(float, point.groups())
        if abs(latitude) > 90 or abs(longitude) > 180:
            raise InvalidInput(f"place: latitude must be within ±90 and longitude within ±180, got {text!r:.60}")
        return Place("", "", latitude, longitude)
    place = _look_up(text)
    if place is None:
        raise InvalidInput(f"place: {text!r:.60} is not in the list; {_nearest(text)}, or as 'latitude, longitude'")
    return place


def find_place(name: str) -> Place | None:
    """A city or cloud region by its name, also with a number behind it ("Oregon-3"); None if the list has none."""
    short = name[:120]
    return _look_up(short) or _look_up(re.sub(r"[\s_#.-]*\d+$", "", short))


def meaning(name: str) -> Place | str:
    """Equal for names that mean one site: the city ("Oregon", "us-west-2"), else letters and digits."""
    return _look_up(name) or _key(name) or name


def _nearest(text: str) -> str:
    near = difflib.get_close_matches(_key(text[:60]), _by_key(), n=3, cutoff=0.6)
    names = dict.fromkeys(_by_key()[key].name for key in near)
    return (
        f"did you mean {', '.join(names)}? Else give a larger city near it" if names else "give a larger city near it"
    )


def nearest_place(latitude: float, longitude: float, within_km: float = 250.0) -> Place | None:
    """The nearest place, if it is near enough; degrees."""
    # Near a point the square of the chord grows with the distance: no need for a great circle to find the least.
    here = _on_sphere(latitude, longitude)
    chords = [math.dist(here, _on_sphere(p.latitude, p.longitude)) for p in places()]
    least = min(range(len(chords)), key=chords.__getitem__)
    return places()[least] if chords[least] * EARTH_RADIUS_KM <= within_km else None


def _on_sphere(latitude: float, longitude: float) -> tuple[float, float, float]:
    a, b = math.radians(latitude), math.radians(longitude)
    return math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)
