"""A stage's state on its way to a joiner or a disk: weights, optimizer states and what else a step needs, float32."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hetplanner.atomic_files import drafted
from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.stage_checkpoints import DIGEST, check_checkpoint, checkpoint_path, digest_of, prune
from hetplanner.reading import reader
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.model.layout import frozen_weights, stage_weights
from hetplanner.runtime.train.optimizers import StateLayout
from hetplanner.schema import parse_json
from hetplanner.swarm.spec import SwarmSpec

PIECE_BYTES = 2**20
MAX_HEAD_BYTES = 4096


def state_sizes(spec: SwarmSpec, stage: int) -> dict[str, int]:
    """Tensors of a stage's state in their order, and their elements."""
    first, end = spec.ops_of(stage)
    elements, frozen = (
        max((weight.end for _, weight in held(spec.workload, first, end)), default=0)
        for held in (stage_weights, frozen_weights)
    )
    states = StateLayout.of(spec.workload, first, end).sizes
    kept = {"frozen": frozen} if frozen else {}
    return {"weights": elements} | kept | states | dict.fromkeys(spec.weight_names, elements)


@dataclass(frozen=True)
class StageState:
    """A stage at a version.

    Attributes:
        num_steps: of its optimizer.
        tensors: by the names of `state_sizes`, in their order; float32, 1-D.
    """

    stage: int
    version: Version
    num_steps: int
    tensors: Mapping[str, Tensor]

    @property
    def _views(self) -> list[memoryview]:
        return [tensor.numpy().view("uint8").data for tensor in self.tensors.values()]

    def head(self) -> bytes:
        """What is coming and its digest; takes a while."""
        digest = hashlib.sha256()
        for view in self._views:
            digest.update(view)
        head = {
            "stage": self.stage,
            "version": list(self.version),
            "num_steps": self.num_steps,
            "elements": self.tensors["weights"].numel(),
            "sha256": digest.hexdigest(),
        }
        return json.dumps(head).encode()

    def pieces(self) -> Iterator[bytes]:
        """The bytes in pieces, to be sent after the head."""
        for view in self._views:
            for first in range(0, len(view), PIECE_BYTES):
                yield bytes(view[first : first + PIECE_BYTES])


async def receive_state(pieces: AsyncIterator[bytes], stage: int, sizes: Mapping[str, int]) -> StageState:
    """Puts a state together that comes in pieces.

    Args:
        pieces: head and bytes as `StageState` gives them.
        stage: whose it must be.
        sizes: by name in order, elements that each tensor must have: nothing else is allocated.

    Raises:
        InvalidInput: it is of something else, too long or short, damaged, or holds what is no number.
    """
    head = None
    data, filled = bytearray(4 * sum(sizes.values())), 0
    async for piece in pieces:
        if head is None:
            head = _checked_head(piece, stage, sizes["weights"])
            continue
        if filled + len(piece) > len(data):
            raise InvalidInput(f"state of stage {stage}: more than {len(data)} bytes came")
        data[filled : filled + len(piece)] = piece
        filled += len(piece)
    if head is None or filled != len(data):
        raise InvalidInput(f"state of stage {stage}: {filled} of {len(data)} bytes came")
    return await asyncio.to_thread(_checked_state, data, head, sizes)


def _checked_state(data: bytearray, head: dict[str, Any], sizes: Mapping[str, int]) -> StageState:
    stage = head["stage"]
    if hashlib.sha256(data).hexdigest() != head.get("sha256"):
        raise InvalidInput(f"state of stage {stage}: the bytes are damaged (digest)")
    tensors = torch.frombuffer(data, dtype=torch.float32).split(list(sizes.values()))
    if not all(bool(torch.isfinite(t).all()) for t in tensors):
        raise InvalidInput(f"state of stage {stage}: holds numbers that are not finite")
    return StageState(stage, Version(*head["version"]), head["num_steps"], dict(zip(sizes, tensors, strict=True)))


def _checked_head(piece: bytes, stage: int, elements: int) -> dict[str, Any]:
    if len(piece) > MAX_HEAD_BYTES:
        raise InvalidInput(f"state: its head must be at most {MAX_HEAD_BYTES} bytes, got {len(piece)}")
    head = parse_json(piece, "state")
    if not isinstance(head, dict) or (head.get("stage"), head.get("elements")) != (stage, elements):
        raise InvalidInput(f"state: must be of stage {stage} with {elements} weights, got {head!r:.120}")
    numbers = [head.get("num_steps"), *(head["version"] if isinstance(head.get("version"), list) else ())]
    if len(numbers) != 3 or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise InvalidInput(f"state: version and num_steps must be whole numbers, got {numbers!r:.80}")
    return head


def save_checkpoint(state: StageState, folder: Path, kept: int) -> None:
    """Writes a state durably, whole or not at all, and removes the stage's older ones but `kept`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = digest_of(state.tensors[name].numpy().data for name in sorted(state.tensors))
    metadata = {"num_steps": str(state.num_steps), DIGEST: digest}
    with drafted(checkpoint_path(folder, state.stage, state.version), sync=True) as draft:
        save_tensors(state.tensors, draft, metadata)
    prune(folder, state.stage, kept)


@reader("checkpoint", at="folder")
def load_checkpoint(folder: Path, stage: int, version: Version, names: Iterable[str]) -> StageState:
    """Reads a checkpoint with these tensors. Raises InvalidInput."""
    path = checkpoint_path(folder, stage, version)
    check_checkpoint(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in names}
            num_steps = int((file.metadata() or {})["num_steps"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read as a checkpoint: {error!s:.300}") from None
    return StageState(stage, version, num_steps, tensors)
