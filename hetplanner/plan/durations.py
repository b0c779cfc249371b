"""Seconds that each rank needs for its parts of a step: from the catalog (cost) or from a profile (runtime).

Shape legend: N ranks, C chunks (what a rank holds of one stage; one a rank, in rank order, unless the plan is
interleaved: `Plan.chunks`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

MOST_S = 1e6
"""Of one part of a step."""
_LIMITS = {"message_s": (0.0, MOST_S), "overlap": (0.0, 1.0)}
LEAST_CORES = 1e-6
"""Of a rank."""


@dataclass(frozen=True)
class Durations:
    """Compute times of a plan; transfers follow from the plan's links and need no entry here.

    Attributes:
        forward_s_C, backward_s_C: one micro-batch through a chunk (loss included on the last stage).
        optimizer_s_N: one optimiser step.
        encode_s_N, decode_s_N: one boundary message of the rank (codec and copy).
        reduce_s_N: the rank's share of adding up and re-packing gradients in one step.
        outer_s_N: one step of the outer optimizer, where replicas take local steps; None = nothing.
        message_s: fixed cost of handing one message to the network and of taking it.
        overlap: share of a boundary message's wire time for which its sender goes on computing; for the rest of it
            the sender waits. 1 = asynchronous sends.
        cores_N: compute slots that a rank had while all computed; None = every rank has one of its own. The times above
            are for a rank that computes alone; k ranks at once on a machine of c cores run at c/k of that.
        machine_N: number of each rank's machine, whose ranks share their slots; None = all are on one.
    """

    forward_s_C: np.ndarray
    backward_s_C: np.ndarray
    optimizer_s_N: np.ndarray
    encode_s_N: np.ndarray
    decode_s_N: np.ndarray
    reduce_s_N: np.ndarray
    outer_s_N: np.ndarray | None = None
    message_s: float = 0.0
    overlap: float = 1.0
    cores_N: np.ndarray | None = None
    machine_N: np.ndarray | None = None

    def machines(self) -> list[tuple[list[int], float]]:
        """Ranks that share cores, and how many; nothing where every rank has its own."""
        if self.cores_N is None:
            return []
        machine_N = np.zeros(len(self.cores_N)) if self.machine_N is None else self.machine_N
        groups = [np.flatnonzero(machine_N == machine) for machine in np.unique(machine_N)]
        return [(group.tolist(), float(self.cores_N[group].sum())) for group in groups]

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Durations":
        """From what `to_data` made. Raises ValueError, TypeError or KeyError if it is something else."""
        found = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        if data.get("cores") is not None:  # of older files: of all ranks, on one machine
            num_ranks = max(1, len(data["optimizer_s_N"]))
            found["cores_N"] = [float(data["cores"]) / num_ranks] * num_ranks
        arrays = {name: np.array(value, dtype=np.float64) for name, value in found.items() if isinstance(value, list)}
        numbers = {name: None if value is None else float(value) for name, value in found.items() if name not in arrays}
        for f in fields(cls):
            if f.name.endswith(("_C", "_N")) != (f.name in arrays) and not (
                f.default is None and found.get(f.name) is None
            ):
                raise ValueError(f"durations: {f.name} is missing, or no list")
        if any(a.ndim != 1 or not ((a >= 0) & (a <= MOST_S)).all() for a in arrays.values()):
            raise ValueError(f"durations: must be lists of seconds from 0 to {MOST_S:g}")
        if "cores_N" in arrays and not (arrays["cores_N"] >= LEAST_CORES).all():
            raise ValueError(f"durations: cores_N must be {LEAST_CORES:g} or more")
        for name, (least, most) in _LIMITS.items():
            number = numbers.get(name)
            if number is not None and not least <= number <= most:
                raise ValueError(f"durations: {name} must be from {least:g} to {most:g}, got {number:g}")
        return cls(**arrays, **numbers)  # type: ignore[arg-type]
