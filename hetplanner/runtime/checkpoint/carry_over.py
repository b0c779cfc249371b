"""Going on from a checkpoint of another plan: each rank takes the weights of its stages from a rank with their file.

Files stay where they were written. What a rank's own host has it reads; the rest comes from ranks of other hosts, in
one order that all ranks follow. Weights and optimizer states are carried over by their names, running statistics are
merged over the replicas whose files are there. What reductions carry (error feedback, memories of samples) begins anew.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.checkpoints import Manifest, check_rank_file, checkpoint_folder, load_manifest, rank_file
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.files.resumable import carried_steps, other_plan
from hetplanner.plan.model import Plan
from hetplanner.reading import reading
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.layout import RunningBuffer, running_buffers, stage_weights
from hetplanner.runtime.train.executor import Executor
from hetplanner.runtime.train.optimizers import Piece, StateLayout
from hetplanner.workload.optimizers import is_codes
from hetplanner.workload.workload import Workload

log = logging.getLogger(__name__)

PIECE_ELEMENTS = 2**20
NUMBERS = ("updates", "loss_scale", "quiet_steps")


def carry_over(
    executor: Executor, rank: int, run_dir: Path, skipped: list[str], advance: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Loads the latest checkpoint of another plan of which all stages are somewhere; all ranks must call it.

    Args:
        executor: the rank's; changed if there is one.
        rank: this rank.
        run_dir: of the earlier run, on this rank's host.
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
    while step := _greatest(max((step for step in steps if step < bound), default=0)):
        source = Source(old, executor.plan, rank, checkpoint_folder(run_dir, step))
        if why := source.why_not():
            skipped.append(f"{checkpoint_folder(run_dir, step).name}: {why}")
            bound = step
            continue
        _load(executor, source, advance)
        executor.completed_steps = step
        return step, old.digest()
    return 0, ""


def _plan_of_all(mine: Plan | None) -> Plan | None:
    """The plan of the first rank that has one, on all ranks."""
    text = json.dumps(plan_to_data(mine)).encode() if mine is not None else b""
    rank = dist.get_rank()
    first = -_greatest(-rank if text else -(2**31))
    if first == 2**31:
        return None
    size = _greatest(len(text) if rank == first else 0)
    data = torch.frombuffer(bytearray(text if rank == first else bytes(size)), dtype=torch.uint8)
    dist.broadcast(data, src=first)
    return plan_from_json(bytes(data.tolist()), "plan of the earlier run")


def _greatest(value: int) -> int:
    greatest = torch.tensor([value])
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest)


@dataclass
class Source:
    """A checkpoint whose files lie on several hosts.

    Attributes:
        plan, new: the plan that it is of, and the one that it is loaded for.
        rank: this rank.
        folder: on this rank's host, if it has one.
    """

    plan: Plan
    new: Plan
    rank: int
    folder: Path

    @cached_property
    def _manifest(self) -> Manifest | None:
        with contextlib.suppress(InvalidInput):
            manifest = load_manifest(self.folder)
            return manifest if manifest.plan == self.plan.digest() else None
        return None

    @cached_property
    def holders(self) -> list[list[int]]:
        """By rank, the old ranks whose files its host has, by their size."""
        here = torch.zeros(len(self.plan.ranks), dtype=torch.uint8)
        for old, entry in enumerate(self._manifest.ranks if self._manifest is not None else ()):
            with contextlib.suppress(OSError):
                here[old] = (self.folder / entry.file).stat().st_size == entry.bytes
        rows = [torch.empty_like(here) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, here)
        return [row.nonzero().flatten().tolist() for row in rows]

    def place_of(self, stage: int, target: int, replica: int | None = None) -> tuple[int, int] | None:
        """Who reads an old stage for a rank, and of which old rank; of any replica unless one is named."""
        stages = self.plan.stages[stage].replicas
        wanted = [self.plan.rank_at(stage, r) for r in (range(len(stages)) if replica is None else (replica,))]
        for reader in (target, *range(len(self.holders))):
            for old in wanted:
                if old in self.holders[reader]:
                    return reader, old
        return None

    def why_not(self) -> str:
        """Why it cannot be loaded, the same on all ranks; '' if it can."""
        stages = range(len(self.plan.stages))
        missing = [stage for stage in stages if self.place_of(stage, 0) is None]
        if missing:
            return f"no host has a part of stage {missing[0]} of the earlier plan"
        places = [self.place_of(stage, rank) for rank, needed in enumerate(self._needed()) for stage in needed]
        mine = {place[1] for place in places if place is not None and place[0] == self.rank}
        why = ""
        for old in sorted(mine):
            try:
                assert self._manifest is not None
                check_rank_file(self.folder, self._manifest, old)
            except InvalidInput as error:
                why = str(error)
                log.warning("checkpoint skipped: %s", error)
        return (why or "another host's part is damaged") if _greatest(int(bool(why))) else ""

    def _needed(self) -> list[set[int]]:
        """By new rank, the old stages that hold what its own stages need."""
        workload, found = self.new.problem.workload, []
        for places in self.new.places_of_rank:
            stages = [self.new.stages[stage] for stage, _ in places]
            ops = {op for stage in stages for op in range(stage.first_op, stage.end_op)}
            for stage in stages:
                ops |= {weight.op_index for _, weight in stage_weights(workload, stage.first_op, stage.end_op)}
            found.append({self.plan.stage_of_op[op] for op in ops})
        return found

    # -- reading ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, old: int) -> Iterator[Any]:
        """An old rank's file on this host. Raises InvalidInput when it is damaged, also inside."""
        path = self.folder / rank_file(old)
        with reading(f"{self.folder.name}/{path.name}", "checkpoint"), safe_open(path, framework="pt") as file:
            yield file

    def take(self, name: str, place: tuple[int, int], target: int, first: int, out: Tensor) -> None:
        """Brings elements of a tensor in an old rank's file to a rank; all ranks must call it, in one order.

        Args:
            name: of the tensor, 1-D.
            place: see `place_of`.
            target: the rank that wants them.
            first: of the elements.
            out: on the target where they go, 1-D; on all others of the same length, and not looked at.
        """
        reader, old = place
        if self.rank not in (reader, target):
            return
        for begin in range(0, out.numel(), PIECE_ELEMENTS):
            end = min(begin + PIECE_ELEMENTS, out.numel())
            if self.rank == reader:
                with self.opened(old) as file:
                    piece = file.get_slice(name)[first + begin : first + end]
            else:
                piece = torch.empty(end - begin, dtype=out.dtype)
                dist.recv(piece, reader, tag=tag_of(Topic.WEIGHTS, 0))
            if self.rank == target:
                out[begin:end].copy_(piece)
            else:
                dist.send(piece.contiguous(), target, tag=tag_of(Topic.WEIGHTS, 0))

    @cached_property
    def numbers(self) -> dict[str, float]:
        """What all ranks carry alike: the optimizer's updates, and the scale of the loss in float16."""
        found = dict.fromkeys(NUMBERS, 0.0)
        for old in self.holders[self.rank]:
            with self.opened(old) as file:
                values = {name.rpartition(".")[2]: float(value) for name, value in file.metadata().items()}
            found |= {name: max(found[name], values.get(name, 0.0)) for name in NUMBERS}
        greatest = torch.tensor(list(found.values()), dtype=torch.float64)
        dist.all_reduce(greatest, dist.ReduceOp.MAX)
        return dict(zip(NUMBERS, greatest.tolist(), strict=True))


@torch.no_grad()
def _load(executor: Executor, source: Source, advance: Callable[[], None]) -> None:
    plan, old = executor.plan, source.plan
    workload = plan.problem.workload
    old_pieces = [_pieces(workload, each.first_op, each.end_op) for each in old.stages]
    chunks = {(chunk.stage, chunk.replica): chunk for chunk in executor.chunks}
    for target, places in enumerate(plan.places_of_rank):
        for place in places:
            chunk = chunks[place] if target == source.rank else None
            stage = plan.stages[place[0]]
            pieces = _pieces(workload, stage.first_op, stage.end_op)
            for _, weight in stage_weights(workload, stage.first_op, stage.end_op):
                held_by = old.stage_of_op[weight.op_index]
                found = source.place_of(held_by, target)
                assert found is not None
                for part, piece in pieces[weight.name].items():
                    dtype = torch.uint8 if is_codes(part) else torch.float32
                    out = torch.empty(piece.end - piece.first, dtype=dtype, device="meta")
                    if chunk is not None:
                        out = _parts_of(chunk)[part][piece.first : piece.end]
                    first = old_pieces[held_by][weight.name][part].first
                    source.take(f"stage.{held_by}.{part}", found, target, first, out)
                    advance()
            ops = range(stage.first_op, stage.end_op)
            buffers = [buffer for buffer in running_buffers(workload) if buffer.op in ops]
            values = {buffer.name: _merged(buffer, source, target) for buffer in buffers}
            if chunk is not None:
                chunk.model.load_running(values)
    for chunk in executor.chunks:
        chunk.optimizer.num_steps = int(source.numbers["updates"])
    if (scale := executor.update.scale) and source.numbers["loss_scale"]:
        scale.value, scale.quiet_steps = source.numbers["loss_scale"], int(source.numbers["quiet_steps"])


def _pieces(workload: Workload, first_op: int, end_op: int) -> dict[str, dict[str, Piece]]:
    """Of a stage, by weight: where a rank's file has its values and its optimizer states."""
    layout = StateLayout.of(workload, first_op, end_op)
    return {
        weight.name: {"weights": Piece(weight.first, weight.shape)} | layout.pieces[weight.name]
        for _, weight in stage_weights(workload, first_op, end_op)
    }


def _parts_of(chunk: Chunk) -> Mapping[str, Tensor]:
    return {"weights": chunk.model.flat, **chunk.optimizer.states}


def _merged(buffer: RunningBuffer, source: Source, target: int) -> Tensor:
    """Running statistics over all replicas whose files are there, as `running.merge_running` has it; on the target."""
    old, stage = source.plan, source.plan.stage_of_op[buffer.op]
    shares, total, counted = 0.0, torch.zeros(buffer.shape, dtype=torch.float64), None
    for replica, name in _replicas(old, stage):
        place = source.place_of(stage, target, replica)
        if place is None:
            continue
        share = sum(route.micro_batches for route in old.routes if route.replicas[stage] == replica)
        value = _whole(source, f"{name}.running.{buffer.name}", place, target, buffer)
        if "float" in buffer.dtype:
            shares, total = shares + share, total + share * value
        else:
            since = _whole(source, f"{name}.counted.{buffer.name}", place, target, buffer)
            counted, total = since, total + value - since
    return total / shares if counted is None else total + counted


def _replicas(plan: Plan, stage: int) -> Iterator[tuple[int, str]]:
    return ((replica, f"stage.{stage}") for replica in range(len(plan.stages[stage].replicas)))


def _whole(source: Source, name: str, place: tuple[int, int], target: int, buffer: RunningBuffer) -> Tensor:
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
