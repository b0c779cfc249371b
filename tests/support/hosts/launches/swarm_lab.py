"""A swarm over the hosts of a bed, each with a metadata service of AWS as its machine would have."""

from __future__ import annotations

import subprocess
import sys

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.swarm.main import SPEC_FILE
from hetplanner.swarm.spec import spec_of
from hetplanner.swarm.wire.certificates import make_certificates
from tests.support.hosts.cloud import Aws
from tests.support.hosts.host_bed import HostBed
from tests.support.processes.patience import until

MAIN = ("-m", "hetplanner.swarm.main")
PORT = 29_600


class SwarmLab:
    """Coordinator and trainer on the first host, one peer on each other.

    Attributes:
        history: of the run, as its coordinator writes it.
        peers: processes by name.
    """

    def __init__(self, bed: HostBed, plan: ElasticPlan, config: TrainConfig, speed: float) -> None:
        self.bed = bed
        first, *others = bed.hosts
        self.folder = bed.home(first) / "run"
        self.folder.mkdir(parents=True)
        (self.folder / SPEC_FILE).write_text(spec_of(plan, config).to_json())
        self._certificates = bed.folder / "certificates"
        make_certificates(self._certificates)
        self.coordinator = self._start(first, "coordinator", str(self.folder), "--port", str(PORT))
        self.history = SwarmHistory(self.folder)
        self._until(lambda: self.history.address is not None, "the coordinator does not listen")
        address = f"{bed.address(first)}:{PORT}"
        self._start(first, "trainer", address, "--name=trainer-0", "--slots=8")
        self.peers: dict[str, subprocess.Popen[str]] = {}
        self._clouds = {peer: Aws(bed, host) for peer, host in zip(plan.peers, others, strict=True)}
        for peer, host in zip(plan.peers, others, strict=True):
            more = (f"--name={peer}", f"--speed={speed}", "--notice=aws", "--checkpoints", str(bed.home(host)))
            self.peers[peer] = self._start(host, "peer", address, *more)

    def _start(self, host: str, role: str, *arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, *MAIN, role, *arguments, "--host", self.bed.address(host)]
        argv += ["--certificates", str(self._certificates)]
        with (self.bed.folder / f"{role}-{host}.txt").open("w") as log:
            return self.bed.popen(host, argv, env={"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)

    def give_notice(self, peer: str) -> None:
        """The cloud of a peer's host says that it will take it away."""
        self._clouds[peer].give_notice()

    def commit(self, steps: int) -> None:
        """Waits for so many more committed steps."""
        self.history.read_all()
        last = self.history.commits[-1].step + steps if self.history.commits else steps
        self._until(lambda: bool(self.history.commits) and self.history.commits[-1].step >= last, f"no step {last}")

    def _until(self, condition, words: str) -> None:  # type: ignore[no-untyped-def]
        def there() -> bool:
            self.history.read_all()
            assert self.coordinator.poll() is None, self.words()
            return condition()

        until(there, lambda: f"{words}: {self.words()}")

    def words(self) -> str:
        """What the processes have said, for a failing test."""
        return "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in self.bed.folder.glob("*-*.txt"))
