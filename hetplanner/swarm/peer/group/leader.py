"""A peer that is a group of devices, as the rest of the peer sees it: an engine like that of a single device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetplanner.errors import RunError
from hetplanner.swarm.peer.engine import StageEngine, Sum
from hetplanner.swarm.peer.group.member_engine import NOTHING, MemberEngine
from hetplanner.swarm.peer.group.processes import Members
from hetplanner.swarm.peer.state import StageState

OF_STATE = {"warm_up", "measure", "begin", "build", "load", "state", "digest"}
OF_WORK = {"forward", "backward", "forget", "drop", "fold", "offer", "keep_sum", "drop_sum", "apply"}
CALLED_BY_ALL = OF_STATE | OF_WORK
"""Methods that every member calls; the rest is the leader's alone."""
NOTICED_S = 1.0
"""A connection breaks a moment before the process behind it has ended."""


class GroupEngine:
    """The leader's engine; what it computes all members compute.

    Args:
        engine: the leader's own.
        members: the others.
    """

    def __init__(self, engine: MemberEngine, members: Members) -> None:
        self._engine, self._members = engine, members
        self._work_began_s: float | None = None

    def failure(self) -> str | None:
        """See StageEngine: a member has ended, or work has taken longer than the swarm waits for a micro-batch."""
        began_s, limit_s = self._work_began_s, self._engine.spec.settings.lease_s
        if began_s is not None and time.monotonic() - began_s > limit_s:
            return f"a device of this peer's group has not answered for {limit_s:g} s"
        return self._members.failure()

    def __getattr__(self, name: str) -> Any:
        """As of `StageEngine`."""
        found = getattr(self._engine, name)
        return self._on_all(name, found) if name in CALLED_BY_ALL else found

    def _on_all(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._work_began_s = time.monotonic() if name in OF_WORK else None
            try:
                self._members.call(name, [_for_members(argument) for argument in arguments])
                return method(*arguments)
            except (RuntimeError, OSError) as error:
                raise RunError(self._members.failure(NOTICED_S) or f"the group cannot go on: {error!s:.300}") from error
            finally:
                self._work_began_s = None

        return call


Engine = StageEngine | GroupEngine
"""What computes for a peer: of one device, or of a group."""


def _for_members(argument: Any) -> Any:
    """What the other members are given of an argument: tensors of the whole stage go through shared memory."""
    match argument:
        case memoryview():
            return bytes(argument)
        case list() | tuple() if argument and all(isinstance(part, memoryview) for part in argument):
            return [bytes(part) for part in argument]
        case Sum():
            return Sum(NOTHING, argument.count, argument.loss_sum)
        case StageState():
            return replace(argument, tensors={})
        case _:
            return argument
