"""Where the seconds of a problem's devices come from: its profile, the cluster file or the catalog, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetplanner.cluster.catalog import plain_kind
from hetplanner.plan.problem import Problem
from hetplanner.profiles.model import Profile
from hetplanner.workload.tensor_degrees import SHARDING_WORDS, Sharding

Origin = Literal["profile", "cluster file", "catalog"]


@dataclass(frozen=True)
class ComputeSource:
    """Of the devices of one kind.

    Attributes:
        kind: as the cluster file has it.
        devices: how many there are.
        origin: `cluster file` where it states a peak or an efficiency, as measurements and calibrations do.
        degree: how many of them serve together, each time.
        sharding: what they divide.
        detail: of a profile, at which micro-batches and degree it was measured; else ''.
    """

    kind: str
    devices: int
    origin: Origin
    degree: int = 1
    sharding: Sharding = "tensor"
    detail: str = ""

    def __str__(self) -> str:
        groups = f" in groups of {self.degree}" if self.degree > 1 else ""
        groups += f" ({SHARDING_WORDS[self.sharding]})" if self.sharding != "tensor" else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.devices} × {self.kind}{groups}: {self.origin}{detail}"


def compute_sources(problem: Problem) -> tuple[ComputeSource, ...]:
    """By kind of device, degree and origin, in the cluster's order: where forward and backward seconds come from."""
    counts: dict[tuple[str, Origin, int, Sharding, str], int] = {}
    members = {device for group in problem.groups or () for device in group.devices[1:]}
    for device in problem.cluster.devices:
        if device.id not in members:
            degree, sharding = problem.degree_of(device.id), problem.sharding_of(device.id)
            detail = _detail(problem.profile, device.kind, degree, sharding, problem.workload.micro_batch)
            stated = device.peak is not None or device.efficiency is not None
            origin: Origin = "profile" if detail else "cluster file" if stated else "catalog"
            key = device.kind, origin, degree, sharding, detail
            counts[key] = counts.get(key, 0) + degree
    return tuple(ComputeSource(kind, count, *more) for (kind, *more), count in counts.items())  # type: ignore[arg-type]


def _detail(profile: Profile | None, name: str, degree: int, sharding: Sharding, micro_batch: int) -> str:
    """How a profile knows the seconds of a kind at a degree; '' if it has none."""
    if profile is None:
        return ""
    kind = next((kind for kind in profile.kinds if plain_kind(kind) == plain_kind(name)), "")
    if sharding != "tensor":  # each member computes some of the samples as a single device
        degree, micro_batch = 1, micro_batch // degree
    sizes, divided = profile.micro_batches(kind, degree), ""
    if not sizes and degree > 1:
        sizes, divided = profile.micro_batches(kind), ", one device's divided"
    if not sizes:
        return ""
    if micro_batch in sizes:
        return f"measured at micro-batch {micro_batch}{divided}"
    how = "interpolated" if sizes[0] < micro_batch < sizes[-1] else "extrapolated"
    return f"{how} to micro-batch {micro_batch} from {', '.join(map(str, sizes))}{divided}"
