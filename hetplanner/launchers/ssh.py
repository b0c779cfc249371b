"""The ssh launcher: one process here starts a torchrun, or a swarm's part, on every host and brings its files back."""

import sys
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import Hosts, PlacedHost, from_home, place_hosts
from hetplanner.launchers.interface import HEAD_MODULE, HostCommand, LaunchRequest
from hetplanner.launchers.swarm_commands import AVERAGED, swarm_commands
from hetplanner.launchers.torchrun import EMULATED, checked_hosts, host_commands, network_warnings
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.train import TrainConfig
from hetplanner.swarm.spec import spec_of


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
            InvalidInput: links are emulated, or the hosts file or settings do not fit the plan.
        """
        placed = placed_over_ssh(plan, config, self.hosts)
        folders = [f"{from_home(host.run_folder)}/{self.run or run_dir.name}" for host in placed]
        head = HostCommand("localhost", (sys.executable, "-m", HEAD_MODULE, str(run_dir)), num_ranks=0)
        commands_of = swarm_commands if isinstance(plan, ElasticPlan) else host_commands
        commands = commands_of(placed, self.hosts.port, folders)
        return LaunchRequest(self.name, run_dir, commands, _warnings(plan, placed, self.hosts), starter=head)


def placed_over_ssh(plan: AnyPlan, config: TrainConfig, hosts: Hosts) -> tuple[PlacedHost, ...]:
    """The plan's hosts; of a swarm the first one has its coordinator and trainers. Raises InvalidInput."""
    if not isinstance(plan, ElasticPlan):
        return checked_hosts(plan, config, hosts)
    if config.emulate_links:
        raise InvalidInput(EMULATED)
    spec_of(plan, config)
    return place_hosts(plan, hosts)


def _warnings(plan: AnyPlan, placed: tuple[PlacedHost, ...], hosts: Hosts) -> tuple[str, ...]:
    if isinstance(plan, ElasticPlan) and network_warnings(placed, hosts):
        return (AVERAGED,)
    return network_warnings(placed, hosts)
