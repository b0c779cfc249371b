"""The slurm launcher: one job whose batch file starts the head on its first node; the head reaches the others by srun.

The run's folder must lie on a disk that the nodes share, as home folders do.
"""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import SLURM_NAME, PlacedHost, Slurm
from hetplanner.launchers.interface import ATTEMPT_VARIABLE, HEAD_MODULE, HostCommand, LaunchRequest
from hetplanner.launchers.ssh import SshLauncher
from hetplanner.launchers.torchrun import checked_hosts
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.train import TrainConfig

JOB_MODULE = "hetplanner.hosts.slurm_job"
JOB_FILE = "job.sbatch"
JOB_LOG = "slurm.txt"
NOTICE_S = 60
"""Before the job's time is up, ranks have so long to save what they hold."""


class SlurmLauncher(SshLauncher):
    """Runs a plan as a job. Each node runs what it would run over ssh."""

    name = "slurm"

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """What each host runs, the batch file, and the command that submits it and waits for its end.

        Raises:
            InvalidInput: the plan is elastic, its links are emulated, or the hosts file does not fit it.
        """
        placed = checked_hosts(plan, config, self.hosts)
        request = super().request(plan, run_dir, config)
        submit = HostCommand("localhost", (sys.executable, "-m", JOB_MODULE, str(run_dir)), num_ranks=0)
        file = batch_file(placed, self.hosts.slurm or Slurm(), plan.problem.workload.name)
        return replace(request, launcher=self.name, starter=submit, file=file)


def batch_file(placed: tuple[PlacedHost, ...], slurm: Slurm, name: str, attempt: int = 0) -> str:
    """The file for sbatch, to be submitted from the run's folder.

    Args:
        placed: the plan's hosts.
        slurm: more options; they win over ours.
        name: of the job.
        attempt: how often the run was started again.

    Raises:
        InvalidInput: a host has no name that Slurm takes.
    """
    for host in placed:
        if not re.fullmatch(SLURM_NAME, host.slurm):
            raise InvalidInput(
                f'hosts: {host.slurm!r:.80} is no name of a Slurm node; give one in the hosts file: slurm = "NODE"'
            )
    nodes = [host.slurm for host in placed]
    word = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)[:80]
    options = [
        f"--job-name=hetplanner-{word}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "--ntasks-per-node=1",
        *("--exclusive", "--mem=0"),  # all of each node: other work would disturb the timing that the plan rests on
        *(f"--output={JOB_LOG}", "--open-mode=append"),
        f"--signal=B:TERM@{NOTICE_S}",
        "--no-requeue",
        *slurm.options,
    ]
    python = placed[0].python
    program = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
    lines += [f"export {ATTEMPT_VARIABLE}={attempt}"] if attempt else []
    return "\n".join([*lines, f'exec {program} -m {HEAD_MODULE} "$SLURM_SUBMIT_DIR"', ""])
