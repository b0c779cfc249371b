"""What two problems differ in, in words."""

from collections.abc import Iterator
from typing import Any

from hetplanner.cluster.model import Cluster
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.ui.settings.models.problem import MODEL_SIZES, OBJECTIVES

MOST_NAMED = 3
_LABELS = {
    "seq_len": "tokens/sequence",
    "global_batch": "global batch",
    "micro_batch": "micro-batch",
    "dtype": "number format",
    "recompute": "recompute always",
    "codec_block": "codec block",
    "max_ratio": "greatest ratio",
    "max_local_steps": "local steps",
    "tensor": "devices in a group",
    "sharding": "what a group divides",
    "zero": "ZeRO stage",
}


def differences_text(old: Problem, new: Problem) -> str:
    """'global batch 512 → 1024, links of lab'; at most MOST_NAMED differences are named, '' if there is none."""
    found = list(_differences(old, new))
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def _differences(old: Problem, new: Problem) -> Iterator[str]:
    if old.cluster != new.cluster:
        yield _cluster_text(old.cluster, new.cluster)
    if old.workload != new.workload:
        yield from _workload_texts(old, new)
    if old.profile != new.profile:
        before, after = (one.profile.name[:60] if one.profile is not None else "none" for one in (old, new))
        yield f"profile {before} → {after}" if before != after else f"rows of profile {before}"
    if old.objective != new.objective:
        names = {value: name for name, value in OBJECTIVES.items()}
        yield f"objective {names[old.objective]} → {names[new.objective]}"
    for name in Constraints.model_fields:
        before, after = getattr(old.constraints, name), getattr(new.constraints, name)
        if before != after:
            yield f"{_LABELS.get(name, name)} {_shown(before)} → {_shown(after)}"


def _cluster_text(old: Cluster, new: Cluster) -> str:
    if old.name != new.name:
        return f"cluster {old.name:.60} → {new.name:.60}"
    if old.devices != new.devices:
        before, after = len(old.devices), len(new.devices)
        return f"devices {before} → {after}" if before != after else f"devices of {old.name:.60}"
    return f"{'sites' if old.sites != new.sites else 'links'} of {old.name:.60}"


def _workload_texts(old: Problem, new: Problem) -> Iterator[str]:
    before, after = old.workload, new.workload
    if before.name != after.name:
        yield f"model {before.name:.60} → {after.name:.60}"
        return
    sizes = [name for name in MODEL_SIZES if name != "layers" and getattr(before, name) != getattr(after, name)]
    if before.graph.num_layers != after.graph.num_layers:
        yield f"layers {before.graph.num_layers} → {after.graph.num_layers}"
    elif not sizes:
        yield f"options of {before.name:.60}"
    for name in sizes:
        yield f"{_LABELS[name]} {_shown(getattr(before, name))} → {_shown(getattr(after, name))}"


def _shown(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | dict):
        return f"{len(value)} named" if len(value) > MOST_NAMED else ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
