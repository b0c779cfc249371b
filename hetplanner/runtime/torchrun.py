"""torchrun whose ranks are forked from it: `python -m hetplanner.runtime.torchrun FLAGS plan.json`.

torchrun has imported torch by then, so its ranks need not: they start sooner and share its memory. The flags are
torchrun's, and torchrun starts, watches and ends the ranks, by torch's start method `fork`. It makes no CUDA context,
which no fork could use. Outside Linux ranks are started as `torchrun -m hetplanner.runtime.worker` starts them: there
it is not safe to fork a process that has threads.
"""

import contextlib
import ctypes
import logging
import os
import signal
import stat
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import elastic_launch

from hetplanner.runtime import session, worker
from hetplanner.runtime.watch import SIGNALS

assert session  # imported here, for all ranks

TORCHRUNS_SIGNALS = (signal.SIGHUP, signal.SIGQUIT)
"""For which torchrun has handlers, besides those that a rank watches for itself."""
PR_SET_PDEATHSIG = 1


def run_rank(*arguments: str) -> None:
    """A rank, in the forked process; returns when it has done all that was asked, else ends the process.

    torchrun waits until each rank has returned, and its ranks until all have.
    """
    for number in TORCHRUNS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)  # torch asks for SIGINT; a rank sees by itself that its parent ended
    _leave_sockets()
    code = worker.main(list(arguments))
    logging.shutdown()
    if code:
        os._exit(code)
    for number in SIGNALS:  # nothing is left to save
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _leave_sockets() -> None:
    """Gives up torchrun's store: with a copy open, other hosts would not see it end with torchrun.

    The descriptors stay in use, so that nobody closes another's by an old number.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the folder itself, which is closed by now
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number, inheritable=False)


@record
def main(arguments: list[str]) -> None:
    """torchrun, but for how it starts ranks."""
    if not sys.platform.startswith("linux"):
        flags = [word for word in arguments if word.startswith("-")]
        run.main([*flags, "-m", worker.__name__, *arguments[len(flags) :]])
        return
    parsed = run.parse_args(["--start-method=fork", "--run-path", *arguments])
    config, _, _ = run.config_from_args(parsed)
    elastic_launch(config, run_rank)(parsed.training_script, *parsed.training_script_args)


if __name__ == "__main__":
    main(sys.argv[1:])
