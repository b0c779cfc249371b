"""Runs as jobs of a real Slurm, two nodes in network namespaces, launched as a person does."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.run import Run, open_run
from tests.support.hosts import netns
from tests.support.hosts.host_bed import HEAD, HostBed, HostSpec
from tests.support.hosts.launches.slurm_bed import SlurmBed, hosts_file
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, until

pytestmark = pytest.mark.distributed

NODES = ("a", "b")
HETPLANNER = str(Path(sys.executable).with_name("hetplanner"))
LONG = "100000"
END_AGENT = "from hetplanner.runs.agent.client import AgentClient; AgentClient(start=False).shutdown(stop_runs=True)"


class SlurmLab:
    """A user on the login node, with a plan over two nodes and a home of their own."""

    def __init__(self, slurm: SlurmBed, folder: Path) -> None:
        self.slurm, self.bed, self.folder, self.home = slurm, slurm.bed, folder, folder / "home"
        self.plan_file, self.hosts_file = folder / "plan.json", folder / "hosts.toml"
        save_plan(chain_plan(shares=(2, 2), cuts=(4,), cluster=self.bed.cluster(2)), self.plan_file)
        self.hosts_file.write_text(hosts_file(self.bed, sys.executable, "--time=10:00"))
        self.env = slurm.env | {"HETPLANNER_HOME": str(self.home)}

    def argv(self, *more: str, launcher: str = "slurm") -> list[str]:
        where = ["--hosts", str(self.hosts_file)] if launcher != "local" else []
        return [HETPLANNER, "train", str(self.plan_file), "--launcher", launcher, *where, *more]

    def train(self, *more: str, launcher: str = "slurm", path: str = "") -> subprocess.CompletedProcess[str]:
        argv = ["env", *([f"PATH={path}"] if path else []), *self.argv(*more, launcher=launcher)]
        return self.bed.run(HEAD, argv, env=self.env, timeout=HANG_S)

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """Trains in the background, in a session of its own, as in a terminal."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
        return self.bed.popen(HEAD, self.argv(*more), env=self.env, **options)

    def run(self) -> Run:
        """The latest run, once there is one."""
        until(lambda: list(self.home.glob("runs/*/status.json")), "no run begins")
        return open_run("last", self.home)

    def reach(self, steps: int) -> Run:
        """The run, once so many steps are known."""
        run = self.run()

        def there() -> bool:
            run.read_all()
            return len(run.steps()) >= steps

        until(there, lambda: f"no step {steps}: {self.words(run)}")
        return run

    def words(self, run: Run) -> str:
        """What is known of a run, for a failing test."""
        paths = [run.directory.status_file, *run.path.glob("*.txt")]
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in paths)

    def left(self) -> list[str]:
        """Processes of runs on the nodes."""
        found = []
        for name in NODES:
            for pid in netns.processes(self.bed.namespace(name)):
                with contextlib.suppress(psutil.Error):
                    words = " ".join(psutil.Process(pid).cmdline())
                    if "hetplanner" in words:
                        found.append(f"{name}: {words}")
        return found

    def close(self) -> None:
        """Ends whatever a failing test left."""
        if (self.home / "agent").is_dir():
            self.bed.run(HEAD, [sys.executable, "-c", END_AGENT], env=self.env)
        self.slurm.ask("scancel", "--user=root")
        until(lambda: not self.slurm.jobs(), "jobs do not end")


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmBed]:
    if not netns.CAN_MAKE:
        pytest.skip(netns.NEEDS_ROOT)
    with HostBed([HostSpec(name) for name in NODES]) as bed:
        yield SlurmBed(bed)


@pytest.fixture
def lab(slurm: SlurmBed, tmp_path: Path) -> Iterator[SlurmLab]:
    lab = SlurmLab(slurm, tmp_path)
    yield lab
    lab.close()


@dataclass
class First:
    """A job to its end, as `train` said it, with what was left on the nodes."""

    lab: SlurmLab
    run: Run
    done: subprocess.CompletedProcess[str]
    left: list[str]


@pytest.fixture(scope="module")
def first(slurm: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    lab = SlurmLab(slurm, tmp_path_factory.mktemp("first"))
    done = lab.train("--steps", "12")
    yield First(lab, lab.run(), done, lab.left())
    lab.close()


def test_a_job_is_the_run_of_one_machine(first):
    lab, run = first.lab, first.run
    assert first.done.returncode == 0, first.done.stdout + first.done.stderr
    run.read_all()
    assert (run.status().state, len(run.losses())) == ("finished", 12)
    assert set(json.loads((run.path / "hosts.json").read_text())["hosts"]) == set(NODES)
    assert first.left == []
    assert lab.slurm.jobs() == {}
    assert_same_on_one_machine(lab, run, 12)
    report = lab.bed.run(HEAD, [HETPLANNER, "runs", "report", run.id], env=lab.env)
    assert report.returncode == 0, report.stderr


def assert_same_on_one_machine(lab: SlurmLab, run: Run, steps: int) -> None:
    here = lab.train("--steps", str(steps), launcher="local")
    assert here.returncode == 0, here.stderr
    second = lab.run()
    run.read_all(), second.read_all()
    assert second.id != run.id
    assert run.losses() == second.losses()
    assert (run.path / "model.safetensors").read_bytes() == (second.path / "model.safetensors").read_bytes()


def test_the_batch_file_that_is_shown_is_the_one_that_is_submitted(first):
    shown = first.lab.train("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert (first.run.path / "job.sbatch").read_text() == shown.stdout


def test_ctrl_c_ends_the_job_and_every_process(lab):
    process = lab.begin("--steps", LONG)
    run = lab.reach(3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert run.status().state == "stopped"
    assert lab.left() == []
    until(lambda: not lab.slurm.jobs(), "the job does not end")


def test_a_job_that_waits_says_why_and_can_be_stopped(lab):
    other = lab.slurm.submit("sleep 600", "--nodes=2", "--exclusive")
    until(lambda: lab.slurm.jobs().get(other) == "RUNNING", "the other job does not begin")
    process = lab.begin("--steps", "2")
    run = lab.run()
    until(lambda: "waits: Resources" in " ".join(run.status().degraded), lambda: lab.words(run))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert run.status().state == "stopped"
    assert lab.slurm.jobs() == {other: "RUNNING"}


def test_a_launcher_is_killed_nodes_are_taken_away_and_nothing_is_lost(lab):
    """In one run. The job of a launcher that was killed ends before the next one begins."""
    process = lab.begin("--steps", "120", "--max-restarts", "2")
    run = lab.reach(2)
    (first,) = lab.slurm.jobs()
    psutil.Process(run.status().pid).kill()
    trains_again(lab, process, run, 1)
    (second,) = lab.slurm.jobs()
    assert second != first

    lab.slurm.ask("scancel", "--batch", "--signal=TERM", second)  # as before its time is up
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, said + lab.words(run)
    assert (run.status().state, run.status().restarts) == ("finished", 2)
    assert (run.path / "slurm-job").read_text().strip() not in (first, second)
    assert len(run.read_all().steps()) == 120
    assert_same_on_one_machine(lab, run, 120)


def trains_again(lab: SlurmLab, process: subprocess.Popen[str], run: Run, restarts: int) -> None:
    def there() -> bool:
        assert process.poll() is None, lab.words(run)
        status = run.status()
        return status.restarts == restarts and status.message.startswith("training")

    until(there, lambda: lab.words(run))


def test_a_job_that_somebody_cancels_is_not_submitted_again(lab):
    process = lab.begin("--steps", LONG, "--max-restarts", "1")
    run = lab.reach(2)
    (job,) = lab.slurm.jobs()
    lab.slurm.ask("scancel", job)
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    assert f"Slurm job {job} was cancelled" in " ".join(said.split())
    assert run.status().state == "failed"
    assert lab.left() == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[hosts.a]", '[hosts.a]\nslurm = "gpu17"', "Slurm refuses the job: .*Invalid node name"),
        ("--time=10:00", "--partition=gold", "Slurm refuses the job: .*[Ii]nvalid partition"),
        ("--time=10:00", "--time=1:00\\n#SBATCH --wrap=id", "must be a long option of sbatch without blanks"),
    ],
)
def test_what_slurm_refuses_is_told_before_anything_starts(lab, before, after, words):
    lab.hosts_file.write_text(lab.hosts_file.read_text().replace(before, after))
    done = lab.train("--steps", "2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(words, " ".join(done.stderr.split())), done.stderr
    assert not list(lab.home.glob("runs/*"))


def test_without_sbatch_a_person_is_told_where_to_go(lab):
    done = lab.train("--steps", "2", path="/nowhere")
    assert done.returncode == 2
    assert "there is no sbatch here; run this on a login node" in " ".join(done.stderr.split())


def test_a_node_without_our_program_is_named_with_its_remedy(lab):
    text = lab.hosts_file.read_text().replace(sys.executable, "/nowhere/python")
    first = text.index("/nowhere/python")  # the head's own stays
    lab.hosts_file.write_text(text[:first] + sys.executable + text[first + len("/nowhere/python") :])
    done = lab.train("--steps", "2")
    assert done.returncode == 4, done.stdout + done.stderr  # the job has begun, no rank has
    assert "[b] /nowhere/python cannot be run" in " ".join(done.stderr.split())
    assert lab.left() == []
