"""Launchers by name."""

from collections.abc import Callable

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.launchers.interface import Launcher
from hetplanner.launchers.kubernetes import KubernetesLauncher
from hetplanner.launchers.local import LocalLauncher
from hetplanner.launchers.slurm import SlurmLauncher
from hetplanner.launchers.ssh import SshLauncher
from hetplanner.launchers.torchrun import TorchrunLauncher

LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "kubernetes": KubernetesLauncher,
    "local": LocalLauncher,
    "slurm": SlurmLauncher,
    "ssh": SshLauncher,
    "torchrun": TorchrunLauncher,
}
OVER_HOSTS: dict[str, Callable[[Hosts], Launcher]] = {
    "kubernetes": KubernetesLauncher,
    "slurm": SlurmLauncher,
    "ssh": SshLauncher,
    "torchrun": TorchrunLauncher,
}
"""Those that take a hosts file."""


def make_launcher(name: str, hosts: Hosts | None = None) -> Launcher:
    """The launcher behind `--launcher NAME`. Raises InvalidInput.

    Args:
        name: of the launcher.
        hosts: how it reaches the plan's hosts; None: as it does by itself.
    """
    if name not in LAUNCHERS:
        raise InvalidInput(f"launcher: must be one of {', '.join(sorted(LAUNCHERS))}, got {name!r:.60}")
    if hosts is None:
        return LAUNCHERS[name]()
    if name not in OVER_HOSTS:
        raise InvalidInput(f"hosts: launcher {name} runs on this machine alone; take --launcher ssh")
    return OVER_HOSTS[name](hosts)
