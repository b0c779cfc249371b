"""Whether this machine can hold a run: ranks against cores, bytes against free memory."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetplanner.cost.check import peak_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.units import short_bytes

RANKS_PER_CORE = 8
"""Most ranks a core. Emulated links leave ranks waiting most of the time, and a tiny stage computes for
milliseconds; beyond this the ranks' own book-keeping delays the emulated deliveries."""

PROCESS_BYTES = 350 * 10**6
"""Bytes of one rank before its model that it shares with no other: Python, torch and gloo."""

HEAP_FACTOR = 1.15
"""Resident bytes over those of live tensors: the C library keeps freed blocks (`bench_memory.py`)."""

MEMORY_SHARE = 0.9
"""Share of the free memory that a run may take; the rest is for the page, the agent and a reduction's bucket."""

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""A container's own limits."""

REHEARSE = (
    "rehearse it instead: `hetplanner rehearse PLAN` (or Rehearse on the Run page) keeps the sites and links, with"
    " fewer stages × replicas and a tiny model"
)


@dataclass(frozen=True)
class Machine:
    """What a launch may use here: cores of this process, bytes of memory now free."""

    cores: int
    free_bytes: int


def this_machine() -> Machine:
    """The cores this process may run on and the memory available now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores, memory()[0])


def memory() -> tuple[int, int]:
    """Bytes of main memory that are free for this process now, and in all: the machine's, or its container's."""
    machine = psutil.virtual_memory()
    found = [(int(machine.available), int(machine.total))]
    try:
        limit = int((CONTROL_GROUP / "memory.max").read_text())  # 'max': there is none
        used = int((CONTROL_GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
        found.append((max(0, limit - used + int(stat.get("inactive_file", 0))), limit))
    except (OSError, ValueError):
        pass
    return min(found)


def estimated_rank_bytes(plan: Plan, config: TrainConfig | None = None) -> list[int]:
    """Estimated resident bytes of every rank on this machine: its processes, and what its stages need.

    Checkpoints that are written beside the steps add a copy of what they hold. A group of devices has its stages once
    more, whole, in memory that its processes share.
    """
    tables = CostTables(plan.problem)
    needed_R = [HEAP_FACTOR * needed for needed in peak_bytes(plan, tables)]
    if config is not None and config.checkpoints_async:
        copied_S = [
            tables.sent_state_bytes(stage.first_op, stage.end_op)
            - tables.sharded_bytes(stage.first_op, stage.end_op, len(stage.replicas))
            for stage in plan.stages
        ]
        for rank, places in enumerate(plan.places_of_rank):
            needed_R[rank] += sum(copied_S[s] for s, _ in places)
    for processes, (rank, places) in zip(plan.processes_of_rank, enumerate(plan.places_of_rank), strict=True):
        if len(processes) > 1:
            stages = [plan.stages[s] for s, _ in places]
            needed_R[rank] += sum(tables.stage_state_bytes(stage.first_op, stage.end_op) for stage in stages)
    counts = map(len, plan.processes_of_rank)
    return [count * PROCESS_BYTES + int(needed) for count, needed in zip(counts, needed_R, strict=True)]


def estimated_peer_bytes(plan: ElasticPlan) -> list[int]:
    """Estimated resident bytes of every peer of the start, on this machine.

    The process, state and activations of its stage, and a step's contributions, which it keeps until the commit. A
    group of devices has as many processes, and its stage's weights once more in memory that they share.
    """
    tables = CostTables(plan.problem)
    found = []
    for stage in plan.stages:
        trained = tables.stage_trained(stage.first_op, stage.end_op)
        needed = tables.stage_bytes(stage.first_op, stage.end_op, stage.in_flight, stage.recompute)
        kept = 4 * trained * -(-plan.num_micro_batches // len(stage.peers))
        kept += 8 * trained if plan.delayed_updates else 0  # weights in use, and the gradient that is being applied
        kept += 20 * trained if plan.is_local else 0  # weights of the round's start, momentum, and a step that is tried
        for peer in stage.peers:
            degree = plan.problem.degree_of(peer)
            shared = 4 * trained if degree > 1 else 0
            found.append(degree * PROCESS_BYTES + int(HEAP_FACTOR * (needed + kept) + shared))
    return found


def check_capacity(plan: AnyPlan, machine: Machine | None = None, config: TrainConfig | None = None) -> None:
    """Refuses a plan whose ranks this machine's cores or memory cannot hold all at once.

    Args:
        plan: what shall run.
        machine: None takes this one.
        config: how; None takes the default.

    Raises:
        Infeasible: with the numbers, and the offer to rehearse.
    """
    machine = machine or this_machine()
    needed = estimated_peer_bytes(plan) if isinstance(plan, ElasticPlan) else estimated_rank_bytes(plan, config)
    num_ranks = sum(map(plan.problem.degree_of, plan.peers)) if isinstance(plan, ElasticPlan) else len(plan.processes)
    if num_ranks > RANKS_PER_CORE * machine.cores:
        raise Infeasible(
            f"this machine cannot hold the run: {num_ranks} ranks on {_count(machine.cores, 'core')} is more"
            f" than {RANKS_PER_CORE} a core ({RANKS_PER_CORE * machine.cores} ranks); {REHEARSE}"
        )
    limit = MEMORY_SHARE * machine.free_bytes
    if sum(needed) > limit:
        worst = max(range(len(needed)), key=lambda rank: needed[rank])
        raise Infeasible(
            f"this machine cannot hold the run: {num_ranks} ranks need {short_bytes(sum(needed))} of memory"
            f" (rank {worst}, stage {_stage_of(plan, worst)}, alone {short_bytes(needed[worst])}), and"
            f" {short_bytes(limit)} may be used ({MEMORY_SHARE:.0%} of {short_bytes(machine.free_bytes)}"
            f" free); {REHEARSE}"
        )


def _stage_of(plan: AnyPlan, rank: int) -> int:
    return list(plan.stage_of_peer.values())[rank] if isinstance(plan, ElasticPlan) else plan.places_of_rank[rank][0][0]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
