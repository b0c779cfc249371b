"""A plan as arrays for the compiled kernels: programs of all ranks, and every message with its link and NICs.

Shape legend: as in `hetplanner.simulator.kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import ReductionGroup, reduction_groups
from hetplanner.schedule.order import depth_limits, hop_seconds, interleaved_sequences, order_durations

Array = NDArray[Any]


@dataclass(frozen=True)
class TaskOrder:
    """Forwards (stage) and backwards (-1 - stage) of every rank, in order: rank n's from `first_task_N[n]`."""

    first_task_N: Array
    stage_T: Array
    micro_batch_T: Array


@dataclass(frozen=True)
class PackedPlan:
    """Programs and messages; `num_events` counts forwards, backwards and transfers."""

    order: TaskOrder
    first_N: Array
    end_N: Array
    wait_I: Array
    work_I: Array
    send_I: Array
    action_I: Array
    kind_I: Array
    rank_I: Array
    source_X: Array
    target_X: Array
    bytes_X: Array
    link_X: Array
    num_links: int
    wire_s_X: Array
    latency_s_X: Array
    out_X: Array
    out_s_X: Array
    in_X: Array
    in_s_X: Array
    num_hosts: int

    @property
    def num_events(self) -> int:
        """Forwards, backwards and transfers of one step."""
        return len(self.order.stage_T) + len(self.source_X)

    @property
    def has_nics(self) -> bool:
        """Whether any message passes a NIC that others may keep busy."""
        return bool((self.out_X >= 0).any() or (self.in_X >= 0).any())


def pack_plan(
    plan: Plan,
    durations: Durations | None = None,
    *,
    model: CostModel | None = None,
    order: TaskOrder | None = None,
    fragment: int | None = 0,
) -> PackedPlan:
    """Packs one step of a plan.

    Args:
        plan: what to time.
        durations: seconds per chunk and rank; None takes the catalog's. `cores_N` must be None.
        model: cost model of the plan's problem, if already at hand.
        order: of the tasks; None takes the plan's own, which depends on the plan alone.
        fragment: which one replicas that take local steps average in this step; None: none.
    """
    from hetplanner.simulator import kernel

    model = model or CostModel.of(plan.problem)
    catalog = durations_of(plan, model.tables) if durations is None or order is None else durations
    durations = durations or catalog
    rank_PS = _rank_table(plan)
    route_M = np.array(plan.route_of_micro_batch)
    order = order or _order(plan, order_durations(plan, catalog), rank_PS, route_M)
    tails = _tails(plan, durations, 2 * (len(plan.stages) - 1) * len(route_M), fragment)
    first_tail_N = _starts(tails.size_N)
    messages = _messages(plan, model, rank_PS, route_M, tails.sends)
    slowest_s_X = np.maximum(messages["wire_s_X"], np.maximum(messages["out_s_X"], messages["in_s_X"]))
    waits_s_X = (1.0 - durations.overlap) * slowest_s_X if durations.overlap < 1.0 else np.empty(0)
    size_N = (3 if durations.overlap == 1.0 else 4) * np.diff(order.first_task_N) + np.diff(first_tail_N)
    first_N = _starts(size_N)
    total = int(first_N[-1])
    program = (
        np.full(total, -1, np.int64), np.zeros(total), np.full(total, -1, np.int64), np.zeros(total, np.int64),
        np.zeros(total, np.int64),
    )  # fmt: skip
    end_N = np.empty(len(plan.ranks), np.int64)
    kernel.lower_tasks(
        order.first_task_N, order.stage_T, order.micro_batch_T, len(plan.stages), len(route_M),
        _by_stage(plan, durations.forward_s_C), _by_stage(plan, durations.backward_s_C),
        durations.encode_s_N + durations.message_s, durations.decode_s_N + durations.message_s, waits_s_X,
        first_tail_N, tails.columns, first_N[:-1], end_N, program,
    )  # fmt: skip
    rank_I = np.repeat(np.arange(len(plan.ranks)), size_N)
    return PackedPlan(order, first_N[:-1], end_N, *program, rank_I, **messages)


def order_plan(plan: Plan, *, model: CostModel | None = None) -> TaskOrder:
    """The plan's own order of tasks; what `pack_plan` finds if given none."""
    durations = order_durations(plan, durations_of(plan, model.tables if model else None))
    return _order(plan, durations, _rank_table(plan), np.array(plan.route_of_micro_batch))


def _rank_table(plan: Plan) -> Array:
    """Ranks that each route visits; [P, S]."""
    return np.array([[plan.rank_at(s, r) for s, r in enumerate(route.replicas)] for route in plan.routes])


def _starts(sizes: Any) -> Array:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _by_stage(plan: Plan, seconds_C: Array) -> Array:
    seconds_SN = np.zeros((len(plan.stages), len(plan.ranks)))
    rank_C, stage_C = np.array(plan.chunks).T
    seconds_SN[stage_C, rank_C] = seconds_C
    return seconds_SN


def _order(plan: Plan, durations: Durations, rank_PS: Array, route_M: Array) -> TaskOrder:
    from hetplanner.simulator import order_kernels

    rank_C, stage_C = (column.copy() for column in np.array(plan.chunks, dtype=np.int64).T)
    chunk_SN = np.full((len(plan.stages), len(plan.ranks)), -1)
    chunk_SN[stage_C, rank_C] = np.arange(len(rank_C))
    tasks_N = 2 * np.bincount(rank_PS[route_M].reshape(-1), minlength=len(plan.ranks))
    first_task_N = _starts(tasks_N)
    order = TaskOrder(first_task_N, np.empty(first_task_N[-1], np.int64), np.empty(first_task_N[-1], np.int64))
    latency_s_2PE, wire_s_2PE = hop_seconds(plan)
    up_PE, down_PE = rank_PS[:, :-1], rank_PS[:, 1:]
    pairs = np.array((up_PE * len(plan.ranks) + down_PE, down_PE * len(plan.ranks) + up_PE))
    links, link_2PE = np.unique(pairs, return_inverse=True)
    first_chunk_N = _starts(np.bincount(rank_C, minlength=len(plan.ranks)))
    chunks = order_kernels.ChunkTable(
        chunk_SN[np.arange(len(plan.stages)), rank_PS], route_M, rank_C, stage_C, np.array(depth_limits(plan)),
        first_chunk_N, durations.forward_s_C, durations.backward_s_C,
    )  # fmt: skip
    hops = order_kernels.HopTable(latency_s_2PE, wire_s_2PE, link_2PE.reshape(pairs.shape), len(links))
    if plan.is_interleaved:
        sequences = _sequences(plan, chunk_SN, first_task_N)
        order_kernels.order_interleaved(chunks, hops, sequences, order.first_task_N, order.stage_T, order.micro_batch_T)
    else:
        hold = plan.schedule == "gpipe"
        order_kernels.order_tasks(chunks, hops, hold, order.first_task_N, order.stage_T, order.micro_batch_T)
    return order


def _sequences(plan: Plan, chunk_SN: Array, first_task_N: Array) -> Array:
    """(chunk, micro-batch) of every rank's forwards and backwards, from where its tasks begin; [2, T, 2]."""
    sequence_2T2 = np.zeros((2, int(first_task_N[-1]), 2), np.int64)
    for way, of_ranks in enumerate(interleaved_sequences(plan)):
        for rank, items in enumerate(of_ranks):
            stage, micro_batch = np.array(items, dtype=np.int64).T
            part = slice(first_task_N[rank], first_task_N[rank] + len(items))
            sequence_2T2[way, part] = np.stack((chunk_SN[stage, rank], micro_batch), axis=1)
    return sequence_2T2


class _Tails(NamedTuple):
    """What every rank does behind its last backward: instructions by rank, and the messages that they send."""

    size_N: Array
    columns: tuple[Array, Array, Array, Array, Array]
    sends: Array
    """Source, target and bytes; [K, 3]."""


def _tails(plan: Plan, durations: Durations, first_message: int, fragment: int | None) -> _Tails:
    from hetplanner.simulator.kernel import STEP

    groups = reduction_groups(plan)
    moved_N, action_N = np.zeros((2, len(plan.ranks)), np.int64)
    for group in groups:
        table, ranks = group.table, np.array(group.ranks)
        np.add.at(moved_N, ranks[table.sender_T], table.num_elements_T)
        away = table.sender_T != table.receiver_T
        np.add.at(moved_N, ranks[table.receiver_T[away]], table.num_elements_T[away])
    element_s_N = durations.reduce_s_N / np.maximum(moved_N, 1)
    rows: list[_Rows] = []
    sends = [np.empty((0, 3), np.int64)]
    for group in (group for group in groups if group.is_due(fragment)):
        found, messages = _group_rows(group, element_s_N, durations.message_s, first_message)
        rows.append(found._replace(action=action_N[found.rank]))
        action_N[list(group.ranks)] += 1
        sends.append(messages)
        first_message += len(messages)
    outer_s_N = durations.outer_s_N if durations.outer_s_N is not None and fragment is not None else 0.0
    step_s_N = durations.optimizer_s_N + outer_s_N / plan.fragments
    none_N = np.full(len(plan.ranks), -1)
    rows.append(_Rows(np.arange(len(plan.ranks)), none_N, step_s_N, none_N, action_N, np.full(len(plan.ranks), STEP)))
    rank, wait, work, send, action, kind = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(rank, kind="stable")
    columns = wait[order], work[order], send[order], action[order], kind[order]
    return _Tails(np.bincount(rank, minlength=len(plan.ranks)), columns, np.concatenate(sends))


class _Rows(NamedTuple):
    """Instructions by column: whose, message to wait for or -1, seconds, message to send or -1, action, kind."""

    rank: Array
    wait: Array
    work: Array
    send: Array
    action: Array
    kind: Array


def _group_rows(group: ReductionGroup, element_s_N: Array, message_s: float, first_message: int) -> tuple[_Rows, Array]:
    """A group's instructions, each rank's in order, and its messages as (source, target, bytes).

    In every round that a member has a part in, it packs what it sends, sends, waits for what it takes, and unpacks it.
    """
    from hetplanner.simulator.kernel import REDUCE

    round_T, sender_T, receiver_T, elements_T = group.table
    ranks, num_rounds = np.array(group.ranks), int(round_T.max(initial=-1)) + 1
    away_T = sender_T != receiver_T
    sent_T, taken_T = sender_T * num_rounds + round_T, receiver_T * num_rounds + round_T  # parts: (member, round)
    number_T = np.full(len(round_T), -1)
    in_order = np.flatnonzero(away_T)[np.argsort(sent_T[away_T], kind="stable")]
    number_T[in_order] = first_message + np.arange(len(in_order))
    sizes, size_T = np.unique(elements_T, return_inverse=True)  # many messages, few sizes
    bytes_T = np.array([group.wire_bytes(int(n)) for n in sizes], np.int64)[size_T.reshape(-1)]
    messages = np.stack((ranks[sender_T], ranks[receiver_T], bytes_T), axis=1)[in_order]

    parts = np.unique(np.concatenate((sent_T, taken_T[away_T])))
    rank_P = ranks[parts // max(num_rounds, 1)]

    def work_s_P(part_T: Array, counts_T: Array, element_T: Array) -> Array:
        at = np.searchsorted(parts, part_T)
        elements_P, count_P = np.zeros((2, len(parts)), np.int64)
        np.add.at(elements_P, at, element_T)
        np.add.at(count_P, at, counts_T)
        return elements_P * element_s_N[rank_P] + count_P * message_s

    packs = work_s_P(sent_T, away_T, elements_T)
    unpacks = work_s_P(taken_T[away_T], away_T[away_T], elements_T[away_T])
    size, away = len(parts), len(in_order)
    part = np.concatenate((parts, sent_T[away_T], taken_T[away_T], parts))
    place = np.repeat((0, 1, 2, 3), (size, away, away, size))
    none, numbers = np.full(size, -1), number_T[away_T]
    wait = np.concatenate((none, np.full(away, -1), numbers, none))
    send = np.concatenate((none, numbers, np.full(away, -1), none))
    work = np.concatenate((packs, np.zeros(2 * away), unpacks))
    order = np.lexsort((place, part))
    rank = ranks[part[order] // max(num_rounds, 1)]
    nothing = np.zeros(len(rank), np.int64)
    return _Rows(rank, wait[order], work[order], send[order], nothing, np.full(len(rank), REDUCE)), messages


def _messages(plan: Plan, model: CostModel, rank_PS: Array, route_M: Array, others: Array) -> dict[str, Any]:
    """Every message's ends, link, and seconds on link and NICs; pipeline messages first."""
    bytes_2PE = np.zeros((2, len(plan.routes), len(plan.stages) - 1))
    for p, path in enumerate(rank_PS.tolist()):
        for e, (a, b) in enumerate(pairwise(path)):
            bytes_2PE[0, p, e] = plan.boundary_bytes(e, a, b, "activation")
            bytes_2PE[1, p, e] = plan.boundary_bytes(e, b, a, "gradient")
    path_MS = rank_PS[route_M]
    up_EM, down_EM = path_MS[:, :-1].T, path_MS[:, 1:].T
    source_X = np.concatenate((up_EM.reshape(-1), down_EM.reshape(-1), others[:, 0]))
    target_X = np.concatenate((down_EM.reshape(-1), up_EM.reshape(-1), others[:, 1]))
    bytes_X = np.concatenate((bytes_2PE[:, route_M].transpose(0, 2, 1).reshape(-1), others[:, 2]))
    cluster = plan.problem.cluster
    device_N = np.array([cluster.device_index(d) for d in plan.ranks])
    source, target = device_N[source_X], device_N[target_X]
    pairs, link_X = np.unique(source_X * len(device_N) + target_X, return_inverse=True)
    host_D, links = model.links.host_D, model.links
    crossing = host_D[source] != host_D[target]
    nic_out = np.array([host.nic_out or np.inf for host in cluster.hosts])[host_D[source]]
    nic_in = np.array([host.nic_in or np.inf for host in cluster.hosts])[host_D[target]]
    return {
        "source_X": source_X,
        "target_X": target_X,
        "bytes_X": bytes_X,
        "link_X": link_X.reshape(-1),
        "num_links": len(pairs),
        "wire_s_X": bytes_X / cluster.bandwidth_bytes_per_s_DD[source, target],
        "latency_s_X": links.latency_s_DD[source, target],
        "out_X": np.where(crossing & np.isfinite(nic_out), host_D[source], -1),
        "out_s_X": np.where(crossing, bytes_X / nic_out, 0.0),
        "in_X": np.where(crossing & np.isfinite(nic_in), host_D[target], -1),
        "in_s_X": np.where(crossing, bytes_X / nic_in, 0.0),
        "num_hosts": len(cluster.hosts),
    }
