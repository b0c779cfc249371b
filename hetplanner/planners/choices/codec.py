"""Which codec travels where: on every link between stages the weakest that is enough, and only where the step shortens.

Two rules say how many bytes a link may carry, and then the weakest codec within them is taken (`Allowed.weakest`):

    topk, and codecs without a ratio   a target for the seconds of a message, swept from the slowest dense link down;
                                       the step of every target is estimated, and of those nearly as short as the
                                       shortest the weakest compression wins
    adatopk                            FusionLLM's rule: 1 / max(1, R x dense seconds / the slowest link's) of the dense
                                       bytes, R the greatest ratio allowed

Gradient reductions then take the weakest codec with which the step stays as short, with error feedback where it is
coarse (int4, top-k). What a codec does to the quality of
training is not modelled: "weakest" goes by the order of `CODEC_NAMES` and by the ratio.

Legend of array suffixes: D devices, S stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.codecs.adatopk import adatopk_reductions
from hetplanner.codecs.spec import CODEC_NAMES, Codec, most_kept, topk_of
from hetplanner.cost.check import fits_memory
from hetplanner.cost.closed_form import time_step
from hetplanner.cost.dollars import usd_per_step
from hetplanner.cost.durations import durations_of, reduce_codec_passes
from hetplanner.cost.estimate import CostModel, step_arrays
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES
from hetplanner.plan.model import LinkCodec, Plan
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.choices.depth import replace_depth

# A codec that shortens the step by less than this share is not worth changing the numbers trained.
WORTH_A_CODEC = 0.01
# A weaker compression may cost this share of the shortest step.
NEARLY_BEST = 0.02
# Plans estimated in each sweep (of targets from the slowest dense message down, apart by equal factors; of what may be
# dropped again), so that all of them together have about so many devices.
LEAST_TRIALS, MOST_TRIALS, TRIED_DEVICES = 6, 16, 4096
# Reductions by these are too coarse to train unless what they lose is fed back.
FED_BACK = ("int4", "topk")
# Top-k's ratios that a reduction may have: the first is where it gets shorter than int4, then each so many times more.
FIRST_RATIO, RATIO_STEP = 10.0, 10.0**0.5


def choose_codecs(plan: Plan, model: CostModel) -> Plan:
    """Gives the links between stages and the gradient reductions the codecs that the constraints allow.

    A lossy codec stays only where the objective (the step, or dollars) gets worse without it by `WORTH_A_CODEC`.
    """
    if set(plan.problem.constraints.codecs) <= {"none"}:
        return plan
    if len(plan.stages) > 1:
        # What links are worth shows once reductions, which come on top, are as short as they can be.
        strongest = min(Allowed(plan.problem).reductions, key=lambda codec: codec.wire_bytes(2**20, 4))
        shortest = _with_reduction(plan, strongest, set(range(len(plan.stages))))
        plan = plan.replace(link_codecs=_choose_for_links(shortest, model).link_codecs)
    return _choose_for_reductions(plan, model)


def step_seconds_of(plan: Plan, model: CostModel) -> float:
    """Seconds of a plan's step by the closed form, without its estimate's other parts."""
    return time_step(step_arrays(plan, durations_of(plan, model.tables), model)).step_s


def rough_objective(plan: Plan, model: CostModel) -> float:
    """Seconds or dollars of a plan's step, whichever its problem is about; needs neither estimate nor kernels."""
    step_s = step_seconds_of(plan, model)
    if plan.problem.objective == "cost":
        return usd_per_step(plan, step_s, model.tables, model.links) or step_s
    return step_s


# -- what is allowed -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowed:
    """What the constraints of a problem allow between stages."""

    problem: Problem

    @cached_property
    def fixed(self) -> list[Codec]:
        """Codecs without a ratio, weakest first; dense always is."""
        wanted = self.problem.constraints
        names = {"none", *wanted.codecs} - {"topk", "adatopk"}
        return [Codec(name=name, block=wanted.codec_block) for name in CODEC_NAMES if name in names]

    @cached_property
    def reductions(self) -> list[Codec]:
        """Those that gradient reductions may use, weakest first."""
        wanted = self.problem.constraints
        if not {"topk", "adatopk"} & set(wanted.codecs) or wanted.max_ratio < FIRST_RATIO:
            return self.fixed
        num_ratios = 1 + math.floor(math.log(wanted.max_ratio / FIRST_RATIO, RATIO_STEP) + 1e-9)
        ratios = [FIRST_RATIO * RATIO_STEP**k for k in range(num_ratios)]
        if ratios[-1] < wanted.max_ratio * (1 - 1e-9):
            ratios.append(wanted.max_ratio)
        return self.fixed + [Codec(name="topk", ratio=min(ratio, wanted.max_ratio)) for ratio in ratios]

    def sizes(self, num_elements: int) -> list[int]:
        """Bytes of a tensor with each of the codecs without a ratio."""
        if num_elements not in self._sizes:
            self._sizes[num_elements] = [c.wire_bytes(num_elements, self._width) for c in self.fixed]
        return self._sizes[num_elements]

    def strongest_topk(self, num_elements: int) -> Codec | None:
        """Top-k with the greatest ratio; None if it is not allowed, or would press more even with all elements kept."""
        if num_elements not in self._strongest:
            self._strongest[num_elements] = self._find_strongest(num_elements)
        return self._strongest[num_elements]

    def _find_strongest(self, num_elements: int) -> Codec | None:
        if not {"topk", "adatopk"} & set(self.problem.constraints.codecs) or not num_elements:
            return None
        least_bytes = num_elements * self._width / self.problem.constraints.max_ratio
        kept = most_kept(num_elements, least_bytes)
        # The largest number within the bytes falls short of them, mostly: one more then.
        for count in range(max(kept, 1), min(kept + 1, num_elements) + 1):
            codec = topk_of(num_elements, count)
            if codec.wire_bytes(num_elements, self._width) >= least_bytes:
                return codec
        return None

    def all_codecs(self, num_elements: int) -> list[Codec]:
        """Codecs without a ratio and, if allowed, the strongest top-k."""
        return [*self.fixed, *filter(None, [self.strongest_topk(num_elements)])]

    def weakest(self, num_elements: int, there_bytes: float, back_bytes: float) -> tuple[Codec, Codec]:
        """The weakest codecs for activations and gradients whose messages are no longer than wanted.

        Args:
            num_elements: of the tensor.
            there_bytes, back_bytes: wanted bytes of a message of activations, and of gradients.

        Returns:
            Both codecs: the ones that come nearest if nothing allowed is short enough. Top-k goes both ways or neither.
        """
        sizes = self.sizes(num_elements)
        there, back = (
            next((c for c, size in zip(self.fixed, sizes, strict=True) if size <= wanted), None)
            for wanted in (there_bytes, back_bytes)
        )
        if there is not None and back is not None:
            return there, back
        strongest = self.strongest_topk(num_elements)
        if strongest is not None:
            kept = min(most_kept(num_elements, there_bytes), most_kept(num_elements, back_bytes, positions_known=True))
            pressed = topk_of(num_elements, max(kept, strongest.kept(num_elements)))
            # Where another codec is as short, the tensor goes whole.
            if pressed.wire_bytes(num_elements, self._width) < min(sizes):
                return pressed, pressed
        shortest = self.fixed[int(np.argmin(sizes))]
        return there or shortest, back or shortest

    @property
    def _width(self) -> int:
        return self.problem.workload.dtype_bytes

    @cached_property
    def _sizes(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def _strongest(self) -> dict[int, Codec | None]:
        return {}


def best_seconds_per_byte_DD(model: CostModel) -> FloatArray:
    """Seconds per dense byte between stages with the best allowed codec of each link, its work included."""
    problem = model.tables.problem
    dense = model.links.seconds_per_byte_DD
    width = problem.workload.dtype_bytes
    memory = model.tables.devices.memory_bandwidth_bytes_per_s_D
    elements = 64 * problem.constraints.codec_block
    best = dense.copy()
    for codec in Allowed(problem).all_codecs(elements):
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
    codecs = Allowed(problem).reductions
    elements = 64 * problem.constraints.codec_block
    share, passes = min(
        (codec.wire_bytes(elements, GRADIENT_ELEMENT_BYTES), reduce_codec_passes(codec, codec.name in FED_BACK))
        for codec in codecs
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
    """All of a plan's, those with the fastest messages first."""
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
            back *= plan.boundary_elements(boundary, "gradient") > 0  # an empty message needs no codec
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
    return sorted(hops.values(), key=lambda hop: (max(hop.there_s, hop.back_s), hop.source, hop.target))


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
    return _rules(Allowed(problem), [(hop, size, size) for hop, size in zip(hops, wanted, strict=True)])


def _by_target(plan: Plan, hops: list[_Hop], model: CostModel) -> _Rules:
    """The weakest compression of all that a sweep of the slowest message's seconds finds nearly best."""
    seconds = [hop.dense_bytes * rate for hop in hops for rate in (hop.there_s_per_byte, hop.back_s_per_byte)]
    slowest = max(seconds, default=0.0)
    if slowest <= 0:
        return {}
    # What a step waits for is the slowest link; for dollars every byte that leaves a site counts.
    least = slowest if plan.problem.objective != "cost" else min(s for s in seconds if s > 0)
    allowed = Allowed(plan.problem)
    sweep: list[tuple[_Rules, float]] = []
    for target_s in np.geomspace(slowest, least * _least_share(allowed), _num_trials(plan)):
        rules = _within(allowed, hops, float(target_s))
        if sweep and model.is_hurried(len(plan.ranks)):
            break
        # Targets may give the same codecs as the one before.
        if not sweep or rules != sweep[-1][0]:
            sweep.append((rules, rough_objective(_with_codecs(plan, rules.values()), model)))
    best = min(value for _, value in sweep)
    return next(rules for rules, value in sweep if value <= best * (1 + NEARLY_BEST))


def _least_share(allowed: Allowed) -> float:
    """Bytes of the shortest message allowed, over those of the dense one."""
    elements, width = 2**20, allowed.problem.workload.dtype_bytes
    return min(codec.wire_bytes(elements, width) for codec in allowed.all_codecs(elements)) / (elements * width)


def _within(allowed: Allowed, hops: list[_Hop], target_s: float) -> _Rules:
    wanted = [
        (hop, _allowed_bytes(hop.there_s_per_byte, target_s), _allowed_bytes(hop.back_s_per_byte, target_s))
        for hop in hops
    ]
    return _rules(allowed, wanted)


def _allowed_bytes(seconds_per_byte: float, target_s: float) -> float:
    return target_s / seconds_per_byte if seconds_per_byte > 0 else math.inf


def _rules(allowed: Allowed, wanted: list[tuple[_Hop, float, float]]) -> _Rules:
    """Rules by the pair of sites; links that stay dense have none."""
    groups: _Rules = {}
    for hop, there_bytes, back_bytes in wanted:
        there, back = allowed.weakest(hop.num_elements, there_bytes, back_bytes)
        rules = groups.setdefault(hop.group, [])
        if there.name != "none":
            rules.append(LinkCodec(from_device=hop.source, to_device=hop.target, role="activation", codec=there))
        if back.name != "none":
            rules.append(LinkCodec(from_device=hop.target, to_device=hop.source, role="gradient", codec=back))
    return {name: rules for name, rules in groups.items() if rules}


def _without_needless(plan: Plan, groups: _Rules, best: float, model: CostModel) -> Plan:
    """Drops codecs, those of the fastest links first, where the objective stays as good without them."""
    classes = _classes(list(groups.values()), _num_trials(plan))
    worth = WORTH_A_CODEC / len(classes)
    for k in range(len(classes)):
        if model.is_hurried(len(plan.ranks)):
            break
        kept, classes[k] = classes[k], []
        trial = rough_objective(_with_codecs(plan, classes), model)
        if trial <= best * (1 + worth):
            best = trial
        else:
            classes[k] = kept
    return _with_codecs(plan, classes)


def _classes(groups: list[list[LinkCodec]], most: int) -> list[list[LinkCodec]]:
    """Neighbouring groups put together so that no more are left than wanted."""
    edges = np.linspace(0, len(groups), min(most, len(groups)) + 1).round().astype(int)
    return [[rule for rules in groups[a:b] for rule in rules] for a, b in pairwise(edges)]


def _num_trials(plan: Plan) -> int:
    """Plans to estimate in a sweep: fewer of large ones, which take longer."""
    return max(LEAST_TRIALS, min(MOST_TRIALS, TRIED_DEVICES // len(plan.ranks)))


def _with_codecs(plan: Plan, groups: Iterable[list[LinkCodec]]) -> Plan:
    return plan.replace(link_codecs=tuple(rule for rules in groups for rule in rules))


# -- reductions ----------------------------------------------------------------------------------


def _choose_for_reductions(plan: Plan, model: CostModel) -> Plan:
    """The weakest codec for all reductions that is nearly best; stages that others outlast stay dense."""
    if not reduction_groups(plan):
        return plan
    everywhere = set(range(len(plan.stages)))
    codecs = [
        codec
        for codec in Allowed(plan.problem).reductions
        if codec.name not in FED_BACK or _has_room(_with_reduction(plan, codec, everywhere), model)
    ]
    if len(codecs) == 1 or model.is_hurried(len(plan.ranks)):
        return plan
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


def _has_room(plan: Plan, model: CostModel) -> bool:
    """Whether devices hold what codecs have lost too, with no needless depth and some allowed reducer."""
    # The hierarchical reducer keeps what is lost of sums, too.
    reducers = sorted(plan.problem.constraints.reducers, key=lambda name: name == "hierarchical")
    return fits_memory(replace_depth(plan, model).replace(reducer=reducers[0]), model.tables)


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
    fields = {"reduce_codec": codec, "error_feedback": codec.name in FED_BACK}
    stages = (stage.replace(**fields) if s in where else stage for s, stage in enumerate(plan.stages))
    return plan.replace(stages=tuple(stages))
