"""How our program is started on a host, with its standard input and output here: by OpenSSH, or in a Slurm job.

To add a way: a class with `argv` and `why_closed`, and a line in `transport_of`.
"""

import shlex
from pathlib import Path
from typing import Protocol

from hetplanner.errors import InvalidInput, RunError
from hetplanner.launchers.hosts_file import Hosts, PlacedHost

NODE_MODULE = "hetplanner.hosts.on_host.node"
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # it never asks for a password
    *("-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-o", "Compression=yes"),  # telemetry is text, and shares the link with the training
    *("-o", "ControlMaster=no"),  # a connection of the user's own may be used, none is left behind
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
)
SSH_FAILED = 255
"""ssh's own exit code; others are of the program at its other end."""
SRUN_OPTIONS = (
    "--overlap",  # a second connection to a host may come before the first one has ended
    "--unbuffered",  # else what does not end a line stays in Slurm's buffers
    *("--nodes=1", "--ntasks=1", "--cpu-bind=none", "--quiet"),
)


class Unreachable(RunError):
    """A host does not answer; another time it may."""


class Unfit(InvalidInput):
    """A host answers, and cannot be used as it is."""


class Transport(Protocol):
    """A way to a host."""

    def argv(self, host: PlacedHost) -> list[str]:
        """The command that starts our program there."""
        ...

    def why_closed(self, code: int, said: list[str], host: PlacedHost) -> RunError | InvalidInput:
        """Why our program did not begin there, with what to do.

        Args:
            code: exit code of the command.
            said: what it and the host wrote to stderr.
            host: which.
        """
        ...


def transport_of(launcher: str, hosts: Hosts) -> Transport:
    """The way to the hosts of a run.

    Args:
        launcher: the run's.
        hosts: its hosts file.
    """
    return SrunTransport() if launcher == "slurm" else SshTransport(hosts.ssh_config)


class SshTransport:
    """Plain OpenSSH, with the user's own configuration and keys.

    Args:
        ssh_config: configuration for ssh; None: the user's own.
    """

    def __init__(self, ssh_config: str | None = None) -> None:
        self.ssh_config = ssh_config

    def argv(self, host: PlacedHost) -> list[str]:
        """ssh begins in the user's home folder."""
        remote = shlex.join(["exec", "env", "PYTHONSAFEPATH=1", host.program, "-m", NODE_MODULE, "connect"])
        config = ["-F", self.ssh_config] if self.ssh_config else []
        return ["ssh", *OPTIONS, *config, "--", host.ssh, remote]

    def why_closed(self, code: int, said: list[str], host: PlacedHost) -> RunError | InvalidInput:
        """See `Transport`."""
        if code == SSH_FAILED or code < 0:
            return _why_ssh_failed("\n".join(said), _last(code, said), host)
        return _why_not_begun(code, said, host)


class SrunTransport:
    """A step of the Slurm job that this process is in. Slurm ends what a step has started when the step ends."""

    def argv(self, host: PlacedHost) -> list[str]:
        """srun begins where it is told to: in the user's home folder, as ssh does."""
        where = (f"--nodelist={host.slurm}", f"--chdir={Path.home()}")
        program = ("env", "PYTHONSAFEPATH=1", host.program, "-m", NODE_MODULE, "connect")
        return ["srun", *SRUN_OPTIONS, *where, "--", *program]

    def why_closed(self, code: int, said: list[str], host: PlacedHost) -> RunError | InvalidInput:
        """See `Transport`."""
        if not any("Exited with exit code" in line for line in said):  # srun tells it of a program that was started
            return Unreachable(f"Slurm starts nothing there: {_last(code, said):.300}")
        return _why_not_begun(code, [line for line in said if not line.startswith("srun: ")], host)


def _last(code: int, said: list[str]) -> str:
    return next((line for line in reversed(said) if line), f"exit code {code}")


def _why_not_begun(code: int, said: list[str], host: PlacedHost) -> RunError | InvalidInput:
    """Why our program did not begin on a host that was reached."""
    text, last = "\n".join(said), _last(code, said)
    if "No module named" in text and "hetplanner" in text:
        return Unfit(f"{host.python} has no hetplanner; install it there, or name its python in the hosts file")
    if code in (126, 127) or "not found" in text or "No such file" in text:
        return Unfit(
            f"{host.python} cannot be run ({last:.200}); install Python, or name it in the hosts file (python)"
        )
    return Unfit(f"our program ends at once: {last:.300}")


def _why_ssh_failed(text: str, last: str, host: PlacedHost) -> RunError | InvalidInput:
    if "IDENTIFICATION HAS CHANGED" in text:
        return Unfit(
            "its host key is another than the known one: the machine was set up anew, or another machine answers in its"
            f" place; if it was you, remove the old key with `ssh-keygen -R` and log in once: ssh {host.ssh}"
        )
    if "Host key verification failed" in text or "host key is known" in text:
        return Unfit(f"its host key is not known here; log in once and compare it: ssh {host.ssh}")
    if "Permission denied" in text or "Too many authentication failures" in text:
        return Unfit(
            f"ssh as {host.ssh} is refused ({last:.200}); it must log in without a password: add your key there, or to"
            " the ssh agent that the hetplanner agent was started with"
        )
    if "Bad configuration" in text or "terminating" in text or "Bad owner" in text:
        return Unfit(f"ssh refuses its configuration: {last:.300}; correct it")
    return Unreachable(f"cannot be reached: {last:.300}; try `ssh {host.ssh} true`")
