"""The ssh launcher: one process here starts a torchrun on every host over OpenSSH, and brings its files back."""

import sys
from pathlib import Path

from hetplanner.launchers.hosts_file import Hosts, from_home
from hetplanner.launchers.interface import HEAD_MODULE, HostCommand, LaunchRequest
from hetplanner.launchers.torchrun import checked_hosts, host_commands, network_warnings
from hetplanner.plan.files import AnyPlan
from hetplanner.plan.train import TrainConfig


class SshLauncher:
    """Runs a plan on the hosts of a hosts file."""

    name = "ssh"

    def __init__(self, hosts: Hosts | None = None, run: str | None = None) -> None:
        """A launcher.

        Args:
            hosts: how the plan's hosts are reached; None calls each by its own name, with the user's own ssh.
            run: name of the run's folder on every host; None: as that of the run directory.
        """
        self.hosts = hosts or Hosts()
        self.run = run

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """What each host runs, and the one command that starts all of it from here.

        Raises:
            InvalidInput: the plan is elastic, its links are emulated, or the hosts file does not fit it.
        """
        placed = checked_hosts(plan, config, self.hosts)
        folders = [f"{from_home(host.run_folder)}/{self.run or run_dir.name}" for host in placed]
        head = HostCommand("localhost", (sys.executable, "-m", HEAD_MODULE, str(run_dir)), num_ranks=0)
        commands = host_commands(placed, self.hosts.port, folders)
        return LaunchRequest(self.name, run_dir, commands, network_warnings(placed, self.hosts), starter=head)
