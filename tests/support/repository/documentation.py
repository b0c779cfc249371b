"""The blocks of README and docs, and their commands run as they stand there: for tests and the benchmark."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import planner_names

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _pages() -> dict[str, str]:
    """README and the pages of the docs by path, in the order of the site's contents; made ones are left out."""
    found = {"README.md": README}
    for line in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines():
        path = ROOT / "docs" / f"{line}.md"
        if re.fullmatch(r"[a-z_/]+", line) and not line.startswith("generated/"):
            found[os.fspath(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    return found


PAGES = _pages()
TEXT = "\n".join(PAGES.values())
# What a command has without `--budget`, by its first words; other commands state none.
DEFAULT_BUDGETS = {"plan": "10 s", "pareto": "10 s", "rehearse": "10 s", "compare": "2 s"}
# A hang, whatever else the machine does.
HANG_S = 900.0
INDENTED = ("    hetplanner ", "    python -m hetplanner", "    pytest ")
SERVERS = ("panel serve", "hetplanner dashboard")
IPERF = {"start": {}, "intervals": [], "end": {"sum_received": {"bits_per_second": 3e8}}}
OWN_MODULE = '''
import torch
from torch import nn


def factory():
    """A module and example inputs, as the docs ask for."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.randn(2, 16),)
'''


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.M | re.S)


def commands(text: str = TEXT) -> list[str]:
    """Every command, in bash blocks and in indented lines, in order; `a && b` are two."""
    found, is_bash = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            is_bash = line == "```bash"
        elif (is_bash and line.strip() and not line.startswith("#")) or line.startswith(INDENTED):
            found += [part.strip() for part in line.split(" && ")]
    return found


def has_placeholder(command: str) -> bool:
    """Whether a command names a host, port or folder that only its reader knows, such as HOST."""
    return any(re.fullmatch(r"[A-Z][A-Z_]+(:PORT)?", word) for word in shlex.split(command, comments=True))


def is_install(command: str) -> bool:
    """Whether a command installs, or runs all tests: CI is what runs these."""
    return command.startswith(("pip install", "pytest"))


def stated_budget_s(command: str) -> float:
    """Seconds of search that a command states, or has by default; 0 if it searches nothing."""
    words = shlex.split(command, comments=True)
    name = words[1] if words[0] == "hetplanner" else ""
    if name not in DEFAULT_BUDGETS or "elastic" in words:
        return 0.0
    options = dict(pairwise(words))
    seconds = Budget.parse(options.get("--budget", DEFAULT_BUDGETS[name])).seconds or 0.0
    if name != "compare":
        return seconds
    planners = options.get("--planners", ",".join(planner_names())).split(",")
    return seconds * len(planners) * int(options.get("--seeds", 5))


def shortened(command: str, share: float, steps_share: float) -> str:
    """The command with its budget, stated or not, and the steps of training that it states made shorter."""

    def budget(found: re.Match[str]) -> str:
        return f"--budget {(Budget.parse(found[1]).seconds or 0.0) * share:g}s"

    def steps(found: re.Match[str]) -> str:
        return f"{found[1]} {2 + round(int(found[2]) * steps_share)}"

    if share < 1.0:
        default = DEFAULT_BUDGETS.get(words[1]) if len(words := command.split()) > 1 else None
        if default and stated_budget_s(command) and not {"--budget", "--evaluations"} & set(words):
            command = re.sub(r" *(#.*)?$", f" --budget {default.replace(' ', '')}", command, count=1)
        command = re.sub(r"--budget (\S+)", budget, command)
    if steps_share < 1.0:
        command = re.sub(r"(--steps|--checkpoint-every|--warmup-steps) (\d+)", steps, command)
        if command.startswith(("hetplanner train", "torchrun")) and "--steps" not in command:
            command = re.sub(r" *(#.*)?$", " --steps 5", command, count=1)
    return command


def own_cluster() -> dict[str, Any]:
    """The cluster file of the docs in short, with four devices more at each site, and links inside these."""
    cluster: dict[str, Any] = json.loads(blocks("json")[0])
    hosts = [host["id"] for host in cluster["hosts"]]
    cluster["devices"] += [{"id": f"gpu-{i}", "kind": "A100-40", "host": hosts[i // 4]} for i in range(8)]
    cluster["site_links"] += [
        {"from": site["name"], "to": site["name"], "latency": "50 us", "bandwidth": "10 Gbit/s"}
        for site in cluster["sites"]
    ]
    return cluster


@dataclass
class Done:
    """What a command came to."""

    command: str
    seconds: float
    code: int
    output: str


@dataclass
class Scratch:
    """A folder in which the commands run, with the files that they name, and a home of its own.

    Args:
        folder: empty.
        share, steps_share: see :func:`shortened`.
    """

    folder: Path
    share: float = 1.0
    steps_share: float = 1.0
    done: list[Done] = field(default_factory=list)

    def prepare(self) -> None:
        """What the docs take for granted: a checkout, a cluster of one's own, plans, a package."""
        for name in ("sample_clusters", "apps", "tests", "docs", "README.md"):
            (self.folder / name).symlink_to(ROOT / name)
        package = self.folder / "mypackage"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "nets.py").write_text(OWN_MODULE)
        (self.folder / "my-cluster.json").write_text(json.dumps(own_cluster()))
        (self.folder / "hosts.toml").write_text(blocks("toml")[0])
        (self.folder / "layers.csv").write_text(next(b for b in blocks("text") if b.startswith("kind,")))
        (self.folder / "gpus.txt").write_text("GPU 0: Tesla T4 (UUID: GPU-0)\n")
        (self.folder / "iperf.json").write_text(json.dumps(IPERF))

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment, with this installation's programs first."""
        path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
        return os.environ | {"PATH": path, "HETPLANNER_HOME": os.fspath(self.folder / "home")}

    def run(self, command: str) -> Done:
        """Runs a command until its end; one that serves until it has answered."""
        if command.startswith(SERVERS):
            return self._note(command, lambda: self._served(command))
        return self._note(command, lambda: self._ended([self._start(shortened(command, self.share, self.steps_share))]))

    def run_together(self, together: list[str]) -> Done:
        """Runs commands at one time, as on several hosts."""
        port = free_port()
        moved = [
            re.sub(r"(127\.0\.0\.1:)\d+", rf"\g<1>{port}", shortened(command, self.share, self.steps_share))
            for command in together
        ]
        return self._note(" & ".join(together), lambda: self._ended([self._start(command) for command in moved]))

    def end(self) -> None:
        """Ends the agent that runs belong to, and whatever else was started here."""
        stop = "from hetplanner.runs.agent.client import AgentClient; AgentClient(start=False).shutdown(stop_runs=True)"
        subprocess.run([sys.executable, "-c", stop], env=self.environment, capture_output=True, check=False)

    def _note(self, command: str, act: Callable[[], tuple[int, str]]) -> Done:
        began = time.perf_counter()
        code, output = act()
        self.done.append(Done(command, time.perf_counter() - began, code, output))
        return self.done[-1]

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _ended(self, processes: list[subprocess.Popen[str]]) -> tuple[int, str]:
        output = []
        try:
            for process in processes:
                output.append(process.communicate(timeout=HANG_S)[0])
        finally:
            for process in processes:
                end_family(process)
        return max((abs(process.returncode) for process in processes), default=0), "".join(output)

    def _served(self, command: str) -> tuple[int, str]:
        """0 once the server has answered by HTTP and ended when it was asked to."""
        port = free_port()
        moved = re.sub(r"--port \d+", f"--port {port}", command)
        process = self._start(moved if moved != command else f"{command} --port {port}")
        try:
            status = http_status(port, process)
        finally:
            end_family(process)
        return (0 if status in (200, 302, 401, 403) else status), f"HTTP {status}\n{process.communicate()[0]}"


def http_status(port: int, process: subprocess.Popen[str]) -> int:
    """What a server says to a browser, once it listens."""
    import httpx

    deadline = time.monotonic() + HANG_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return httpx.get(f"http://localhost:{port}/planner", timeout=HANG_S).status_code
        except httpx.TransportError:
            time.sleep(0.1)
    return 599


def end_family(process: subprocess.Popen[str]) -> None:
    """Ends a command and all that it started."""
    family = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
    for child in family:
        if child.is_running():
            child.terminate()
    for child in psutil.wait_procs(family, timeout=10)[1]:
        child.kill()


def free_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def all_commands(text: str = TEXT) -> list[str | list[str]]:
    """Those that are run here, in order; torchrun's agents of one block, which wait for each other, together."""
    found: list[str | list[str]] = []
    for command in commands(text):
        if command.startswith("torchrun") and found and isinstance(found[-1], list):
            found[-1].append(command)
        elif not is_install(command) and not has_placeholder(command):
            found.append([command] if command.startswith("torchrun") else command)
    return found


def run_all(scratch: Scratch, told: Callable[[Done], None] = lambda done: None, text: str = TEXT) -> None:
    """Runs every command of a text; a failure keeps none from being run."""
    for command in all_commands(text):
        together = [command] if isinstance(command, str) else command
        words = {word for one in together for word in shlex.split(one, comments=True)}
        for name, made_by in TAKEN_FOR_GRANTED.items():
            if name in words and made_by not in (*together, *(done.command for done in scratch.done)):
                scratch.run(made_by)
        told(scratch.run(command) if isinstance(command, str) else scratch.run_together(command))


# Plans that the docs take for granted, and how one comes by them.
TAKEN_FOR_GRANTED = {
    "plan.json": (
        "hetplanner plan sample_clusters/laptop_8_cities.json tiny-gpt --stages 2 --replicas 2 --codecs none,int8"
        " -o plan.json"
    ),
    "my-plan.json": "hetplanner plan my-cluster.json gpt2-xl --evaluations 2000 -o my-plan.json",
    "big-plan.json": (
        "hetplanner plan sample_clusters/dtfm_5_worldwide.json gpt3-xl --stages 8 --replicas 8 --evaluations 2000"
        " -o big-plan.json"
    ),
}


def _text_of(*starts: str) -> str:
    return "\n".join(text for path, text in PAGES.items() if path.startswith(starts))


_COMMAND_LINE, _TUTORIALS = ("docs/how_to/use_the_command_line",), ("README", "docs/tutorials/")
_WEIGHTS = ("docs/how_to/use_pretrained_weights", "docs/how_to/fine_tune", "docs/how_to/train_on_your_own_texts")
_OTHERS = [path for path in PAGES if not path.startswith((*_COMMAND_LINE, *_TUTORIALS, *_WEIGHTS))]
# Pages whose commands read nothing that those of other groups write, but what is taken for granted.
GROUPS = {
    "weights": _text_of(*_WEIGHTS),
    "command line": _text_of(*_COMMAND_LINE),
    "tutorials": _text_of(*_TUTORIALS),
    "others": _text_of(*_OTHERS),
}

__all__ = [
    "GROUPS",
    "Done",
    "Scratch",
    "all_commands",
    "blocks",
    "commands",
    "is_install",
    "run_all",
    "stated_budget_s",
]

if shutil.which("bash") is None:
    raise OSError("the commands of the docs are run by bash, which is not installed")
