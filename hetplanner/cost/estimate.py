"""From a plan to its Estimate: the closed form, its terms, and the bottleneck by name.

Legend of array suffixes: P routes, S stages, E boundaries (S - 1), N ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.bottleneck import find_bottleneck
from hetplanner.cost.check import memory_limits, peak_bytes
from hetplanner.cost.closed_form import StepArrays, StepTimes, optimizer_seconds, time_step
from hetplanner.cost.dollars import step_dollars
from hetplanner.cost.dtfm import score_dtfm
from hetplanner.cost.durations import durations_of
from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import reduce_seconds
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.estimate import DeviceEstimate, DtfmCost, Estimate
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.units import short_bytes
from hetplanner.workload.tensor_degrees import undivided_share

# Plans of fewer are complete in a fraction of a second.
MANY_DEVICES = 256
LEAST_UNDIVIDED = 0.01
"""Of a captured model's arithmetic: what may stay undivided in a group without a note."""


@dataclass(frozen=True)
class CostModel:
    """Everything about a problem that many plans share; make one per search.

    Attributes:
        is_pressed: asked between choices that take long on many devices; from True on a plan gets by without them.
    """

    tables: CostTables
    links: LinkTable
    is_pressed: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)

    @staticmethod
    def of(problem: Problem, is_pressed: Callable[[], bool] = lambda: False) -> CostModel:
        """The cost model of a problem."""
        return CostModel(CostTables(problem), LinkTable.of(problem.cluster), is_pressed)

    def is_hurried(self, num_devices: int) -> bool:
        """Whether a search that places so many devices gets by without another choice."""
        return num_devices >= MANY_DEVICES and self.is_pressed()


def estimate_plan(plan: Plan, *, durations: Durations | None = None, model: CostModel | None = None) -> Estimate:
    """Estimates one step of a plan by the closed form.

    Args:
        plan: the plan; its own `estimate` field is not read.
        durations: measured or assumed compute times by rank; by default the catalog's.
        model: cost model of the plan's problem, if already at hand.

    Returns:
        The estimate. `terms` (seconds) sum to `step_s`: what the busiest device computes, bubble, pipeline
        transfer, data parallel, optimizer.

    Source: `hetplanner.cost.closed_form`.
    """
    model = model or CostModel.of(plan.problem)
    durations = durations or durations_of(plan, model.tables)
    arrays = step_arrays(plan, durations, model)
    times = time_step(arrays)
    terms = split_terms(arrays, times)
    step_s = times.step_s
    busy = _busy_seconds(plan, durations)
    dollars = step_dollars(plan, step_s, model.tables, model.links)
    usd = None if dollars.device_usd is None else dollars.device_usd + dollars.egress_usd
    tokens = plan.problem.workload.tokens_per_step
    return Estimate(
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        usd_per_mtoken=None if usd is None else usd / tokens * 1e6,
        tokens_per_usd=tokens / usd if usd else None,
        device_usd=dollars.device_usd,
        egress_usd=dollars.egress_usd,
        unpriced_egress_bytes=dollars.unpriced_egress_bytes,
        bubble=float(np.clip(1.0 - busy.mean() / step_s, 0.0, 1.0)),
        terms=terms,
        devices=_device_estimates(plan, busy, model),
        bottleneck=find_bottleneck(plan, arrays, times),
        dtfm=dtfm_cost(plan),
        notes=(*_trained_notes(plan), *_group_notes(plan.problem), *_quality_notes(plan)),
    )


def step_arrays(plan: Plan, durations: Durations, model: CostModel) -> StepArrays:
    """A plan's numbers for :func:`hetplanner.cost.closed_form.time_step`."""
    rank_PS = np.array([[plan.rank_at(s, r) for s, r in enumerate(route.replicas)] for route in plan.routes])
    chunk_PS = np.array([[plan.chunk_index[int(n), s] for s, n in enumerate(path)] for path in rank_PS])
    device_N = np.array([plan.problem.cluster.device_index(d) for d in plan.ranks])
    load_C = np.zeros(len(plan.chunks), dtype=np.int64)
    for path, route in zip(chunk_PS, plan.routes, strict=True):
        load_C[path] += route.micro_batches
    handling = _message_seconds(durations, rank_PS)
    forward, backward = durations.forward_s_C[chunk_PS] + handling, durations.backward_s_C[chunk_PS] + handling
    num_edges = len(plan.stages) - 1
    hops = {name: np.zeros((len(plan.routes), num_edges)) for name in ("activation", "gradient", "there", "back")}
    sends: list[tuple[int, int, float]] = []
    links, device_PS = model.links, device_N[rank_PS]
    for e in range(num_edges):
        source, target = device_PS[:, e], device_PS[:, e + 1]
        pairs = [(int(one), int(two)) for one, two in rank_PS[:, e : e + 2]]
        there = np.array([plan.boundary_bytes(e, one, two, "activation") for one, two in pairs])
        back = np.array([plan.boundary_bytes(e, two, one, "gradient") for one, two in pairs])
        hops["there"][:, e] = there * links.seconds_per_byte(source, target)
        hops["back"][:, e] = back * links.seconds_per_byte(target, source)
        # For its share of the wire time the sender waits with the message: that moves from hop to stage.
        hops["activation"][:, e] = durations.overlap * hops["there"][:, e] + links.latency_s(source, target)
        hops["gradient"][:, e] = durations.overlap * hops["back"][:, e] + links.latency_s(target, source)
        forward[:, e] += (1.0 - durations.overlap) * hops["there"][:, e]
        backward[:, e + 1] += (1.0 - durations.overlap) * hops["back"][:, e]
        for p, (one, two) in enumerate(pairs):
            count = plan.routes[p].micro_batches
            sends += [(one, two, float(there[p] * count)), (two, one, float(back[p] * count))]
    reduce_s_S, tied_s = reduce_seconds(plan, durations, model.links)
    return StepArrays(
        rank_PS=rank_PS,
        micro_batches_P=np.array([route.micro_batches for route in plan.routes]),
        through_PS=load_C[chunk_PS],
        in_flight_S=np.array(plan.held_S),
        forward_s_PS=forward,
        backward_s_PS=backward,
        activation_s_PE=hops["activation"],
        gradient_s_PE=hops["gradient"],
        activation_wire_s_PE=hops["there"],
        gradient_wire_s_PE=hops["back"],
        nic_s_P=_nic_seconds(plan, model.links, device_N, rank_PS, sends),
        reduce_s_S=reduce_s_S,
        tied=_tied_weights(plan, tied_s, every_step=True),
        tied_averaged=_tied_weights(plan, tied_s, every_step=False),
        optimizer_s=float(durations.optimizer_s_N.max()),
        local_steps=plan.local_steps,
        outer_s=0.0 if durations.outer_s_N is None else float(durations.outer_s_N.max()),
        fragments=plan.fragments,
        phased=plan.schedule == "gpipe",
        separate=len(np.unique(rank_PS)) == rank_PS.size,
    )


def _tied_weights(
    plan: Plan, tied_s: tuple[tuple[float, tuple[int, ...]], ...], *, every_step: bool
) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Seconds and stages of each tied weight: of its copies on unlike pipelines the slowest. With ZeRO twice."""
    groups = [group for group in reduction_groups(plan) if group.tied]
    slowest: dict[tuple[object, ...], tuple[float, tuple[int, ...]]] = {}
    for group, timed in zip(groups, tied_s, strict=True):
        if group.every_step is every_step:
            key = group.part, *group.ops
            slowest[key] = max(slowest.get(key, timed), timed)
    return tuple(slowest.values())


def split_terms(arrays: StepArrays, times: StepTimes) -> dict[str, float]:
    """The named terms of a step, which sum to it.

    compute: the busiest device's forwards and backwards, codecs and waiting for its own sends included; bubble: what
    fill, drain and imbalance add on a perfect network; pipeline transfer: what the links between stages add to that;
    data parallel: what gradient reduction adds behind the pipeline's end; optimizer: the slowest optimizer step.
    """
    compute = float((arrays.through_PS * (arrays.forward_s_PS + arrays.backward_s_PS)).max())
    nothing = np.zeros_like(arrays.activation_s_PE)
    ideal = time_step(
        replace(
            arrays,
            activation_s_PE=nothing,
            gradient_s_PE=nothing,
            activation_wire_s_PE=nothing,
            gradient_wire_s_PE=nothing,
            nic_s_P=np.zeros_like(arrays.nic_s_P),
        )
    ).pipeline_s
    return {
        "compute": compute,
        "bubble": max(ideal - compute, 0.0),
        "pipeline_transfer": max(times.pipeline_s - max(ideal, compute), 0.0),
        "data_parallel": max(times.reduced_s - times.pipeline_s, 0.0),
        "optimizer": optimizer_seconds(arrays),
    }


def dtfm_cost(plan: Plan) -> DtfmCost | None:
    """The published DT-FM cost of a plan whose routes are disjoint columns; None for any other shape."""
    num_replicas = len(plan.routes)
    if any(len(stage.replicas) != num_replicas for stage in plan.stages):
        return None
    index = plan.problem.cluster.device_index
    placement = np.array(
        [[index(plan.stages[s].replicas[r][0]) for s, r in enumerate(route.replicas)] for route in plan.routes]
    ).T
    if len(np.unique(placement)) != placement.size:
        return None
    cluster = plan.problem.cluster
    return score_dtfm(placement, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)


def _message_seconds(durations: Durations, rank_PS: IntArray) -> FloatArray:
    """Compute time for messages, per micro-batch and direction: an inner stage takes one in and sends one on."""
    encode = durations.encode_s_N[rank_PS] + durations.message_s
    decode = durations.decode_s_N[rank_PS] + durations.message_s
    handling = encode + decode
    # The first stage only sends activations and takes gradients, the last the other way round.
    if rank_PS.shape[1] == 1:
        return np.zeros_like(handling)
    handling[:, 0] = np.maximum(encode[:, 0], decode[:, 0])
    handling[:, -1] = np.maximum(encode[:, -1], decode[:, -1])
    return np.asarray(handling, dtype=np.float64)


def _nic_seconds(
    plan: Plan, links: LinkTable, device_N: IntArray, rank_PS: IntArray, sends: list[tuple[int, int, float]]
) -> FloatArray:
    """NIC time of the busiest host on each route, less its share for the first micro-batch."""
    if not links.has_nics or not sends:
        return np.zeros(len(plan.routes))
    source, target, size = (np.array(column) for column in zip(*sends, strict=True))
    busy_H = links.nic_seconds(device_N[source], device_N[target], size)
    per_route = busy_H[links.host_D[device_N[rank_PS]]].max(axis=1)
    micro_batches = np.array([route.micro_batches for route in plan.routes])
    return per_route * (1.0 - 1.0 / micro_batches)


def _busy_seconds(plan: Plan, durations: Durations) -> FloatArray:
    busy = durations.optimizer_s_N.copy()
    for route in plan.routes:
        for s, replica in enumerate(route.replicas):
            rank = plan.rank_at(s, replica)
            chunk = plan.chunk_index[rank, s]
            busy[rank] += route.micro_batches * float(durations.forward_s_C[chunk] + durations.backward_s_C[chunk])
    return np.asarray(busy, dtype=np.float64)


def _trained_notes(plan: Plan) -> tuple[str, ...]:
    """What of the model is trained, and what that makes of the reductions between replicas."""
    workload = plan.problem.workload
    text = workload.trained_text
    if not text:
        return ()
    sizes = [short_bytes(GRADIENT_ELEMENT_BYTES * n) for n in (workload.graph.num_trained, workload.base_params)]
    return (f"{text}: gradients to reduce between replicas are {sizes[0]} instead of {sizes[1]}",)


def _group_notes(problem: Problem) -> tuple[str, ...]:
    text = Groupings(problem).left_out_text
    found = [text] if text else []
    if problem.workload.program is not None:
        degrees = {group.degree for group in problem.groups or () if group.sharding == "tensor" and group.degree > 1}
        for degree in sorted(degrees):
            share, most_in = undivided_share(problem.workload, degree)
            if share > LEAST_UNDIVIDED:
                found.append(
                    f"in groups of {degree}, {share:.0%} of the arithmetic is not divided, most of it in {most_in!r}"
                )
    return tuple(found)


def _quality_notes(plan: Plan) -> tuple[str, ...]:
    """Lossy choices, as long as it is not measured how many more steps they take."""
    num_links = 2 * len({pair for route in plan.routes for pair in pairwise(list(enumerate(route.replicas)))})
    counts = Counter(rule.codec.name for rule in plan.link_codecs if rule.codec.name != "none")
    ratios = [rule.codec.ratio for rule in plan.link_codecs if rule.codec.name == "topk"]
    parts = [f"{name} on {count} of {num_links} links between stages" for name, count in sorted(counts.items())]
    if ratios:
        parts.append(f"top-k keeps one element in {min(ratios):.3g} to {max(ratios):.3g}")
    reductions = Counter(stage.reduce_codec.name for stage in plan.stages if stage.reduce_codec.name != "none")
    parts += [f"{name} in the gradient reduction of {n} stages" for name, n in sorted(reductions.items())]
    if plan.is_local:
        outer = "their mean" if plan.outer is None else "an outer optimizer's step"
        pieces = f" in {plan.fragments} fragments" if plan.fragments > 1 else ""
        parts.append(f"replicas take {plan.local_steps} steps by themselves, then {outer}{pieces}")
    if not parts:
        return ()
    return (f"quality not modelled: {'; '.join(parts)}; the steps that this may cost are not in the estimate",)


def _device_estimates(plan: Plan, busy: FloatArray, model: CostModel) -> tuple[DeviceEstimate, ...]:
    peaks, limits = peak_bytes(plan, model.tables), memory_limits(plan, model.tables)
    return tuple(
        DeviceEstimate(device=device, busy_s=float(busy_s), peak_bytes=peak, limit_bytes=limit)
        for device, busy_s, peak, limit in zip(plan.ranks, busy, peaks, limits, strict=True)
    )
