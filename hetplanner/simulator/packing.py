"""A plan as arrays for the compiled kernels: programs of all ranks, and every message with its link and NICs.

Shape legend: as in `hetplanner.simulator.kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import Message, reduction_groups
from hetplanner.schedule.order import depth_limits, hop_seconds, interleaved_sequences

Array = NDArray[Any]
# One instruction: message to wait for or -1, seconds, message to send or -1, action (in the tail), kind.
Instruction = tuple[int, float, int, int, int]


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
        durations: seconds per chunk and rank; None takes the catalog's. `cores` must be None.
        model: cost model of the plan's problem, if already at hand.
        order: of the tasks; None takes the plan's own, which depends on the catalog's durations alone.
        fragment: which one replicas that take local steps average in this step; None: none.
    """
    from hetplanner.simulator import kernel

    model = model or CostModel.of(plan.problem)
    catalog = durations_of(plan, model.tables) if durations is None or order is None else durations
    durations = durations or catalog
    rank_PS = _rank_table(plan)
    route_M = np.array(plan.route_of_micro_batch)
    order = order or _order(plan, catalog, rank_PS, route_M)
    tail, sends = _tails(plan, durations, 2 * (len(plan.stages) - 1) * len(route_M), fragment)
    first_tail_N = _starts([len(part) for part in tail])
    messages = _messages(plan, model, rank_PS, route_M, sends)
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
        first_tail_N, _columns(tail), first_N[:-1], end_N, program,
    )  # fmt: skip
    rank_I = np.repeat(np.arange(len(plan.ranks)), size_N)
    return PackedPlan(order, first_N[:-1], end_N, *program, rank_I, **messages)


def order_plan(plan: Plan, *, model: CostModel | None = None) -> TaskOrder:
    """The plan's own order of tasks, by the catalog's durations; what `pack_plan` finds if given none."""
    tables = model.tables if model else None
    return _order(plan, durations_of(plan, tables), _rank_table(plan), np.array(plan.route_of_micro_batch))


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


def _tails(
    plan: Plan, durations: Durations, first_message: int, fragment: int | None
) -> tuple[list[list[Instruction]], list[tuple[int, int, int]]]:
    """What every rank does behind its last backward, and the messages of it as (source, target, bytes)."""
    from hetplanner.simulator.kernel import REDUCE, STEP

    groups = reduction_groups(plan)
    moved_N = [0] * len(plan.ranks)
    for group in groups:
        for rank in group.ranks:
            moved_N[rank] += sum(part.num_elements for part in group.rounds_of(rank))
    tails: list[list[Instruction]] = [[] for _ in plan.ranks]
    actions = [0] * len(plan.ranks)
    sends: list[tuple[int, int, int]] = []
    for group in (group for group in groups if group.is_due(fragment)):
        number: dict[tuple[int, int, int], int] = {}  # of a message, by (source, target, ordinal)
        for rank in group.ranks:
            for m in (m for part in group.rounds_of(rank) for m in part.sends if m.peer != rank):
                number[rank, m.peer, m.ordinal] = first_message + len(sends)
                sends.append((rank, m.peer, m.num_bytes))
        for rank in group.ranks:
            element_s = float(durations.reduce_s_N[rank]) / max(moved_N[rank], 1)
            action, tail = actions[rank], tails[rank]
            actions[rank] += 1
            for part in group.rounds_of(rank):
                tail.append((-1, _work_s(part.sends, rank, element_s, durations), -1, action, REDUCE))
                tail += [
                    (-1, 0.0, number[rank, m.peer, m.ordinal], action, REDUCE) for m in part.sends if m.peer != rank
                ]
                tail += [(number[m.peer, rank, m.ordinal], 0.0, -1, action, REDUCE) for m in part.takes]
                tail.append((-1, _work_s(part.takes, rank, element_s, durations), -1, action, REDUCE))
    for rank, tail in enumerate(tails):
        outer_s = float(durations.outer_s_N[rank]) if durations.outer_s_N is not None and fragment is not None else 0.0
        step_s = float(durations.optimizer_s_N[rank]) + outer_s / plan.fragments
        tail.append((-1, step_s, -1, actions[rank], STEP))
    return tails, sends


def _work_s(messages: tuple[Message, ...], rank: int, element_s: float, durations: Durations) -> float:
    elements = sum(m.transfer.end - m.transfer.first for m in messages)
    return elements * element_s + sum(m.peer != rank for m in messages) * durations.message_s


def _columns(tails: list[list[Instruction]]) -> tuple[Array, Array, Array, Array, Array]:
    rows = [row for tail in tails for row in tail]
    wait, work, send, action, kind = zip(*rows, strict=True)
    return np.array(wait), np.array(work, np.float64), np.array(send), np.array(action), np.array(kind)


def _messages(
    plan: Plan, model: CostModel, rank_PS: Array, route_M: Array, sends: list[tuple[int, int, int]]
) -> dict[str, Any]:
    """Every message's ends, link, and seconds on link and NICs; pipeline messages first."""
    bytes_2PE = np.zeros((2, len(plan.routes), len(plan.stages) - 1))
    for p, path in enumerate(rank_PS.tolist()):
        for e, (a, b) in enumerate(pairwise(path)):
            bytes_2PE[0, p, e] = plan.boundary_bytes(e, a, b, "activation")
            bytes_2PE[1, p, e] = plan.boundary_bytes(e, b, a, "gradient")
    path_MS = rank_PS[route_M]
    up_EM, down_EM = path_MS[:, :-1].T, path_MS[:, 1:].T
    others = np.array(sends, dtype=np.int64).reshape(-1, 3)
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
