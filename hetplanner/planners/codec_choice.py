"""Which codec travels on which link: the allowed one that shortens the step, and only where it does.

Legend of array suffixes: D devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hetplanner.codecs.spec import COST_PASSES, NO_CODEC, Codec
from hetplanner.cost.closed_form import time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, step_arrays
from hetplanner.plan.model import LinkCodec, Plan, Role
from hetplanner.plan.problem import Problem

FloatArray = NDArray[np.float64]

# A codec that shortens the step by less than this share is not worth changing the numbers trained.
WORTH_A_CODEC = 0.002


def step_seconds_of(plan: Plan, model: CostModel) -> float:
    """Seconds of a plan's step by the closed form, without its estimate's other parts."""
    return time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s


def choose_codecs(plan: Plan, model: CostModel) -> Plan:
    """Puts the allowed codec with the shortest message time on every link, then drops those that do not pay.

    Links between the same two sites are treated alike. A lossy codec stays only where the step gets longer
    without it.
    """
    allowed = [_codec(name, plan.problem) for name in plan.problem.constraints.codecs if name != "none"]
    if not allowed or len(plan.stages) < 2:
        return plan
    groups = _best_codecs(plan, model, allowed)
    best = _with_codecs(plan, groups.values())
    best_s = step_seconds_of(best, model)
    dense_s = step_seconds_of(plan, model)
    if best_s >= dense_s * (1 - WORTH_A_CODEC):
        return plan
    for key in sorted(groups):
        trial = _with_codecs(plan, [rules for name, rules in groups.items() if name != key])
        trial_s = step_seconds_of(trial, model)
        if trial_s <= best_s * (1 + WORTH_A_CODEC / len(groups)):
            del groups[key]
            best_s = trial_s
    return _with_codecs(plan, groups.values())


def best_seconds_per_byte_DD(model: CostModel) -> FloatArray:
    """Seconds per dense byte between stages with the best allowed codec of each link, its work included."""
    problem = model.tables.problem
    dense = model.links.seconds_per_byte_DD
    width = problem.workload.dtype_bytes
    memory = model.tables.devices.memory_bandwidth_bytes_per_s_D
    best = dense.copy()
    for name in problem.constraints.codecs:
        codec = _codec(name, problem)
        elements = 64 * codec.block
        ratio = codec.wire_bytes(elements, width) / (elements * width)
        work = COST_PASSES[name] / 2.0 * (1.0 / memory[:, None] + 1.0 / memory[None, :])
        best = np.minimum(best, ratio * dense + work)
    return np.asarray(best)


def _codec(name: str, problem: Problem) -> Codec:
    return Codec(name=name, block=problem.constraints.codec_block)


def _best_codecs(plan: Plan, model: CostModel, allowed: list[Codec]) -> dict[tuple[str, str, str], list[LinkCodec]]:
    """Rules by (from site, to site, role), only where an allowed codec beats the dense message."""
    cluster = plan.problem.cluster
    groups: dict[tuple[str, str, str], list[LinkCodec]] = {}
    for route in plan.routes:
        path = [plan.ranks[plan.rank_at(s, r)] for s, r in enumerate(route.replicas)]
        for e, (one, two) in enumerate(pairwise(path)):
            ways: tuple[tuple[str, str, Role], ...] = ((one, two, "activation"), (two, one, "gradient"))
            for source, target, role in ways:
                codec = _fastest(plan, model, allowed, e, source, target)
                key = (cluster.site_of(source).name, cluster.site_of(target).name, role)
                if codec is not None:
                    rule = LinkCodec(from_device=source, to_device=target, role=role, codec=codec)
                    groups.setdefault(key, []).append(rule)
    return groups


def _fastest(
    plan: Plan, model: CostModel, allowed: list[Codec], boundary: int, source: str, target: str
) -> Codec | None:
    a, b = (plan.problem.cluster.device_index(d) for d in (source, target))
    elements, width = plan.boundary_elements(boundary), plan.problem.workload.dtype_bytes
    memory = model.tables.devices.memory_bandwidth_bytes_per_s_D

    def seconds(codec: Codec) -> float:
        work = COST_PASSES[codec.name] / 2.0 * elements * width * (1.0 / memory[a] + 1.0 / memory[b])
        return float(codec.wire_bytes(elements, width) * model.links.seconds_per_byte_DD[a, b] + work)

    best = min([NO_CODEC, *allowed], key=seconds)
    return None if best.name == "none" else best


def _with_codecs(plan: Plan, groups: Iterable[list[LinkCodec]]) -> Plan:
    rules = {(r.from_device, r.to_device, r.role): r for rules in groups for r in rules}
    return plan.replace(link_codecs=tuple(rules.values()))
