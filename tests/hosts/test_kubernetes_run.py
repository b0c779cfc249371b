"""The file of the kubernetes launcher, run: pods as it asks for them, on nodes that are network namespaces."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.run import Run, open_run
from tests.support.hosts import netns
from tests.support.hosts.host_bed import HostBed, HostSpec
from tests.support.hosts.launches.pod_bed import PodBed
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import until

pytestmark = pytest.mark.distributed

NODES = ("a", "b")
HETPLANNER = str(Path(sys.executable).with_name("hetplanner"))


class KubernetesLab:
    """A user with a plan over two nodes."""

    def __init__(self, bed: HostBed, folder: Path) -> None:
        self.pods, self.folder = PodBed(bed), folder
        self.plan_file = folder / "plan.json"
        save_plan(chain_plan(shares=(2, 2), cuts=(4,), cluster=bed.cluster(2)), self.plan_file)
        self.env = os.environ | {"HETPLANNER_HOME": str(folder / "home")}

    def hetplanner(self, *words: str) -> str:
        done = subprocess.run([HETPLANNER, *words], env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def file(self, steps: int, *more: str) -> str:
        """What is given to kubectl."""
        argv = ("train", str(self.plan_file), "--launcher", "kubernetes", "--steps", str(steps), "--dry-run")
        return self.hetplanner(*argv, *more)

    def run(self) -> Run:
        """The run, in the claim."""
        (folder,) = self.pods.claim.iterdir()
        return open_run(folder, self.folder / "home")

    def reach(self, steps: int) -> None:
        def there() -> bool:
            if not list(self.pods.claim.glob("*/plan.json")):
                return False
            run = self.run()
            run.read_all()
            return len(run.steps()) >= steps

        until(there, lambda: f"no step {steps}: {self.pods.words()}")

    def run_here(self, steps: int) -> Run:
        """The same on one machine."""
        self.hetplanner("train", str(self.plan_file), "--steps", str(steps))
        return open_run("last", self.folder / "home")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubernetesLab]:
    if not netns.CAN_MAKE:
        pytest.skip(netns.NEEDS_ROOT)
    with HostBed([HostSpec(name) for name in NODES]) as bed:
        yield KubernetesLab(bed, tmp_path)


UNDISTURBED_STEPS = 100


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a run on one machine, to which nothing happens."""
    if not netns.CAN_MAKE:
        pytest.skip(netns.NEEDS_ROOT)
    with HostBed([HostSpec(name) for name in NODES]) as bed:
        lab = KubernetesLab(bed, tmp_path_factory.mktemp("undisturbed"))
        return (lab.run_here(UNDISTURBED_STEPS).path / "model.safetensors").read_bytes()


def same(one: Run, other: Run) -> bool:
    one.read_all(), other.read_all()
    models = [(run.path / "model.safetensors").read_bytes() for run in (one, other)]
    return one.losses() == other.losses() and models[0] == models[1]


def test_pods_train_as_one_machine_does_and_the_claim_holds_the_run(lab):
    assert lab.pods.run(lab.file(12)), lab.pods.words()
    run = lab.run()
    assert (run.status().state, lab.pods.attempts) == ("finished", 0)
    assert "A step took" in lab.hetplanner("runs", "report", str(run.path))
    assert same(run, lab.run_here(12))


@pytest.mark.parametrize("how", ["a rank is killed", "a pod is told to end"])
def test_a_pod_that_is_lost_costs_a_restart_of_all(how, lab, undisturbed):
    def lose(attempt: int) -> None:
        if attempt > 0:
            return
        lab.reach(20)
        if how == "a rank is killed":
            os.kill(lab.pods.ranks("b")[0], signal.SIGKILL)
        else:
            lab.pods.end("b")

    file = lab.file(UNDISTURBED_STEPS, "--max-restarts", "1", "--checkpoint-every", "5")
    assert lab.pods.run(file, lose), lab.pods.words()
    run = lab.run()
    run.read_all()
    assert (run.status().state, run.status().restarts, lab.pods.attempts) == ("finished", 1, 1)
    assert all(rank.resumed_step is not None for rank in run.ranks)
    assert (run.path / "model.safetensors").read_bytes() == undisturbed


def test_without_restarts_the_run_says_which_rank_failed(lab):
    file = lab.file(5, "--data", "/no/such/text.txt")
    assert not lab.pods.run(file)
    status = lab.run().status()
    assert status.state == "failed"
    assert "/no/such/text.txt" in status.message
