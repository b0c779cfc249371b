"""What the cost model knows about a problem before any plan: seconds, bytes and weights of every op range.

Legend of array suffixes: D devices in file order, C classes of equal devices, O op boundaries (entry k sums the
ops before k, so a range is a difference).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np

from hetplanner.arrays import FloatArray, IntArray
from hetplanner.cluster.catalog import is_processor
from hetplanner.cost.compute.devices import DeviceTable
from hetplanner.cost.compute.groups import exchange_seconds, grouped_devices, with_gathers
from hetplanner.cost.compute.profiled import ProfiledKinds, cell_of
from hetplanner.cost.compute.recomputation import Recomputation
from hetplanner.cost.compute.repeated import repeated_params_o, times_computed_o, times_kept_o
from hetplanner.cost.compute.sharded import whole_bytes_o
from hetplanner.cost.cuts import choose_cuts
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.program import ELEMENT_BYTES, POSTED_REDUCTIONS
from hetplanner.workload.fine_tuning import adapted_layers
from hetplanner.workload.optimizers import FLOAT_BYTES, TRAFFIC_BYTES, state_bytes_of_adapters, state_bytes_of_ops

# Gradients travel in float32 whatever the weights are.
GRADIENT_ELEMENT_BYTES = ELEMENT_BYTES


@dataclass(frozen=True)
class CostTables:
    """Prefix sums over the ops of a problem's model, for one micro-batch, and its devices."""

    problem: Problem

    def with_devices(self, devices: DeviceTable) -> CostTables:
        """Tables of the same problem on devices with other numbers, in the same order."""
        tables = CostTables(self.problem)
        tables.__dict__["devices"] = devices  # in place of the cached property
        return tables

    @cached_property
    def devices(self) -> DeviceTable:
        """Resolved numbers of every device of the cluster."""
        workload = self.problem.workload
        table = DeviceTable.of(
            self.problem.cluster, workload.dtype, TRAFFIC_BYTES[workload.optimizer], self.profiled.kinds
        )
        table = grouped_devices(table, self.problem, float(self._state_bytes_o.max()))
        return with_gathers(self.profiled.devices(table, float(self.flops_O[-1])), self.problem)

    @cached_property
    def profiled(self) -> ProfiledKinds:
        """What the problem's profile says; it goes before the devices' rates."""
        return ProfiledKinds(self.problem)

    @cached_property
    def forward_s_CO(self) -> FloatArray:
        """Forward seconds of one micro-batch through the ops before each boundary, by device class."""
        return self._prefix_seconds("forward", self._forward_flops, np.ones(self.num_ops))

    @cached_property
    def backward_s_CO(self) -> FloatArray:
        """Backward seconds, without recomputation."""
        return self._prefix_seconds("backward", self._backward_flops, 1.0 + self._trained_share_o)

    @cached_property
    def fastest_flops_per_s_D(self) -> FloatArray:
        """The most FLOP/s that a device reaches in any operator."""
        if not self.profiled.cells:
            return self.devices.rate_flops_per_s_D
        flops_o = np.diff(self.flops_O)
        seconds_Co = np.diff(self.forward_s_CO + self.backward_s_CO, axis=1)
        busy_o = flops_o > 0
        # What takes no measured time is no reason to call a device infinitely fast: its FLOPs count at the next rate.
        rate_Co = np.divide(flops_o, seconds_Co, out=np.full_like(seconds_Co, np.inf), where=seconds_Co > 0)
        return np.asarray(rate_Co[:, busy_o].max(axis=1)[self.devices.class_D])

    def has_backward(self, end: int) -> bool:
        """Whether a stage that ends there has one: of its ops, or of those in front, some have trained weights."""
        return end > self.problem.workload.graph.first_trained

    @cached_property
    def flops_O(self) -> FloatArray:
        """Forward and backward FLOPs of one micro-batch before each boundary."""
        return _prefix(self._forward_flops + self._backward_flops)

    @cached_property
    def activation_bytes_O(self) -> FloatArray:
        """Bytes kept from forward to backward by one micro-batch before each boundary."""
        kept_o = self._per_op("activation_bytes") * self.problem.workload.micro_batch * self._times_kept_o
        kept_L = self.profiled.kept_L
        return _prefix(kept_o if kept_L is None else self.profiled.spread(kept_L, kept_o))

    @cached_property
    def boundary_bytes_O(self) -> FloatArray:
        """Dense bytes of one micro-batch that cross each boundary (0 at both ends)."""
        workload = self.problem.workload
        return np.array(workload.boundary_elements, dtype=np.float64) * workload.dtype_bytes

    @cached_property
    def gradient_bytes_O(self) -> FloatArray:
        """Dense bytes of one micro-batch's gradients that cross each boundary: 0 where nothing in front is trained."""
        workload = self.problem.workload
        return np.array(workload.gradient_elements, dtype=np.float64) * workload.dtype_bytes

    @property
    def num_ops(self) -> int:
        """Ops of the model."""
        return len(self.problem.workload.graph.ops)

    @cached_property
    def cuts(self) -> IntArray:
        """Op boundaries where planners may end a stage; see :mod:`hetplanner.cost.cuts`."""
        return choose_cuts(self.problem.workload, self.problem.constraints.stages)

    @property
    def most_stages(self) -> int:
        """The most stages that planners cut the model into."""
        return min(self.problem.workload.most_stages, len(self.cuts) + 1)

    def stage_params(self, first: int, end: int) -> int:
        """Weights that a stage holds: a weight tied inside the stage once, one tied to another stage too."""
        ops = self.problem.workload.graph.ops
        twice = sum(ops[two].num_params for one, two in self._tied_pairs if first <= one and two < end)
        return int(self._params_O[end] - self._params_O[first]) - twice

    def stage_trained(self, first: int, end: int) -> int:
        """Those of them that are trained: what its optimizer and its reductions are about."""
        ops = self.problem.workload.graph.ops
        twice = sum(ops[two].trained for one, two in self._tied_pairs if first <= one and two < end)
        return int(self._trained_O[end] - self._trained_O[first]) - twice

    def trained_between(self, edges_K: IntArray) -> FloatArray:
        """Trained weights that stages between all pairs of op boundaries hold."""
        ops, before_K = self.problem.workload.graph.ops, self._trained_O[edges_K]
        trained_KK = before_K[None, :] - before_K[:, None]
        for one, two in self._tied_pairs:
            trained_KK -= np.where((edges_K[:, None] <= one) & (edges_K[None, :] > two), ops[two].trained, 0.0)
        return trained_KK

    def stage_state_bytes(self, first: int, end: int) -> float:
        """Bytes of a stage's weights, gradients and optimizer states, as :meth:`stage_params` counts weights."""
        ops = self.problem.workload.graph.ops
        twice = sum(
            ops[two].num_params * self._shared_bytes(one, two)
            for one, two in self._tied_pairs
            if first <= one < two < end
        )
        return float(self._state_O[end] - self._state_O[first]) - twice

    def state_parts(self, first: int, end: int) -> tuple[float, float, float]:
        """What :meth:`stage_state_bytes` is made of: bytes of weights, of their gradients, of optimizer states."""
        params_o, again_o = self._per_op("num_params"), self._repeated_params_o * self._trained_share_o
        weight_o, states_o = FLOAT_BYTES + self._copy_bytes_o, self._per_op("trained") * self._kept_bytes_o
        params_o, states_o = params_o + self._repeated_params_o, states_o + again_o * self._kept_bytes_o
        gradients = FLOAT_BYTES * (self.stage_trained(first, end) + float(again_o[first:end].sum()))
        weights, states = float((params_o * weight_o)[first:end].sum()), float(states_o[first:end].sum())
        for one, two in self._tied_pairs:
            if first <= one < two < end:
                shared = self._copy_bytes_o[two] - self._own_copy_bytes(one, two)
                weights -= params_o[two] * (FLOAT_BYTES + shared)
                states -= states_o[two]
        return weights, gradients, states

    def _shared_bytes(self, one: int, two: int) -> float:
        """Bytes per parameter that a stage saves which has both users of a weight; a head's copy is its own."""
        return float(self._state_bytes_o[two] - self._own_copy_bytes(one, two))

    def _own_copy_bytes(self, one: int, two: int) -> float:
        """Bytes per parameter of the second user's copies of a tied weight that the first does not read."""
        ops, width = self.problem.workload.graph.ops, self.problem.workload.dtype_bytes
        reads_another = ops[one].kind == "embedding" and width < FLOAT_BYTES
        return float(self._copy_bytes_o[two]) if reads_another else 0.0

    def sent_state_bytes(self, first: int, end: int) -> float:
        """Bytes of a stage's weights in float32 and optimizer states: what a checkpoint holds, and a joiner fetches."""
        ops = self.problem.workload.graph.ops
        sent_o = FLOAT_BYTES + self._trained_share_o * self._kept_bytes_o
        whole = sum(op.num_params * sent for op, sent in zip(ops[first:end], sent_o[first:end], strict=True))
        twice = sum(ops[two].num_params * sent_o[two] for one, two in self._tied_pairs if first <= one < two < end)
        return float(whole - twice)

    def state_between(self, edges_K: IntArray) -> FloatArray:
        """The same of stages between all pairs of op boundaries."""
        before_K = self._state_O[edges_K]
        state_KK = before_K[None, :] - before_K[:, None]
        ops = self.problem.workload.graph.ops
        for one, two in self._tied_pairs:
            inside = (edges_K[:, None] <= one) & (edges_K[None, :] > two)
            state_KK -= np.where(inside, ops[two].num_params * self._shared_bytes(one, two), 0.0)
        return state_KK

    @cached_property
    def shardable_bytes_per_trained(self) -> float:
        """Of each trained weight what ZeRO 3 would shard: its float32 value, the least state."""
        return FLOAT_BYTES + float(self._kept_bytes_o[self._per_op("trained") > 0].min(initial=np.inf))

    def working_bytes(self, first: int, end: int, *, by_layer: bool = False) -> float:
        """Bytes of a stage that a backward or the update needs at most beyond what one micro-batch keeps.

        `by_layer`: beyond what is kept of the largest of its layers, which are recomputed one by one.
        """
        if not self.has_backward(end):
            return 0.0
        kept_O = self.activation_bytes_O
        kept = self.recomputation.largest(first, end, kept_O) if by_layer else float(kept_O[end] - kept_O[first])
        return self.recomputation.backward(first, end, kept_O, by_layer=by_layer) - kept

    def working_between(self, edges_K: IntArray) -> FloatArray:
        """The same of stages between all pairs of op boundaries, that keep everything."""
        kept_O = self.activation_bytes_O
        working_KK = self.recomputation.backward_between(edges_K, kept_O, by_layer=False)
        working_KK -= kept_O[edges_K][None, :] - kept_O[edges_K][:, None]
        working_KK[:, edges_K <= self.problem.workload.graph.first_trained] = 0.0
        return np.maximum(np.triu(working_KK, 1), 0.0)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What is kept of stages that recompute."""
        return Recomputation(self.problem.workload, self.problem.sample_members, self._times_kept_o)

    def always_between(self, edges_K: IntArray) -> FloatArray:
        """Bytes of state and message buffers of stages between all pairs of op boundaries: with nothing in flight."""
        boundary_K = self.boundary_bytes_O[edges_K]
        return self.state_between(edges_K) + 2.0 * (boundary_K[:, None] + boundary_K[None, :])

    def memory_between(self, edges_K: IntArray, *, recompute: bool) -> tuple[FloatArray, FloatArray]:
        """Peak bytes of stages between all pairs of op boundaries, as :meth:`stage_bytes`.

        Returns:
            held_KK and each_KK: with n micro-batches in flight a stage needs ``held + n x each`` bytes.
        """
        before_K = self.activation_bytes_O[edges_K]
        kept_KK = before_K[None, :] - before_K[:, None]
        held_KK = self.always_between(edges_K) + self.working_between(edges_K)
        if not recompute:
            return held_KK, kept_KK + self.relayed_between(edges_K)
        has_backward_K = edges_K > self.problem.workload.graph.first_trained
        return held_KK + kept_KK, self.recomputation.input_bytes_O[edges_K][:, None] * has_backward_K

    def layers_between(self, edges_K: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The same of stages that recompute by layers.

        Returns:
            held_KK, each_KK; and below_KK: with fewer micro-batches in flight than this a stage does so.
        """
        recomputation = self.recomputation
        has_backward_K = edges_K > self.problem.workload.graph.first_trained
        backward_KK = recomputation.backward_between(edges_K, self.activation_bytes_O, by_layer=True) * has_backward_K
        each_KK, below_KK = recomputation.inputs_between(edges_K), recomputation.below_between(edges_K)
        return self.always_between(edges_K) + backward_KK, each_KK * has_backward_K, below_KK * has_backward_K

    def is_by_layer(self, first: int, end: int, in_flight: int, recompute: bool) -> bool:
        """Whether a stage recomputes, layer by layer."""
        return recompute and self.has_backward(end) and self.recomputation.is_by_layer(first, end, in_flight)

    def depth_within(self, first: int, end: int, memory_bytes: float, recompute: bool, replicas: int) -> float:
        """Micro-batches of a stage that so much memory can hold, whole or infinite; 0 if not even one."""

        def held(deepest: int) -> float:
            one = self.bytes_with_reduction(first, end, 1, recompute, replicas, deepest=deepest)
            if one > memory_bytes:
                return 0.0
            steady, two = (self.stage_bytes(first, end, n, recompute, deepest) for n in (1, 2))
            room = memory_bytes + self.sharded_bytes(first, end, replicas) - steady
            return float(np.floor(1.0 + room / (two - steady))) if two > steady else np.inf

        below = self.recomputation.below(first, end) if self.is_by_layer(first, end, 1, recompute) else 0.0
        whole = held(max(1, ceil(below)))
        return whole if whole >= below else min(held(1), ceil(below) - 1.0)

    @cached_property
    def sharded_bytes_per_trained(self) -> float:
        """Bytes of optimizer states of a trained weight that replicas shard: 0 without ZeRO."""
        trained_o = self._per_op("trained")
        return float(self._kept_bytes_o[trained_o > 0].max(initial=0.0)) if self.problem.constraints.zero else 0.0

    def sharded_bytes(self, first: int, end: int, replicas: int) -> float:
        """Bytes of a stage's optimizer states that are in the shards of its other replicas, all of one size."""
        return self.sharded_bytes_per_trained * self.stage_trained(first, end) * (1.0 - 1.0 / replicas)

    def bytes_with_reduction(
        self,
        first: int,
        end: int,
        in_flight: int,
        recompute: bool,
        replicas: int,
        elsewhere_bytes: float | None = None,
        deepest: int | None = None,
    ) -> float:
        """:meth:`stage_bytes` of a stage whose replicas reduce its gradients, dense and shared evenly.

            state + messages awaited + max(one micro-batch in its backward, a message that is sent)      if that is more

        Each replica takes two messages from every other one. :data:`POSTED_REDUCTIONS` of them are awaited at once,
        from the last micro-batch on.

        `elsewhere_bytes` of optimizer states are in other replicas' shards; None: `sharded_bytes`. `deepest` as there.
        """
        deepest = deepest or in_flight
        elsewhere = self.sharded_bytes(first, end, replicas) if elsewhere_bytes is None else elsewhere_bytes
        steady = self.stage_bytes(first, end, in_flight, recompute, deepest) - elsewhere
        if replicas < 2 or in_flight == 0:
            return steady
        part = GRADIENT_ELEMENT_BYTES * self.stage_trained(first, end) / replicas
        last = self.stage_bytes(first, end, 1, recompute, deepest) - elsewhere
        always = self.stage_bytes(first, end, 0, recompute) - elsewhere
        return max(steady, awaited_messages(replicas) * part + max(last, always + part))

    def own_trained_between(self, edges_K: IntArray) -> FloatArray:
        """Trained weights without what is tied to another stage: what a stage's replicas reduce among themselves."""
        ops = self.problem.workload.graph.ops
        before_K = _prefix(np.array([op.trained if op.tied is None else 0 for op in ops], dtype=np.float64))[edges_K]
        trained_KK = before_K[None, :] - before_K[:, None]
        for members in self.problem.workload.graph.tied_groups.values():
            owned = (edges_K[:, None] <= members[0]) & (edges_K[None, :] > members[0])
            left = owned & (edges_K[None, :] <= members[-1])
            trained_KK -= np.where(left, ops[members[1]].trained, 0.0)
        return trained_KK

    def relayed_between(self, edges_K: IntArray) -> FloatArray:
        """Bytes of one micro-batch that stages between all pairs of op boundaries pass on and read nothing of."""
        relayed_KK = np.zeros((len(edges_K), len(edges_K)))
        for used, next_use, size in self._waits:
            relayed_KK += np.where((edges_K[:, None] > used) & (edges_K[None, :] <= next_use), size, 0.0)
        return relayed_KK

    @cached_property
    def _waits(self) -> list[tuple[int, int, float]]:
        """Two neighbouring uses of an output, and its bytes for one micro-batch."""
        workload = self.problem.workload
        sizes = workload.output_elements
        return [
            (used, next_use, float(sizes[op] * workload.dtype_bytes)) for op, used, next_use in workload.graph.waits
        ]

    @cached_property
    def _params_O(self) -> FloatArray:
        return _prefix(self._per_op("num_params"))

    @cached_property
    def _trained_O(self) -> FloatArray:
        return _prefix(self._per_op("trained"))

    @cached_property
    def _copy_bytes_o(self) -> FloatArray:
        """By op, bytes per parameter of the copy that matrix products read; embeddings have none.

        With ZeRO 2 inside groups each member has whole matrices, too; counted for the largest group.
        """
        width, ops = self.problem.workload.dtype_bytes, self.problem.workload.graph.ops
        copied_o = np.array([op.kind != "embedding" for op in ops])
        whole_o = self.problem.whole_weights * whole_bytes_o(self.problem.workload)
        return np.where(copied_o, width if width < FLOAT_BYTES else 0.0, 0.0) + whole_o

    @cached_property
    def _trained_share_o(self) -> FloatArray:
        params_o = self._per_op("num_params")
        return np.divide(self._per_op("trained"), params_o, out=np.ones_like(params_o), where=params_o > 0)

    @cached_property
    def _kept_bytes_o(self) -> FloatArray:
        """By op, bytes of optimizer states per trained weight."""
        workload = self.problem.workload
        width = workload.transformer.hidden if workload.transformer is not None else None
        kept_o = state_bytes_of_ops(workload.optimizer, workload.graph, workload.program, width)
        adapters = workload.fine_tuning and workload.fine_tuning.adapters
        if not (adapters and workload.transformer):
            return kept_o
        layers = adapted_layers(workload.transformer, adapters)
        kept = state_bytes_of_adapters(workload.optimizer, layers, adapters.rank)
        return np.array([kept.get(op.kind, 0.0) for op in workload.graph.ops])

    @cached_property
    def _state_bytes_o(self) -> FloatArray:
        """By op, bytes per parameter of weights, gradients and optimizer states."""
        share_o = self._trained_share_o
        return FLOAT_BYTES + self._copy_bytes_o + share_o * (FLOAT_BYTES + self._kept_bytes_o)

    @cached_property
    def _state_O(self) -> FloatArray:
        return _prefix((self._per_op("num_params") + self._repeated_params_o) * self._state_bytes_o)

    @cached_property
    def _times_kept_o(self) -> FloatArray:
        return times_kept_o(self.problem.workload, self.problem.layer_members)

    @cached_property
    def _repeated_params_o(self) -> FloatArray:
        return repeated_params_o(self.problem.workload, self.problem.layer_members)

    @cached_property
    def _tied_pairs(self) -> list[tuple[int, int]]:
        """Neighbouring users of a tied weight: a stage with both holds it once less."""
        groups = self.problem.workload.graph.tied_groups.values()
        return [pair for members in groups for pair in pairwise(members)]

    def stage_bytes(self, first: int, end: int, in_flight: int, recompute: bool, deepest: int | None = None) -> float:
        """Peak bytes on a device of a stage: weights, gradients, optimizer, activations, message buffers.

            state + in_flight x (activations + relayed) + working + 2 x (input + output)
            state + activations + in_flight x input + working + 2 x (input + output)      with recomputation
            state + largest layer + in_flight x layers' inputs + working + 2 x (input + output)      by layers

        State: of a trained weight 8 bytes for itself and its gradient, both float32, and what the optimizer keeps: 8
        for AdamW, less for others, see :mod:`hetplanner.workload.optimizers`. A frozen weight has 4. In bfloat16 and
        float16 weights of matrix products have a copy of 2 bytes, which all micro-batches share.
        A stage in front of the first trained weight keeps nothing for a backward.

        With recomputation only the stage's input is kept per micro-batch, or the input of each layer, and one
        micro-batch's or layer's activations live while its backward runs. That choice is made for `deepest`
        micro-batches in flight, if not for `in_flight`. Working: in the backward of some op what there is beside the
        activations of the ops in front of it; the greatest of all ops counts. Buffers: one message in and one out, for
        activations and for gradients. With `in_flight` 0 it is state and buffers. The limit is the device's memory less
        its reserve.

        Source: 16 bytes a parameter as in Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054, section 3.1);
        recomputation by :class:`hetplanner.cost.compute.recomputation.Recomputation`; the rest is what
        :mod:`hetplanner.runtime` holds, which tests count.
        """
        inputs, outputs = float(self.boundary_bytes_O[first]), float(self.boundary_bytes_O[end])
        always = self.stage_state_bytes(first, end) + 2.0 * (inputs + outputs)
        if in_flight == 0:
            return always
        by_layer = self.is_by_layer(first, end, deepest or in_flight, recompute)
        kept = self.kept_bytes(first, end, in_flight, recompute, deepest)
        return always + kept + self.working_bytes(first, end, by_layer=by_layer)

    def kept_bytes(self, first: int, end: int, in_flight: int, recompute: bool, deepest: int | None = None) -> float:
        """Of :meth:`stage_bytes` what micro-batches in flight keep for their backward."""
        if in_flight == 0:
            return 0.0
        if self.is_by_layer(first, end, deepest or in_flight, recompute):
            largest = self.recomputation.largest(first, end, self.activation_bytes_O)
            return largest + self.recomputation.inputs(first, end) * in_flight
        kept = float(self.activation_bytes_O[end] - self.activation_bytes_O[first])
        relayed = sum(size for used, next_use, size in self._waits if used < first and end <= next_use)
        redone = float(self.recomputation.input_bytes_O[first]) if self.has_backward(end) else 0.0
        return kept + redone * in_flight if recompute else (kept + relayed) * in_flight

    @cached_property
    def _forward_flops(self) -> FloatArray:
        return self._per_op("forward_flops") * self.problem.workload.micro_batch

    @cached_property
    def _backward_flops(self) -> FloatArray:
        return self._per_op("backward_flops") * self.problem.workload.micro_batch

    def _per_op(self, field: str) -> FloatArray:
        return np.array([getattr(op, field) for op in self.problem.workload.graph.ops], dtype=np.float64)

    def _prefix_seconds(self, way: Literal["forward", "backward"], flops: FloatArray, passes: FloatArray) -> FloatArray:
        """An op takes the longer of its arithmetic and its memory traffic, for one micro-batch:

            max( FLOPs / (peak x efficiency),  passes x (weights + kept activations + output) / memory bandwidth )

        The second bounds small and elementwise ops. A backward makes two passes: gradients of inputs and of weights;
        over frozen weights one. To launch the op takes `passes x launch` seconds: a processor adds them, of a GPU the
        longer counts. Of a kind with a profile a layer takes what was measured; this divides it among its
        operators.

        Source: roofline model (Williams, Waterman, Patterson 2009), traffic counted as if nothing stayed in caches
        between ops (ours); FLOPs by :mod:`hetplanner.workload.transformer`.
        """
        workload = self.problem.workload
        traffic = self._per_op("num_params") * workload.dtype_bytes
        traffic += (self._per_op("activation_bytes") + self._per_op("output_bytes")) * workload.micro_batch
        rows = []
        for device in self.devices.first_of_class:
            arithmetic = flops / self.devices.rate_flops_per_s_D[device]
            memory = np.where(flops > 0, passes * traffic / self.devices.memory_bandwidth_bytes_per_s_D[device], 0.0)
            exchange = exchange_seconds(self.devices, int(device), workload, way, self.problem.profile)
            cell = cell_of(self.devices, int(device))
            launch = np.where(flops > 0, passes * self.devices.launch_s, 0.0)
            roofline = np.maximum(arithmetic, memory)
            if cell.sharding == "tensor":
                roofline = roofline * times_computed_o(workload, cell.degree)
            roofline = roofline + launch if is_processor(cell.kind) else np.maximum(roofline, launch)
            rows.append(_prefix(self.profiled.seconds(cell, way, roofline, exchange)))
        return np.array(rows)


def awaited_messages(replicas: int) -> int:
    """How many messages of a reduction a replica awaits at once."""
    return min(POSTED_REDUCTIONS, 2 * (replicas - 1))


def _prefix(values: FloatArray) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(values)))
