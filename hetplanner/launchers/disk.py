"""What a run will write, estimated before it starts, against the free space of its folder's disk."""

import os
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible
from hetplanner.plan.action import Kind
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.measure.telemetry import keeps_spans
from hetplanner.units import short_bytes
from hetplanner.workload.program import ELEMENT_BYTES
from hetplanner.workload.workload import Workload

FLOAT_BYTES = 4
HEADER_BYTES = 110
"""Of one tensor in a saved model: its name, type, shape and place."""
TENSORS_PER_LAYER = 16
SMALL_FILES_BYTES = 64 * 1024
"""Plan, settings, status, prediction, logs."""
SPAN_BYTES = {Kind.FORWARD: 206, Kind.BACKWARD: 207, Kind.SEND: 174, Kind.RECV: 174, Kind.REDUCE: 170, Kind.STEP: 163}
STEP_BYTES, LINK_BYTES, LINKS_BYTES = 307, 145, 52
LEAST_STEP_S = 0.05
"""Processes of one machine take about as long at least, whatever the plan's devices would."""
COMMIT_BYTES, SHARE_BYTES, PAIR_BYTES, CLOSED_BYTES = 150, 45, 12, 190
"""Lines of telemetry and of a swarm's events, as measured."""


@dataclass(frozen=True)
class DiskNeed:
    """What a run writes, in bytes.

    Attributes:
        checkpoint: one of all ranks or stages; 0: none is written.
        kept: how many of them stay.
        model: the trained model.
        parts: of the model, before they are joined.
        telemetry: all steps' lines, and small files.
    """

    checkpoint: int
    kept: int
    model: int
    parts: int
    telemetry: int

    @property
    def least(self) -> int:
        """Without which nothing that was asked for can be had: one checkpoint and the model."""
        return self.checkpoint + self.model + self.parts + SMALL_FILES_BYTES

    @property
    def all(self) -> int:
        """At its peak: a new checkpoint is whole before the oldest goes."""
        return self.checkpoint * (self.kept + 1 if self.checkpoint else 0) + self.model + self.parts + self.telemetry

    def __str__(self) -> str:
        parts = [f"model {short_bytes(self.model)}", f"telemetry and logs {short_bytes(self.telemetry)}"]
        if self.checkpoint:
            kept = f"{self.kept} kept, {short_bytes(self.checkpoint * self.kept)}"
            parts.insert(0, f"one checkpoint {short_bytes(self.checkpoint)} ({kept})")
        return ", ".join(parts) + f"; at most {short_bytes(self.all)} at once"


def disk_need(plan: AnyPlan, config: TrainConfig) -> DiskNeed:
    """Estimates what a run of `plan` writes."""
    checkpoint, model, parts = state_bytes(plan, config)
    steps = config.steps
    telemetry = _event_bytes(plan) * steps if isinstance(plan, ElasticPlan) else _telemetry_bytes(plan, steps)
    return DiskNeed(checkpoint, config.checkpoints_kept, model, parts, telemetry + SMALL_FILES_BYTES)


def need_of_head(need: DiskNeed) -> DiskNeed:
    """What a run over hosts writes on the machine that it is started from: the checkpoints are theirs."""
    return replace(need, checkpoint=0, kept=0)


def state_bytes(plan: AnyPlan, config: TrainConfig) -> tuple[int, int, int]:
    """Estimated bytes of one checkpoint (0: none is written), of the model, and of parts that are joined to it."""
    model = _model_bytes(plan.problem.workload)
    if isinstance(plan, ElasticPlan):
        checkpoint, parts = _swarm_checkpoint_bytes(plan), model
    else:
        checkpoint, parts = _checkpoint_bytes(plan), 0
    return checkpoint if config.checkpoint_every is not None else 0, model, parts


def check_disk(need: DiskNeed, folder: Path) -> str:
    """Refuses a run whose folder cannot take what it is run for.

    Args:
        need: as `disk_need` gives it.
        folder: of the run, or where it will be.

    Returns:
        A warning where not everything fits at its peak; empty where it does.

    Raises:
        Infeasible: with the numbers and the remedy.
    """
    free, have = shutil.disk_usage(_nearest(folder)).free, free_words(folder)
    if need.least > free:
        what = f"one checkpoint ({short_bytes(need.checkpoint)}) and the model" if need.checkpoint else "the model"
        without = ", or write no checkpoints (without --checkpoint-every)" if need.checkpoint else ""
        raise Infeasible(
            f"the run does not fit: {what} ({short_bytes(need.model)}) take {short_bytes(need.least)}, and {have};"
            f" free {short_bytes(need.least - free)}, give a folder on another disk with -o{without}"
        )
    if need.all > free:
        return (
            f"the disk may fill up: the run takes up to {short_bytes(need.all)} at once, and {have}; free"
            f" {short_bytes(need.all - free)}, or keep fewer checkpoints"
        )
    return ""


def free_words(folder: Path) -> str:
    """How much is free where a folder is, or will be."""
    place = _nearest(folder)
    return f"{short_bytes(shutil.disk_usage(place).free)} are free on the disk of {place}"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    path = Path(os.path.abspath(folder))
    while not path.is_dir():
        path = path.parent
    return path


def _model_bytes(workload: Workload) -> int:
    if workload.program is not None:
        program = workload.program
        buffers = sum(_elements(b.shape) * ELEMENT_BYTES[b.dtype] for b in program.buffers.values() if b.running)
        weights = sum(_elements(p.shape) for p in program.parameters.values())
        tensors = len(program.parameters) + sum(b.running for b in program.buffers.values())
        return FLOAT_BYTES * weights + buffers + HEADER_BYTES * tensors
    ops = sum(op.num_params > 0 for op in workload.graph.ops)
    return FLOAT_BYTES * workload.graph.num_params + HEADER_BYTES * TENSORS_PER_LAYER * ops // 2


def _running_bytes(workload: Workload) -> int:
    buffers = workload.program.buffers.values() if workload.program is not None else ()
    return sum(_elements(b.shape) * ELEMENT_BYTES[b.dtype] for b in buffers if b.running)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _checkpoint_bytes(plan: Plan) -> int:
    """Every rank writes all that it holds: replicas too, and what its reductions carry from step to step."""
    tables = CostTables(plan.problem)
    held = 0.0
    for stage in plan.stages:
        count, ops = len(stage.replicas), (stage.first_op, stage.end_op)
        held += count * (tables.sent_state_bytes(*ops) - tables.sharded_bytes(*ops, count))
    elements = 0
    for group in reduction_groups(plan):
        if not group.every_step:  # local steps: where replicas were equal, and the outer optimizer's velocity
            elements += (2 if plan.outer else 1) * group.num_elements * len(group.ranks)
        elements += sum(group.elements_kept(rank) for rank in group.ranks)
    replicas = sum(len(stage.replicas) for stage in plan.stages) / len(plan.stages)
    return int(held) + FLOAT_BYTES * elements + int(replicas * _running_bytes(plan.problem.workload))


def _swarm_checkpoint_bytes(plan: ElasticPlan) -> int:
    """One peer of every stage writes it: weights, moments, and what delayed or local updates add."""
    tables = CostTables(plan.problem)
    trained = sum(tables.stage_trained(stage.first_op, stage.end_op) for stage in plan.stages)
    held = sum(tables.sent_state_bytes(stage.first_op, stage.end_op) for stage in plan.stages)
    tensors = int(plan.delayed_updates)
    if plan.is_local:
        tensors += 2 if plan.outer else 1
    return int(held) + FLOAT_BYTES * tensors * trained


def _telemetry_bytes(plan: Plan, steps: int) -> int:
    digits = 3 * (len(str(steps // 3)) - 1)  # of the step, and of the seconds at both ends
    spans = sum((SPAN_BYTES[kind] + digits) * count for kind, count in _spans_of_step(plan).items())
    paths = {plan.path_of_micro_batch(m) for m in range(plan.problem.workload.num_micro_batches)}
    pairs = {hop for path in paths for hop in pairwise(path) if hop[0] != hop[1]}
    rows = 4 * len(pairs)  # activations and gradients, at both ends
    for group in reduction_groups(plan):
        for rank in group.ranks:
            messages = [m for part in group.rounds_of(rank) for m in (*part.sends, *part.takes)]
            rows += len({m.peer for m in messages} - {rank})
    seconds = steps * max(LEAST_STEP_S, plan.estimate.step_s if plan.estimate else 0.0)
    told = min(steps, int(seconds) + 1)  # links are told of once a second
    links = LINKS_BYTES * len(plan.ranks) + LINK_BYTES * rows
    return int(spans * _steps_with_spans(steps)) + (STEP_BYTES + digits) * len(plan.ranks) * steps + links * told


def _spans_of_step(plan: Plan) -> dict[Kind, float]:
    """How many actions of every kind a step has, over all ranks; a mean where replicas average only now and then."""
    micro_batches, stages = plan.problem.workload.num_micro_batches, len(plan.stages)
    paths = map(plan.path_of_micro_batch, range(micro_batches))
    hops = sum(one != two for path in paths for one, two in pairwise(path))
    reductions = 0.0
    for group in reduction_groups(plan):
        reductions += len(group.ranks) / (1 if group.every_step else plan.local_steps)
    passes = micro_batches * stages
    return {
        Kind.FORWARD: passes,
        Kind.BACKWARD: passes,
        Kind.SEND: 2 * hops,
        Kind.RECV: 2 * hops,
        Kind.REDUCE: reductions,
        Kind.STEP: len(plan.ranks),
    }


def _steps_with_spans(steps: int) -> int:
    """How many of a run's steps leave spans, as `keeps_spans` has it."""
    return sum(map(keeps_spans, range(min(steps, 10_000)))) + max(0, steps - 10_000) // 50


def _event_bytes(plan: ElasticPlan) -> int:
    """Of one step of a swarm: the step, the commit with who did what, and how long it took to close."""
    peers = len(plan.peers)
    pairs = sum(len(one.peers) * len(two.peers) for one, two in zip(plan.stages, plan.stages[1:], strict=False))
    pairs = min(pairs, plan.num_micro_batches * (len(plan.stages) - 1))
    return (
        STEP_BYTES
        + COMMIT_BYTES
        + CLOSED_BYTES
        + SHARE_BYTES * peers
        + PAIR_BYTES * (pairs + len(plan.stages[0].peers))
    )
