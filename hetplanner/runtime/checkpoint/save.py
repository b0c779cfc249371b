"""Saving the whole model as one safetensors file: stages stream their weights to rank 0 in bounded pieces.

Rank 0 writes as it receives, so it never holds more than its own stage and one piece. The format is safetensors'
own (length, JSON header, bytes); it is written by hand because the library wants the whole model in memory.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from hetplanner.atomic_files import drafted, reserve, write_whole
from hetplanner.errors import RunError
from hetplanner.plan.model import Plan
from hetplanner.runtime.checkpoint.tensor_files import header, save_tensors
from hetplanner.runtime.comm.transport import Topic, tag_of
from hetplanner.runtime.model.aten import DTYPES
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.layout import saved_tensors
from hetplanner.runtime.model.running_statistics import merge_running
from hetplanner.workload.workload import Workload

log = logging.getLogger(__name__)

MODEL_FILE = "model.safetensors"
MODEL_INFO_FILE = "model.json"
PIECE_BYTES = 4 * 2**20
WAIT_FOR_SPACE_S, RETRY_S = 600.0, 1.0
"""How long a trained model waits for space to be written; how often it is tried."""
FORMAT = "hetplanner/model@1"


def part_file(stage: int) -> str:
    """Name of the file in which one stage is saved when the ranks cannot meet any more."""
    return f"model-stage-{stage}.safetensors"


def save_model(
    plan: Plan,
    rank: int,
    chunks: Sequence[Chunk],
    step: int,
    run_dir: Path,
    is_over: Callable[[], bool] = lambda: True,
) -> None:
    """Writes model.safetensors and model.json, running statistics merged over replicas; all ranks must call it.

    What is trained must not be lost to a full disk: without space for it all ranks wait, for WAIT_FOR_SPACE_S at most.

    Args:
        plan: says which rank holds what.
        rank: number of this process; one that is no leader of its group only takes part.
        chunks: what its rank holds, whole and in stage order.
        step: optimiser steps in the weights.
        run_dir: where rank 0 writes.
        is_over: asked at every try, on all ranks: whether rank 0 shall wait no longer.

    Raises:
        OSError: on rank 0, the model cannot be written.
        RunError: on the others, rank 0 could not write it.
    """
    merge_running(plan, rank, chunks)
    if rank == 0:
        with ExitStack() as stack:
            file = _opened_model(plan, step, run_dir, is_over, stack)
            _write_pieces(file, _all_tensors(plan, chunks))
        return
    while (answer := _from_rank_0(Answer.WAIT)) is Answer.WAIT:
        is_over()
    if answer is Answer.GIVE_UP:
        raise RunError(f"rank {rank}: its weights are not saved, since rank 0 cannot write the model")
    for chunk in chunks if rank < len(plan.ranks) else ():
        if chunk.replica or _rank_0_holds(plan, chunk.stage):
            continue
        for tensor in chunk.model.saved_tensors().values():
            for piece in _pieces(tensor):
                dist.send(piece, 0, tag=tag_of(Topic.WEIGHTS, 0))


class Answer(IntEnum):
    """What rank 0 says before the others send."""

    SEND = 0
    WAIT = 1
    GIVE_UP = 2


def _from_rank_0(answer: Answer) -> Answer:
    told = torch.tensor([int(answer)])
    dist.broadcast(told, src=0)
    return Answer(int(told))


def _opened_model(plan: Plan, step: int, run_dir: Path, is_over: Callable[[], bool], stack: ExitStack) -> BinaryIO:
    """Rank 0's: the file with space for all weights, as soon as there is; the others are told. Raises OSError."""
    workload, since_s, waits = plan.problem.workload, time.monotonic(), False
    while True:
        try:
            write_info(workload, [step] * len(plan.stages), run_dir)
            file = stack.enter_context(_model_file(workload, run_dir))
        except OSError as error:
            if is_over() or time.monotonic() - since_s > WAIT_FOR_SPACE_S:
                _from_rank_0(Answer.GIVE_UP)
                raise
            if not waits:
                log.warning("the model cannot be written, it is tried again: %s", error)
            waits = True
            _from_rank_0(Answer.WAIT)
            time.sleep(RETRY_S)
        else:
            _from_rank_0(Answer.SEND)
            return file


def _rank_0_holds(plan: Plan, stage: int) -> bool:
    return any(stage == there for there, _ in plan.places_of_rank[0])


def saved_bytes(workload: Workload) -> int:
    """Bytes of all tensors of a saved model."""
    return sum(DTYPES[t.dtype].itemsize * t.num_elements for t in saved_tensors(workload))


def _header(workload: Workload) -> bytes:
    entries = {t.name: (DTYPES[t.dtype], t.shape) for t in saved_tensors(workload)}
    return header(entries, {"format": "pt", "hetplanner": FORMAT})


def _all_tensors(plan: Plan, chunks: Sequence[Chunk]) -> Iterator[Tensor]:
    """All tensors in the file's order, piece by piece: rank 0's own, or received."""
    own = {name: tensor for chunk in chunks for name, tensor in chunk.model.saved_tensors().items()}
    for tensor in saved_tensors(plan.problem.workload):
        stage = plan.stage_of_op[tensor.op]
        if _rank_0_holds(plan, stage):
            yield from _pieces(own[tensor.name])
            continue
        for piece in _pieces(torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])):
            dist.recv(piece, plan.rank_at(stage, 0), tag=tag_of(Topic.WEIGHTS, 0))
            yield piece


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.detach().cpu().reshape(-1).split(PIECE_BYTES // tensor.element_size())


def save_parts(chunks: Sequence[Chunk], step: int, run_dir: Path) -> None:
    """Writes this rank's stages alone, for a rank that cannot reach the others; see `join_parts`."""
    metadata = {"format": "pt", "hetplanner": FORMAT, "step": str(step)}
    for chunk in chunks:
        if chunk.replica:
            continue
        with drafted(run_dir / part_file(chunk.stage)) as draft:
            save_tensors(chunk.model.saved_tensors(), draft, metadata)


def join_parts(workload: Workload, num_stages: int, run_dir: Path, deadline_s: float) -> bool:
    """Makes one file of the stages' parts, as soon as all are there.

    Args:
        workload: whose model it is.
        num_stages: so many parts there will be.
        run_dir: where they are written (stages on other machines write on theirs, and never appear here).
        deadline_s: on the monotonic clock, when to give up waiting.

    Returns:
        Whether the one file was written and the parts removed; if not, `sample.load_model` reads the parts.
    """
    paths = [run_dir / part_file(stage) for stage in range(num_stages)]
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    with ExitStack() as stack:
        parts = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        holder = {name: part for part in parts for name in part.keys()}  # noqa: SIM118 (not a dict)
        tensors = (holder[t.name].get_tensor(t.name) for t in saved_tensors(workload))
        _write_model(workload, (piece for tensor in tensors for piece in _pieces(tensor)), run_dir)
        write_info(workload, [int(part.metadata()["step"]) for part in parts], run_dir)
    for path in paths:
        path.unlink()
    return True


def _write_model(workload: Workload, pieces: Iterable[Tensor], run_dir: Path) -> None:
    with _model_file(workload, run_dir) as file:
        _write_pieces(file, pieces)


@contextmanager
def _model_file(workload: Workload, run_dir: Path) -> Iterator[BinaryIO]:
    """model.safetensors with its header, and space for the rest. Raises OSError."""
    header = _header(workload)
    with drafted(run_dir / MODEL_FILE) as draft, draft.open("r+b") as file:
        reserve(file.fileno(), len(header) + saved_bytes(workload))
        file.write(header)
        yield file


def _write_pieces(file: BinaryIO, pieces: Iterable[Tensor]) -> None:
    for piece in pieces:
        file.write(piece.numpy().data)


def write_info(workload: Workload, steps: list[int], run_dir: Path) -> None:
    """Writes model.json: what is needed to build the model again."""
    info: dict[str, object] = {"format": FORMAT}
    if workload.transformer is not None:
        info["transformer"] = workload.transformer.model_dump(mode="json", exclude_none=True)
        info["seq_len"] = workload.seq_len
        if workload.fine_tuning is not None:
            info["fine_tuning"] = workload.fine_tuning.model_dump(mode="json", exclude_none=True)
    else:
        info["workload"] = workload.model_dump(mode="json", by_alias=True, exclude_none=True)
    if workload.reads_tokens:
        info["tokenizer"] = "bytes"
    info["steps_of_stages"] = steps
    write_whole(run_dir / MODEL_INFO_FILE, json.dumps(info, indent=1) + "\n")
