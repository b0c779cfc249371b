"""Starts real ranks in a fraction of a second: a fork server with torch loaded, a store owned by the parent."""

import json
import multiprocessing as mp
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hetplanner.plan.files.checkpoints import checkpoint_folder
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.launch import PRELOADED
from tests.support.processes.patience import HANG_S, stretched, until

FORKS = mp.get_context("forkserver")
FORKS.set_forkserver_preload([*PRELOADED, "tests.support.training.preloaded", __name__])
"""Processes are forks of one that has loaded torch and what ranks import."""

SHORT_PROFILE_S = 0.02
"""The product takes 0.4 s, of every rank, at every start."""


@dataclass
class Ranks:
    """The processes of one run and what they have written; of a group its first process writes."""

    run_dir: Path
    processes: list[BaseProcess]
    store: Any
    num_ranks: int

    def wait(self, timeout_s: float = HANG_S) -> list[int]:
        """Exit codes; processes that outlive the time (of a quiet machine) are killed and fail the test."""
        deadline = time.monotonic() + stretched(timeout_s)
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in late:
            self.processes[rank].kill()
            self.processes[rank].join()
        assert not late, f"ranks {late} were still alive after {timeout_s} s\n{self.logs()}"
        return [process.exitcode for process in self.processes]

    def lines(self, rank: int, type_: str) -> list[dict[str, Any]]:
        text = (self.run_dir / f"rank-{rank}.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if line["type"] == type_]

    def all_lines(self, type_: str) -> list[dict[str, Any]]:
        return [line for rank in range(self.num_ranks) for line in self.lines(rank, type_)]

    def losses(self) -> list[float]:
        """Mean loss of every step, over all ranks of the last stage."""
        sums, tokens = defaultdict(float), defaultdict(int)
        for line in self.all_lines("step"):
            if line["loss_sum"] is not None:
                sums[line["step"]] += line["loss_sum"]
                tokens[line["step"]] += line.get("num_labels", line["num_tokens"])
        return [sums[step] / tokens[step] for step in sorted(sums)]

    def wait_for_step(self, step: int) -> None:
        """Returns once rank 0 has reported a step."""
        self._wait_for_text(f'"type": "step", "step": {step},')

    def wait_for_phase(self, name: str) -> None:
        """Returns once rank 0 is in a phase."""
        self._wait_for_text(f'"type": "phase", "name": "{name}"')

    def _wait_for_text(self, text: str, file: str = "rank-0.jsonl") -> None:
        path = self.run_dir / file

        def is_there() -> bool:
            if path.exists() and text in path.read_text():
                return True
            assert any(p.is_alive() for p in self.processes), self.logs()
            return False

        until(is_there, lambda: f"no {text}\n{self.logs()}")

    def wait_for_log(self, text: str) -> None:
        """Returns once rank 0's log holds a text."""
        self._wait_for_text(text, "log-0.txt")

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-2000:]}" for p in sorted(self.run_dir.glob("log-*.txt")))


def gone_on(before: Plan, after: Plan, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of steps 4 to 7 of a run, and of one under another plan that goes on from its checkpoint of step 4."""
    config = TrainConfig(steps=8, seed=3, learning_rate=3e-3, checkpoint_every=4)
    straight = train(before, config, folder / "straight").losses()
    shutil.rmtree(checkpoint_folder(folder / "straight", 8))
    rest = train(after, config.replace(resume=str(folder / "straight"), checkpoints_async=True), folder / "rest")
    assert rest.lines(0, "resumed")[0]["step"] == 4
    return straight[4:], rest.losses()


def start_ranks(
    plan: Plan,
    config: TrainConfig,
    run_dir: Path,
    num_ranks: int | None = None,
    fault: Callable[[int], None] | None = None,
    profile_s: float = SHORT_PROFILE_S,
) -> Ranks:
    """Writes the run directory and starts every rank of the plan.

    `fault`: a function of a module, called with the rank in every process before it begins: it plants what goes wrong.
    `profile_s`: for so long a rank measures its parts before it trains; `WINDOW_S` where the prediction is looked at.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    save_plan(plan, run_dir / "plan.json")
    fields = {"format": "hetplanner/run@1"} | config.model_dump(mode="json")
    (run_dir / "run.json").write_text(json.dumps(fields))
    world = num_ranks or len(plan.processes)
    store = store_at("127.0.0.1", 0, timedelta(seconds=60), is_master=True)
    processes = [
        FORKS.Process(target=_rank, args=(str(run_dir), rank, world, store.port, fault, profile_s), name=f"rank-{rank}")
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    return Ranks(run_dir, processes, store, min(world, len(plan.ranks)))


def train(
    plan: Plan,
    config: TrainConfig,
    run_dir: Path,
    fault: Callable[[int], None] | None = None,
    profile_s: float = SHORT_PROFILE_S,
) -> Ranks:
    """Runs to the end; every rank must succeed."""
    ranks = start_ranks(plan, config, run_dir, fault=fault, profile_s=profile_s)
    codes = ranks.wait()
    assert codes == [0] * len(codes), ranks.logs()
    return ranks


def _rank(
    run_dir: str, rank: int, world: int, port: int, fault: Callable[[int], None] | None, profile_s: float
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    from hetplanner.runtime.measure import profile
    from hetplanner.runtime.worker import main

    profile.WINDOW_S = profile_s
    if fault is not None:
        fault(rank)
    code = main([f"{run_dir}/plan.json"])
    sys.stdout.flush()
    os._exit(code)


def finds_earlier_run(rank: int, *, folder: str) -> None:
    """A fault for `start_ranks`: each rank is on a host of its own, whose part of an earlier run lies in its folder."""
    from hetplanner.runtime import session

    session.resume_chain = lambda resume: [Path(folder) / f"host-{rank}" / resume]
