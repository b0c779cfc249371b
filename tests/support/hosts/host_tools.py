"""The programs that a test bed of hosts needs: there, or installed now where root has apt-get."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosts.netns import BedError
from tests.support.pages.find_browser import install_by_apt, package_lock

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ping": "iputils-ping",
    "sysctl": "procps",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "iperf3": "iperf3",
    "wg": "wireguard-tools",
    "wg-quick": "wireguard-tools",
    "wireguard-go": "wireguard-go",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    **dict.fromkeys(("sbatch", "srun", "scontrol", "squeue", "scancel"), "slurm-client"),
}
"""Debian's package of each program."""
OF_ROOT = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where programs of root's are, which a short PATH may lack."""
POLICY = Path("/usr/sbin/policy-rc.d")


def program(name: str) -> str:
    """Path of a program; installs its package if it is missing. Raises BedError."""
    with package_lock():
        if found := _found(name):
            return found
        with _services_stay_down():
            why = install_by_apt(PACKAGES[name])
        if found := _found(name):
            return found
    raise BedError(f"tests over hosts need `{name}`: it is missing; {why}; install Debian's {PACKAGES[name]}")


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{OF_ROOT}")


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """While packages are installed, Debian starts none of their services: an sshd of the machine's own, say."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
