"""Runs a program in a network of its own: `python -m hetplanner.launchers.isolate -- PROGRAM ARGUMENTS…`.

The stores at which ranks meet, and the connections of gloo and nccl, know no authentication. In a network namespace
with nothing but a loopback interface no other user of the machine reaches them. The namespace is owned by a user
namespace in which this user is who they are outside: an ordinary user may make both, where the system allows it (Linux;
some systems do not). Files, GPUs, signals and /proc stay as they are.

`--of PID` enters the network of a process of this user instead. Imports nothing but the standard library.
"""

import argparse
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

MODULE = "hetplanner.launchers.isolate"
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
EXIT_CODE = 4
"""A failed run's (`errors.RunError`)."""
CHECK_S = 30.0


def isolated(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs `argv` in a network of its own."""
    return (sys.executable, "-m", MODULE, "--", *argv)


def inside(pid: int) -> tuple[str, ...]:
    """What, before a command, runs it in the network of a process."""
    return (sys.executable, "-m", MODULE, "--of", str(pid), "--")


@cache
def why_open() -> str | None:
    """Why a local run's sockets stay within reach of the machine's other users; None: they do not.

    Tried in a process, once: what a system allows cannot be read anywhere.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, "--check"], capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:200]
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")[-200:]


def enter_new_network() -> None:
    """Moves this process, which must have one thread, into a network that holds its loopback alone. Raises OSError."""
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no network namespaces")
    uid, gid = os.geteuid(), os.getegid()
    try:
        _unshare(CLONE_NEWNET)  # root need not give up what it may do to files of others
    except PermissionError:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    _raise_loopback()


def enter_network_of(pid: int) -> None:
    """Moves this process, which must have one thread, into the network of another one of this user. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, name in ((CLONE_NEWUSER, "user"), (CLONE_NEWNET, "net")):
        theirs = f"/proc/{pid}/ns/{name}"
        if os.path.samefile(theirs, f"/proc/self/ns/{name}"):
            continue
        with open(theirs, "rb") as file:
            _checked(libc.setns(file.fileno(), kind), f"namespace of process {pid}")


def _unshare(kinds: int) -> None:
    _checked(ctypes.CDLL(None, use_errno=True).unshare(kinds), "namespaces")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def main() -> int:
    """The command; becomes the program, or ends with an error."""
    parser = argparse.ArgumentParser(prog=MODULE, description="Run a program in a network of its own.")
    parser.add_argument("--check", action="store_true", help="only tell whether this system allows it")
    parser.add_argument("--of", type=int, metavar="PID", help="enter the network of this process")
    parser.add_argument("argv", nargs="*", help="program and arguments, after --")
    parsed = parser.parse_args()
    try:
        if parsed.of is not None:
            enter_network_of(parsed.of)
        else:
            enter_new_network()
    except OSError as error:
        sys.stderr.write(f"no network of its own: {error}\n")
        return EXIT_CODE
    if not parsed.check:
        try:
            os.execvp(parsed.argv[0], parsed.argv)
        except (OSError, IndexError) as error:
            sys.stderr.write(f"{' '.join(parsed.argv[:1]) or 'no program given'}: {error}\n")
            return EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
