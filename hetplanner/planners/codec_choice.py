"""Which codec travels where: on every link between stages the weakest that is enough, and only where the step shortens.

Two rules say how many bytes a link may carry, and then the weakest codec within them is taken (`weakest_codecs`):

    topk, and codecs without a ratio   a target for the seconds of a message, swept from the slowest dense link down;
                                       the step of every target is estimated, and of those nearly as short as the
                                       shortest the weakest compression wins
    adatopk                            FusionLLM's rule: 1 / max(1, R x dense seconds / the slowest link's) of the dense
                                       bytes, R the greatest ratio allowed

Gradient reductions then take the weakest codec with which the step stays as short. What a codec does to the quality of
training is not modelled: "weakest" goes by the order of `CODEC_NAMES` and by the ratio.

Legend of array suffixes: D devices, S stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hetplanner.codecs.adatopk import adatopk_reductions
from hetplanner.codecs.spec import CODEC_NAMES, Codec, most_kept, topk_of
from hetplanner.cost.closed_form import time_step
from hetplanner.cost.durations import durations_of, reduce_codec_passes
from hetplanner.cost.estimate import CostModel, step_arrays, usd_per_step
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES
from hetplanner.plan.model import LinkCodec, Plan
from hetplanner.plan.problem import Problem

FloatArray = NDArray[np.float64]

# A codec that shortens the step by less than this share is not worth changing the numbers trained.
WORTH_A_CODEC = 0.01
# A weaker compression may cost this share of the shortest step.
NEARLY_BEST = 0.02
# Targets swept between the slowest and the fastest message, apart by equal factors.
NUM_TARGETS = 16
# Reductions whose sums the runtime adds up without feeding errors back: 4 bits are too coarse for that.
REDUCTION_CODECS = ("fp16", "bf16", "int8")


def choose_codecs(plan: Plan, model: CostModel) -> Plan:
    """Gives the links between stages and the gradient reductions the codecs that the constraints allow.

    A lossy codec stays only where the objective (the step, or dollars) gets worse without it by `WORTH_A_CODEC`.
    """
    if set(plan.problem.constraints.codecs) <= {"none"}:
        return plan
    if len(plan.stages) > 1:
        plan = _choose_for_links(plan, model)
    return _choose_for_reductions(plan, model)


def step_seconds_of(plan: Plan, model: CostModel) -> float:
    """Seconds of a plan's step by the closed form, without its estimate's other parts."""
    return time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s


def rough_objective(plan: Plan, model: CostModel) -> float:
    """Seconds or dollars of a plan's step, whichever its problem is about; needs neither estimate nor kernels."""
    step_s = step_seconds_of(plan, model)
    if plan.problem.objective == "cost":
        return usd_per_step(plan, step_s, model) or step_s
    return step_s


# -- what is allowed -----------------------------------------------------------------------------


def _fixed_codecs(problem: Problem) -> list[Codec]:
    """Allowed codecs without a ratio, weakest first; dense always is."""
    allowed = {"none", *problem.constraints.codecs} - {"topk", "adatopk"}
    return [Codec(name=name, block=problem.constraints.codec_block) for name in CODEC_NAMES if name in allowed]


def _strongest_topk(problem: Problem, num_elements: int) -> Codec | None:
    """Top-k with the greatest ratio allowed; None if it is not, or would press more even with all elements kept."""
    width, max_ratio = problem.workload.dtype_bytes, problem.constraints.max_ratio
    if not {"topk", "adatopk"} & set(problem.constraints.codecs) or not num_elements:
        return None
    least_bytes = num_elements * width / max_ratio
    kept = most_kept(num_elements, least_bytes)
    # The largest number within the bytes falls short of them, mostly: one more then.
    for count in range(max(kept, 1), min(kept + 1, num_elements) + 1):
        codec = topk_of(num_elements, count)
        if codec.wire_bytes(num_elements, width) >= least_bytes:
            return codec
    return None


def best_seconds_per_byte_DD(model: CostModel) -> FloatArray:
    """Seconds per dense byte between stages with the best allowed codec of each link, its work included."""
    problem = model.tables.problem
    dense = model.links.seconds_per_byte_DD
    width = problem.workload.dtype_bytes
    memory = model.tables.devices.memory_bandwidth_bytes_per_s_D
    elements = 64 * problem.constraints.codec_block
    codecs = [*_fixed_codecs(problem), *filter(None, [_strongest_topk(problem, elements)])]
    best = dense.copy()
    for codec in codecs:
        # Both ways count alike: the gradients of top-k are shorter than its activations and less work.
        ways = [
            (codec.wire_bytes(elements, width, positions_known=k), codec.work(positions_known=k)) for k in (False, True)
        ]
        ratio = sum(size for size, _ in ways) / (2 * elements * width)
        encode, decode = (sum(column) / 2 for column in zip(*(work for _, work in ways), strict=True))
        best = np.minimum(best, ratio * dense + encode / memory[:, None] + decode / memory[None, :])
    return np.asarray(best)


def best_reduction(problem: Problem) -> tuple[float, float]:
    """What the strongest codec allowed in reductions does: bytes over dense bytes, passes over memory to code."""
    codecs = [codec for codec in _fixed_codecs(problem) if codec.name in ("none", *REDUCTION_CODECS)]
    elements = 64 * problem.constraints.codec_block
    share, passes = min(
        (codec.wire_bytes(elements, GRADIENT_ELEMENT_BYTES), reduce_codec_passes(codec)) for codec in codecs
    )
    return share / (elements * GRADIENT_ELEMENT_BYTES), passes


# -- links between stages ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hop:
    """Two neighbours in a pipeline, and what a message between them takes when dense."""

    source: str
    target: str
    group: tuple[str, str]
    num_elements: int
    dense_bytes: int
    there_s_per_byte: float
    back_s_per_byte: float
    there_s: float
    back_s: float


def _hops(plan: Plan, model: CostModel) -> list[_Hop]:
    cluster, links, width = plan.problem.cluster, model.links, plan.problem.workload.dtype_bytes
    hops: dict[tuple[str, str], _Hop] = {}
    for route in plan.routes:
        path = [plan.ranks[plan.rank_at(s, r)] for s, r in enumerate(route.replicas)]
        for boundary, (one, two) in enumerate(pairwise(path)):
            a, b = cluster.device_index(one), cluster.device_index(two)
            elements = plan.boundary_elements(boundary)
            if one == two or ((one, two) in hops and hops[one, two].num_elements >= elements):
                continue
            there, back = float(links.seconds_per_byte_DD[a, b]), float(links.seconds_per_byte_DD[b, a])
            hops[one, two] = _Hop(
                source=one,
                target=two,
                group=(cluster.site_of(one).name, cluster.site_of(two).name),
                num_elements=elements,
                dense_bytes=elements * width,
                there_s_per_byte=there,
                back_s_per_byte=back,
                there_s=float(links.latency_s_DD[a, b]) + elements * width * there,
                back_s=float(links.latency_s_DD[b, a]) + elements * width * back,
            )
    return list(hops.values())


def weakest_codecs(problem: Problem, num_elements: int, there_bytes: float, back_bytes: float) -> tuple[Codec, Codec]:
    """The weakest codecs for activations and gradients whose messages are no longer than wanted.

    Args:
        problem: says what is allowed.
        num_elements: of the tensor.
        there_bytes, back_bytes: wanted bytes of a message of activations, and of gradients.

    Returns:
        Both codecs: the ones that come nearest if nothing allowed is short enough. Top-k goes both ways or neither.
    """
    width = problem.workload.dtype_bytes
    fixed = _fixed_codecs(problem)

    def weakest(wanted: float) -> Codec | None:
        return next((c for c in fixed if c.wire_bytes(num_elements, width) <= wanted), None)

    def shortest() -> Codec:
        return min(fixed, key=lambda c: c.wire_bytes(num_elements, width))

    there, back = weakest(there_bytes), weakest(back_bytes)
    strongest = _strongest_topk(problem, num_elements)
    if (there is None or back is None) and strongest is not None:
        kept = min(most_kept(num_elements, there_bytes), most_kept(num_elements, back_bytes, positions_known=True))
        pressed = topk_of(num_elements, max(kept, strongest.kept(num_elements)))
        # Where another codec is as short, the tensor goes whole.
        if pressed.wire_bytes(num_elements, width) < shortest().wire_bytes(num_elements, width):
            return pressed, pressed
    return there or shortest(), back or shortest()


_Rules = dict[tuple[str, str], list[LinkCodec]]


def _choose_for_links(plan: Plan, model: CostModel) -> Plan:
    dense = rough_objective(plan, model)
    hops = _hops(plan, model)
    if "adatopk" in plan.problem.constraints.codecs:
        groups = _by_adatopk(plan.problem, hops)
    else:
        groups = _by_target(plan, hops, model)
    best = rough_objective(_with_codecs(plan, groups.values()), model)
    if best >= dense * (1 - WORTH_A_CODEC):
        return plan
    return _without_needless(plan, groups, best, model)


def _by_adatopk(problem: Problem, hops: list[_Hop]) -> _Rules:
    """FusionLLM's ratios; a link here is both directions between two neighbours."""
    reductions = adatopk_reductions([hop.there_s + hop.back_s for hop in hops], problem.constraints.max_ratio)
    wanted = [hop.dense_bytes / reduction for hop, reduction in zip(hops, reductions, strict=True)]
    return _rules(problem, [(hop, size, size) for hop, size in zip(hops, wanted, strict=True)])


def _by_target(plan: Plan, hops: list[_Hop], model: CostModel) -> _Rules:
    """The weakest compression of all that a sweep of the slowest message's seconds finds nearly best."""
    seconds = [hop.dense_bytes * rate for hop in hops for rate in (hop.there_s_per_byte, hop.back_s_per_byte)]
    slowest = max(seconds, default=0.0)
    if slowest <= 0:
        return {}
    fastest = min(s for s in seconds if s > 0) * _least_share(plan.problem)
    sweep: list[tuple[_Rules, float]] = []
    for target_s in np.geomspace(slowest, fastest, NUM_TARGETS):
        rules = _within(plan.problem, hops, float(target_s))
        # Targets may give the same codecs as the one before.
        if not sweep or rules != sweep[-1][0]:
            sweep.append((rules, rough_objective(_with_codecs(plan, rules.values()), model)))
    best = min(value for _, value in sweep)
    return next(rules for rules, value in sweep if value <= best * (1 + NEARLY_BEST))


def _least_share(problem: Problem) -> float:
    """Bytes of the shortest message allowed, over those of the dense one."""
    elements, width = 2**20, problem.workload.dtype_bytes
    codecs = [*_fixed_codecs(problem), *filter(None, [_strongest_topk(problem, elements)])]
    return min(codec.wire_bytes(elements, width) for codec in codecs) / (elements * width)


def _within(problem: Problem, hops: list[_Hop], target_s: float) -> _Rules:
    wanted = [
        (hop, _allowed_bytes(hop.there_s_per_byte, target_s), _allowed_bytes(hop.back_s_per_byte, target_s))
        for hop in hops
    ]
    return _rules(problem, wanted)


def _allowed_bytes(seconds_per_byte: float, target_s: float) -> float:
    return target_s / seconds_per_byte if seconds_per_byte > 0 else math.inf


def _rules(problem: Problem, wanted: list[tuple[_Hop, float, float]]) -> _Rules:
    """Rules by the pair of sites; links that stay dense have none."""
    groups: _Rules = {}
    for hop, there_bytes, back_bytes in wanted:
        there, back = weakest_codecs(problem, hop.num_elements, there_bytes, back_bytes)
        rules = [
            LinkCodec(from_device=hop.source, to_device=hop.target, role="activation", codec=there),
            LinkCodec(from_device=hop.target, to_device=hop.source, role="gradient", codec=back),
        ]
        groups.setdefault(hop.group, []).extend(rule for rule in rules if rule.codec.name != "none")
    return {name: rules for name, rules in groups.items() if rules}


def _without_needless(plan: Plan, groups: _Rules, best: float, model: CostModel) -> Plan:
    """Drops the codecs between two sites where the objective stays as good without them."""
    worth = WORTH_A_CODEC / len(groups)
    for name in sorted(groups):
        trial = rough_objective(_with_codecs(plan, [rules for key, rules in groups.items() if key != name]), model)
        if trial <= best * (1 + worth):
            del groups[name]
            best = trial
    return _with_codecs(plan, groups.values())


def _with_codecs(plan: Plan, groups: Iterable[list[LinkCodec]]) -> Plan:
    return plan.replace(link_codecs=tuple(rule for rules in groups for rule in rules))


# -- reductions ----------------------------------------------------------------------------------


def _choose_for_reductions(plan: Plan, model: CostModel) -> Plan:
    """The weakest codec for all reductions that is nearly best; stages that others outlast stay dense."""
    codecs = [codec for codec in _fixed_codecs(plan.problem) if codec.name in ("none", *REDUCTION_CODECS)]
    if len(codecs) == 1 or not any(len(stage.replicas) > 1 for stage in plan.stages):
        return plan
    everywhere = set(range(len(plan.stages)))
    trials = [(codec, rough_objective(_with_reduction(plan, codec, everywhere), model)) for codec in codecs]
    dense = trials[0][1]
    best = min(value for _, value in trials)
    codec, value = next(trial for trial in trials if trial[1] <= best * (1 + NEARLY_BEST))
    if value >= dense * (1 - WORTH_A_CODEC):
        return plan
    needed = _stages_in_need(plan, codec, model)
    fewer = _with_reduction(plan, codec, needed)
    if rough_objective(fewer, model) <= value * (1 + WORTH_A_CODEC):
        return fewer
    return _with_reduction(plan, codec, everywhere)


def _stages_in_need(plan: Plan, codec: Codec, model: CostModel) -> set[int]:
    """Stages whose dense reduction alone would lengthen the step: reductions run side by side, the last one counts."""
    packed_plan = _with_reduction(plan, codec, set(range(len(plan.stages))))
    arrays = [step_arrays(p, durations_of(p, model.tables), model) for p in (packed_plan, plan)]
    packed, dense = arrays
    limit_s = time_step(packed).step_s * (1 + WORTH_A_CODEC / len(plan.stages))
    needed = set()
    for s in range(len(plan.stages)):
        reduce_s_S = packed.reduce_s_S.copy()
        reduce_s_S[s] = dense.reduce_s_S[s]
        if time_step(replace(packed, reduce_s_S=reduce_s_S)).step_s > limit_s:
            needed.add(s)
    return needed


def _with_reduction(plan: Plan, codec: Codec, where: set[int]) -> Plan:
    stages = (stage.replace(reduce_codec=codec) if s in where else stage for s, stage in enumerate(plan.stages))
    return plan.replace(stages=tuple(stages))
