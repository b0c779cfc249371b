"""The processes of a peer that is a group of devices: the leader is the peer's own, the others are forked from it.

They are forked before gRPC is loaded and before any thread begins. A member ends with its leader, and a peer whose
member has ended ends, too: it leaves the swarm whole.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetplanner.errors import InvalidInput
from hetplanner.liveness.processes import end_process, end_with_parent
from hetplanner.plan.train import check_group_optimizer
from hetplanner.workload.tensor_degrees import SHARDING_WORDS, Sharding, why_not

if TYPE_CHECKING:
    import torch

    from hetplanner.runtime.device_group.group import DeviceGroup
    from hetplanner.swarm.spec import SwarmSpec
    from hetplanner.workload.workload import Workload

START_S = 120.0
"""How long members wait for one another to begin."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemberStart:
    """What a member needs to begin.

    Attributes:
        spec: of the run, as JSON.
        index, degree: of the member and its group.
        sharding: what the members divide.
        device, turn: of the first member's device, see `named_device`.
        path: of the file by which the members find one another, in a folder of this user alone.
    """

    spec: str
    index: int
    degree: int
    sharding: Sharding
    device: str
    turn: int
    path: str

    def join(self) -> tuple[DeviceGroup, torch.device]:
        """The member's end of the group, and its device; all members must call it. Raises InvalidInput."""
        import torch
        import torch.distributed as dist

        from hetplanner.runtime.device_group.one_host import join_members, member_device

        torch.set_num_threads(1)
        device = member_device(self.device, self.index, self.degree, self.turn)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store = dist.FileStore(self.path, self.degree)
        store.set_timeout(timedelta(seconds=START_S))
        return join_members(store, self.index, self.degree, device, self.sharding), device


class Members:
    """The other members of a group, on its leader.

    Args:
        degree: devices of the group.
        sharding: what they divide.
    """

    def __init__(self, degree: int, sharding: Sharding) -> None:
        self.degree, self.sharding = degree, sharding
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        for index in range(1, degree):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, [*self._pipes, ours]), name=f"device-{index}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def join(self, spec: SwarmSpec, device: str, turn: int) -> tuple[DeviceGroup, torch.device]:
        """The leader's end of the group, and its device, when all members are there.

        Args:
            spec: of the run.
            device, turn: see MemberStart.

        Raises:
            InvalidInput: this host has no such devices.
        """
        from hetplanner.runtime.device_group.one_host import member_device

        member_device(device, 0, self.degree, turn)  # refused before the others wait for one another
        with tempfile.TemporaryDirectory(prefix="hetplanner-group-") as folder:
            path, text = str(Path(folder) / "members"), spec.to_json()
            starts = [MemberStart(text, i, self.degree, self.sharding, device, turn, path) for i in range(self.degree)]
            for pipe, start in zip(self._pipes, starts[1:], strict=True):
                pipe.send(start)
            found = starts[0].join()
            found[0].barrier()  # all have read the file
        return found

    def call(self, name: str, arguments: Sequence[Any]) -> None:
        """Has every member call a method of its engine. Raises OSError: one has ended."""
        for pipe in self._pipes:
            pipe.send((name, tuple(arguments)))

    def failure(self, patience_s: float = 0.0) -> str | None:
        """Which member has ended, and how, or does so within some time; None: all live."""
        began_s = time.monotonic()
        ending = wait([process.sentinel for process in self._processes], patience_s)
        for index, process in enumerate(self._processes, 1):
            if process.sentinel in ending:  # its files are closed; that it has ended is known a moment later
                process.join(max(0.0, began_s + patience_s - time.monotonic()))
            if not process.is_alive():
                return f"device {index} of this peer's group has ended with {process.exitcode}"
        return None


def check_group(degree: int, sharding: Sharding, workload: Workload) -> None:
    """Refuses a group that cannot share a model. Raises InvalidInput."""
    check_group_optimizer(workload)
    if why := why_not(workload, degree, sharding):
        raise InvalidInput(f"{SHARDING_WORDS[sharding]} over {degree} devices: {why}")


def _serve(pipe: Connection, of_others: Sequence[Connection]) -> None:
    """Makes the leader's calls in a member's process, until the leader ends."""
    for other in of_others:  # copies that the fork made: the leader's end must be its alone
        other.close()
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all processes; the leader handles them
        signal.signal(number, signal.SIG_IGN)
    code = 0
    try:
        _work(pipe)
    except EOFError:
        log.info("the leader of this group has ended")
    except Exception:
        log.exception("a device of the group cannot go on")
        code = 1
    end_process(code)


def _work(pipe: Connection) -> None:
    start: MemberStart = pipe.recv()
    from hetplanner.swarm.peer.group.member_engine import MemberEngine
    from hetplanner.swarm.spec import read_spec

    spec = read_spec(start.spec)
    group, device = start.join()
    group.barrier()
    engine = MemberEngine(spec, device, None, (), group)
    while True:
        name, arguments = pipe.recv()
        try:
            getattr(engine, name)(*arguments)
        except InvalidInput as error:  # the leader refuses the same
            log.info("%s: %s", name, error)
