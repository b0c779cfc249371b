"""The local launcher: ranks on this machine, on a loopback interface that other users do not reach."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.interface import LAUNCH, SWARM_MODULE, WORKER_MODULE, HostCommand, LaunchRequest
from hetplanner.launchers.isolate import isolated, why_open
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.train import TrainConfig, check_packages, check_runnable
from hetplanner.storage.sending import BY_AGENT_VARIABLE
from hetplanner.swarm.spec import spec_of

LOOPBACK = "127.0.0.1"
RENDEZVOUS = "hetplanner-loopback"
"""Our rendezvous backend (an entry point of `torchrun.handlers`): torch's own listens on every interface."""
OPEN = (
    "the machine's other users reach this run's connections on 127.0.0.1: it has no network of its own ({why:.200});"
    " launch on a shared machine only if you trust its users"
)


class LocalLauncher:
    """Starts all ranks on this machine as torchrun does, as one node or (for tests and the README) several."""

    name = "local"

    def __init__(self, nodes: int = 1, port: int | None = None) -> None:
        """A launcher.

        Args:
            nodes: launchers to split the ranks over, all on this machine.
            port: of the rendezvous on 127.0.0.1. None leaves the choice to the one agent that binds it (port
                0, so no other process can take it in between), or picks a free one that several agents can share.
        """
        if nodes < 1:
            raise InvalidInput(f"nodes: must be 1 or more, got {nodes}")
        self.nodes = nodes
        self.port = port

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """One command per node; of an elastic plan one command that starts its swarm.

        Raises:
            InvalidInput: there are more nodes than ranks, or the swarm cannot be trained so.
        """
        if isinstance(plan, ElasticPlan):
            spec_of(plan, config)
            argv = (sys.executable, "-m", SWARM_MODULE, str(run_dir))
            return self._closed(run_dir, (HostCommand("localhost", argv, loopback_environment()),))
        check_runnable(plan)
        check_packages(plan.problem.workload)
        num_processes = len(plan.processes)
        if self.nodes > num_processes:
            raise InvalidInput(f"nodes: must be at most the plan's {num_processes} devices, got {self.nodes}")
        port = self.port
        if port is None:
            port = 0 if self.nodes == 1 else free_loopback_port()
        share, rest = divmod(num_processes, self.nodes)
        sizes = [share + (node < rest) for node in range(self.nodes)]
        by_agent = {BY_AGENT_VARIABLE: "1"} if config.copy_to is not None else {}
        environment = loopback_environment() | by_agent
        commands = tuple(
            HostCommand("localhost", self._argv(run_dir, port, node, size), environment, size)
            for node, size in enumerate(sizes)
        )
        return self._closed(run_dir, commands)

    def _closed(self, run_dir: Path, commands: tuple[HostCommand, ...]) -> LaunchRequest:
        """The commands in a network of their own, or with a warning that they are not."""
        why = why_open() if len(commands) == 1 else f"{len(commands)} launchers that are started one by one share it"
        if why is not None:
            return LaunchRequest(self.name, run_dir, commands, (OPEN.format(why=why),))
        (one,) = commands
        return LaunchRequest(self.name, run_dir, (replace(one, argv=isolated(one.argv)),))

    def _argv(self, run_dir: Path, port: int, node: int, size: int) -> tuple[str, ...]:
        # Without --rdzv-conf torchrun hands the node's rank to its static rendezvous only.
        node_rank = (f"--node-rank={node}", f"--rdzv-conf=rank={node}") if self.nodes > 1 else ()
        return (
            *(sys.executable, *LAUNCH),
            f"--rdzv-backend={RENDEZVOUS}",
            f"--rdzv-endpoint={LOOPBACK}:{port}",
            f"--nnodes={self.nodes}",
            *node_rank,
            f"--nproc-per-node={size}",
            "--max-restarts=0",
            f"--log-dir={os.devnull}",  # ranks write their own; torchrun's folder would stay behind
            *("-m", WORKER_MODULE, str(run_dir / "plan.json")),
        )


def loopback_environment() -> dict[str, str]:
    """Variables of a local run: one compute thread a rank, gloo on the loopback interface only."""
    return {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback_interface()}


def loopback_interface() -> str:
    """Name of the loopback interface: `lo` on Linux, `lo0` on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")


def free_loopback_port() -> int:
    """A TCP port of 127.0.0.1 that no process listens on now.

    The kernel deals ephemeral ports out at random, so another process is unlikely to get this one in the second
    until torchrun binds it. If it does, the launch fails with torchrun's message.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
