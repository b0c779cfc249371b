"""Faults that a real run may meet, injected from outside: signals, a full disk, damaged files.

Processes are found by what the kernel says of them: the run's mark in their environment, and the log that their
standard output goes to. Nothing of the product takes part in a fault.
"""

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

PAUSE_S = 0.2
DISK_FULL_S = 4.0
STATIC_KINDS = (
    "kill",
    "pause 0.2 s",
    "stop for good",
    "term",
    "kill launcher",
    "term launcher",
    "kill agent",
    "term agent",
    "disk full",
    "damaged checkpoint",
    "cut telemetry",
    "two at once",
)
SWARM_KINDS = (
    *STATIC_KINDS,
    "kill coordinator",
    "stop coordinator",
    "term coordinator",
    "kill trainer",
    "stop trainer",
    "kill coordinator and peer",
)
"""Of a swarm, `kill`, `pause`, `stop`, `term` hit a peer."""


@dataclass(frozen=True)
class Scene:
    """A run under faults.

    Attributes:
        run_dir: the run's folder, on a file system of its own.
        agent_pid: says which process is the run's agent.
        rng: draws whom a fault hits.
    """

    run_dir: Path
    agent_pid: Callable[[], int | None]
    rng: random.Random

    def processes(self) -> dict[str, psutil.Process]:
        """Living processes of the run by the name of their log: a rank, `0` for a coordinator, a peer, `launcher`."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("HETPLANNER_RUN") != str(self.run_dir):
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                name = Path(os.readlink(f"/proc/{process.pid}/fd/1")).name.removesuffix(" (deleted)")
                words = process.cmdline()
                if name == "launcher.txt" and (
                    "hetplanner.runtime.launch" in words or "hetplanner.swarm.launch.rehearse" in words
                ):
                    found["launcher"] = process
                elif name.startswith("log-of-"):
                    found[name.removeprefix("log-of-").removesuffix(".txt")] = process
                elif name.startswith("log-"):
                    found[name.removeprefix("log-").removesuffix(".txt")] = process
        return found

    def workers(self) -> list[str]:
        """Names of ranks or peers that live."""
        names = [n for n in self.processes() if n != "launcher" and not n.startswith("trainer")]
        return sorted(n for n in names if not (self.is_swarm and n == "0"))

    @property
    def is_swarm(self) -> bool:
        """Whether the run is elastic: rank 0's log is the coordinator's then."""
        return (self.run_dir / "swarm.json").exists()

    def send(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a process of the run."""
        process = self.processes().get("0" if name == "coordinator" else name)
        if process is not None:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def inject(kind: str, scene: Scene) -> str:
    """Lets one fault happen; returns what it hit. It is over, or for good, when this returns."""
    if kind == "two at once":
        first, second = scene.rng.sample(("kill", "stop for good", "term", "pause 0.2 s"), 2)
        return " and ".join(_hit_worker(k, scene) for k in (first, second))
    if kind == "kill coordinator and peer":
        scene.send("coordinator", signal.SIGKILL)
        return "coordinator, " + _hit_worker("kill", scene)
    if kind in ("kill", "pause 0.2 s", "stop for good", "term"):
        return _hit_worker(kind, scene)
    if kind == "disk full":
        return _fill_disk(scene)
    if kind == "damaged checkpoint":
        return _damage_checkpoint(scene)
    if kind == "cut telemetry":
        return _cut_telemetry(scene)
    word, role = kind.split()
    number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[word]
    if role == "agent":
        pid = scene.agent_pid()
        if pid is not None:
            os.kill(pid, number)
    else:
        scene.send("trainer-0" if role == "trainer" else role, number)
    return role


def _hit_worker(kind: str, scene: Scene) -> str:
    names = scene.workers()
    if not names:
        return "nobody"
    name = scene.rng.choice(names)
    if kind == "pause 0.2 s":
        scene.send(name, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        scene.send(name, signal.SIGCONT)
    else:
        number = {"kill": signal.SIGKILL, "stop for good": signal.SIGSTOP, "term": signal.SIGTERM}[kind]
        scene.send(name, number)
    return f"{kind} {name}"


def _fill_disk(scene: Scene) -> str:
    """Fills the run's file system to the last byte for a while."""
    filler = scene.run_dir.parent / "filler"
    block = bytes(2**20)
    with filler.open("wb", buffering=0) as file:
        while block:
            try:
                file.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block = block[: len(block) // 2]
        until_s = time.monotonic() + DISK_FULL_S
        while time.monotonic() < until_s:  # what others remove is taken, too
            with contextlib.suppress(OSError):
                file.write(bytes(4096))
            time.sleep(0.01)
    filler.unlink()
    return "disk"


def _damage_checkpoint(scene: Scene) -> str:
    """Overwrites the middle of a file of the newest checkpoint, then kills a rank (or all the swarm's launcher)."""
    saved = scene.run_dir / "checkpoints"
    folders = sorted(p for p in saved.glob("step-*") if p.is_dir() and "." not in p.name)
    files = list(folders[-1].glob("*.safetensors")) if folders else []
    if scene.is_swarm:  # each stage has its own
        files = sorted(saved.glob("stage-*.safetensors"), key=lambda p: p.stat().st_mtime_ns)[-1:]
    damaged = "none"
    if files:
        path = scene.rng.choice(sorted(files))
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(os.urandom(64))
        damaged = f"{path.parent.name}/{path.name}"
    if scene.is_swarm:
        scene.send("launcher", signal.SIGKILL)
    else:
        _hit_worker("kill", scene)
    return damaged


def _cut_telemetry(scene: Scene) -> str:
    """Takes the end off a telemetry file, inside a line."""
    paths = sorted(scene.run_dir.glob("rank-*.jsonl"))
    path = scene.rng.choice(paths)
    os.truncate(path, max(0, path.stat().st_size - 37))
    return path.name
