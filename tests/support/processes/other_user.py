"""What another ordinary user of this machine can do: a function run in a process that has become one."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import psutil

from hetplanner.launchers.isolate import inside

NOBODY = 65534
CAN_BECOME = os.geteuid() == 0
"""Only root may become somebody else. Who cannot holds owners and modes instead: see `closed_to_others`."""


def as_another_user(attack: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns that is called by another user, or the text of the exception that ended it.

    The process is forked, so that it needs no right to read an interpreter in somebody's home. What it returns has to
    be JSON.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            answer = {"result": attack(*arguments)}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = json.loads(file.read())
    os.waitpid(child, 0)
    return answer.get("result", answer.get("error"))


def closed_to_others(path: os.PathLike[str] | str) -> bool:
    """Whether a file or folder is this user's and nobody else may read, write or enter it."""
    info = os.lstat(path)
    return info.st_uid == os.getuid() and info.st_mode & 0o077 == 0


LISTENING = """
import json, psutil, socket, sys
found = []
for pid in sys.argv[1:]:
    for one in psutil.Process(int(pid)).net_connections(kind="inet"):
        if one.laddr and (one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM):
            found.append([one.laddr.ip, one.laddr.port])
print(json.dumps(found))
"""


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """TCP and UDP sockets on which these processes take what others send; asked in their own network."""
    pids = [str(process.pid) for process in processes]
    asked = [*inside(processes[0].pid), sys.executable, "-c", LISTENING, *pids]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(one) for one in json.loads(done.stdout)]
