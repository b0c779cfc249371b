"""One step of a plan, simulated once more and taken apart: every span, where each rank's time goes, what links and NICs
carry, how much memory is in use when. By the compiled kernel: in milliseconds where `simulate` takes half a second.

Legend of array suffixes: as in `hetplanner.simulator.kernel`; J spans, L links in use, H hosts, R roles (`LOADS`),
B equal parts of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.check import peak_bytes
from hetplanner.cost.estimate import CostModel
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.simulator.packing import PackedPlan, pack_plan
from hetplanner.simulator.spans import KINDS, SpanTable, pack, unpack
from hetplanner.simulator.terms import TERMS
from hetplanner.simulator.timing import simulate_step_s

Array = NDArray[Any]
Part = tuple[Array, ...]
"""Columns of some spans, in the order of `SpanTable`."""

MOST_EVENTS = 1_500_000
"""Forwards, backwards and transfers of a step that are still taken apart."""
MEMORY_PARTS = 240
"""Points of a memory curve."""
LOADS = ("activation", "gradient", "reduction")
FORWARD, BACKWARD, SEND, RECV, REDUCE, STEP = range(len(KINDS))


@dataclass(frozen=True)
class Replay:
    """One simulated step, from all ranks idle.

    Attributes:
        step_s: of this step.
        mean_step_s: of all kinds of steps; other than `step_s` only where replicas take local steps.
        spans: everything that every rank does.
        terms_s_NT: seconds of every rank by `TERMS`; each row adds up to `step_s`.
        source_L, target_L: ranks at the ends of every link in use.
        bytes_LR, busy_s_LR: what it carries, and for how long it is busy with it, by `LOADS`.
        nic_out_s_H, nic_in_s_H: for how long the NIC of each host of the cluster is busy; 0 where it knows no limit.
        memory_NB: greatest bytes in use in every part of the step.
    """

    step_s: float
    mean_step_s: float
    spans: SpanTable
    terms_s_NT: Array
    source_L: Array
    target_L: Array
    bytes_LR: Array
    busy_s_LR: Array
    nic_out_s_H: Array
    nic_in_s_H: Array
    memory_NB: Array

    def share(self, term: str) -> float:
        """Share of the ranks' time that one of TERMS takes."""
        return float(self.terms_s_NT[:, TERMS.index(term)].mean() / self.step_s) if self.step_s else 0.0

    @property
    def idle(self) -> float:
        """Share of the ranks' time in which they compute nothing, as `Estimate.bubble` estimates it."""
        return 1.0 - self.share("compute") - self.share("optimizer")

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        columns = {name: pack(getattr(self, name)) for name in _COLUMNS}
        tables = {name: pack(getattr(self, name)) for name in _TABLES}
        step = {"step_s": self.step_s, "mean_step_s": self.mean_step_s, "ranks": len(self.terms_s_NT)}
        return step | {"spans": self.spans.to_data()} | columns | tables

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Replay:
        """From what `to_data` made."""
        widths = {"terms_s_NT": len(TERMS), "bytes_LR": len(LOADS), "busy_s_LR": len(LOADS), "memory_NB": MEMORY_PARTS}
        columns = {name: unpack(data[name]) for name in _COLUMNS}
        columns |= {name: columns[name].astype(np.int64) for name in ("source_L", "target_L")}
        tables = {name: unpack(data[name]).reshape(-1, widths[name]) for name in _TABLES}
        return cls(data["step_s"], data["mean_step_s"], SpanTable.from_data(data["spans"]), **columns, **tables)


_COLUMNS = ("source_L", "target_L", "nic_out_s_H", "nic_in_s_H")
_TABLES = ("terms_s_NT", "bytes_LR", "busy_s_LR", "memory_NB")


def replay_step(plan: Plan, model: CostModel | None = None) -> Replay:
    """Simulates one step of a plan and takes it apart; with local steps, one in which replicas average.

    Args:
        plan: what to perform.
        model: cost model of the plan's problem, if already at hand.

    Raises:
        InvalidInput: if the step has too many parts.
    """
    model = model or CostModel.of(plan.problem)
    parts = 2 * plan.problem.workload.num_micro_batches * (2 * len(plan.stages) - 1)
    if parts > MOST_EVENTS:
        raise InvalidInput(
            f"micro_batch: the step has {parts:,} forwards, backwards and transfers, more than the {MOST_EVENTS:,} that"
            " are drawn; use larger micro-batches or a smaller global batch"
        )
    packed = pack_plan(plan, model=model)
    end_s_I, arrival_s_X, step_s = _performed(packed)
    began_s_I = np.concatenate(([0.0], end_s_I[:-1]))
    began_s_I[packed.first_N] = 0.0
    spans, last_came_s_J = _spans(plan, packed, began_s_I, end_s_I, arrival_s_X)
    return Replay(
        step_s=step_s,
        mean_step_s=step_s if plan.local_steps == 1 else simulate_step_s(plan, model),
        spans=spans,
        terms_s_NT=_terms(len(plan.ranks), spans, last_came_s_J, step_s),
        **_loads(plan, packed),
        memory_NB=_memory(plan, model, spans, step_s),
    )


def _performed(packed: PackedPlan) -> tuple[Array, Array, float]:
    """End of every instruction, arrival of every message, and of the step."""
    from hetplanner.simulator import kernel

    end_s_KN = np.zeros((1, len(packed.first_N)))
    end_s_KI = np.zeros((1, len(packed.wait_I)))
    arrival_s_X = np.full(len(packed.link_X), kernel.UNSENT)
    done = kernel.run_timed(
        packed.first_N, packed.end_N, packed.wait_I, packed.work_I[None, :], packed.send_I,
        packed.link_X, packed.wire_s_X[None, :], packed.latency_s_X[None, :], packed.target_X, packed.num_links,
        packed.out_X, packed.out_s_X[None, :], packed.in_X, packed.in_s_X[None, :], packed.num_hosts,
        1, arrival_s_X, end_s_KI, end_s_KN,
    )  # fmt: skip
    if done < len(packed.first_N):
        raise RuntimeError(f"{len(packed.first_N) - done} ranks wait for messages that no rank sends")
    return end_s_KI[0], arrival_s_X, float(end_s_KN.max())


# -- spans -----------------------------------------------------------------------------------------


def _spans(
    plan: Plan, packed: PackedPlan, began_s_I: Array, end_s_I: Array, arrival_s_X: Array
) -> tuple[SpanTable, Array]:
    """All spans, and for those that wait for others when the last of these had done its part (else their start)."""
    received, made_s = _received(packed, began_s_I, end_s_I)
    reductions, last_came_s = _reductions(plan, packed, began_s_I, end_s_I)
    computed = _computed(packed, end_s_I)
    parts = (computed, received, reductions, _stepped(plan, packed, end_s_I), _sent(plan, packed, arrival_s_X))
    spans = SpanTable.of(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    waited_s_J, first = spans.start_s_J.copy(), len(computed[0])
    waited_s_J[first : first + len(made_s)] = made_s
    first += len(made_s)
    waited_s_J[first : first + len(last_came_s)] = last_came_s
    return spans, waited_s_J


def _computed(packed: PackedPlan, end_s_I: Array) -> Part:
    """Forwards and backwards, in the order of the tasks."""
    from hetplanner.simulator import kernel

    at = np.flatnonzero(packed.kind_I == kernel.COMPUTE)
    stage_T, none = packed.order.stage_T, np.full(len(at), -1)
    is_forward = stage_T >= 0
    return (
        packed.rank_I[at], np.where(is_forward, FORWARD, BACKWARD), np.where(is_forward, stage_T, -1 - stage_T),
        packed.order.micro_batch_T, end_s_I[at] - packed.work_I[at], end_s_I[at], 0 * none, none, 0 * none,
    )  # fmt: skip


def _received(packed: PackedPlan, began_s_I: Array, end_s_I: Array) -> tuple[Part, Array]:
    """Messages between stages as their receivers see them, and when each was made."""
    from hetplanner.simulator import kernel

    compute = np.flatnonzero(packed.kind_I == kernel.COMPUTE)
    # Where decoding takes no time, a message is received by the instruction that computes, else by the one before.
    merged, before = packed.wait_I[compute] >= 0, np.maximum(compute - 1, 0)
    apart = ~merged & (packed.kind_I[before] == kernel.HANDLING) & (packed.wait_I[before] >= 0)
    task = np.flatnonzero(merged | apart)
    at = np.where(merged, compute, before)[task]
    until_s = np.where(merged[task], end_s_I[at] - packed.work_I[at], end_s_I[at])
    message, stage = packed.wait_I[at], packed.order.stage_T[task]
    part = (
        packed.rank_I[at], np.full(len(at), RECV), np.where(stage >= 0, stage - 1, -1 - stage),
        packed.order.micro_batch_T[task], began_s_I[at], until_s, 0 * at, packed.source_X[message],
        np.where(stage >= 0, 1, 2),
    )  # fmt: skip
    made_s_X = np.zeros(len(packed.link_X))
    sending = np.flatnonzero(packed.send_I >= 0)
    made_s_X[packed.send_I[sending]] = end_s_I[sending - (packed.kind_I[sending] != kernel.COMPUTE)]
    return part, made_s_X[message]


def _stepped(plan: Plan, packed: PackedPlan, end_s_I: Array) -> Part:
    """The optimizer's step of every rank."""
    from hetplanner.simulator import kernel

    at = np.flatnonzero(packed.kind_I == kernel.STEP)
    stage, none = np.array([places[0][0] for places in plan.places_of_rank]), np.full(len(at), -1)
    rank, start_s = packed.rank_I[at], end_s_I[at] - packed.work_I[at]
    return rank, np.full(len(at), STEP), stage[rank], none, start_s, end_s_I[at], 0 * none, none, 0 * none


def _sent(plan: Plan, packed: PackedPlan, arrival_s_X: Array) -> Part:
    """Messages between stages: on the wire until they arrive."""
    edges, count = len(plan.stages) - 1, plan.problem.workload.num_micro_batches
    message = np.arange(2 * edges * count)
    wire_s = np.maximum(packed.wire_s_X, np.maximum(packed.out_s_X, packed.in_s_X))[message]
    start_s = arrival_s_X[message] - packed.latency_s_X[message] - wire_s
    way, rest = np.divmod(message, max(edges * count, 1))
    return (
        packed.source_X[message], np.full(len(message), SEND), rest // count, rest % count, start_s,
        arrival_s_X[message], packed.bytes_X[message], packed.target_X[message], 1 + way,
    )  # fmt: skip


def _reductions(plan: Plan, packed: PackedPlan, began_s_I: Array, end_s_I: Array) -> tuple[Part, list[float]]:
    """A span for every rank and group, and when the group's last member came."""
    from hetplanner.simulator import kernel

    reducing = np.flatnonzero(packed.kind_I == kernel.REDUCE)
    if not len(reducing):
        none = np.zeros(0)
        return (none,) * 9, []
    rank_of, action_of, message = packed.rank_I[reducing], packed.action_I[reducing], packed.send_I[reducing]
    first = np.flatnonzero(np.concatenate(([True], (np.diff(rank_of) != 0) | (np.diff(action_of) != 0))))
    last = np.concatenate((first[1:], [len(reducing)])) - 1
    sent = np.add.reduceat(np.where(message >= 0, packed.bytes_X[message], 0.0), first)
    rank, start_s, end_s = rank_of[first], began_s_I[reducing[first]], end_s_I[reducing[last]]
    stage = np.array([places[0][0] for places in plan.places_of_rank])[rank]
    turn = _turns([group for group in reduction_groups(plan) if group.is_due(0)], len(plan.ranks))
    group = [next(turn[r]) for r in rank.tolist()]
    came_s: dict[int, float] = defaultdict(float)
    for g, at_s in zip(group, start_s.tolist(), strict=True):
        came_s[g] = max(came_s[g], at_s)
    none = np.full(len(rank), -1)
    part = (rank, np.full(len(rank), REDUCE), stage, none, start_s, end_s, sent, none, 0 * none)
    return part, [came_s[g] for g in group]


def _turns(groups: list[ReductionGroup], num_ranks: int) -> list[Any]:
    """The groups of every rank, in order."""
    of_rank: list[list[int]] = [[] for _ in range(num_ranks)]
    for g, group in enumerate(groups):
        for rank in group.ranks:
            of_rank[rank].append(g)
    return [iter(own) for own in of_rank]


# -- terms, links, memory --------------------------------------------------------------------------


def _terms(num_ranks: int, spans: SpanTable, waited_s_J: Array, step_s: float) -> Array:
    """As `hetplanner.simulator.terms.terms_of_ranks` has them."""
    busy_s = np.maximum(0.0, spans.end_s_J - np.maximum(spans.start_s_J, waited_s_J))
    term_of_kind = {FORWARD: 0, BACKWARD: 0, RECV: 1, REDUCE: 2, STEP: 4}
    terms_s_NT = np.zeros((num_ranks, len(TERMS)))
    for kind, term in term_of_kind.items():
        of_kind = spans.kind_J == kind
        terms_s_NT[:, term] += np.bincount(
            spans.rank_J[of_kind].astype(np.int64), weights=busy_s[of_kind], minlength=num_ranks
        )
    terms_s_NT[:, 3] = np.maximum(0.0, step_s - terms_s_NT.sum(axis=1))
    return terms_s_NT


def _loads(plan: Plan, packed: PackedPlan) -> dict[str, Array]:
    edges, count = len(plan.stages) - 1, plan.problem.workload.num_micro_batches
    load_X = np.full(len(packed.link_X), 2)
    load_X[: 2 * edges * count] = np.repeat([0, 1], edges * count)
    place_X = packed.link_X * len(LOADS) + load_X
    size, shape = packed.num_links * len(LOADS), (packed.num_links, len(LOADS))
    source_L, target_L = np.zeros((2, packed.num_links), dtype=np.int64)
    source_L[packed.link_X], target_L[packed.link_X] = packed.source_X, packed.target_X

    def nic(host_X: Array, seconds_X: Array) -> Array:
        known = host_X >= 0
        return np.bincount(host_X[known], weights=seconds_X[known], minlength=packed.num_hosts)

    return {
        "source_L": source_L,
        "target_L": target_L,
        "bytes_LR": np.bincount(place_X, weights=packed.bytes_X, minlength=size).reshape(shape),
        "busy_s_LR": np.bincount(place_X, weights=packed.wire_s_X, minlength=size).reshape(shape),
        "nic_out_s_H": nic(packed.out_X, packed.out_s_X),
        "nic_in_s_H": nic(packed.in_X, packed.in_s_X),
    }


def _memory(plan: Plan, model: CostModel, spans: SpanTable, step_s: float) -> Array:
    """Greatest bytes in use in every part of the step; never above :func:`hetplanner.cost.check.peak_bytes`.

    Weights, optimizer and buffers are there all the time; what a micro-batch keeps, from the beginning of its forward
    to the end of its backward; with recomputation that is the input of its stage or of each layer, and all else only
    during its backward.
    What a backward works with is there during it.
    """
    tables = model.tables
    each_C, once_C = np.zeros((2, len(plan.chunks)))
    for c, (_, s) in enumerate(plan.chunks):
        stage = plan.stages[s]
        span, deepest = (stage.first_op, stage.end_op), plan.held_S[s]
        held = [tables.stage_bytes(*span, n, stage.recompute, deepest) for n in (0, 1, 2)]
        each_C[c] = held[2] - held[1]
        once_C[c] = held[1] - held[0] - each_C[c]
    rank_C = np.array([rank for rank, _ in plan.chunks])
    base_N = np.array(peak_bytes(plan, tables, held_S=[0] * len(plan.stages)))
    chunk_SN = np.full((len(plan.stages), len(plan.ranks)), -1)
    chunk_SN[tuple(np.array([(s, rank) for rank, s in plan.chunks]).T)] = np.arange(len(rank_C))
    place_F, place_K = (np.flatnonzero(spans.kind_J == kind) for kind in (FORWARD, BACKWARD))
    forwards, backwards = spans.take(place_F), spans.take(place_K)
    here, back = (chunk_SN[part.stage_J, part.rank_J] for part in (forwards, backwards))
    # Spans stand in the order of the tasks. Times cannot tell it: of neighbours they may differ in the last digit.
    order = np.argsort(np.concatenate((2 * place_F, 2 * place_K, 2 * place_K + 1)))
    rank_E = np.concatenate((forwards.rank_J, backwards.rank_J, backwards.rank_J))[order]
    time_s_E = np.concatenate((forwards.start_s_J, backwards.start_s_J, backwards.end_s_J))[order]
    change_E = np.concatenate((each_C[here], once_C[back], -each_C[back] - once_C[back]))[order]
    return base_N[:, None] + _binned_peaks(rank_E, time_s_E, change_E, len(base_N), step_s)


def _binned_peaks(rank_E: Array, time_s_E: Array, change_E: Array, num_ranks: int, step_s: float) -> Array:
    """Greatest level of every rank in each of `MEMORY_PARTS` parts of the step, from changes of it (E of them, rank by
    rank in their order).
    """
    total_E = np.cumsum(change_E)
    first_N = np.searchsorted(rank_E, np.arange(num_ranks))
    level_E = total_E - np.concatenate(([0.0], total_E))[first_N][rank_E]
    part_E = np.minimum((time_s_E / (step_s or 1.0) * MEMORY_PARTS).astype(np.int64), MEMORY_PARTS - 1)
    place_E = rank_E * MEMORY_PARTS + part_E
    last = np.full(num_ranks * MEMORY_PARTS, -1)
    last[place_E] = np.arange(len(place_E))  # of equal places the last one stays
    last_NB = np.maximum.accumulate(last.reshape(num_ranks, MEMORY_PARTS), axis=1)
    after_NB = np.where(last_NB >= 0, level_E[last_NB], 0.0) if len(level_E) else np.zeros(last_NB.shape)
    peaks_NB = np.zeros(num_ranks * MEMORY_PARTS)
    np.maximum.at(peaks_NB, place_E, level_E)
    before_NB = np.concatenate((np.zeros((num_ranks, 1)), after_NB[:, :-1]), axis=1)
    return np.maximum(peaks_NB.reshape(num_ranks, MEMORY_PARTS), before_NB)
