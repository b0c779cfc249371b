"""Network namespaces of one test process: made, entered, emptied and removed.

A namespace is named `hb<pid>-<start of the process>-<four random letters>-<what it is>`: two test processes never
meet, and whoever comes later sees that the owner of a namespace is gone, and removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.processes.patience import until

CAN_MAKE = os.geteuid() == 0
NEEDS_ROOT = "needs root: only root makes network namespaces"
NAMED = Path("/run/netns")
OURS = re.compile(r"(hb(\d+)-(\d+)-[0-9a-f]{4})(-.*)?")


class BedError(Exception):
    """A test bed that cannot be made; one line that says what to do."""


def new_prefix() -> str:
    """A prefix of namespaces that no other process has."""
    return f"hb{os.getpid()}-{started(os.getpid())}-{secrets.token_hex(2)}"


def started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None: there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def command(*argv: str) -> str:
    """Runs a command of the network's tools; what it says. Raises BedError with its last words."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        words = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        remedy = "; give root CAP_SYS_ADMIN and CAP_NET_ADMIN" if "not permitted" in words else ""
        raise BedError(f"`{' '.join(argv)}`: {words}{remedy}")
    return done.stdout


def add(namespace: str) -> None:
    """A new namespace, whose loopback interface is up."""
    command("ip", "netns", "add", namespace)
    inside(namespace, "link", "set", "lo", "up")


def inside(namespace: str, *words: str) -> str:
    """`ip WORDS` in a namespace."""
    return command("ip", "-n", namespace, *words)


def setting(namespace: str, key: str, value: str) -> None:
    """A namespace's own value of a setting of the kernel's network, as `ipv4/ip_forward`."""
    command("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"net.{key.replace('/', '.')}={value}")


def entering(namespace: str, argv: Sequence[str]) -> list[str]:
    """The command that becomes `argv` inside a namespace; its process id stays that of `argv`."""
    return ["ip", "netns", "exec", namespace, *argv]


def processes(namespace: str) -> list[int]:
    """Ids of the processes inside a namespace; none where it is gone."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def kill_all(namespace: str) -> None:
    """Ends every process inside a namespace, those that they start meanwhile too."""

    def empty() -> bool:
        found = processes(namespace)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    until(empty, lambda: f"processes {processes(namespace)} of {namespace} do not end")


def remove(namespace: str) -> None:
    """Ends what runs in a namespace and removes it, with its interfaces; nothing where it is gone."""
    kill_all(namespace)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def of_prefix(prefix: str) -> list[str]:
    """Namespaces of one bed that are there."""
    return sorted(path.name for path in NAMED.glob(f"{prefix}-*"))


def remove_leftovers() -> None:
    """Removes namespaces and folders of test processes that are gone."""
    for path in _of_the_gone(NAMED):
        remove(path.name)
    for path in _of_the_gone(Path(tempfile.gettempdir())):
        shutil.rmtree(path, ignore_errors=True)


def _of_the_gone(folder: Path) -> Iterator[Path]:
    for path in folder.glob("hb*-*"):
        name = OURS.fullmatch(path.name)
        if name and started(int(name[2])) != int(name[3]):
            yield path
