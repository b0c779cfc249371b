"""Cheap bounds below every plan of a problem: compute, fill, links, one reduction, one optimizer step.

Every bound is below the closed form of :mod:`hetplanner.cost.closed_form` for plans whose codecs (of links and
reductions) are among those the problem allows. Routes may share replicas. Where the number of replicas is given every
stage has so many; where it is free, stages may have unlike numbers (`ragged_s`, a weaker bound).

Derivation, with M micro-batches, S stages of R replicas and best-device seconds of every op:

    step >= more + max(full fill + tied reduction, min over cuts of max_s(fill of s + reduction of s)) + optimizer
    more >= the busiest device: (M - R) x model seconds / total speed of the devices, and
            (M/R - 1) x the slowest stage of the most even cut on the fastest device
    fill of s: all forwards, the backwards of stages s and behind (a stage reduces while earlier ones drain), and the
            hops of the shortest path over S devices
    With local steps it is the mean of steps with and without the stages' reductions, at the most that is allowed.
    reduction of s: the best allowed reducer over any group of R devices, :mod:`hetplanner.cost.bounds.reduction_bounds`

Legend of array suffixes: D usable devices, O op boundaries, K places where a stage may begin or end, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.codecs.spec import least_reduction_bytes, least_wire_bytes
from hetplanner.cost.bounds.connectivity import Parts, bound_path, largest_parts, spanning_edges
from hetplanner.cost.bounds.reduction_bounds import ReductionBounds, is_everybody
from hetplanner.cost.links import LinkTable
from hetplanner.cost.tables import GRADIENT_ELEMENT_BYTES, CostTables

# Sums in another order differ by less than this share.
ROUNDING = 1e-9


def bound_step(tables: CostTables, links: LinkTable) -> float:
    """Seconds below which no plan of the problem can finish a step by the closed form.

    Shapes that the constraints leave free take the least over all.
    """
    bounds = _Bounds(tables, links)
    even = bounds.least(lambda _: 1.0)
    return min([*even, *(bounds.ragged_s(stages) for stages in bounds.ragged_stages())], default=0.0)


def bound_cost(tables: CostTables, links: LinkTable | None = None) -> float:
    """Dollars per million tokens below which no plan can train.

    For devices the larger of two: every op of every micro-batch on the device that is cheapest for it, and the
    cheapest devices of a shape paid for its least step time. For egress what every micro-batch pays at least where no
    site can hold a whole pipeline (:meth:`_Bounds.egress_usd`); traffic is taken to be free otherwise.
    """
    problem = tables.problem
    bounds = _Bounds(tables, links or LinkTable.of(problem.cluster))
    price_D = np.sort(np.nan_to_num(tables.devices.price_usd_per_s_D[bounds.usable]))
    even = bounds.least(lambda used: float(price_D[:used].sum()))
    usd = min([*even, *(float(price_D[:s].sum()) * bounds.ragged_s(s) for s in bounds.ragged_stages())], default=0.0)
    price_C = np.nan_to_num(tables.devices.price_usd_per_s_D[bounds.first_C])
    work = float((price_C[:, None] * bounds.seconds_CO).min(axis=0).sum()) * problem.workload.num_micro_batches
    return (max(usd, work) + bounds.egress_usd()) / problem.workload.tokens_per_step * 1e6


@dataclass(frozen=True)
class _Bounds:
    """The bounds of a problem by shape; what shapes share is computed once."""

    tables: CostTables
    links: LinkTable

    def shapes(self) -> Iterator[tuple[int, int]]:
        """All shapes within the constraints that there are devices for."""
        wanted, workload = self.tables.problem.constraints, self.tables.problem.workload
        most_stages = min(self.tables.most_stages, len(self.usable) // (wanted.replicas or 1))
        for stages in [wanted.stages] if wanted.stages else range(1, most_stages + 1):
            most = min(len(self.usable) // stages, workload.num_micro_batches)
            for replicas in [wanted.replicas] if wanted.replicas else range(1, most + 1):
                yield stages, replicas

    def least(self, weight: Callable[[int], float]) -> list[float]:
        """Bounds of shapes times the weight of their number of devices: the least is among them.

        Shapes that a floor below their bound puts above another's bound are left out: of thousands few remain.
        """
        floors = sorted((weight(s * r) * self._floor_s(s, r), s, r) for s, r in self.shapes())
        found: list[float] = []
        for floor, stages, replicas in floors:
            if found and floor > min(found) * (1.0 + ROUNDING):
                break
            found.append(weight(stages * replicas) * self.step_s(stages, replicas))
        return found

    def _floor_s(self, stages: int, replicas: int) -> float:
        """A number below :meth:`step_s` that is soon found: without reductions."""
        if stages >= len(self.edges_K) or stages * replicas > len(self.usable):
            return 0.0
        return self._more_s(stages, replicas) + self._full_s(stages) + self._optimizer_s(stages)

    def _full_s(self, stages: int) -> float:
        """The first micro-batch's way there and back."""
        return float(self.forward_K[-1]) + float(self.backward_K[-1] - self.backward_K[0]) + self._path_s(stages)[1]

    def ragged_stages(self) -> Iterator[int]:
        """Numbers of stages for which the constraints allow unlike numbers of replicas."""
        if self.tables.problem.constraints.replicas is None:
            yield from (stages for stages in sorted({s for s, _ in self.shapes()}) if stages > 1)

    def ragged_s(self, stages: int) -> float:
        """The bound for stages of any numbers of replicas: all devices may serve, and there may be no reduction.

        A device with l micro-batches computes all of them one after the other, and the others of a route its first.
        """
        if stages >= len(self.edges_K) or stages > len(self.usable):
            return 0.0
        micro_batches = self.tables.problem.workload.num_micro_batches
        rate_D = self.tables.fastest_flops_per_s_D[self.usable]
        compute_s = float(self.compute_K[-1])
        per_turn_s = max(float(self.tables.flops_O[-1]) / float(rate_D.sum()), compute_s / float(self.speed_D.sum()))
        most = len(self.usable) - stages + 1
        busy_s = max(micro_batches * per_turn_s, compute_s + max(micro_batches - most, 0) * per_turn_s)
        return self._path_s(stages)[1] + busy_s + self._optimizer_s(stages)

    def step_s(self, stages: int, replicas: int) -> float:
        """The bound of one shape."""
        if stages >= len(self.edges_K) or stages * replicas > len(self.usable):
            return 0.0
        forward_s, backward_K = float(self.forward_K[-1]), self.backward_K[-1] - self.backward_K
        there_s, full_s = self._path_s(stages)[0], self._full_s(stages)
        reduced_KK = self._reduction_KK(replicas)
        ends_KK = forward_s + there_s + backward_K[:, None] + reduced_KK
        # The first stage waits for the whole drain.
        ends_KK[0] = full_s + reduced_KK[0]
        end_s = max(full_s + self._tied_s(stages, replicas), _least_maximum(ends_KK, stages))
        most = self.tables.problem.constraints.max_local_steps
        # Of so many steps only one need have reductions between replicas; in the others a pipeline is by itself.
        alone_s = full_s + self._tied_s(stages, replicas if most == 1 else 1)
        # A fragment of the weights may be reduced while earlier stages drain, where the whole would take longer.
        end_s = alone_s if self.tables.problem.constraints.fragments > 1 else alone_s + (end_s - alone_s) / most
        return self._more_s(stages, replicas) + end_s + self._optimizer_s(stages)

    @cached_property
    def _path_s(self) -> Callable[[int], tuple[float, float]]:
        """Of so many stages: seconds of the hops there, and of those there and back."""
        there, both = self.hops
        return cache(lambda stages: (float(bound_path(there, stages)), float(bound_path(both, stages))))

    @cached_property
    def _optimizer_s(self) -> Callable[[int], float]:
        return cache(self._slowest_optimizer_s)

    def _slowest_optimizer_s(self, stages: int) -> float:
        """The stage with the most trained weights on the device whose optimizer is fastest; with ZeRO its share."""
        held_KK = self.own_trained_K[None, :] - self.own_trained_K[:, None]
        trained = max(_least_maximum(held_KK, stages), self.tables.problem.workload.graph.num_trained / stages)
        stepped = trained / len(self.usable) if self.tables.problem.constraints.zero else trained
        return stepped * float(self.tables.devices.update_s_per_weight_D[self.usable].min())

    def _more_s(self, stages: int, replicas: int) -> float:
        """What the busiest device computes beyond its first micro-batch."""
        micro_batches = self.tables.problem.workload.num_micro_batches
        left = max(micro_batches - replicas, 0)
        used, rate_D = stages * replicas, self.rate_D
        flops = float(self.tables.flops_O[-1])
        even_s = left * max(
            flops / float(rate_D[:used].sum()), float(self.compute_K[-1]) / float(self.speed_D[:used].sum())
        )
        slowest_s = self._slowest_stage_s(stages)
        rounds = max(-(-micro_batches // replicas) - 1, left / float(self.speed_D[:replicas].sum()))
        return max(even_s, slowest_s * rounds)

    @cached_property
    def _slowest_stage_s(self) -> Callable[[int], float]:
        """Of so many stages: what the slowest computes of a micro-batch."""
        between_KK = self.compute_K[None, :] - self.compute_K[:, None]
        return cache(lambda stages: _least_maximum(between_KK, stages))

    @cached_property
    def rate_D(self) -> FloatArray:
        """Greatest FLOP/s of the usable devices, fastest first."""
        return np.asarray(np.sort(self.tables.fastest_flops_per_s_D[self.usable])[::-1])

    @cached_property
    def usable(self) -> IntArray:
        """Rows of the usable devices."""
        problem = self.tables.problem
        return np.array([problem.cluster.device_index(d) for d in problem.usable_devices], dtype=np.int64)

    @cached_property
    def first_C(self) -> IntArray:
        """One usable device of each class."""
        class_D = self.tables.devices.class_D[self.usable]
        return self.usable[np.unique(class_D, return_index=True)[1]]

    @cached_property
    def seconds_CO(self) -> FloatArray:
        """Seconds of every op, forward and backward, by class of the usable devices."""
        rows = self.tables.devices.class_D[self.first_C]
        return np.diff(self.tables.forward_s_CO[rows] + self.tables.backward_s_CO[rows], axis=1)

    @cached_property
    def edges_K(self) -> IntArray:
        """Op boundaries where a stage may begin or end."""
        return np.concatenate(([0], self.tables.cuts, [self.tables.num_ops])).astype(np.int64)

    @cached_property
    def forward_K(self) -> FloatArray:
        """Forward seconds before each edge with every op on the device fastest for it."""
        return self._best_seconds(self.tables.forward_s_CO)

    @cached_property
    def backward_K(self) -> FloatArray:
        """Backward seconds likewise."""
        return self._best_seconds(self.tables.backward_s_CO)

    @cached_property
    def compute_K(self) -> FloatArray:
        """Both together."""
        return self.forward_K + self.backward_K

    def _best_seconds(self, prefix_CO: FloatArray) -> FloatArray:
        rows = self.tables.devices.class_D[self.first_C]
        best = np.diff(prefix_CO[rows], axis=1).min(axis=0)
        return np.concatenate(([0.0], np.cumsum(best)))[self.edges_K]

    @cached_property
    def speed_D(self) -> FloatArray:
        """Speeds of the usable devices, fastest first: 1 does every op in its best time, 0.5 takes twice as long."""
        rows = self.tables.devices.class_D[self.first_C]
        forward, backward = (np.diff(t[rows], axis=1) for t in (self.tables.forward_s_CO, self.tables.backward_s_CO))
        best_O = forward.min(axis=0) + backward.min(axis=0)
        busy = best_O > 0
        if not busy.any():
            return np.ones(len(self.usable))
        speed_C = (best_O[busy] / self.seconds_CO[:, busy]).max(axis=1)
        row_of_class = np.searchsorted(rows, self.tables.devices.class_D[self.usable])
        return np.sort(np.minimum(speed_C, 1.0)[row_of_class])[::-1]

    @cached_property
    def own_trained_K(self) -> FloatArray:
        """Trained weights before each edge, without those that are tied."""
        graph = self.tables.problem.workload.graph
        tied = {member for members in graph.tied_groups.values() for member in members}
        own = [0 if i in tied else op.trained for i, op in enumerate(graph.ops)]
        return np.concatenate(([0.0], np.cumsum(own)))[self.edges_K]

    @cached_property
    def hops(self) -> tuple[Parts, Parts]:
        """Connected parts by the seconds of the smallest message: the better way, and there and back."""
        activation, gradient = self._least_message_bytes
        latency_DD, rate_DD = self._among(self.links.latency_s_DD), self._among(self.links.seconds_per_byte_DD)
        there_DD = latency_DD + activation * rate_DD
        back_DD = there_DD if gradient == activation else latency_DD + gradient * rate_DD
        there = largest_parts(spanning_edges(np.minimum(there_DD, there_DD.T)))
        both_DD = there_DD + back_DD.T
        # The same message both ways takes any pair as long from either end.
        return there, largest_parts(spanning_edges(both_DD if back_DD is there_DD else np.minimum(both_DD, both_DD.T)))

    @cached_property
    def _least_message_bytes(self) -> tuple[float, float]:
        """Fewest bytes on the wire of a micro-batch's messages between stages: activation, gradient."""
        tables, wanted = self.tables, self.tables.problem.constraints
        if not len(tables.cuts):
            return 0.0, 0.0
        width = tables.problem.workload.dtype_bytes
        there, back = (float(sizes[tables.cuts].min()) for sizes in (tables.boundary_bytes_O, tables.gradient_bytes_O))
        activation, _ = least_wire_bytes(wanted.codecs, there / width, width, wanted.max_ratio)
        # In front of the first trained weight no gradient goes back.
        gradient = least_wire_bytes(wanted.codecs, back / width, width, wanted.max_ratio)[1] if back else 0.0
        return activation, gradient

    def egress_usd(self) -> float:
        """Dollars of one step for leaving sites, if every pipeline must: 0 if one may stay inside.

        A pipeline holds the whole model on different devices. A site cannot hold it with fewer devices
        than stages, or with less memory in all than the weights' state. Where no site can, each micro-batch passes from
        one site to another and its gradient back, at the least that any two of the sites pay each other. Unknown prices
        count as 0.
        """
        problem, site_D = self.tables.problem, self.links.site_D[self.usable]
        stages = problem.constraints.stages or 1
        state = self.tables.stage_state_bytes(0, self.tables.num_ops)
        state -= self.tables.sharded_bytes(0, self.tables.num_ops, len(self.usable))
        memory_D = self.tables.devices.memory_bytes_D[self.usable]
        can_hold = (np.bincount(site_D) >= stages) & (np.bincount(site_D, weights=memory_D) >= state)
        if can_hold.any():
            return 0.0
        site, first = np.unique(site_D, return_index=True)
        if len(site) < 2:
            return 0.0
        class_S = self.links.egress_class_D[self.usable[first]]
        used_C, count_C = np.unique(class_S, return_counts=True)
        there_CC = np.nan_to_num(self.links.egress_usd_per_byte_CC[np.ix_(used_C, used_C)])
        both_CC = there_CC + there_CC.T
        both_CC[np.diag_indices_from(both_CC)] = np.where(count_C > 1, both_CC.diagonal(), np.inf)
        return float(both_CC.min()) * min(self._least_message_bytes) * problem.workload.num_micro_batches

    def _among(self, matrix_DD: FloatArray) -> FloatArray:
        return matrix_DD if is_everybody(self.usable, len(matrix_DD)) else matrix_DD[np.ix_(self.usable, self.usable)]

    def _reduction_KK(self, replicas: int) -> FloatArray:
        """Least seconds to reduce the trained weights between two edges; 0 where there is nothing to reduce."""
        trained_KK = np.maximum(self.own_trained_K[None, :] - self.own_trained_K[:, None], 0.0)
        if replicas < 2:
            return np.zeros_like(trained_KK)
        least_KK = self._reductions.least_s(trained_KK * self._gradient_bytes, replicas)
        return np.where(trained_KK > 0, least_KK, 0.0)

    def _tied_s(self, stages: int, replicas: int) -> float:
        """Least seconds to reduce the trained weights tied between the first and the last stage."""
        graph, cuts = self.tables.problem.workload.graph, self.tables.cuts
        if stages < 2:
            return 0.0
        least = 0.0
        for members in graph.tied_groups.values():
            trained = graph.ops[members[1]].trained
            if trained and len(members) == 2 and members[0] < cuts[0] and members[1] >= cuts[-1]:
                bucket = trained * self._gradient_bytes
                least = max(least, float(self._reductions.least_s(np.array([bucket]), 2 * replicas)[0]))
        return least

    @property
    def _gradient_bytes(self) -> float:
        """Fewest bytes on the wire of one gradient."""
        wanted = self.tables.problem.constraints
        return least_reduction_bytes(wanted.codecs, wanted.max_ratio)

    @cached_property
    def _reductions(self) -> ReductionBounds:
        total = float(self.own_trained_K[-1])
        tied = [self.tables.problem.workload.graph.ops[m[1]].trained for m in self._tied_groups]
        most = max(total, *tied, 1.0) * GRADIENT_ELEMENT_BYTES
        return ReductionBounds(self.links, self.usable, self.tables.problem.constraints.reducers, most)

    @property
    def _tied_groups(self) -> list[tuple[int, ...]]:
        return [tuple(m) for m in self.tables.problem.workload.graph.tied_groups.values()]


def _least_maximum(value_KK: FloatArray, stages: int) -> float:
    """Least, over all cuts into so many stages, of the greatest value of a stage; entry j, k is that from j to k."""
    allowed = np.where(np.triu(np.ones(value_KK.shape, dtype=bool), 1), value_KK, np.inf)
    best = allowed[0]
    for _ in range(stages - 1):
        best = np.maximum(best[:, None], allowed).min(axis=0)
    return float(best[-1])
