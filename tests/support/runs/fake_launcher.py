"""A launcher whose ranks are `fake_ranks.py`; run as a program it is an agent with that launcher.

python fake_launcher.py MODE [MAX_QUEUED]       (home from HETPLANNER_HOME)
"""

import os
import sys
from pathlib import Path

import psutil

from hetplanner.launchers.interface import HostCommand, LaunchRequest
from hetplanner.liveness.processes import RUN_MARK, processes_of_run
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run

SCRIPT = Path(__file__).with_name("fake_ranks.py")


class FakeLauncher:
    """Called with a launcher's name it returns itself, so it is a registry of one, too."""

    name = "local"

    def __init__(self, mode: str = "train") -> None:
        self.mode = mode

    def __call__(self, name: str) -> "FakeLauncher":
        assert name == "local"
        return self

    def request(self, plan: Plan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        argv = (sys.executable, str(SCRIPT), self.mode, str(run_dir), str(len(plan.ranks)))
        return LaunchRequest(self.name, run_dir, (HostCommand("localhost", argv, {}, len(plan.ranks)),))


def processes_under(home: Path) -> list[psutil.Process]:
    """Agents of this home and processes of its runs that are alive."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            env = process.environ()
        except (psutil.Error, OSError):
            continue
        is_agent = env.get("HETPLANNER_HOME") == str(home) and RUN_MARK not in env
        if is_agent or env.get(RUN_MARK, "").startswith(str(home)):
            found.append(process)
    return found


def check_all_ended(home: Path) -> None:
    """Ends what is alive of this home, and fails if anything was."""
    left = processes_under(home)
    for process in left:
        process.kill()
    assert left == []


def rank_of(run: Run, rank: int) -> psutil.Process:
    """The process of a rank of a real run on this machine."""
    (found,) = [p for p in processes_of_run(run.path, run.status().pid) if p.name() == f"rank {rank}"]
    return found


if __name__ == "__main__":
    from hetplanner.runs.agent.service import serve_agent

    serve_agent(max_queued=int(sys.argv[2]) if len(sys.argv) > 2 else 8, launcher=FakeLauncher(sys.argv[1]))
