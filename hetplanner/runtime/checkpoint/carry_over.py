"""Going on from a checkpoint of another plan: each rank takes the weights of its stages from a rank with their file.

Files stay where they were written. What a rank's own host has it reads; the rest comes from ranks of other hosts, in
one order that all ranks follow. Weights and optimizer states are carried over by their names, running statistics are
merged over the replicas whose files are there. What reductions carry (error feedback, memories of samples) begins anew.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.plan.files.plan_files import AnyPlan, any_plan_from_json, plan_to_data
from hetplanner.plan.files.resumable import carried_steps, other_plan
from hetplanner.plan.model import Plan
from hetplanner.runtime.checkpoint.earlier_state import EarlierState, RankFiles, earlier_state, greatest, stage_pieces
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.layout import RunningBuffer, held_weights, running_buffers
from hetplanner.runtime.train.executor import Executor
from hetplanner.workload.optimizers import is_codes


def carry_over(
    executor: Executor, rank: int, run_dir: Path, skipped: list[str], advance: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Loads the latest checkpoint of another plan of which all stages are somewhere; all ranks must call it.

    Args:
        executor: the rank's; changed if there is one.
        rank: number of this process.
        run_dir: of the earlier run, a static one or a swarm, on this rank's host.
        skipped: gets why checkpoints are passed over.
        advance: called as the loading gets on.

    Returns:
        Steps done, and the digest of the other plan; 0 and '' if there is none.
    """
    steps = []
    for item in carried_steps(run_dir, executor.plan):
        if isinstance(item, int):
            steps.append(item)
        elif item not in skipped:
            skipped.append(item)
    old = _plan_of_all(other_plan(run_dir, executor.plan) if steps else None)
    if old is None:
        return 0, ""
    bound = 2**62
    while step := greatest(max((step for step in steps if step < bound), default=0)):
        source = earlier_state(old, rank, run_dir, step)
        if why := source.why_not(_needed(executor.plan, source)):
            skipped.append(f"{source.name}: {why}")
            bound = step
            continue
        _load(executor, source, advance)
        executor.completed_steps = step
        for whole in executor.wholes:
            whole.scatter_state()
        return step, old.digest()
    return 0, ""


def _plan_of_all(mine: AnyPlan | None) -> AnyPlan | None:
    """The plan of the first rank that has one, on all ranks."""
    text = json.dumps(plan_to_data(mine)).encode() if mine is not None else b""
    rank = dist.get_rank()
    first = -greatest(-rank if text else -(2**31))
    if first == 2**31:
        return None
    size = greatest(len(text) if rank == first else 0)
    data = torch.frombuffer(bytearray(text if rank == first else bytes(size)), dtype=torch.uint8)
    dist.broadcast(data, src=first)
    return any_plan_from_json(bytes(data.tolist()), "plan of the earlier run")


def _needed(plan: Plan, source: EarlierState) -> list[set[int]]:
    """By rank, the earlier stages that hold what its own stages need."""
    workload, found = plan.problem.workload, []
    for places in plan.places_of_rank:
        stages = [plan.stages[stage] for stage, _ in places]
        ops = {op for stage in stages for op in range(stage.first_op, stage.end_op)}
        for stage in stages:
            ops |= {weight.op_index for _, weight in held_weights(workload, stage.first_op, stage.end_op)}
        found.append({source.stage_of(op) for op in ops})
    return found


@torch.no_grad()
def _load(executor: Executor, source: EarlierState, advance: Callable[[], None]) -> None:
    plan = executor.plan
    workload = plan.problem.workload
    chunks = {(chunk.stage, chunk.replica): chunk for chunk in executor.whole_chunks}
    for target, places in enumerate(plan.places_of_rank):
        for place in places:
            chunk = chunks[place] if target == source.rank else None
            stage = plan.stages[place[0]]
            pieces = stage_pieces(workload, stage.first_op, stage.end_op)
            for _, weight in held_weights(workload, stage.first_op, stage.end_op):
                for part, piece in pieces[weight.name].items():
                    dtype = torch.uint8 if is_codes(part) else torch.float32
                    out = torch.empty(piece.end - piece.first, dtype=dtype, device="meta")
                    is_sharded = plan.zero and part not in ("weights", "frozen")
                    if chunk is not None and is_sharded:
                        out = torch.empty_like(out, device="cpu")
                    elif chunk is not None:
                        out = _parts_of(chunk)[part][piece.first : piece.end]
                    source.take_weight(weight, part, target, out)
                    if chunk is not None and is_sharded:
                        chunk.optimizer.take_shard(weight, part, out)
                    advance()
            ops = range(stage.first_op, stage.end_op)
            if isinstance(source, RankFiles):  # swarms train no models with running statistics
                buffers = [buffer for buffer in running_buffers(workload) if buffer.op in ops]
                values = {buffer.name: _merged(buffer, source, target) for buffer in buffers}
                if chunk is not None:
                    chunk.model.load_running(values)
    for chunk in executor.whole_chunks:
        chunk.optimizer.num_steps = int(source.numbers["updates"])
    if (scale := executor.update.scale) and source.numbers["loss_scale"]:
        scale.value, scale.quiet_steps = source.numbers["loss_scale"], int(source.numbers["quiet_steps"])


def _parts_of(chunk: Chunk) -> Mapping[str, Tensor]:
    return {**chunk.model.parts(), **chunk.optimizer.states}


def _merged(buffer: RunningBuffer, source: RankFiles, target: int) -> Tensor:
    """Running statistics over all replicas whose files are there, as `running.merge_running` has it; on the target."""
    old, stage = source.plan, source.plan.stage_of_op[buffer.op]
    shares, total, counted = 0.0, torch.zeros(buffer.shape, dtype=torch.float64), None
    for replica in range(len(old.stages[stage].replicas)):
        place = source.place_of(stage, target, replica)
        if place is None:
            continue
        share = sum(route.micro_batches for route in old.routes if route.replicas[stage] == replica)
        value = _whole(source, source.tensor_of(stage, f"running.{buffer.name}"), place, target, buffer)
        if "float" in buffer.dtype:
            shares, total = shares + share, total + share * value
        else:
            since = _whole(source, source.tensor_of(stage, f"counted.{buffer.name}"), place, target, buffer)
            counted, total = since, total + value - since
    return total / shares if counted is None else total + counted


def _whole(source: RankFiles, name: str, place: tuple[int, int], target: int, buffer: RunningBuffer) -> Tensor:
    """A small tensor of any shape, in float64; zeros on ranks that it does not concern."""
    out = torch.zeros(buffer.shape, dtype=torch.float64)
    reader, old = place
    if source.rank == reader:
        with source.opened(old) as file:
            out = file.get_tensor(name).double().reshape(buffer.shape)
    if reader != target and source.rank == reader:
        dist.send(out.contiguous(), target, tag=tag_of(Topic.WEIGHTS, 0))
    elif reader != target and source.rank == target:
        dist.recv(out, reader, tag=tag_of(Topic.WEIGHTS, 0))
    return out
