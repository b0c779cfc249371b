"""Where the seconds of a problem's devices come from: its profile, the cluster file or the catalog, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetplanner.cluster.catalog import plain_kind
from hetplanner.plan.problem import Problem
from hetplanner.profiles.model import Profile

Origin = Literal["profile", "cluster file", "catalog"]


@dataclass(frozen=True)
class ComputeSource:
    """Of the devices of one kind.

    Attributes:
        kind: as the cluster file has it.
        devices: how many there are.
        origin: `cluster file` where it states a peak or an efficiency, as measurements and calibrations do.
        detail: of a profile, at which micro-batches it was measured; else ''.
    """

    kind: str
    devices: int
    origin: Origin
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.devices} × {self.kind}: {self.origin}{detail}"


def compute_sources(problem: Problem) -> tuple[ComputeSource, ...]:
    """By kind of device and origin, in the cluster's order: what its forward and backward seconds are taken from."""
    counts: dict[tuple[str, Origin], int] = {}
    profile = problem.profile
    measured = {plain_kind(kind): kind for kind in profile.kinds if profile.micro_batches(kind)} if profile else {}
    for device in problem.cluster.devices:
        origin: Origin = "catalog"
        if plain_kind(device.kind) in measured:
            origin = "profile"
        elif device.peak is not None or device.efficiency is not None:
            origin = "cluster file"
        counts[device.kind, origin] = counts.get((device.kind, origin), 0) + 1
    return tuple(
        ComputeSource(
            kind,
            count,
            origin,
            _detail(profile, measured[plain_kind(kind)], problem.workload.micro_batch)
            if profile is not None and origin == "profile"
            else "",
        )
        for (kind, origin), count in counts.items()
    )


def _detail(profile: Profile, kind: str, micro_batch: int) -> str:
    sizes = profile.micro_batches(kind)
    if micro_batch in sizes:
        return f"measured at micro-batch {micro_batch}"
    between = sizes[0] < micro_batch < sizes[-1]
    how = "interpolated" if between else "extrapolated"
    return f"{how} to micro-batch {micro_batch} from {', '.join(map(str, sizes))}"
