"""The end of a run: replicas are compared, and every stage's weights are saved from one of them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from hetplanner.atomic_files import check_free, drafted
from hetplanner.elastic.protocol.identity import Replica, Version, View
from hetplanner.errors import InvalidInput
from hetplanner.runtime.checkpoint.save import FORMAT, join_parts, part_file, saved_bytes
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.model.build import StageModel
from hetplanner.schema import parse_json
from hetplanner.swarm.peer.state import StageState, receive_state, state_sizes
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.endpoint import Endpoint, Lost

DIGEST_QUERY = b"digest"
DIGEST_S, FETCH_S = 10.0, 600.0


async def compare_replicas(endpoint: Endpoint, view: View, version: Version) -> list[dict[str, Any]]:
    """By stage: how many replicas answered for `version`, and how many different digests they gave (1: all equal)."""
    found = []
    for stage, replicas in enumerate(view.stages):
        answers = await asyncio.gather(*(_digest_of(endpoint, replica) for replica in replicas))
        digests = [a[2] for a in answers if isinstance(a, list) and len(a) == 3 and a[:2] == [stage, list(version)]]
        found.append({"stage": stage, "replicas": len(digests), "different": len(set(map(str, digests)))})
    return found


async def _digest_of(endpoint: Endpoint, replica: Replica) -> Any:
    try:
        return parse_json((await endpoint.query(replica.address, DIGEST_QUERY, DIGEST_S))[:1000], "digest")
    except (Lost, InvalidInput):
        return None


async def save_model(endpoint: Endpoint, spec: SwarmSpec, view: View, version: Version, run_dir: Path) -> None:
    """Writes every stage's weights from its first peer, and what is needed to build the model.

    Raises:
        Lost, InvalidInput: a peer could not give them; with another view it can be tried again.
        OSError: there is no space for them, and none is taken.
    """
    check_free(run_dir, 2 * saved_bytes(spec.workload))  # stages one by one, and all of them
    try:
        await _save_stages(endpoint, spec, view, version, run_dir)
    except OSError:
        for stage in range(spec.num_stages):
            (run_dir / part_file(stage)).unlink(missing_ok=True)
        raise


async def _save_stages(endpoint: Endpoint, spec: SwarmSpec, view: View, version: Version, run_dir: Path) -> None:
    for stage, replicas in enumerate(view.stages):
        model = await asyncio.to_thread(StageModel, spec.workload, *spec.ops_of(stage), None)
        pieces = endpoint.state(replicas[0].address, json.dumps({"stage": stage}).encode(), FETCH_S)
        state = await receive_state(pieces, stage, state_sizes(spec, stage))
        if state.version != version:
            raise InvalidInput(f"state of stage {stage}: is of version {state.version}, not {version}")
        await asyncio.to_thread(_write_part, model, state, run_dir)
    await asyncio.to_thread(join_parts, spec.workload, spec.num_stages, run_dir, time.monotonic())


def _write_part(model: StageModel, state: StageState, run_dir: Path) -> None:
    # Inside a round of local steps replicas have in common what the last outer step left.
    model.flat.copy_(state.tensors.get("anchor", state.tensors["weights"]))
    if "frozen" in state.tensors:
        model.frozen.copy_(state.tensors["frozen"])
    metadata = {"format": "pt", "hetplanner": FORMAT, "step": str(state.version.step)}
    with drafted(run_dir / part_file(state.stage)) as draft:
        save_tensors({name: t.clone() for name, t in model.saved_tensors().items()}, draft, metadata)
