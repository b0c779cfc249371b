"""Names what holds a step back: the device, link or stage whose disappearance would shorten it most.

Legend of array suffixes: P routes, S stages, E boundaries (S - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from hetplanner.cost.closed_form import StepArrays, StepTimes, time_step
from hetplanner.plan.estimate import Bottleneck
from hetplanner.plan.model import Plan

# One device or link is named if it explains this share of what the stage or pair of sites around it does, ...
SPECIFIC_ENOUGH = 0.5
# ... and shortens the step by this share; else the wider suspect is asked.
WORTH_NAMING = 0.03


@dataclass(frozen=True)
class _Suspect:
    kind: Literal["device", "link", "stage"]
    name: str
    arrays: StepArrays
    width: int


def find_bottleneck(plan: Plan, arrays: StepArrays, times: StepTimes) -> Bottleneck:
    """Times the step once more without each device, link, pair of sites, stage and reduction, and names the worst.

    Single devices and links come first (width 0); where several equal ones share the blame, so that taking one away
    gains nothing, the stage or pair of sites is named (width 1), and last all compute or reductions (width 2).
    """
    best: dict[int, tuple[float, _Suspect]] = {}
    for suspect in _suspects(plan, arrays):
        gain = times.step_s - time_step(suspect.arrays).step_s
        if suspect.width not in best or gain > best[suspect.width][0] * (1 + 1e-9):
            best[suspect.width] = (gain, suspect)
    widths = sorted(best)
    gain, suspect = best[widths[-1]]
    for width, wider in pairwise(widths):
        worth = width > 0 or best[width][0] >= SPECIFIC_ENOUGH * best[wider][0]
        if worth and best[width][0] >= WORTH_NAMING * times.step_s:
            gain, suspect = best[width]
            break
    gain = max(gain, 0.0)
    return Bottleneck(
        kind=suspect.kind,
        name=suspect.name,
        step_s_without=times.step_s - gain,
        text=f"{suspect.name}: without it the step would take {gain / times.step_s:.0%} less time",
    )


def _suspects(plan: Plan, arrays: StepArrays) -> Iterator[_Suspect]:
    paths = [[plan.ranks[plan.rank_at(s, r)] for s, r in enumerate(route.replicas)] for route in plan.routes]
    critical = _critical_routes(arrays)
    yield from _devices(paths, arrays, critical)
    yield from _links(plan, paths, arrays, critical)
    for s in range(len(plan.stages)):
        forward, backward = arrays.forward_s_PS.copy(), arrays.backward_s_PS.copy()
        forward[:, s] = backward[:, s] = 0.0
        without = replace(arrays, forward_s_PS=forward, backward_s_PS=backward)
        yield _Suspect("stage", f"compute of stage {s}", without, 1)
        if arrays.reduce_s_S[s] > 0:
            reduce_s = arrays.reduce_s_S.copy()
            reduce_s[s] = 0.0
            yield _Suspect("stage", f"gradient reduction of stage {s}", replace(arrays, reduce_s_S=reduce_s), 1)
    none = np.zeros_like(arrays.reduce_s_S)
    if arrays.reduce_s_S.any() or arrays.tied:
        nothing = replace(arrays, reduce_s_S=none, tied=(), tied_averaged=())
        yield _Suspect("stage", "gradient reduction of all stages", nothing, 2)
    idle = np.zeros_like(arrays.forward_s_PS)
    yield _Suspect("stage", "compute of all stages", replace(arrays, forward_s_PS=idle, backward_s_PS=idle), 2)


def _critical_routes(arrays: StepArrays) -> set[int]:
    """Routes without which the step is shorter; what lies on one other route alone cannot shorten it."""
    whole_s = time_step(arrays).step_s
    routes = range(len(arrays.nic_s_P))
    if len(routes) == 1:
        return {0}
    of_routes = [f.name for f in fields(arrays) if f.name.endswith(("_PS", "_PE", "_P"))]

    def without(route: int) -> StepArrays:
        return replace(arrays, **{name: np.delete(getattr(arrays, name), route, axis=0) for name in of_routes})

    return {p for p in routes if time_step(without(p)).step_s < whole_s}


def _devices(paths: list[list[str]], arrays: StepArrays, critical: set[int]) -> Iterator[_Suspect]:
    cells: dict[str, list[tuple[int, int]]] = {}
    for p, path in enumerate(paths):
        for s, device in enumerate(path):
            cells.setdefault(device, []).append((p, s))
    for i, (device, places) in enumerate(cells.items()):
        if i and _is_harmless(places, critical):
            continue
        forward, backward = arrays.forward_s_PS.copy(), arrays.backward_s_PS.copy()
        for p, s in places:
            forward[p, s] = backward[p, s] = 0.0
        yield _Suspect("device", device, replace(arrays, forward_s_PS=forward, backward_s_PS=backward), 0)


def _is_harmless(places: list[tuple[int, int]], critical: set[int]) -> bool:
    routes = {p for p, _ in places}
    return len(routes) == 1 and not routes & critical


def _links(plan: Plan, paths: list[list[str]], arrays: StepArrays, critical: set[int]) -> Iterator[_Suspect]:
    cluster = plan.problem.cluster
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = {}
    sites: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for p, path in enumerate(paths):
        for e, (one, two) in enumerate(pairwise(path)):
            pairs.setdefault((one, two), []).append((p, e))
            ends = sorted((cluster.site_of(one).name, cluster.site_of(two).name))
            sites.setdefault((ends[0], ends[1]), []).append((p, e))
    for (one, two), places in pairs.items():
        if not _is_harmless(places, critical):
            yield _Suspect("link", f"{one} ↔ {two}", _without_links(arrays, places), 0)
    for (here, there), places in sites.items():
        name = f"links inside {here}" if here == there else f"links {here} ↔ {there}"
        yield _Suspect("link", name, _without_links(arrays, places), 1)


def _without_links(arrays: StepArrays, places: list[tuple[int, int]]) -> StepArrays:
    rows, columns = (list(axis) for axis in zip(*places, strict=True))
    names = ("activation_s_PE", "gradient_s_PE", "activation_wire_s_PE", "gradient_wire_s_PE")
    changed = {name: getattr(arrays, name).copy() for name in names}
    for array in changed.values():
        array[rows, columns] = 0.0
    return replace(arrays, **changed)
