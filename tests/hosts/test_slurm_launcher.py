"""Runs as jobs of a real Slurm, two nodes in network namespaces, launched as a person does."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from factories import chain_plan
from host_bed import HEAD, HostBed, HostSpec
from hosts import netns
from hosts.slurm_bed import SlurmBed, hosts_file
from patience import HANG_S, until

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.run import Run, open_run

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


def test_a_job_is_the_run_of_one_machine(lab):
    as_job = lab.train("--steps", "12")
    assert as_job.returncode == 0, as_job.stdout + as_job.stderr
    first = lab.run()
    first.read_all()
    assert (first.status().state, len(first.losses())) == ("finished", 12)
    assert set(json.loads((first.path / "hosts.json").read_text())["hosts"]) == set(NODES)
    assert lab.left() == []
    assert lab.slurm.jobs() == {}
    here = lab.train("--steps", "12", launcher="local")
    assert here.returncode == 0, here.stderr
    second = lab.run()
    second.read_all()
    assert second.id != first.id
    assert first.losses() == second.losses()
    assert (first.path / "model.safetensors").read_bytes() == (second.path / "model.safetensors").read_bytes()
    report = lab.bed.run(HEAD, [HETPLANNER, "runs", "report", first.id], env=lab.env)
    assert report.returncode == 0, report.stderr


def test_the_batch_file_that_is_shown_is_the_one_that_is_submitted(lab):
    shown = lab.train("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert lab.train("--steps", "2").returncode == 0
    assert (lab.run().path / "job.sbatch").read_text() == shown.stdout


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


def test_nodes_that_are_taken_away_are_asked_for_again_and_nothing_is_lost(lab):
    process = lab.begin("--steps", "60", "--max-restarts", "1")
    lab.reach(5)
    (job,) = lab.slurm.jobs()
    lab.slurm.ask("scancel", "--batch", "--signal=TERM", job)  # as before its time is up
    said, _ = process.communicate(timeout=HANG_S)
    run = lab.run()
    assert process.returncode == 0, said + lab.words(run)
    run.read_all()
    assert run.status().restarts == 1
    assert (run.path / "slurm-job").read_text().strip() != job
    assert lab.train("--steps", "60", launcher="local").returncode == 0
    whole = lab.run()
    whole.read_all()
    assert whole.id != run.id
    assert run.losses() == whole.losses()
    assert (run.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


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


def test_the_job_of_a_launcher_that_was_killed_ends_before_the_next_one_begins(lab):
    process = lab.begin("--steps", "40", "--max-restarts", "1")
    run = lab.reach(2)
    (job,) = lab.slurm.jobs()
    psutil.Process(run.status().pid).kill()
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, said + lab.words(run)
    run.read_all()
    assert (run.status().state, run.status().restarts, len(run.steps())) == ("finished", 1, 40)
    assert job not in lab.slurm.jobs()


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
