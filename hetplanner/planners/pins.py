"""Devices that must serve a given stage."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import IntArray
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem


def honour_pins(pin_D: NDArray[Any], place_PN: NDArray[Any], num_stages: int, num_replicas: int) -> None:
    """Swaps pinned devices into their stages, in place, each with the first there that is not pinned to it.

    Runs compiled as well, as `kernel(honour_pins)`.

    Args:
        pin_D: stage of every pinned device, -1 of the others; no stage has more than its replicas.
        place_PN: layouts, devices stage by stage and spare ones behind.
        num_stages: of the layouts.
        num_replicas: of every stage.
    """
    for i in range(len(place_PN)):
        place_N = place_PN[i]
        for x in range(len(place_N)):
            pin = pin_D[place_N[x]]
            # The device that comes back may itself be pinned elsewhere.
            while pin >= 0 and x // num_replicas != pin:
                y = pin * num_replicas
                while pin_D[place_N[y]] == pin:
                    y += 1
                place_N[x], place_N[y] = place_N[y], place_N[x]
                pin = pin_D[place_N[x]]


def pin_rows(problem: Problem) -> dict[int, int]:
    """Stage of every pinned device, by its row in the cluster."""
    return {problem.cluster.device_index(d): stage for d, stage in problem.constraints.pinned.items()}


def pin_placement(placement_SR: IntArray, problem: Problem) -> IntArray:
    """A placement (rows of the cluster) with pinned devices swapped into their stages."""
    if not problem.constraints.pinned:
        return placement_SR
    rows = [problem.cluster.device_index(d) for d in problem.usable_devices]
    used = placement_SR.reshape(-1)
    place = np.concatenate([used, np.setdiff1d(rows, used)])[None].astype(np.int64)
    pin_D = np.full(len(problem.cluster.devices), -1, dtype=np.int64)
    for row, stage in pin_rows(problem).items():
        pin_D[row] = stage
    honour_pins(pin_D, place, *placement_SR.shape)
    return np.asarray(place[0, : used.size].reshape(placement_SR.shape))


def shapes_with_room(shapes: list[tuple[int, int]], problem: Problem) -> list[tuple[int, int]]:
    """Shapes whose stages have room for the devices pinned to them.

    Raises:
        InvalidInput: if there is none.
    """
    pinned = problem.constraints.pinned
    if not pinned:
        return shapes
    stages, replicas = max(pinned.values()) + 1, max(Counter(pinned.values()).values())
    fitting = [(s, r) for s, r in shapes if s >= stages and r >= replicas]
    if not fitting:
        raise InvalidInput(
            f"constraints.pinned: needs {stages} stages and {replicas} replicas or more, which"
            f" {len(problem.usable_devices)} usable devices do not allow; pin fewer devices or to fewer stages"
        )
    return fitting
