"""Saving the whole model as one safetensors file: stages stream their weights to rank 0 in bounded pieces.

Rank 0 writes as it receives, so it never holds more than its own stage and one piece. The format is safetensors'
own (length, JSON header, bytes); it is written by hand because the library wants the whole model in memory.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from hetplanner.plan.model import Plan
from hetplanner.runtime.build import StageModel, saved_layout
from hetplanner.runtime.transport import Topic, tag_of

MODEL_FILE = "model.safetensors"
MODEL_INFO_FILE = "model.json"
PIECE_BYTES = 4 * 2**20
FORMAT = "hetplanner/model@1"


def part_file(stage: int) -> str:
    """Name of the file in which one stage is saved when the ranks cannot meet any more."""
    return f"model-stage-{stage}.safetensors"


def save_model(plan: Plan, rank: int, model: StageModel, step: int, run_dir: Path) -> None:
    """Writes model.safetensors and model.json; all ranks must call it.

    Args:
        plan: says which rank holds what.
        rank: this rank.
        model: its stage.
        step: optimiser steps in the weights.
        run_dir: where rank 0 writes.
    """
    stage, replica = plan.place_of_rank[rank]
    if rank == 0:
        temporary = run_dir / (MODEL_FILE + ".part")
        with temporary.open("wb") as file:
            file.write(_header(plan))
            for data in _all_weights(plan, model):
                file.write(data.numpy().data)
        os.replace(temporary, run_dir / MODEL_FILE)
        write_info(plan, [step] * len(plan.stages), run_dir)
    elif replica == 0 and plan.rank_at(stage, 0) == rank and not _rank_0_holds(plan, stage):
        for weight in model.saved_weights().values():
            for piece in _pieces(weight):
                dist.send(piece, 0, tag=tag_of(Topic.WEIGHTS, 0))


def _rank_0_holds(plan: Plan, stage: int) -> bool:
    return plan.place_of_rank[0][0] == stage


def _header(plan: Plan) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "hetplanner": FORMAT}}
    end = 0
    for name, shape, _ in saved_layout(plan.problem.workload):
        start, end = end, end + 4 * torch.Size(shape).numel()
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _all_weights(plan: Plan, model: StageModel) -> Iterator[Tensor]:
    """All weights in the file's order, piece by piece: rank 0's own, or received."""
    own = model.saved_weights()
    stage_of_op = {i: s for s, k in enumerate(plan.stages) for i in range(k.first_op, k.end_op)}
    for name, shape, op_index in saved_layout(plan.problem.workload):
        stage = stage_of_op[op_index]
        if _rank_0_holds(plan, stage):
            yield from _pieces(own[name])
            continue
        for piece in _pieces(torch.empty(shape)):
            dist.recv(piece, plan.rank_at(stage, 0), tag=tag_of(Topic.WEIGHTS, 0))
            yield piece


def _pieces(weight: Tensor) -> tuple[Tensor, ...]:
    return weight.detach().reshape(-1).split(PIECE_BYTES // 4)


def save_part(plan: Plan, rank: int, model: StageModel, step: int, run_dir: Path) -> None:
    """Writes this stage alone, for a rank that cannot reach the others; `sample.load_model` joins the parts."""
    stage, replica = plan.place_of_rank[rank]
    if replica:
        return
    path = run_dir / part_file(stage)
    temporary = path.with_suffix(".tmp")
    save_file(model.saved_weights(), temporary, metadata={"format": "pt", "hetplanner": FORMAT, "step": str(step)})
    os.replace(temporary, path)


def write_info(plan: Plan, steps: list[int], run_dir: Path) -> None:
    """Writes model.json: what is needed to build the model again."""
    config = plan.problem.workload.transformer
    assert config is not None
    info = {
        "format": FORMAT,
        "transformer": config.model_dump(mode="json", exclude_none=True),
        "seq_len": plan.problem.workload.seq_len,
        "tokenizer": "bytes",
        "steps_of_stages": steps,
    }
    temporary = run_dir / (MODEL_INFO_FILE + ".part")
    temporary.write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, run_dir / MODEL_INFO_FILE)
