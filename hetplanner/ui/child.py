"""How the page's helper processes are started: fresh ones with pipes, one thread each, never a fork."""

import os
import subprocess
from collections.abc import Sequence

NICENESS = 5
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""With a library's default of a thread for every core, a click beside a busy helper takes several times as long."""


def start_child(command: Sequence[str]) -> "subprocess.Popen[str]":
    """A process that is spoken to in lines of text over its pipes."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
        text=True,
        encoding="utf-8",
        bufsize=1,
        start_new_session=True,  # Ctrl-C in the terminal stops the server; the helper then sees its pipe close
    )
