"""A whole swarm on this machine: coordinator, trainers and peers as processes, with speeds and faults as scripted.

Processes come from a fork server that has torch loaded, so that a joiner is there in a moment. All end when this
process ends, however it does.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from hetplanner.atomic_files import write_whole
from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput, RunError
from hetplanner.liveness.heartbeat import HEARTBEAT_VARIABLE, create_heartbeats
from hetplanner.liveness.processes import end_process
from hetplanner.runtime.late_imports import late_imports
from hetplanner.swarm.launch.links import create_links
from hetplanner.swarm.launch.network_proxy import NetworkProxy
from hetplanner.swarm.main import SPEC_FILE, main
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.workload.tensor_degrees import Sharding

log = logging.getLogger(__name__)

# gRPC must not be loaded in a process that forks: its threads would be missing in the children.
PRELOADED = [
    "torch",
    "torch.distributed",
    "hetplanner.codecs.kernels",
    "hetplanner.swarm.peer.group.leader",
    "hetplanner.runtime.train.data",
    "hetplanner.plan.model",
]
Speed = float | Sequence[float]
"""Micro-batches per second, the same in all stages or one for each."""
LOOPBACK = "127.0.0.1"
END_S = 3.0
COORDINATOR = "coordinator"
HEARTBEATS_FILE = "heartbeats"
SOCKETS = "listener-*"
MOST_WATCHED = 128
"""Of more processes the last go unwatched."""
NOT_IN_FILES = re.compile(r"[^A-Za-z0-9_.-]")
"""Names of peers come from plan files."""


def _context(spec: SwarmSpec) -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *late_imports(spec.workload, spec.recompute)])
    return context


def keep_sockets_in(run_dir: Path) -> None:
    """Has the fork server listen in a run's folder; where it is killed, its socket lies where leftovers are removed.

    For processes that hold one rehearsal in their life. A socket's address is short, so it goes by an open folder.
    """
    remove_sockets(run_dir)
    if sys.platform == "linux":
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        multiprocessing.current_process()._config["tempdir"] = f"/proc/self/fd/{folder}"  # type: ignore[attr-defined]


def remove_sockets(run_dir: Path) -> None:
    """Removes what fork servers that are gone have listened at."""
    for path in run_dir.glob(SOCKETS):
        path.unlink(missing_ok=True)


def _run(
    arguments: list[str], lifeline: Connection, rehearsal: int, heartbeats: str, plant: Callable[[], None] | None
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ[HEARTBEAT_VARIABLE] = heartbeats
    os.environ["no_grpc_proxy"] = ""  # noqa: SIM112  (gRPC's name) loopback goes through the network proxy too
    threading.Thread(target=_end_with, args=(lifeline, rehearsal, os.getppid()), name="lifeline", daemon=True).start()
    if plant is not None:
        plant()
    end_process(main(arguments))


def _end_with(lifeline: Connection, rehearsal: int, fork_server: int) -> None:
    """Ends this process when the rehearsal's process has, and with the fork server all others, stopped ones included.

    The fork server itself would stay as long as any of its children does.
    """
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    until_s = time.monotonic() + END_S
    while _is_alive(rehearsal) and time.monotonic() < until_s:
        time.sleep(0.05)  # what it held is closed before it is gone
    with contextlib.suppress(ProcessLookupError):
        if os.getppid() == fork_server and not _is_alive(rehearsal):
            os.kill(fork_server, signal.SIGKILL)
    os._exit(1)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Rehearsal:
    """The processes of a swarm.

    Attributes:
        spec: of the run.
        run_dir: an empty folder.
        certificates: a folder of them; None: plain, on loopback.
        cluster: whose links are emulated between the peers; None: none are. A peer stands for the device of its name,
            else for one that no process of this rehearsal stands for.
        network_proxy: through which all processes call, so that links can be cut; None: they call directly.
        host: where these processes listen.
        coordinator: its address; None: it is one of these processes, at a free port.
        processes: by name: `coordinator`, `trainer-0`, and the peers' names.
        peers, trainers: names of those among them.
    """

    spec: SwarmSpec
    run_dir: Path
    certificates: Path | None = None
    cluster: Cluster | None = None
    network_proxy: NetworkProxy | None = None
    host: str = LOOPBACK
    coordinator: str | None = None
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)
    peers: set[str] = field(default_factory=set)
    trainers: set[str] = field(default_factory=set)
    _arguments: dict[str, list[str]] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)
    _degrees: dict[str, int] = field(default_factory=dict)
    _port: int = 0
    _device_of: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(self.run_dir / SPEC_FILE, self.spec.to_json())
        if self.cluster is not None:
            create_links(self.cluster, self.run_dir)
        self._port = int(self.coordinator.rpartition(":")[2]) if self.coordinator else self._free_port()
        self.heartbeats = self.run_dir / HEARTBEATS_FILE
        create_heartbeats(self.heartbeats, MOST_WATCHED)
        self._context = _context(self.spec)
        self._lifeline, self._kept_end = self._context.Pipe(duplex=False)

    @property
    def address(self) -> str:
        """Of the coordinator."""
        return self.coordinator or f"{self.host}:{self._port}"

    def _free_port(self) -> int:
        """Kept for a coordinator that starts again."""
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return int(probe.getsockname()[1])

    def start_coordinator(self, plant: Callable[[], None] | None = None) -> None:
        """Starts it, again if it has ended: from its log.

        `plant`: a function of a module, called in the process before it begins: it plants what goes wrong.
        """
        is_fresh = not any(process.is_alive() for process in self.processes.values())
        self._start(COORDINATOR, self._coordinator(["--fresh"] if is_fresh else []), plant)

    def _coordinator(self, more: list[str]) -> list[str]:
        return ["coordinator", str(self.run_dir), "--port", str(self._port), *more]

    def start_trainer(self, name: str, slots: int = 4) -> None:
        """Starts a trainer."""
        self.trainers.add(name)
        self._start(name, ["trainer", self.address, f"--name={name}", "--slots", str(slots)])

    def start_peer(
        self,
        name: str,
        speed: Speed | None = None,
        plant: Callable[[], None] | None = None,
        device: str = "cpu",
        notice: str | None = None,
        degree: int = 1,
        sharding: Sharding = "tensor",
    ) -> None:
        """Starts a peer; it takes 1/speed seconds for a micro-batch at least.

        Args:
            name: its id.
            speed: None: as fast as it goes.
            plant: see `start_coordinator`.
            device: cpu, cuda or auto; peers take this machine's GPUs in turn.
            notice: the cloud that says before it takes this machine away.
            degree: devices that are the peer.
            sharding: what they divide.
        """
        speeds = [speed] if isinstance(speed, int | float) else speed
        emulated = [] if speeds is None else ["--speed", ",".join(map(str, speeds))]
        if self.cluster is not None:
            emulated += ["--links", str(self.run_dir), f"--at={self._place(name, self.cluster)}"]
        folder = str(self.run_dir / "checkpoints")
        self.peers.add(name)
        self._degrees[name] = degree
        turn = sum(self._degrees.values()) - degree
        computing = ["--device", device, "--turn", str(turn), "--degree", str(degree), "--sharding", sharding]
        computing += [f"--notice={notice}"] if notice is not None else []
        if self.spec.init_digest is not None:
            given = self.spec.train.init_from, self.spec.train.adapter
            computing += [f"--folder={folder}" for folder in given if folder is not None]
        arguments = ["peer", self.address, f"--name={name}", "--checkpoints", folder, *computing, *emulated]
        self._start(name, arguments, plant)

    def _place(self, name: str, cluster: Cluster) -> str:
        """The device that a peer stands for. Raises InvalidInput: there is none left."""
        alive = {other for other, process in self.processes.items() if process.is_alive()}
        taken = {device for other, device in self._device_of.items() if other in alive and other != name}
        free = [device for device in cluster.device_ids if device not in taken]
        if not free:
            raise InvalidInput(f"{name}: a peer stands for each of the cluster's {len(taken)} devices already")
        self._device_of[name] = name if name in free else free[0]
        return self._device_of[name]

    def start_again(self, name: str) -> None:
        """Starts a process that has ended as it was started before."""
        self._start(name, self._coordinator([]) if name == COORDINATOR else self._arguments[name])

    def living(self) -> dict[str, tuple[int, int]]:
        """Place among the heartbeats and process id of those that live, by name."""
        living = {name: p.pid for name, p in self.processes.items() if p.is_alive() and p.pid is not None}
        return {name: (self._places[name], pid) for name, pid in living.items()}

    def log_file(self, name: str) -> Path:
        """Of a process: what it tells. The coordinator is the run's rank 0."""
        return self.run_dir / ("log-0.txt" if name == COORDINATOR else f"log-of-{NOT_IN_FILES.sub('_', name)}.txt")

    def _start(self, name: str, arguments: list[str], plant: Callable[[], None] | None = None) -> None:
        if (before := self.processes.get(name)) is not None and before.is_alive():
            raise InvalidInput(f"{name}: a process of this name is there already; give another")
        self._arguments[name] = arguments
        place = self._places.setdefault(name, len(self._places))
        common = ["--tied", "--log", str(self.log_file(name)), "--heartbeat", str(place)]
        if self.certificates is not None:
            common += ["--certificates", str(self.certificates)]
        if self.host != LOOPBACK:
            common += ["--host", self.host]
        if self.network_proxy is not None:
            host, proxy = self.network_proxy.admit(name)
            common += ["--host", host, "--proxy", proxy]
        process = self._context.Process(
            target=_run,
            args=([*arguments, *common], self._lifeline, os.getpid(), str(self.heartbeats), plant),
            name=name,
        )
        process.start()
        self.processes[name] = process

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a process that this rehearsal started; one that has ended gets none."""
        process = self.processes[name]
        if process.is_alive() and process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(process.pid, number)

    def kill(self, name: str) -> None:
        """Ends a process at once and waits for it."""
        self.signal(name, signal.SIGKILL)
        self.processes[name].join()

    def wait(self, timeout_s: float) -> None:
        """Until the coordinator has ended well. Raises RunError."""
        process = self.processes["coordinator"]
        process.join(timeout_s)
        if process.exitcode != 0:
            how = f"still runs after {timeout_s:g} s" if process.exitcode is None else f"ended with {process.exitcode}"
            raise RunError(f"coordinator: {how}; see {self.run_dir}/log-0.txt")

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends whatever still runs; where the coordinator has said that all is done the others go by themselves."""
        coordinator = self.processes.get(COORDINATOR)
        is_done = coordinator is not None and coordinator.exitcode == 0
        until_s = time.monotonic() + (END_S if is_done else 0.0)
        for name, process in self.processes.items():
            process.join(max(0.0, until_s - time.monotonic()))
            if process.is_alive():
                self.kill(name)
        self.heartbeats.unlink(missing_ok=True)
        if self.network_proxy is not None:
            self.network_proxy.close()
