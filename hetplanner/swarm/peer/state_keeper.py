"""A peer's state: made, fetched from a neighbour, loaded from a checkpoint, given to a joiner, saved, compared."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from hetplanner.elastic.protocol.identity import Version
from hetplanner.elastic.protocol.peer_events import FetchState, InitState, LoadCheckpoint, SaveCheckpoint
from hetplanner.errors import InvalidInput
from hetplanner.schema import parse_json
from hetplanner.swarm.peer.group.leader import Engine
from hetplanner.swarm.peer.state import load_checkpoint, receive_state, save_checkpoint, state_sizes
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.swarm.wire.endpoint import Endpoint, Lost

log = logging.getLogger(__name__)

FETCH_S = 600.0

Compute = Callable[[Callable[[], Any]], Awaitable[Any]]


class StateKeeper:
    """One peer's.

    Args:
        spec: of the run.
        engine: whose state it is.
        compute: performs a function on the engine's thread.
        endpoint: to fetch by.
        folder: of checkpoints.
    """

    def __init__(self, spec: SwarmSpec, engine: Engine, compute: Compute, endpoint: Endpoint, folder: Path) -> None:
        self._spec, self._engine, self._compute = spec, engine, compute
        self._endpoint, self._folder = endpoint, folder

    async def load(
        self, order: FetchState | LoadCheckpoint | InitState, is_wanted: Callable[[], bool]
    ) -> Version | None:
        """Gets a stage's state; returns its version, or None: it could not be had, or is not wanted any more."""
        try:
            return await self._load(order, is_wanted)
        except (InvalidInput, Lost) as error:
            log.warning("state of stage %d: %s", order.stage, error)
            return None

    async def _load(
        self, order: FetchState | LoadCheckpoint | InitState, is_wanted: Callable[[], bool]
    ) -> Version | None:
        engine = self._engine
        if isinstance(order, InitState):
            await self._compute(lambda: engine.begin(order.stage, order.version))
            return order.version
        await self._compute(lambda: engine.build(order.stage))
        sizes = state_sizes(self._spec, order.stage)
        if isinstance(order, LoadCheckpoint):
            state = await asyncio.to_thread(load_checkpoint, self._folder, order.stage, order.saved, sizes)
        else:
            request = json.dumps({"stage": order.stage}).encode()
            pieces = self._endpoint.state(order.source.address, request, FETCH_S)
            state = await receive_state(pieces, order.stage, sizes)
        if not is_wanted():
            return None
        version = order.version if isinstance(order, LoadCheckpoint) else state.version

        def fill() -> None:
            engine.check_state(state)
            engine.load(state, version)

        await self._compute(fill)
        return version

    async def give(self, request: bytes) -> AsyncIterator[bytes]:
        """A copy as it is between two computations, in pieces, so that no other work waits for a slow joiner."""
        wanted = parse_json(request[:1000], "state request")
        state = await self._compute(self._engine.state)
        if state is None or wanted != {"stage": state.stage}:
            raise InvalidInput(f"state: {wanted!r:.60} is not held here")
        yield await asyncio.to_thread(state.head)
        for piece in state.pieces():
            yield piece

    async def save(self, action: SaveCheckpoint) -> bool:
        """Writes a checkpoint, unless the state has gone on. Returns whether it is durable."""
        state = await self._compute(self._engine.state)
        if state is None or (state.stage, state.version) != (action.stage, action.version):
            return False
        try:
            await asyncio.to_thread(save_checkpoint, state, self._folder, self._spec.train.checkpoints_kept)
        except OSError as error:
            log.warning("checkpoint of stage %d cannot be written: %s", action.stage, error)
            return False
        return True

    def digest(self) -> bytes:
        """Stage, version and digest as JSON; null without a state. On the engine's thread."""
        engine = self._engine
        if engine.version is None:
            return json.dumps(None).encode()
        return json.dumps([engine.stage, list(engine.version), engine.digest()]).encode()
