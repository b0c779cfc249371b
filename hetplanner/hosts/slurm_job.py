"""A run as a Slurm job: `python -m hetplanner.hosts.slurm_job RUN_DIR` submits it and ends as its head does.

The head runs in the job; it and this process see one folder. A stop file there becomes a signal for the head, or the
end of a job that still waits. SIGTERM is passed on, so that ranks save what they hold; after a stop it cancels the job.
"""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput, Preempted, RunError, one_line
from hetplanner.hosts.command import run_attempt
from hetplanner.hosts.head import STATES_FILE
from hetplanner.launchers.hosts_file import Hosts, PlacedHost, Slurm, place_hosts
from hetplanner.launchers.interface import ATTEMPT_VARIABLE
from hetplanner.launchers.launch_file import load_launch
from hetplanner.launchers.slurm import JOB_FILE, JOB_LOG, batch_file
from hetplanner.launchers.torchrun import checked_hosts
from hetplanner.liveness.processes import RUN_MARK
from hetplanner.plan.files.plan_files import AnyPlan, load_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import DAMAGED
from hetplanner.schema import parse_json, read_text

log = logging.getLogger(__name__)

ID_FILE = "slurm-job"
POLL_S, TICK_S = 2.0, 0.1
ASKING_S = 60.0
"""Longest wait for an answer of Slurm's controller."""
LOST_S = 300.0
"""So long Slurm may say nothing of a job before it is given up."""
OLD_JOB_S = 60.0
MAX_LOG_BYTES = 65_536
WAITING = ("PENDING", "CONFIGURING")
LIVE = (*WAITING, "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
TAKEN_AWAY = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE")
"""Ends that say nothing against the run: it may be submitted again."""
_FIELD = re.compile(r"(\w+)=(\S*)")


def no_slurm(why: str) -> InvalidInput:
    """The error of a machine that belongs to no Slurm cluster."""
    return InvalidInput(
        f"launcher: {why}; run this on a login node of the Slurm cluster, or take --dry-run to see the batch file"
    )


def check_job(plan: AnyPlan, config: TrainConfig, hosts: Hosts) -> None:
    """Has Slurm say whether it could ever run the job.

    Raises:
        InvalidInput: sbatch is not here, or refuses.
        RunError: Slurm's controller does not answer.
    """
    placed = checked_hosts(plan, config, hosts)
    if shutil.which("sbatch") is None:
        raise no_slurm("there is no sbatch here")
    text = batch_file(placed, hosts.slurm or Slurm(), plan.problem.workload.name)
    found = _slurm("sbatch", "--test-only", given=text)
    if found.returncode == 0:
        return
    said = _said(found)
    if "configuration source" in said:
        raise no_slurm(f"Slurm is not set up here ({said})")
    if "contact" in said and "controller" in said:
        raise RunError(f"Slurm: {said}")
    raise InvalidInput(
        f"Slurm refuses the job: {said}; correct the nodes' names (slurm = … of a host) or [slurm] options in the"
        " hosts file"
    )


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job; `code` is of its batch script."""

    name: str
    reason: str
    code: int


class Job:
    """The job of one attempt.

    Args:
        run_dir: with plan.json, run.json and launch.json.
        attempt: how often the run was started again.
    """

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.run_dir, self.attempt = run_dir, attempt
        plan, hosts = load_plan(run_dir / "plan.json"), load_launch(run_dir).hosts or Hosts()
        self._placed: tuple[PlacedHost, ...] = place_hosts(plan, hosts)
        self._file = batch_file(self._placed, hosts.slurm or Slurm(), plan.problem.workload.name, attempt)
        self._is_told = self._told_head = False
        self._warned = ""
        self.id = ""

    def run(self) -> int:
        """Submits the job and waits for its end; the exit code of its head.

        Raises:
            InvalidInput: Slurm refuses the job, or a user cancelled it.
            Preempted: its nodes were taken away, or its time was up.
            RunError: it ended otherwise than by its head, or Slurm does not answer.
        """
        signal.signal(signal.SIGTERM, self._told_to_end)
        self._cancel_older()
        self._submit()
        state, said_s = JobState("PENDING", "", 0), time.monotonic()
        while True:
            found = job_state(self.id)
            if found is not None:
                if (found.name, found.reason) != (state.name, state.reason):
                    log.info("job %s is %s%s", self.id, found.name, f" ({found.reason})" if found.reason else "")
                state, said_s = found, time.monotonic()
                if state.name not in LIVE:
                    return self._ended(state)
            elif time.monotonic() - said_s > LOST_S:
                raise RunError(f"Slurm has said nothing of job {self.id} for {LOST_S:g} s; try: squeue -j {self.id}")
            self._warn(state)
            self._wait(state)

    # -- beginning ----------------------------------------------------------------------------------

    def _cancel_older(self) -> None:
        """An earlier attempt's job may be left, where this process was killed: two would write into one folder."""
        older = _job_in(self.run_dir / ID_FILE)
        deadline_s = time.monotonic() + OLD_JOB_S
        while older and (state := job_state(older)) is not None and state.name in LIVE:
            _slurm("scancel", older)
            if time.monotonic() > deadline_s:
                raise RunError(f"Slurm job {older} of an earlier attempt does not end; try: squeue -j {older}")
            time.sleep(TICK_S)

    def _submit(self) -> None:
        try:
            (self.run_dir / JOB_FILE).write_text(self._file, encoding="utf-8")
        except OSError as error:
            raise RunError(f"{JOB_FILE} cannot be written: {error.strerror}") from None
        found = _slurm("sbatch", "--parsable", JOB_FILE, folder=self.run_dir)
        self.id = found.stdout.strip().partition(";")[0]
        if found.returncode or not self.id.isdigit():
            raise InvalidInput(f"Slurm refuses the job: {_said(found)}")
        (self.run_dir / ID_FILE).write_text(f"{self.id}\n", encoding="ascii")
        log.info("submitted as Slurm job %s", self.id)

    # -- while it waits and runs --------------------------------------------------------------------

    def _told_to_end(self, signum: int, frame: object) -> None:
        self._is_told = True

    def _wait(self, state: JobState) -> None:
        """Until it is time to ask again, or something has to be passed on."""
        until_s = time.monotonic() + POLL_S
        while time.monotonic() < until_s:
            stop = (self.run_dir / "stop").exists()
            if (stop or self._is_told) and state.name in WAITING:
                _slurm("scancel", self.id)
                return
            if stop and not self._told_head:
                self._told_head = True
                _slurm("scancel", "--batch", "--signal=USR1", self.id)
            if self._is_told:
                self._is_told = False
                _slurm("scancel", *(() if stop else ("--batch", "--signal=TERM")), self.id)
                return
            time.sleep(TICK_S)

    def _warn(self, state: JobState) -> None:
        """Tells the agent why the job waits; once it runs, its head tells more."""
        waits = state.name in WAITING and bool(state.reason)
        text = f"Slurm job {self.id} waits: {state.reason}" if waits else ""
        if text == self._warned:
            return
        self._warned = text
        try:
            data: dict[str, Any] = parse_json(read_text(self.run_dir / STATES_FILE), STATES_FILE)
        except (InvalidInput, *DAMAGED):
            data = {"format": "hetplanner/hosts-state@1", "hosts": {}}
        if waits:
            with suppress(OSError):
                text = json.dumps(data | {"warnings": [text]}, indent=1)
                write_whole(self.run_dir / STATES_FILE, text + "\n", mode=0o600)

    # -- its end ------------------------------------------------------------------------------------

    def _ended(self, state: JobState) -> int:
        """The head's exit code; its last lines go to standard output. Raises: it was not the head that ended."""
        lines = self._log_lines()
        stop = (self.run_dir / "stop").exists()
        if state.name == "CANCELLED" and stop:
            sys.stdout.write("stopped\n")
            return 0
        if state.name in ("COMPLETED", "FAILED") and lines:
            sys.stdout.write("\n".join(lines) + "\n")
            return state.code
        last = f"; its last line: {lines[-1]}" if lines else ""
        words = f"Slurm job {self.id} ended as {state.name}{f' ({state.reason})' if state.reason else ''}{last:.500}"
        if state.name in TAKEN_AWAY:
            raise Preempted(words)
        if state.name == "CANCELLED":
            raise InvalidInput(f"Slurm job {self.id} was cancelled")
        raise RunError(words)

    def _log_lines(self) -> list[str]:
        """What the head said last."""
        try:
            with (self.run_dir / JOB_LOG).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-40:]


def _job_in(path: Path) -> str:
    """The number of the job that an earlier attempt submitted; '' without one."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.isdigit() else ""


def job_state(job: str) -> JobState | None:
    """What Slurm says of a job; None: nothing, now."""
    found = _slurm("scontrol", "--oneliner", "show", "job", job)
    fields = dict(_FIELD.findall(found.stdout)) if found.returncode == 0 else {}
    if "JobState" not in fields:
        return None
    code, _, signum = fields.get("ExitCode", "0:0").partition(":")
    status = int(code) if code.isdigit() else 1
    reason = fields.get("Reason", "")
    ended_by = 128 + int(signum) if signum.isdigit() and int(signum) else 0
    return JobState(fields["JobState"], "" if reason == "None" else reason, status or ended_by)


Answer = subprocess.CompletedProcess[str]


def _slurm(program: str, *arguments: str, given: str = "", folder: Path | None = None) -> Answer:
    """Runs one of Slurm's programs. Raises InvalidInput (it is not here), RunError (it does not answer)."""
    ours = (RUN_MARK, ATTEMPT_VARIABLE)  # of this process, not of the job's
    env = {name: value for name, value in os.environ.items() if name not in ours}
    try:
        return subprocess.run(
            [program, *arguments], input=given, capture_output=True, text=True, errors="replace", cwd=folder, env=env,
            timeout=ASKING_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise no_slurm(f"there is no {program} here") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"Slurm: {program} has not answered for {ASKING_S:g} s") from None


def _said(found: Answer) -> str:
    """The last line of an error, without the program's name."""
    lines = [line.strip() for line in found.stderr.splitlines() if line.strip()]
    text = lines[-1] if lines else f"exit code {found.returncode}"
    return one_line(re.sub(r"^\w+: (?:error: )?", "", text))[:500]


if __name__ == "__main__":
    sys.exit(
        run_attempt("hetplanner.hosts.slurm_job", sys.argv[1:], lambda folder, attempt: Job(folder, attempt).run())
    )
