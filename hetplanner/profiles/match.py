"""Profiles of a workload: made of rows, and checked whether they are of it and say what a device can do."""

from collections.abc import Sequence

from hetplanner.cluster.catalog import find_kind
from hetplanner.errors import InvalidInput
from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.model import CollectiveCost, LayerCost, Profile
from hetplanner.schema import checked
from hetplanner.workload.workload import Workload

MOST_OF_PEAK = 1.25
"""Of a kind's peak rate that measured seconds may come to; boost clocks go above what data sheets say."""


def profile_of(
    workload: Workload, rows: Sequence[LayerCost], *, name: str, source: str, torch: str | None = None,
    collectives: Sequence[CollectiveCost] = (),
) -> Profile:  # fmt: skip
    """A checked profile of a workload from rows of all its layers. Raises InvalidInput."""
    graph = workload.graph
    fields = {
        "name": name[:120].strip(),
        "model": workload.name,
        "num_params": graph.num_params,
        "num_trained": graph.num_trained,
        "seq_len": workload.seq_len,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "layers": layer_runs(workload),
        "rows": rows,
        "collectives": collectives,
        "source": source,
        "torch": torch,
    }
    profile = checked(Profile, fields, f"profile {name:.60}")
    try:
        check_profile(profile, workload)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    return profile


def check_profile(profile: Profile, workload: Workload) -> None:
    """Refuses a profile of another model, or with seconds that no device of the kind can reach.

    Raises:
        ValueError: naming what differs, and what would fit.
    """
    why = difference(profile, workload)
    if why:
        raise ValueError(f"profile {profile.name!r:.60}: {why}")
    graph = workload.graph
    flops = sum(op.forward_flops + op.backward_flops for op in graph.ops)
    for kind, degree, micro_batch in profile.costs:
        known = find_kind(kind)
        peak = None if known is None or known.grade == "cpu" else known.peak_flops_per_s.get(workload.dtype)
        rate = flops * micro_batch / profile.model_seconds(kind, degree, micro_batch) / degree
        if peak is not None and rate > MOST_OF_PEAK * peak:
            raise ValueError(
                f"profile {profile.name!r:.60}: {kind} at micro-batch {micro_batch} would reach"
                f" {rate / 1e12:,.0f} TFLOP/s, its peak in {workload.dtype} is {peak / 1e12:,.0f};"
                " are its seconds in another unit, or of another model?"
            )


def difference(profile: Profile, workload: Workload) -> str:
    """Why a profile is not of a workload, in words, with what would fit; '' if it is."""
    graph = workload.graph
    if profile.dtype != workload.dtype:
        return f"is of {profile.dtype}, the workload of {workload.dtype}; choose --dtype {profile.dtype}"
    if profile.seq_len != workload.seq_len:
        return (
            f"is of samples of {profile.seq_len} tokens, the workload has {workload.seq_len};"
            f" choose --seq-len {profile.seq_len}"
        )
    if profile.num_params != graph.num_params:
        return (
            f"is of {profile.model!r:.60} with {profile.num_params:,} weights, the workload {workload.name!r:.60} has"
            f" {graph.num_params:,}; profile this model"
        )
    if profile.num_trained != graph.num_trained:
        return (
            f"is of {profile.num_trained:,} trained weights, the workload trains {graph.num_trained:,};"
            " profile it with the same fine-tuning"
        )
    if sum(profile.layer_ops) != len(graph.ops):
        return (
            f"its layers have {sum(profile.layer_ops)} operators, the workload {len(graph.ops)};"
            " profile the workload as it is"
        )
    return ""
