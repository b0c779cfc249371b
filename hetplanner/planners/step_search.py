"""The species of the closed form: placement, layer cut and micro-batch shares, found together.

Legend of array suffixes: D usable devices, C classes of equal devices, K cut points, S stages, R replicas, P layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.durations import REDUCE_PASSES
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.tables import (
    GRADIENT_ELEMENT_BYTES,
    OPTIMIZER_TRAFFIC_BYTES_PER_PARAM,
    STATE_BYTES_PER_PARAM,
)
from hetplanner.planners import seeds
from hetplanner.planners.codec_choice import best_reduction, best_seconds_per_byte_DD
from hetplanner.planners.layout import Layout, even_cut, rough_value
from hetplanner.planners.population import Candidate
from hetplanner.planners.symmetry import twins_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RANDOM_STARTS = 256
REFITTED = 32
GUIDE_WEIGHT = 0.05
COLD = 1e-4
NUM_CUTS = 5


@dataclass(frozen=True)
class SearchSpace:
    """A problem as the kernels see it; devices are the usable ones, in canonical order."""

    problem: Any
    devices: IntArray
    op_cuts: IntArray
    layers_before: IntArray
    distance_DD: FloatArray
    orders: list[IntArray]


def search_space(model: CostModel, stages: int, *, recompute: bool) -> SearchSpace:
    """Tables of a problem for the kernels.

    Args:
        model: the cost model of the problem.
        stages: number of stages (a tied weight is held twice only if there are two or more).
        recompute: whether stages keep only their inputs.
    """
    from hetplanner.planners import step_kernels

    tables, links, problem = model.tables, model.links, model.tables.problem
    usable = np.array([problem.cluster.device_index(d) for d in problem.usable_devices])
    cuts = np.concatenate(([0], tables.cuts, [tables.num_ops]))
    pipe_rate = best_seconds_per_byte_DD(model)
    reduce_share, reduce_passes = best_reduction(problem)
    size = float(tables.boundary_bytes_O[tables.cuts].max()) if len(tables.cuts) else 1.0
    hop = links.latency_s_DD + size * pipe_rate
    distance = (hop + hop.T)[np.ix_(usable, usable)].copy()
    np.fill_diagonal(distance, 0.0)
    orders = seeds.list_orders(distance)
    canonical = orders[0]
    devices = usable[canonical]
    grid = np.ix_(devices, devices)
    memory_rate = tables.devices.memory_bandwidth_bytes_per_s_D[devices]
    held, reduced, tied_bytes = _weights(model, stages)
    forward = tables.forward_s_CO[:, cuts]
    backward = tables.backward_s_CO[:, cuts] + (forward if recompute else 0.0)
    egress = np.where(links.site_D[:, None] != links.site_D[None, :], links.egress_usd_per_byte_D[:, None], 0.0)
    packed = step_kernels.StepProblem(
        class_D=tables.devices.class_D[devices].astype(np.int64),
        forward_CK=np.ascontiguousarray(forward),
        backward_CK=np.ascontiguousarray(backward),
        boundary_K=tables.boundary_bytes_O[cuts],
        state_K=held[cuts] * STATE_BYTES_PER_PARAM,
        kept_K=tables.activation_bytes_O[cuts],
        reduced_K=reduced[cuts] * GRADIENT_ELEMENT_BYTES * reduce_share,
        tied_bytes=float(tied_bytes) * reduce_share,
        memory_D=tables.devices.memory_bytes_D[devices],
        optimizer_rate_D=OPTIMIZER_TRAFFIC_BYTES_PER_PARAM / memory_rate,
        add_rate_D=GRADIENT_ELEMENT_BYTES * (REDUCE_PASSES + reduce_passes) / memory_rate,
        latency_DD=np.ascontiguousarray(links.latency_s_DD[grid]),
        pipe_rate_DD=np.ascontiguousarray(pipe_rate[grid]),
        reduce_rate_DD=np.ascontiguousarray(links.seconds_per_byte_DD[grid]),
        host_D=links.host_D[devices].astype(np.int64),
        nic_out_H=links.nic_out_seconds_per_byte_H,
        nic_in_H=links.nic_in_seconds_per_byte_H,
        price_D=np.nan_to_num(tables.devices.price_usd_per_s_D[devices]),
        egress_DD=np.ascontiguousarray(egress[grid]),
        has_nics=bool(links.has_nics),
        priced=problem.objective == "cost",
        recompute=recompute,
    )
    rank = np.argsort(canonical)
    inner = np.ascontiguousarray(distance[np.ix_(canonical, canonical)])
    speed = tables.devices.rate_flops_per_s_D[devices]
    by_speed = [np.lexsort((rank[order].argsort(), -speed)) for order in orders[:2]]
    return SearchSpace(
        problem=packed,
        devices=devices,
        op_cuts=cuts,
        layers_before=_layers_before(model, tables.cuts),
        distance_DD=inner,
        orders=[*(rank[order] for order in orders), *(by_speed if len(set(speed)) > 1 else [])],
    )


class StepSpecies:
    """Candidates of one shape; genes are ``(place_N, cut_S, share_R)`` in canonical device numbers.

    Args:
        model: the cost model of the problem.
        shape: stages and replicas.
        seed: of every random choice.
        starts: 'structured' or 'random'.
        recompute: whether stages keep only their inputs.
        space: of :func:`search_space`, if already at hand: shapes of two or more stages share one.
    """

    def __init__(
        self,
        model: CostModel,
        shape: tuple[int, int],
        seed: int,
        starts: str,
        *,
        recompute: bool,
        space: SearchSpace | None = None,
    ) -> None:
        self.stages, self.replicas = shape
        self.recompute = recompute
        self._model, self._starts = model, starts
        self._space = space or search_space(model, self.stages, recompute=recompute)
        self._rng = np.random.default_rng([seed, *shape])
        self._state = self._rng.integers(1, 2**63, size=1, dtype=np.uint64)
        self._micro_batches = model.tables.problem.workload.num_micro_batches
        hosts = len(model.links.nic_out_seconds_per_byte_H)
        self.work = (
            np.zeros(self.stages, dtype=np.int64),
            np.zeros(self.stages),
            np.zeros((4, hosts)),
        )

    def first_guesses(self) -> list[Candidate]:
        """One pipeline per site with an even cut, by the closed form itself."""
        place = seeds.deal_layout(self._space.orders[0], [self.stages], self.replicas)
        cut = np.searchsorted(self._space.op_cuts, self._even_cut()).astype(np.int64)
        share = even_shares(self._micro_batches, self.replicas)
        layout = Layout(
            placement_SR=self._placed(Candidate(0.0, (place,))),
            op_cut_S=self._even_cut(),
            share_R=tuple(int(n) for n in share),
            depth_S=tuple(self.stages - s for s in range(self.stages)),
            recompute=self.recompute,
        )
        return [Candidate(rough_value(layout, self._model), (place, cut, share))]

    def random(self) -> Candidate:
        """One random placement with matched pipelines, its best cut and shares."""
        place = self._rng.permutation(len(self._space.devices)).astype(np.int64)
        self._match(place)
        values, cuts, shares = self._score(place[None], fit=True)
        return Candidate(float(values[0]), (place, cuts[0], shares[0]))

    def warm_up(self) -> None:
        """Loads the kernels by running each once on the first guess."""
        guess = self.first_guesses()[0]
        state = self._state.copy()
        self.anneal(self.cross(guess, guess), 1, 0.01)
        self._state[:] = state

    def seeds(self, limit: int | None) -> Iterator[tuple[list[Candidate], int]]:
        """Layouts scored with an even cut and even shares; the best of each batch get their own."""
        if self._starts == "random":
            layouts = seeds.random_layouts(len(self._space.devices), RANDOM_STARTS, self._rng)
        else:
            layouts = seeds.structured_layouts(self._space.orders, self.stages, self.replicas, self._rng)
        for batch in seeds.in_batches(layouts[:limit]):
            values, _, _ = self._score(batch, fit=False)
            best = np.argsort(values, kind="stable")[:REFITTED]
            fitted, cuts, shares = self._score(batch[best], fit=True)
            found = [Candidate(float(fitted[i]), (batch[best[i]], cuts[i], shares[i])) for i in range(len(best))]
            yield found, len(batch)

    def anneal(self, candidate: Candidate, moves: int, heat: float) -> Candidate:
        """One annealing chain; cut and shares are fitted exactly behind it."""
        from hetplanner.planners import step_kernels

        place, cut, share = (gene.copy() for gene in candidate.genes)
        best_place, best_cut, best_share = (gene.copy() for gene in candidate.genes)
        packed, micro_batches = self._space.problem, self._micro_batches
        step_kernels.anneal(
            packed, place, cut, share, moves, heat, min(COLD, heat), GUIDE_WEIGHT, self._state,
            best_place, best_cut, best_share, self.work,
        )  # fmt: skip
        value = step_kernels.refit(packed, best_place, best_cut, best_share, micro_batches, self.work)
        return Candidate(float(value), (best_place, best_cut, best_share))

    def cross(self, mother: Candidate, father: Candidate) -> Candidate:
        """Five-point crossover of the placements; pipelines are matched anew, cut and shares fitted."""
        from hetplanner.planners import dtfm_kernels

        order = np.arange(self.stages)
        child = np.empty_like(mother.genes[0])
        dtfm_kernels.cross_over(
            mother.genes[0], order, father.genes[0], order, self.replicas, NUM_CUTS, self._state, child
        )
        self._match(child)
        values, cuts, shares = self._score(child[None], fit=True)
        return Candidate(float(values[0]), (child, cuts[0], shares[0]))

    def twins(self) -> IntArray:
        """The nearest device before each that it can change places with, in the order that genes number them."""
        problem = self._space.problem
        tables = (problem.latency_DD, problem.pipe_rate_DD, problem.reduce_rate_DD, problem.egress_DD)
        labels = [problem.class_D, problem.memory_D, problem.price_D]
        # Only a NIC ties a device to its host.
        return twins_of(tables, [*labels, problem.host_D] if problem.has_nics else labels)

    def best_of(self, place_PN: IntArray, cut_CS: IntArray, share_HR: IntArray) -> Candidate:
        """The best of all combinations of placements, cuts (numbers of cut points) and micro-batch shares."""
        from hetplanner.planners.exhaustive_kernels import best_of_all

        value, p, c, h = best_of_all(self._space.problem, place_PN, cut_CS, share_HR, self.work)
        return Candidate(float(value), (place_PN[p], cut_CS[c].copy(), share_HR[h].copy()))

    def fitted(self, placement_SR: IntArray) -> Candidate:
        """The candidate of a given placement (device indices of the cluster), with its best cut and shares."""
        return self._of_placement(placement_SR, fit=True)

    def unfitted(self, placement_SR: IntArray) -> Candidate:
        """The candidate of a given placement, with equal layers and shares."""
        return self._of_placement(placement_SR, fit=False)

    def _of_placement(self, placement_SR: IntArray, *, fit: bool) -> Candidate:
        number = {int(d): i for i, d in enumerate(self._space.devices)}
        placed = [number[int(d)] for d in placement_SR.reshape(-1)]
        used = set(placed)
        spare = [i for i in range(len(self._space.devices)) if i not in used]
        place = np.array([[*placed, *spare]], dtype=np.int64)
        values, cuts, shares = self._score(place, fit=fit)
        return Candidate(float(values[0]), (place[0], cuts[0], shares[0]))

    def layout(self, candidate: Candidate) -> Layout:
        """The layout of a candidate, with the greatest depths that memory allows."""
        from hetplanner.planners import step_kernels

        place, cut, share = candidate.genes
        depth = [
            step_kernels.fit_depth(self._space.problem, place, cut, s, self.replicas)[0] for s in range(self.stages)
        ]
        return Layout(
            placement_SR=self._placed(candidate),
            op_cut_S=tuple(int(k) for k in self._space.op_cuts[cut]),
            share_R=tuple(int(n) for n in share),
            depth_S=tuple(int(min(d, self._micro_batches)) for d in depth),
            recompute=self.recompute,
        )

    def placement(self, candidate: Candidate) -> tuple[tuple[str, ...], ...]:
        """Devices by stage, then replica."""
        ids = self._model.tables.problem.cluster.device_ids
        return tuple(tuple(ids[d] for d in row) for row in self._placed(candidate))

    def _placed(self, candidate: Candidate) -> IntArray:
        used = candidate.genes[0][: self.stages * self.replicas]
        return self._space.devices[used].reshape(self.stages, self.replicas)

    def _match(self, place_N: IntArray) -> None:
        """Lines the devices of the stages up in place so that every hop is a bottleneck matching."""
        from hetplanner.planners import dtfm_kernels

        placed = np.empty((self.stages, self.replicas), dtype=np.int64)
        order = np.arange(self.stages)
        dtfm_kernels.align_columns(self._space.distance_DD, place_N, order, self.replicas, placed)
        place_N[: placed.size] = placed.reshape(-1)

    def _even_cut(self) -> tuple[int, ...]:
        cuts = self._space.op_cuts
        return even_cut(cuts[1:-1], int(cuts[-1]), self._space.layers_before, self.stages)

    def _score(self, layouts: IntArray, *, fit: bool) -> tuple[FloatArray, IntArray, IntArray]:
        from hetplanner.planners import step_kernels

        cut = np.searchsorted(self._space.op_cuts, self._even_cut())
        share = even_shares(self._micro_batches, self.replicas)
        cuts = np.tile(cut, (len(layouts), 1)).astype(np.int64)
        shares = np.tile(share, (len(layouts), 1))
        values = np.empty(len(layouts))
        step_kernels.score_layouts(
            self._space.problem, layouts, cuts, shares, self._micro_batches, fit, values, self.work
        )
        return values, cuts, shares


def even_layers(model: CostModel, stages: int) -> tuple[int, ...]:
    """Op boundaries that give every stage the same number of layers, as nearly as possible."""
    tables = model.tables
    return even_cut(tables.cuts, tables.num_ops, _layers_before(model, tables.cuts), stages)


def even_shares(micro_batches: int, replicas: int) -> IntArray:
    """Micro-batches per pipeline, the first ones taking what is left over."""
    share = np.full(replicas, micro_batches // replicas, dtype=np.int64)
    share[: micro_batches % replicas] += 1
    return share


def _weights(model: CostModel, stages: int) -> tuple[FloatArray, FloatArray, float]:
    """Prefix sums of weights held and reduced per stage, and bytes of weights tied across stages.

    With one stage a tied weight is held once; with more, its first and last user are taken to be apart.
    """
    graph = model.tables.problem.workload.graph
    held = np.array([op.num_params for op in graph.ops], dtype=np.float64)
    own = np.array([op.num_params if op.tied is None else 0 for op in graph.ops], dtype=np.float64)
    tied = 0.0
    if stages == 1:
        held = own
    else:
        for members in graph.tied_groups.values():
            shared = graph.ops[members[1]].num_params
            own[members[0]] -= shared
            tied += shared * GRADIENT_ELEMENT_BYTES
    prefix = [np.concatenate(([0.0], np.cumsum(values))) for values in (held, own)]
    return prefix[0], prefix[1], tied


def _layers_before(model: CostModel, cuts: IntArray) -> IntArray:
    """Layers that end before each cut, and in all."""
    ops = model.tables.problem.workload.graph.ops
    numbers = [op.layer if op.layer is not None else -1 for op in ops]
    if max(numbers) < 0:
        return np.array([*cuts, len(ops)], dtype=np.int64)
    seen = [len({n for n in numbers[:k] if n >= 0}) for k in (*cuts, len(ops))]
    return np.array(seen, dtype=np.int64)
