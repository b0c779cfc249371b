"""A user on a host of their own who runs plans over four others by ssh, each a network namespace with an sshd."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import psutil

from hetplanner.plan.files.plan_files import AnyPlan, save_plan
from hetplanner.runs.run import Run, open_run
from tests.support.hosts.host_bed import HEAD, PORT, HostBed
from tests.support.hosts.shaping import limit
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, until

HOSTS = ("a", "b", "c", "d")
HETPLANNER = str(Path(sys.executable).with_name("hetplanner"))
SLOW_BITS = 8e6
"""Of a link whose steps take some 0.1 s."""
END_AGENT = "from hetplanner.runs.agent.client import AgentClient; AgentClient(start=False).shutdown(stop_runs=True)"


class Lab:
    """A user on `head` with a plan over four hosts, and a home of their own."""

    def __init__(self, bed: HostBed, folder: Path, plan: AnyPlan | None = None) -> None:
        self.bed, self.folder, self.home = bed, folder, folder / "home"
        self.plan = plan or chain_plan(shares=(2, 2), cuts=(4,), cluster=bed.cluster())
        self.plan_file, self.hosts_file = folder / "plan.json", folder / "hosts.toml"
        save_plan(self.plan, self.plan_file)
        self.write_hosts()
        self.env = {"HETPLANNER_HOME": str(self.home)}
        self._slowed: list[str] = []

    def write_hosts(
        self,
        *,
        config: Path | None = None,
        port: int = 29_500,
        lost_s: int = 45,
        return_s: int = 180,
        **entries: dict[str, str],
    ) -> None:
        """The hosts file; `entries` change what it says of a host."""
        lines = ['format = "hetplanner/hosts@1"', f'ssh_config = "{config or self.bed.ssh_config}"', "port = 29500"]
        lines += [f"lost_s = {lost_s}", f"return_s = {return_s}"]
        known = {name: {"address": self.bed.address(name)} for name in HOSTS}
        for name in {**known, **entries}:
            lines.append(f"[hosts.{json.dumps(name)}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in (known.get(name, {}) | entries.get(name, {})).items()]
        self.hosts_file.write_text("\n".join(lines) + "\n")

    def slow_down(self, host: str) -> None:
        """Its link makes steps last longer than their computation, until `close`: what waits takes no core."""
        limit(self.bed.namespace(host), PORT, SLOW_BITS, own=True)
        self._slowed.append(host)

    def argv(self, *more: str, launcher: str = "ssh", plan: Path | None = None) -> list[str]:
        where = ["--hosts", str(self.hosts_file)] if launcher != "local" else []
        return [HETPLANNER, "train", str(plan or self.plan_file), "--launcher", launcher, *where, *more]

    def train(self, *more: str, **how) -> subprocess.CompletedProcess[str]:
        """Trains to the end."""
        return self.bed.run(HEAD, self.argv(*more, **how), env=self.env, timeout=HANG_S)

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """Trains in the background, in a session of its own, as in a terminal."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
        return self.bed.popen(HEAD, self.argv(*more), env=self.env, **options)

    def run(self) -> Run:
        """The latest run, once there is one."""
        until(lambda: list(self.home.glob("runs/*/status.json")), "no run begins")
        return open_run("last", self.home)

    def steps(self, run: Run) -> int:
        """Steps that the head knows of."""
        run.read_all()
        return len(run.steps())

    def reach(self, process: subprocess.Popen[str], steps: int) -> Run:
        """The run, once the head knows of so many steps."""

        def there() -> bool:
            assert process.poll() is None, process.stdout.read()
            return self.steps(run) >= steps

        run = self.run()
        until(there, lambda: f"no step {steps}: {self.words(run)}")
        return run

    def words(self, run: Run) -> str:
        """What is known of a run, for a failing test."""
        logs = [run.directory.launcher_log, *sorted(run.path.glob("host-*.txt"))]
        logs += [path for host in HOSTS for path in self.bed.home(host).glob(f"*/*/{run.id}/node.txt")]
        said = [f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in logs if path.exists()]
        return "\n".join([run.directory.status_file.read_text(), *said])

    # -- processes --------------------------------------------------------------------------------

    def on(self, name: str) -> list[psutil.Process]:
        """Processes of ours on a host."""
        return self.bed.processes(name)

    def left(self) -> dict[str, list[str]]:
        """What is left on the hosts."""
        found: dict[str, list[str]] = {}
        for name in HOSTS:
            for process in self.on(name):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
                    found.setdefault(name, []).append(" ".join(process.cmdline()))
        return found

    def rank_on(self, name: str) -> psutil.Process:
        """The rank's process on a host."""
        ranks = [p for p in self.on(name) if p.name().startswith("rank ")]
        assert len(ranks) == 1, ranks
        return ranks[0]

    def agent(self) -> psutil.Process:
        """The user's agent."""
        return psutil.Process(json.loads((self.home / "agent" / "agent.json").read_text())["pid"])

    def close(self) -> None:
        """Ends whatever a failing test left."""
        if (self.home / "agent").is_dir():
            self.bed.run(HEAD, [sys.executable, "-c", END_AGENT], env=self.env)
        for name in self._slowed:
            limit(self.bed.namespace(name), PORT, self.bed.hosts[name].rate_bits, own=True)
        for name in (HEAD, *HOSTS):
            for process in self.on(name):
                with contextlib.suppress(psutil.Error):
                    process.kill()
