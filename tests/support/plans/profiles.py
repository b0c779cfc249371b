"""Profiles with round numbers."""

from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.model import LayerCost, Profile
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
    runs = layer_runs(workload)
    rows = [
        LayerCost(
            kind=kind, layer=name, micro_batch=size, forward=forward, backward=2 * forward, update=update_s, kept=kept
        )
        for size, forward in (seconds or {1: 0.01, 4: 0.04}).items()
        for name in dict.fromkeys(run.name for run in runs)
    ]
    given = {
        "name": "made",
        "model": workload.name,
        "num_params": workload.graph.num_params,
        "num_trained": workload.graph.num_trained,
        "seq_len": workload.seq_len,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "layers": runs,
        "rows": rows,
        "source": "made by hand",
    }
    return Profile(**given | fields)  # type: ignore[arg-type]
