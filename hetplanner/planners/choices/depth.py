"""How many micro-batches of a stage are in flight: no more than the round trips need.

Legend of array suffixes: S stages, P routes, E boundaries.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetplanner.arrays import IntArray
from hetplanner.cost.closed_form import StepArrays, time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, step_arrays
from hetplanner.plan.model import Plan

DEPTH_TOLERANCE = 1e-3
"""Depth may cost this share of the step, for fewer activations in memory."""


def replace_depth(plan: Plan, model: CostModel) -> Plan:
    """Lowers the in-flight depths to what the round trips need, as long as the step stays as short."""
    arrays = step_arrays(plan, durations_of(plan, model.tables), model)
    needed = np.minimum(_needed_depth(arrays), arrays.in_flight_S)
    with_less = time_step(replace(arrays, in_flight_S=needed)).step_s
    if with_less > time_step(arrays).step_s * (1 + DEPTH_TOLERANCE):
        needed = arrays.in_flight_S
    stages = tuple(s.replace(in_flight=int(w)) for s, w in zip(plan.stages, needed, strict=True))
    return plan.replace(stages=stages)


def _needed_depth(arrays: StepArrays) -> IntArray:
    """Micro-batches in flight that hide a stage's round trip behind the slowest stage or link of its route."""
    compute = arrays.forward_s_PS + arrays.backward_s_PS
    hop = arrays.activation_s_PE + arrays.gradient_s_PE
    round_trip = np.cumsum(compute[:, ::-1], axis=1)[:, ::-1].copy()
    wire = np.maximum(arrays.activation_wire_s_PE, arrays.gradient_wire_s_PE)
    slowest = compute.max(axis=1)
    if hop.shape[1]:
        round_trip[:, :-1] += np.cumsum(hop[:, ::-1], axis=1)[:, ::-1]
        slowest = np.maximum(slowest, wire.max(axis=1))
    depth = np.ceil(round_trip / np.maximum(slowest, 1e-12)[:, None] - 1e-9).max(axis=0).astype(np.int64) + 1
    num_stages = compute.shape[1]
    return np.maximum(depth, num_stages - np.arange(num_stages))
