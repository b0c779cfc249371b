"""Profiles with round numbers."""

from collections.abc import Sequence

from hetplanner.profiles import match
from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.model import COLLECTIVES, CollectiveCost, LayerCost, Profile
from hetplanner.workload.workload import Workload


def made_profile(
    workload: Workload,
    kind: str = "CPU generic",
    *,
    seconds: dict[int, float] | None = None,
    update_s: float | None = 0.001,
    kept: int | None = None,
    **fields: object,
) -> Profile:
    """Every layer takes the same: forward seconds by micro-batch, twice as much backward."""
    layers = _layers(workload)
    rows = [
        LayerCost(
            kind=kind, layer=name, micro_batch=size, forward=forward, backward=2 * forward, update=update_s, kept=kept
        )
        for size, forward in (seconds or {1: 0.01, 4: 0.04}).items()
        for name in layers
    ]
    return match.profile_of(workload, rows, name="made", source="made by hand").replace(**fields)


def profile_of(workload: Workload, *kinds: str, sizes: Sequence[int] = (1, 2)) -> Profile:
    """Every layer takes 0.1 s forward and 0.2 s back for each sample, on all kinds."""
    layers = _layers(workload)
    rows = [
        LayerCost(kind=kind, layer=layer, micro_batch=b, forward=0.1 * b, backward=0.2 * b, update=0.01, kept=1e6 * b)
        for kind in kinds
        for b in sizes
        for layer in layers
    ]
    return match.profile_of(workload, rows, name=f"{workload.name} measured", source="a test")


def made_collectives(kind: str = "CPU generic", *, degrees: Sequence[int] = (2,)) -> tuple[CollectiveCost, ...]:
    """All three of 1 MB and of 1 kB: 1 ms and 10 µs for each device."""
    return tuple(
        CollectiveCost(kind=kind, degree=degree, collective=name, size=size, seconds=degree * seconds)
        for degree in degrees
        for name in COLLECTIVES
        for size, seconds in ((1e6, 1e-3), (1e3, 1e-5))
    )


def _layers(workload: Workload) -> dict[str, None]:
    return dict.fromkeys(run.name for run in layer_runs(workload))
