"""A problem as the compiled search sees it: tables that layouts of all shapes share. No numba here.

Legend of array suffixes: D usable devices in canonical order, C classes of equal devices, K cut points (op boundaries
where a stage may end, both ends included), H hosts, S stages, R replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cost.durations import REDUCE_PASSES
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES
from hetplanner.planners.choices.codec import best_reduction, best_seconds_per_byte_DD
from hetplanner.planners.layout import even_cut
from hetplanner.planners.network import seeds
from hetplanner.planners.pins import pin_rows

Array = NDArray[Any]


class StepProblem(NamedTuple):
    """All that a search never changes; links in seconds per byte, for pipelines with each link's best codec.

    A pinned device has its stage in `pin_D`, any other -1. What a stage between two cut points holds, keeps of each
    micro-batch and reduces with its replicas is no difference of sums where weights are tied or outputs skip it.
    `price_D` and `egress_DD` count in dollars per million tokens: what a second of a device and a byte of a step add.
    `sharded_bytes` are those of a trained weight's optimizer states that replicas shard; each then steps its shard.
    `reduce_share` is the share of the steps with reductions, if replicas may take local steps (what pipelines then
    still add up of tied weights in every step is left out).
    `tied_GM` are the users of each tied weight, each as the last cut point not behind it, -1 where there are fewer.
    """

    class_D: Array
    forward_CK: Array
    backward_CK: Array
    boundary_K: Array
    gradient_K: Array
    trained_KK: Array
    held_KK: Array
    each_KK: Array
    layers_held_KK: Array
    layers_each_KK: Array
    layers_below_KK: Array
    always_KK: Array
    reduced_KK: Array
    tied_GM: Array
    tied_bytes_G: Array
    memory_D: Array
    optimizer_rate_D: Array
    add_rate_D: Array
    reduce_share: float
    latency_DD: Array
    pipe_rate_DD: Array
    reduce_rate_DD: Array
    host_D: Array
    nic_out_H: Array
    nic_in_H: Array
    price_D: Array
    egress_DD: Array
    pin_D: Array
    has_nics: bool
    has_pins: bool
    sharded_bytes: float
    priced: bool
    recompute: bool


class StepWork(NamedTuple):
    """What an evaluation keeps of a layout, so that the next one recomputes only what a move touched.

    Attributes:
        depth_S, missing_S: in-flight depth that memory allows; share of memory missing for even one.
        phase_S, adding_S, optimizer_S: one phase of the reduction on its links, adding up, optimizer step.
        trip_SR: from a micro-batch's forward at a stage to the end of its backward there.
        drain_SR: from a stage's last backward to the end of the pipeline's.
        load_R, nic_R, end_R: busiest device or link; NIC wait that the end stands for; end of the last backward.
        tied_G: one phase of the reduction of each tied weight.
        pipe_2H, reduce_H: NIC seconds of every host, of pipelines (first row) and of one reduction phase.
        count_H, member_N, done_S: scratch; the last is when each stage's gradients are summed.
        stale_S, stale_R: what has to be computed anew.
    """

    depth_S: Array
    missing_S: Array
    phase_S: Array
    adding_S: Array
    optimizer_S: Array
    trip_SR: Array
    drain_SR: Array
    load_R: Array
    nic_R: Array
    end_R: Array
    tied_G: Array
    pipe_2H: Array
    reduce_H: Array
    count_H: Array
    member_N: Array
    done_S: Array
    stale_S: Array
    stale_R: Array


def make_work(stages: int, replicas: int, hosts: int, tied: int) -> StepWork:
    """Scratch for layouts of one shape of a model with so many tied weights."""
    s, r, h = np.zeros(stages), np.zeros(replicas), np.zeros(hosts)
    return StepWork(
        depth_S=np.zeros(stages, dtype=np.int64),
        missing_S=s.copy(),
        phase_S=s.copy(),
        adding_S=s.copy(),
        optimizer_S=s.copy(),
        trip_SR=np.zeros((stages, replicas)),
        drain_SR=np.zeros((stages, replicas)),
        load_R=r.copy(),
        nic_R=r.copy(),
        end_R=r.copy(),
        tied_G=np.zeros(tied),
        pipe_2H=np.zeros((2, hosts)),
        reduce_H=h.copy(),
        count_H=np.zeros(hosts, dtype=np.int64),
        member_N=np.zeros(stages * replicas, dtype=np.int64),
        done_S=s.copy(),
        stale_S=np.ones(stages, dtype=np.bool_),
        stale_R=np.ones(replicas, dtype=np.bool_),
    )


class RaggedWork(NamedTuple):
    """Scratch of an evaluation where stages have unlike numbers of replicas; P routes.

    Attributes:
        path_PS, share_P: position of the device that a route uses at a stage; its micro-batches.
        pair_PS: micro-batches of all routes over the link that a route takes to a stage.
        drain_PS: from a stage's last backward to the end of the route's.
        trip_PS: from a micro-batch's forward at a stage to the end of its backward there.
        more_P: busiest device, link or NIC of a route beyond the first micro-batch.
        mean_N: round trip of the device at a position, the mean over its routes.
        at_S, left_S: where laying routes out stands.
        depth_S, end_S: in-flight depth; end of the last backward.
        pipe_2H, reduce_H, count_H, member_N: as in `StepWork`.
    """

    path_PS: Array
    share_P: Array
    pair_PS: Array
    drain_PS: Array
    trip_PS: Array
    more_P: Array
    mean_N: Array
    at_S: Array
    left_S: Array
    depth_S: Array
    end_S: Array
    pipe_2H: Array
    reduce_H: Array
    count_H: Array
    member_N: Array


def make_ragged_work(devices: int, stages: int, hosts: int) -> RaggedWork:
    """Scratch for layouts of a number of stages; no more routes than devices."""
    return RaggedWork(
        path_PS=np.zeros((devices, stages), dtype=np.int64),
        share_P=np.zeros(devices, dtype=np.int64),
        pair_PS=np.zeros((devices, stages), dtype=np.int64),
        drain_PS=np.zeros((devices, stages)),
        trip_PS=np.zeros((devices, stages)),
        more_P=np.zeros(devices),
        mean_N=np.zeros(devices),
        at_S=np.zeros(stages, dtype=np.int64),
        left_S=np.zeros(stages, dtype=np.int64),
        depth_S=np.zeros(stages, dtype=np.int64),
        end_S=np.zeros(stages),
        pipe_2H=np.zeros((2, hosts)),
        reduce_H=np.zeros(hosts),
        count_H=np.zeros(hosts, dtype=np.int64),
        member_N=np.zeros(devices, dtype=np.int64),
    )


@dataclass(frozen=True)
class SearchSpace:
    """The kernels' tables for stages that do, or do not, recompute; `devices` are rows of the cluster."""

    problem: StepProblem
    devices: IntArray
    op_cuts: IntArray
    layers_before: IntArray
    distance_DD: FloatArray
    orders: list[IntArray]

    @cached_property
    def number_of(self) -> Mapping[int, int]:
        """Canonical number of a row of the cluster."""
        return {int(d): i for i, d in enumerate(self.devices)}

    def even_cut(self, stages: int) -> tuple[int, ...]:
        """Op boundaries of equal layers."""
        return even_cut(self.op_cuts[1:-1], int(self.op_cuts[-1]), self.layers_before, stages)


class StepSpaces:
    """The search spaces of a problem; what shapes share is computed once.

    Args:
        model: the cost model of the problem.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._made: dict[bool, SearchSpace] = {}

    def of(self, *, recompute: bool) -> SearchSpace:
        """The space of stages that do, or do not, recompute."""
        if recompute not in self._made:
            self._made[recompute] = self._space(recompute)
        return self._made[recompute]

    @cached_property
    def usable(self) -> IntArray:
        """Rows of the usable devices in the cluster, in file order."""
        problem = self.model.tables.problem
        return np.array([problem.cluster.device_index(d) for d in problem.usable_devices], dtype=np.int64)

    @cached_property
    def _pipe_rate_DD(self) -> FloatArray:
        return best_seconds_per_byte_DD(self.model)

    @cached_property
    def _distance_DD(self) -> FloatArray:
        """Seconds of the largest message between two usable devices, there and back."""
        tables = self.model.tables
        size = float(tables.boundary_bytes_O[tables.cuts].max()) if len(tables.cuts) else 1.0
        grid = np.ix_(self.usable, self.usable)
        hop = self.model.links.latency_s_DD[grid] + size * self._pipe_rate_DD[grid]
        distance = hop + hop.T
        np.fill_diagonal(distance, 0.0)
        return np.asarray(distance)

    @cached_property
    def _orders(self) -> list[IntArray]:
        return seeds.list_orders(self._distance_DD)

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Fields of the kernels' tables that no shape changes; the dendrogram's order numbers the devices."""
        tables, links = self.model.tables, self.model.links
        problem = tables.problem
        devices = self.usable[self._orders[0]]
        grid = np.ix_(devices, devices)
        pins = pin_rows(problem)
        memory_rate = tables.devices.memory_bandwidth_bytes_per_s_D[devices]
        per_mtoken = 1e6 / problem.workload.tokens_per_step
        egress_DD = links.egress_usd_per_byte(devices[:, None], devices)
        return {
            "class_D": tables.devices.class_D[devices].astype(np.int64),
            "memory_D": tables.devices.memory_bytes_D[devices],
            "optimizer_rate_D": tables.devices.update_s_per_weight_D[devices],
            "add_rate_D": GRADIENT_ELEMENT_BYTES * (REDUCE_PASSES + best_reduction(problem)[1]) / memory_rate,
            "reduce_share": 1.0 / problem.constraints.max_local_steps,
            "latency_DD": np.ascontiguousarray(links.latency_s_DD[grid]),
            "pipe_rate_DD": np.ascontiguousarray(self._pipe_rate_DD[grid]),
            "reduce_rate_DD": np.ascontiguousarray(links.seconds_per_byte_DD[grid]),
            "host_D": links.host_D[devices].astype(np.int64),
            "nic_out_H": links.nic_out_seconds_per_byte_H,
            "nic_in_H": links.nic_in_seconds_per_byte_H,
            "price_D": np.nan_to_num(tables.devices.price_usd_per_s_D[devices]) * per_mtoken,
            # A search cannot weigh an unknown price: it counts as none, and the estimate says what that leaves out.
            "egress_DD": np.ascontiguousarray(np.nan_to_num(egress_DD) * per_mtoken),
            "pin_D": np.array([pins.get(int(d), -1) for d in devices], dtype=np.int64),
            "has_nics": bool(links.has_nics),
            "has_pins": bool(pins),
            "sharded_bytes": tables.sharded_bytes_per_trained,
            "priced": problem.objective == "cost",
        }

    def _space(self, recompute: bool) -> SearchSpace:
        tables = self.model.tables
        cuts = np.concatenate(([0], tables.cuts, [tables.num_ops])).astype(np.int64)
        share, _ = best_reduction(tables.problem)
        forward = np.ascontiguousarray(tables.forward_s_CO[:, cuts])
        held_KK, each_KK = tables.memory_between(cuts, recompute=recompute)
        layers_held_KK, layers_each_KK, layers_below_KK = tables.layers_between(cuts)
        tied_GM, tied_bytes_G = _tied_weights(self.model, cuts)
        packed = StepProblem(
            forward_CK=forward,
            backward_CK=np.ascontiguousarray(tables.backward_s_CO[:, cuts] + (forward if recompute else 0.0)),
            boundary_K=tables.boundary_bytes_O[cuts],
            gradient_K=tables.gradient_bytes_O[cuts],
            trained_KK=tables.trained_between(cuts),
            held_KK=held_KK,
            each_KK=each_KK,
            layers_held_KK=layers_held_KK,
            layers_each_KK=layers_each_KK,
            layers_below_KK=layers_below_KK if recompute else np.zeros_like(layers_below_KK),
            always_KK=tables.always_between(cuts),
            reduced_KK=tables.own_trained_between(cuts) * GRADIENT_ELEMENT_BYTES * share,
            tied_GM=tied_GM,
            tied_bytes_G=tied_bytes_G * share,
            recompute=recompute,
            **self._shared,
        )
        return SearchSpace(
            problem=packed,
            devices=self.usable[self._orders[0]],
            op_cuts=cuts,
            layers_before=_layers_before(self.model, tables.cuts),
            distance_DD=self._inner_DD,
            orders=self._ranked_orders,
        )

    @cached_property
    def _inner_DD(self) -> FloatArray:
        return np.ascontiguousarray(self._distance_DD[np.ix_(self._orders[0], self._orders[0])])

    @cached_property
    def _ranked_orders(self) -> list[IntArray]:
        """All linear orders in canonical numbers; where devices are unlike, also fastest first."""
        rank = np.argsort(self._orders[0])
        speed = self.model.tables.devices.rate_flops_per_s_D[self.usable[self._orders[0]]]
        by_speed = [np.lexsort((rank[order].argsort(), -speed)) for order in self._orders[:2]]
        return [*(rank[order] for order in self._orders), *(by_speed if len(set(speed)) > 1 else [])]


def even_layers(model: CostModel, stages: int) -> tuple[int, ...]:
    """Op boundaries that give every stage the same number of layers, as nearly as possible."""
    tables = model.tables
    return even_cut(tables.cuts, tables.num_ops, _layers_before(model, tables.cuts), stages)


def even_shares(micro_batches: int, replicas: int) -> IntArray:
    """Micro-batches per pipeline, the first ones taking what is left over."""
    share = np.full(replicas, micro_batches // replicas, dtype=np.int64)
    share[: micro_batches % replicas] += 1
    return share


def _tied_weights(model: CostModel, cuts: IntArray) -> tuple[IntArray, FloatArray]:
    """Users of each trained weight that a cut may tear apart, as cut points, and its bytes."""
    graph = model.tables.problem.workload.graph
    torn: list[tuple[tuple[int, ...], int]] = []
    for members in graph.tied_groups.values():
        places = tuple(dict.fromkeys(int(k) for k in np.searchsorted(cuts, members, side="right") - 1))
        if len(places) > 1 and graph.ops[members[1]].trained:
            torn.append((places, graph.ops[members[1]].trained))
    width = max((len(places) for places, _ in torn), default=1)
    rows = [[*places, *[-1] * (width - len(places))] for places, _ in torn]
    return (
        np.array(rows, dtype=np.int64).reshape(-1, width),
        np.array([size * GRADIENT_ELEMENT_BYTES for _, size in torn], dtype=np.float64),
    )


def _layers_before(model: CostModel, cuts: IntArray) -> IntArray:
    """Layers that end before each cut, and in all; where there are none, ops take their place."""
    ops = model.tables.problem.workload.graph.ops
    last = {op.layer: i for i, op in enumerate(ops) if op.layer is not None}
    if not last:
        return np.array([*cuts, len(ops)], dtype=np.int64)
    ends = np.sort(np.array(list(last.values()), dtype=np.int64))
    return np.searchsorted(ends, [*cuts, len(ops)], side="left").astype(np.int64)
