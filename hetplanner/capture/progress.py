"""How far a capture is: a phase and a count, which a thread of the capturing process writes for the waiting process.

Counted are the modules that were built, then the modules that were called while tracing: a user's own code and torch's
are one long call each, and these hooks are all that is seen of them.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

from torch.nn.modules import module as torch_modules

from hetplanner.atomic_files import write_whole

WRITE_EVERY_S = 0.5


class _Now:
    phase, count = "", 0


_now = _Now()
_writing = threading.Lock()


def begin(phase: str) -> None:
    """Another phase has begun; its count is 0."""
    _now.phase, _now.count = phase, 0


def _count(*_: object) -> None:
    _now.count += 1


def write_progress(path: Path) -> None:
    """Counts from now on, and writes 'phase (count)' into `path` until the process ends."""
    torch_modules.register_module_module_registration_hook(_count)
    torch_modules.register_module_forward_pre_hook(_count)
    threading.Thread(target=_write_on, args=(path,), daemon=True, name="capture progress").start()


def _write_on(path: Path) -> None:
    while True:
        with _writing, contextlib.suppress(OSError):  # the parent has ended, and its folder is removed
            write_whole(path, f"{_now.phase} ({_now.count:,} modules)" if _now.count else _now.phase)
        time.sleep(WRITE_EVERY_S)


def end_with_parent(handle: int, folder: Path) -> None:
    """Ends this process and all that it started when the other end of a pipe is closed.

    That happens also when its holder is killed, who then leaves `folder` behind: it is removed.
    """

    def wait() -> None:
        os.read(handle, 1)
        _writing.acquire()  # for good: nothing is written into the folder any more
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # with all that the model's code has started

    threading.Thread(target=wait, daemon=True, name="lifeline").start()
