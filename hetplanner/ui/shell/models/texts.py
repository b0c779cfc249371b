"""Numbers as a person reads them."""

import math
import re

from hetplanner.cost.compute.sources import compute_sources
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.estimate import Estimate
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.plots.data.curves import value_text as value_text
from hetplanner.units import short_bytes, short_seconds

_DASH = "–"


def seconds_text(value: float | None) -> str:
    """'4.12 s', or a dash for what is not known."""
    return _DASH if value is None or not math.isfinite(value) else short_seconds(value)


def count_text(value: float | None) -> str:
    """'11.9k' for 11900, or a dash."""
    if value is None or not math.isfinite(value):
        return _DASH
    for suffix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def percent_text(share: float | None, digits: int = 1) -> str:
    """'7.3 %' for 0.073, or a dash."""
    return _DASH if share is None or not math.isfinite(share) else f"{100 * share:z.{digits}f} %"


def change_text(value: float | None, reference: float | None) -> str:
    """'−22 %' for a value 22 % below its reference, '' where either is unknown."""
    if value is None or not reference or not math.isfinite(value):
        return ""
    change = 100 * (value / reference - 1)
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(change):.0f} %"


def against_text(value: float, name: str, reference: float) -> str:
    """'−22 % against rank order', or that it is as good."""
    if abs(value - reference) < 0.005 * abs(reference):
        return f"as good as {name}"
    return f"{change_text(value, reference)} against {name}"


def dollars_text(estimate: Estimate, word: str = "tokens") -> str:
    """'$0.109 per million tokens (or another word), 41 % of it egress', and whether that leaves something out."""
    if estimate.usd_per_mtoken is None:
        return "price unknown: a device in use has none"
    text = f"${estimate.usd_per_mtoken:.3g} per million {word}"
    if estimate.egress_usd and estimate.device_usd is not None:
        text += f", {percent_text(estimate.egress_usd / (estimate.device_usd + estimate.egress_usd), 0)} of it egress"
    return f"{text} (not all: see below)" if estimate.left_out_text else text


def left_out_lines(estimate: Estimate) -> list[str]:
    """What the dollars of an estimate leave out, as a line; none where they are whole."""
    return [f"Dollars are {estimate.left_out_text}."] if estimate.left_out_text else []


def sources_text(problem: Problem) -> str:
    """'4 × A100: profile (measured at micro-batch 2); 2 × T4: catalog': where compute seconds come from."""
    return "; ".join(map(str, compute_sources(problem)))


def device_text(plan: Plan, device: str) -> str:
    """A device of a plan in a line: what it is, what it serves, how busy and full it is."""
    cluster = plan.problem.cluster
    what = cluster.devices[cluster.device_index(device)]
    rank = plan.rank_of(device)
    stages = ", ".join(f"stage {s}, replica {r}" for s, r in plan.places_of_rank[rank])
    members = plan.problem.members_of(device)
    kind = what.kind if len(members) == 1 else f"{len(members)} × {what.kind} with {', '.join(members[1:])}"
    text = f"{device} ({kind}, {cluster.site_of(device).name}), rank {rank}: {stages}"
    expected = next((d for d in plan.estimate.devices if d.device == device), None) if plan.estimate else None
    if expected is None:
        return text
    memory = f"{short_bytes(expected.peak_bytes)} of {short_bytes(expected.limit_bytes)}"
    return f"{text}; computes {seconds_text(expected.busy_s)} a step, needs {memory}"


def stage_text(plan: Plan, stage: int) -> str:
    """A stage of a plan in a line: how much of the model, on what."""
    ops, here = plan.ops_of(stage), plan.stages[stage]
    layers = sorted({op.layer for op in ops if op.layer is not None})
    held = f"layers {layers[0]}–{layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else ops[0].name
    devices = [device for replica in here.replicas for device in replica]
    sites = sorted({plan.problem.cluster.site_of(device).name for device in devices})
    places = ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")
    count = f"{len(devices)} device{'' if len(devices) == 1 else 's'}"
    return f"Stage {stage}: {held} on {count} in {places}; {here.in_flight} micro-batches in flight"


def site_text(plan: Plan, site: str) -> str:
    """A site in a line: how many of its devices the plan uses, and for what."""
    cluster = plan.problem.cluster
    here = [device for device in cluster.device_ids if cluster.site_of(device).name == site]
    used = [device for device in here if device in plan.ranks]
    stages = sorted({s for device in used for s, _ in plan.places_of_rank[plan.rank_of(device)]})
    served = f", stages {', '.join(map(str, stages))}" if stages else ""
    return f"{site}: {len(used)} of {len(here)} devices{served}"


def shape_text(plan: AnyPlan) -> str:
    """'8 stages × 8 replicas', of an elastic plan '8 stages × 8 peers'; a range where stages differ."""
    if isinstance(plan, ElasticPlan):
        counts, noun = sorted({len(stage.peers) for stage in plan.stages}), "peer"
    else:
        counts, noun = sorted({len(stage.replicas) for stage in plan.stages}), "replica"
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return f"{counted(len(plan.stages), 'stage')} × {many} {noun}{'' if counts == [1] else 's'}"


def plan_name(plan: AnyPlan) -> str:
    """'gpt3-xl on dtfm_5_worldwide, 8 stages × 8 replicas (plan 3f2a90c1)': what it is made for, and its digest."""
    problem = plan.problem
    return f"{problem.workload.name} on {problem.cluster.name}, {shape_text(plan)} (plan {plan.digest()[:8]})"


def counted(number: int, noun: str) -> str:
    """'1 stage', '2 stages'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_PATH = re.compile(r"(?<![\w.~/])(?:~|\.{1,2})?/(?:[^\s/'\"`;:,()\[\]]+/)*([^\s/'\"`;:,()\[\]]*)")


def without_paths(text: str) -> str:
    """Every path as its last part alone: where files of the server's user lie is no concern of a browser."""
    return _PATH.sub(lambda found: found[1] or "…", text)
