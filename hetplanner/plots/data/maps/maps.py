"""Where a cluster's sites are on the map, and how a plan's traffic runs between them."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from hetplanner.cluster.model import Cluster
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plots.coastline import WORLD_WIDTH_M, mercator
from hetplanner.plots.theme import kind_colour, line_colour, site_colour
from hetplanner.units import short_bytes, short_rate, short_seconds

Columns = dict[str, list[Any]]
Box = tuple[float, float, float, float]

MAX_NAMES = 12
"""Devices listed in a hover before '… and n more'."""
ARC_POINTS = 25
SMALLEST_VIEW_M = WORLD_WIDTH_M * 30 / 360
"""A single site is shown with 30° of its surroundings."""


def listed(names: Sequence[str], limit: int = MAX_NAMES) -> str:
    """'a, b, c … and 5 more'."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" … and {more} more" if more > 0 else "")


def site_columns(cluster: Cluster, excluded: Collection[str] = (), groups: Collection[WorkerGroup] = ()) -> Columns:
    """One row for every site: x, y (Mercator metres), name, label (with its count), count, size (pixels),
    colour, kinds, devices. With devices excluded the count is '6 of 8', with worker groups '8 (×2)' and the kinds are
    '8 × T4 in groups of 2'.
    """
    x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
    members: list[list[int]] = [[] for _ in cluster.sites]
    for device, site in enumerate(cluster.site_index_D):
        members[site].append(device)
    left_out = set(excluded)
    degree_of = {device: group.degree for group in groups for device in group.devices}
    degree_D = [degree_of.get(device, 1) for device in cluster.device_ids]
    kinds = [Counter((cluster.devices[d].kind, degree_D[d]) for d in group) for group in members]
    used = [sum(cluster.device_ids[d] not in left_out for d in group) for group in members]
    counts = [f"{n} of {len(g)}" if n < len(g) else f"{n}" for n, g in zip(used, members, strict=True)]
    return {
        "x": x_S.tolist(),
        "y": y_S.tolist(),
        "name": [site.name for site in cluster.sites],
        "label": [
            f"{site.name} · {text}{_degrees_text({degree_D[d] for d in group})}"
            for site, text, group in zip(cluster.sites, counts, members, strict=True)
        ],
        "count": [len(group) for group in members],
        "size": [marker_size(len(group)) for group in members],
        "colour": [site_colour(i) for i in range(len(members))],
        "kinds": [
            ", ".join(f"{n} × {kind}{_groups_text(degree)}" for (kind, degree), n in counts_here.items()) or "none"
            for counts_here in kinds
        ],
        "devices": [listed([cluster.devices[d].id for d in group]) for group in members],
    }


def _degrees_text(degrees: set[int]) -> str:
    """' (×2, ×4)': sizes of the groups at a site; '' where every device serves alone."""
    several = sorted(degrees - {1})
    return f" ({', '.join(f'×{degree}' for degree in several)})" if several else ""


def _groups_text(degree: int) -> str:
    return f" in groups of {degree}" if degree > 1 else ""


MAX_KINDS = 3
"""Kinds of devices named at a site before '+n'."""


def kind_badges(cluster: Cluster) -> list[list[tuple[str, str]]]:
    """For every site what stands there by kind, the most frequent first: ('8 × T4', its first devices)."""
    at: list[dict[str, list[str]]] = [{} for _ in cluster.sites]
    for device, site in zip(cluster.devices, cluster.site_index_D.tolist(), strict=True):
        at[site].setdefault(device.kind, []).append(device.id)
    badges = []
    for kinds in at:
        rows = sorted(kinds.items(), key=lambda row: -len(row[1]))
        count = len(rows) if len(rows) <= MAX_KINDS else MAX_KINDS - 1
        texts = [(f"{len(ids)} × {kind}", listed(ids)) for kind, ids in rows[:count]]
        if rows[count:]:
            rest = ", ".join(f"{len(ids)} × {kind}" for kind, ids in rows[count:])
            texts.append((f"+{len(rows) - count}", rest))
        badges.append(texts)
    return badges


DOT_NAMES = ("x", "y", "dx", "dy", "id", "kind", "colour", "text", "used")
MAX_DOTS = 240
"""Devices of an expanded site; a larger one shows as many, the table all."""
DOT_PX = 14.0


def dot_columns(cluster: Cluster, site_names: Collection[str], excluded: Collection[str] = ()) -> Columns:
    """One row for every device of the expanded sites: the site's x and y, and how many pixels away from it the dot is
    (dx to the east, dy to the south), in rings around the marker.
    """
    left_out = set(excluded)
    columns: Columns = {name: [] for name in DOT_NAMES}
    for s, site in enumerate(cluster.sites):
        if site.name not in site_names:
            continue
        rows = np.flatnonzero(cluster.site_index_D == s)
        x, y = mercator(site.longitude, site.latitude)
        places = ring_places(min(len(rows), MAX_DOTS), marker_size(len(rows)) / 2 + 13)
        for row, (dx, dy) in zip(rows.tolist(), places, strict=False):
            device = cluster.devices[row]
            used = device.id not in left_out
            colour = kind_colour(device.kind)
            words = "used" if used else "excluded"
            values = (float(x), float(y), dx, dy, device.id, device.kind, colour, "●" if used else "○", words)
            for name, value in zip(DOT_NAMES, values, strict=True):
                columns[name].append(value)
    return columns


def ring_places(count: int, radius_px: float) -> list[tuple[float, float]]:
    """Points on rings around (0, 0), the innermost of this radius, one dot's width apart; from the top clockwise."""
    points: list[tuple[float, float]] = []
    while len(points) < count:
        here = min(int(2 * np.pi * radius_px / DOT_PX), count - len(points))
        turns = 2 * np.pi * np.arange(here) / here
        points += list(zip((radius_px * np.sin(turns)).tolist(), (-radius_px * np.cos(turns)).tolist(), strict=True))
        radius_px += DOT_PX
    return points


def marker_size(num_devices: int) -> float:
    """Pixels across of a site's marker: its area grows with the logarithm of what stands there."""
    return float(np.round(10 + 2.2 * np.log2(max(num_devices, 1)), 1))


def arc(x: Sequence[float], y: Sequence[float], lift: float) -> tuple[np.ndarray, np.ndarray]:
    """A curve between two points, bowed to the north by `lift` times their distance (quadratic Bézier)."""
    t = np.linspace(0.0, 1.0, ARC_POINTS)
    top_x = (x[0] + x[1]) / 2
    top_y = (y[0] + y[1]) / 2 + 2 * lift * float(np.hypot(x[1] - x[0], y[1] - y[0]))
    return (
        (1 - t) ** 2 * x[0] + 2 * t * (1 - t) * top_x + t**2 * x[1],
        (1 - t) ** 2 * y[0] + 2 * t * (1 - t) * top_y + t**2 * y[1],
    )


def shorter_way(x_from: float, x_to: float) -> float:
    """`x_to`, one world further where that is nearer: across the Pacific, say."""
    return x_to - WORLD_WIDTH_M * round((x_to - x_from) / WORLD_WIDTH_M)


def _drawn(columns: Columns, x: Sequence[float], y: Sequence[float], lift: float, facts: dict[str, Any]) -> None:
    end = shorter_way(x[0], x[1])
    xs, ys = arc((x[0], end), y, lift)
    # Across the antimeridian the arc leaves one edge of the map and comes in at the other.
    for shift in (0.0,) if end == x[1] else (0.0, x[1] - end):
        columns["xs"].append(xs + shift)
        columns["ys"].append(ys)
        for name, value in facts.items():
            columns[name].append(value)


ARC_NAMES = ("xs", "ys", "colour", "width", "bytes", "route", "link", "traffic", "latency", "bandwidth", "start", "end")


def arc_columns(plan: Plan) -> Columns:
    """One arc for every hop of every route between sites; hops inside a site are not drawn.

    Width follows the bytes of one step, activations and gradients together.
    """
    cluster = plan.problem.cluster
    x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
    hops = [hop for r in range(len(plan.routes)) for hop in _hops(plan, r)]
    most = max((num_bytes for *_, num_bytes in hops), default=1) or 1
    columns: Columns = {name: [] for name in ARC_NAMES}
    drawn: Counter[tuple[int, int]] = Counter()
    for route, stage, a, b, num_bytes in hops:
        i, j = (int(cluster.site_index_D[cluster.device_index(d)]) for d in (a, b))
        if i == j:
            continue
        link = cluster.link(a, b)
        lane = drawn[min(i, j), max(i, j)]
        drawn[min(i, j), max(i, j)] += 1
        facts = {
            "colour": line_colour(route),
            "width": round(0.8 + 2.2 * float(np.sqrt(num_bytes / most)), 2),
            "bytes": num_bytes,
            "route": f"route {route}, stage {stage} → {stage + 1}",
            "link": f"{plan.problem.worker_name(a)} → {plan.problem.worker_name(b)}",
            "traffic": short_bytes(num_bytes),
            "latency": short_seconds(link.latency),
            "bandwidth": short_rate(link.bandwidth),
            "start": a,
            "end": b,
        }
        lift = 0.10 + 0.035 * (lane % 8)
        _drawn(columns, (x_S[i], x_S[j]), (y_S[i], y_S[j]), lift, facts)
    return columns


def _hops(plan: Plan, route: int) -> list[tuple[int, int, str, str, int]]:
    """(route, stage, from device, to device, bytes per step both ways) of every boundary a route crosses."""
    chosen = plan.routes[route]
    hops = []
    for s, (r, t) in enumerate(zip(chosen.replicas[:-1], chosen.replicas[1:], strict=True)):
        a, b = plan.rank_at(s, r), plan.rank_at(s + 1, t)
        once = plan.boundary_bytes(s, a, b, "activation") + plan.boundary_bytes(s, b, a, "gradient")
        hops.append((route, s, plan.ranks[a], plan.ranks[b], once * chosen.micro_batches))
    return hops


SHARED_NAMES = ("xs", "ys", "sites", "traffic", "groups")


def shared_columns(plan: Plan) -> Columns:
    """One line for every pair of sites that exchanges weight gradients: sites, traffic (both ways), groups."""
    cluster = plan.problem.cluster
    x_S, y_S = mercator([s.longitude for s in cluster.sites], [s.latitude for s in cluster.sites])
    traffic: Counter[tuple[int, int]] = Counter()
    groups: dict[tuple[int, int], list[str]] = {}
    for group in reduction_groups(plan):
        site_of = [int(cluster.site_index_D[cluster.device_index(plan.ranks[rank])]) for rank in group.ranks]
        for phase in group.phases:
            num_bytes = phase.rounds * group.wire_bytes(phase.num_elements)
            flows = zip(phase.sender_F.tolist(), phase.receiver_F.tolist(), phase.count_F.tolist(), strict=True)
            for sender, receiver, count in flows:
                pair = (min(site_of[sender], site_of[receiver]), max(site_of[sender], site_of[receiver]))
                if pair[0] != pair[1]:
                    traffic[pair] += count * num_bytes
                    if group.name not in groups.setdefault(pair, []):
                        groups[pair].append(group.name)
    columns: Columns = {name: [] for name in SHARED_NAMES}
    for (i, j), num_bytes in traffic.items():
        facts = {
            "sites": f"{cluster.sites[i].name} ↔ {cluster.sites[j].name}",
            "traffic": short_bytes(num_bytes),
            "groups": listed(groups[i, j]),
        }
        _drawn(columns, (x_S[i], x_S[j]), (y_S[i], y_S[j]), 0.04, facts)
    return columns


def stages_at_sites(plan: Plan) -> list[dict[int, list[str]]]:
    """For every site of the plan's cluster: stage -> names of the devices or groups that hold it there."""
    cluster = plan.problem.cluster
    at: list[dict[int, list[str]]] = [{} for _ in cluster.sites]
    for s, stage in enumerate(plan.stages):
        for replica in stage.replicas:
            for device in replica:
                at[int(cluster.site_index_D[cluster.device_index(device)])].setdefault(s, []).append(
                    plan.problem.worker_name(device)
                )
    return at


def view_box(x: Sequence[float], y: Sequence[float], pad: float = 0.14) -> Box:
    """West, east, south, north (Mercator metres) of a view that shows these points with room around them."""
    if not len(x):
        return (-0.5 * WORLD_WIDTH_M, 0.5 * WORLD_WIDTH_M, -7.5e6, 1.4e7)
    west, east, south, north = min(x), max(x), min(y), max(y)
    half_w = max(0.5 * (east - west) * (1 + 2 * pad), 0.5 * SMALLEST_VIEW_M)
    half_h = max(0.5 * (north - south) * (1 + 2 * pad), 0.25 * SMALLEST_VIEW_M)
    middle_x, middle_y = (west + east) / 2, (south + north) / 2
    return (middle_x - half_w, middle_x + half_w, middle_y - half_h, middle_y + half_h)


def fitted(box: Box, width_px: float, height_px: float) -> Box:
    """The smallest view around `box` in which a metre is as wide as it is high."""
    west, east, south, north = box
    metres_per_px = max((east - west) / max(width_px, 1.0), (north - south) / max(height_px, 1.0))
    half_w, half_h = metres_per_px * width_px / 2, metres_per_px * height_px / 2
    middle_x, middle_y = (west + east) / 2, (south + north) / 2
    return (middle_x - half_w, middle_x + half_w, middle_y - half_h, middle_y + half_h)
