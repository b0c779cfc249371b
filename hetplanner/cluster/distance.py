"""Assumed numbers of links from the distance between their sites; the formula's constants are stated, or fitted."""

import math
from typing import NamedTuple

import numpy as np

from hetplanner.cluster.model import Cluster, Site, SiteLink
from hetplanner.schema import checked
from hetplanner.units import short_rate, short_seconds

EARTH_RADIUS_KM = 6371.0088


class DistanceFormula(NamedTuple):
    """Assumed numbers of a link between two sites from the great circle between them.

    One-way latency = `ends_s` + distance × `s_per_km`: light in fibre goes 200,000 km/s and the way is about 1.5
    times the great circle. Bandwidth = `in_flight_bytes` / latency, at most `most_bytes_per_s`: a stream gets no more
    than it keeps on the way. The constants are round numbers of the size of what is seen between regions of clouds;
    a measured cluster's own are better (`fitted_formula`).
    """

    ends_s: float = 2e-3
    s_per_km: float = 1.5 / 200_000
    in_flight_bytes: float = 5e6
    most_bytes_per_s: float = 1e9 / 8

    def latency_s(self, km: float) -> float:
        """One way, over a distance."""
        return self.ends_s + km * self.s_per_km

    def bandwidth_bytes_per_s(self, km: float) -> float:
        """Of one stream, over a distance."""
        latency = self.latency_s(km)
        return min(self.most_bytes_per_s, self.in_flight_bytes / latency) if latency > 0 else self.most_bytes_per_s

    @property
    def text(self) -> str:
        """The formula with its constants, in words."""
        return (
            f"latency = {short_seconds(self.ends_s)} + {1e6 * self.s_per_km:.3g} ms per 1000 km;"
            f" bandwidth = {self.in_flight_bytes * 8 / 1e6:.3g} Mbit / latency,"
            f" at most {short_rate(self.most_bytes_per_s)}"
        )


DEFAULT_FORMULA = DistanceFormula()
INSIDE_SITE = (0.5e-3, 10e9 / 8)
"""Latency and bandwidth between hosts of one site where nothing is known: a usual Ethernet of 10 Gbit/s."""


def distance_km(start: Site, end: Site) -> float:
    """Length of the great circle between two sites."""
    a, b = math.radians(start.latitude), math.radians(end.latitude)
    turn = math.radians(end.longitude - start.longitude)
    half = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(turn / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(half, 1.0)))


def distance_link(start: Site, end: Site, formula: DistanceFormula = DEFAULT_FORMULA) -> SiteLink:
    """The assumed link between two sites; of a site with itself, `INSIDE_SITE`.

    Raises:
        InvalidInput: the formula gives a number out of range.
    """
    if start.name == end.name:
        value, words = INSIDE_SITE, None
    else:
        km = distance_km(start, end)
        exact = formula.latency_s(km), formula.bandwidth_bytes_per_s(km)
        value = _rounded(exact[0]), _rounded(exact[1])  # it is an assumption: more digits would be pretence
        words = f"from {km:,.0f} km: {formula.text}"
    fields = {"latency": value[0], "bandwidth": value[1], "source": "assumed", "when": words}
    place = f"{start.name} → {end.name}, from distance"
    return checked(SiteLink, fields | {"from_site": start.name, "to_site": end.name}, place)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def fitted_formula(cluster: Cluster) -> DistanceFormula | None:
    """The formula with constants of the cluster's own measured links between sites; None if they are too few.

    Medians, so that a few odd links do not matter; the ends' share stays as assumed, unless half of the links are
    faster.
    """
    site = {s.name: s for s in cluster.sites}
    links = [k for k in cluster.site_links if k.source == "measured" and k.from_site != k.to_site]
    known = [(distance_km(site[k.from_site], site[k.to_site]), k) for k in links]
    known = [(km, k) for km, k in known if km >= 1]
    if len(known) < 3:
        return None
    ends_s = min(DEFAULT_FORMULA.ends_s, float(np.median([k.latency for _, k in known])))
    per_km = float(np.median([max(k.latency - ends_s, 0.0) / km for km, k in known]))
    in_flight = float(np.median([k.bandwidth * k.latency for _, k in known]))
    return DistanceFormula(ends_s, per_km, max(in_flight, 1.0), max(k.bandwidth for _, k in known))
