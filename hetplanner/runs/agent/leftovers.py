"""What the processes of a run leave behind when they are killed, removed once none of them lives."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from hetplanner.atomic_files import remove_drafts
from hetplanner.plan.files.checkpoints import FOLDER as CHECKPOINTS
from hetplanner.plan.files.checkpoints import PART
from hetplanner.runs.directory import RunDirectory
from hetplanner.swarm.wire.certificates import RUN_FOLDER
from hetplanner.swarm.wire.tls_listener import SOCKET_FILE

CLOCK_FILE = "emulation.clocks"
HEARTBEATS_FILE, FORK_SERVERS = "heartbeats", "listener-*"
"""What the launcher of a swarm and its fork server leave when they are killed."""
PARTS = "model-stage-*.safetensors"


def remove_leftovers(directory: RunDirectory, *, is_over: bool) -> None:
    """Removes what no process will read: unfinished files, sockets, clocks, requests to stop; nothing where that fails.

    Args:
        directory: of a run without a living process.
        is_over: it will not be started again by itself: the keys of its processes go too, and what is saved stays.
    """
    path = directory.path
    for folder in (path, path / CHECKPOINTS):
        remove_drafts(folder)
    for unfinished in _unfinished(directory, is_over):
        with contextlib.suppress(OSError):
            if unfinished.is_dir() and not unfinished.is_symlink():
                shutil.rmtree(unfinished)
            else:
                unfinished.unlink(missing_ok=True)


def _unfinished(directory: RunDirectory, is_over: bool) -> Iterator[Path]:
    path = directory.path
    yield from (path / CHECKPOINTS).glob(f"*{PART}")
    yield from (directory.signalled_file, path / CLOCK_FILE, path / SOCKET_FILE, path / HEARTBEATS_FILE)
    yield from path.glob(FORK_SERVERS)
    if not is_over or directory.model_file.exists():  # else the stages' parts are the model
        yield from path.glob(PARTS)
    if is_over:
        yield path / RUN_FOLDER
