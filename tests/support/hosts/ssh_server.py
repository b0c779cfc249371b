"""An sshd for each host of a test bed, and the configuration with which `ssh` of OpenSSH reaches them by name.

Keys are made by ssh-keygen in the bed's folder; a server lets in who has the bed's own key, by nothing else. Sessions
have the host's own home folder, and the Python of the tests is their `python3`, with its `PYTHONPATH`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.hosts.host_tools import program
from tests.support.hosts.netns import command

PORT = 22
SERVER = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {key}.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
MaxStartups 100
SetEnv {variables}
"""
CLIENT = """\
Host *
  User root
  IdentityFile {key}
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {known}
  GlobalKnownHostsFile none
  PasswordAuthentication no
  KbdInteractiveAuthentication no
"""
SEPARATED = Path("/run/sshd")
"""A folder that sshd asks for; Debian makes it when its own service starts."""


def make_key(path: Path) -> None:
    """A key pair without a passphrase: `path`, and `path`.pub. Raises BedError."""
    command(program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", path.stem, "-f", str(path))


def write_server(folder: Path, address: str, users_key: Path) -> Path:
    """A host's key, home and sshd_config in its folder; returns the configuration. Raises BedError."""
    (folder / "home").mkdir(parents=True)
    make_key(folder / "host_key")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    config = folder / "sshd_config"
    variables = {"HOME": str(folder / "home"), "PATH": path}
    variables |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    fields = {"address": address, "port": PORT, "folder": folder, "key": users_key}
    config.write_text(SERVER.format(**fields, variables=" ".join(f'"{k}={v}"' for k, v in variables.items())))
    return config


def write_client(folder: Path, key: Path, addresses: Mapping[str, str]) -> Path:
    """ssh_config and known_hosts for the servers in `folder`/NAME at these addresses; returns the configuration."""
    known, config = folder / "known_hosts", folder / "ssh_config"
    keys = {name: (folder / name / "host_key.pub").read_text().split()[:2] for name in addresses}
    known.write_text("".join(f"{addresses[name]} {' '.join(key)}\n" for name, key in keys.items()))
    hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    config.write_text(hosts + CLIENT.format(key=key, known=known))
    return config


def server_argv(config: Path) -> list[str]:
    """The command of a server that stays in the foreground and logs to stderr. Raises BedError."""
    SEPARATED.mkdir(mode=0o755, exist_ok=True)
    return [program("sshd"), "-D", "-e", "-f", str(config)]


def serves(log: Path, server: subprocess.Popen[str]) -> bool:
    """Whether a server listens by now. Raises AssertionError with its log if it has ended."""
    text = log.read_text()
    assert server.poll() is None, f"sshd ended with {server.returncode}: {text[-500:]}"
    return "Server listening on" in text
