"""Sends a run's checkpoints to an address beside the training, by a process of its own."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from hetplanner.errors import InvalidInput, last_line
from hetplanner.liveness.processes import end_with_parent
from hetplanner.plan.files.checkpoints import FOLDER, checkpoint_folder
from hetplanner.plan.train import TrainConfig
from hetplanner.storage.address import check_address

BY_AGENT_VARIABLE = "HETPLANNER_COPIES_BY_AGENT"
"""Set for ranks whose network reaches no store: their agent copies what they write."""

Tell = Callable[[dict[str, Any]], None]


def check_store(copy_to: str) -> None:
    """Refuses an address that nothing can be written to; asks the store. Raises InvalidInput."""
    done = subprocess.run(_command(copy_to), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise InvalidInput(f"copy_to: {last_line(done.stderr)}")


class CheckpointCopies:
    """Sends one checkpoint at a time; of those that are written meanwhile only the newest is sent next.

    Args:
        config: of the run; with an address.
        run_dir: of the run, whose name is that of the copy.
        tell: called for every copy with `step`, and either `bytes` and `seconds` or `error`.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, tell: Tell) -> None:
        self.address = f"{check_address(str(config.copy_to))}/{run_dir.name}"
        self._run_dir, self._kept, self._tell = run_dir, config.checkpoints_kept, tell
        self._sending, self._next, self._began_s = -1, -1, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._told: tuple[IO[bytes], IO[bytes]] | None = None

    def look(self, newest: int = -1) -> bool:
        """Tells of a copy that has ended, and begins the next; to be called often.

        Args:
            newest: step of the newest checkpoint; -1: none has come since.

        Returns:
            Whether nothing is left to send.
        """
        if newest > max(self._sending, self._next):
            self._next = newest
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process.returncode)
        if self._process is None and self._next >= 0:
            self._begin()
        return self._process is None

    def stop(self) -> None:
        """Gives up what is on its way."""
        self._next = -1
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._end(self._process.returncode)

    def _begin(self) -> None:
        self._sending, self._next, self._began_s = self._next, -1, time.monotonic()
        self._told = TemporaryFile(), TemporaryFile()  # noqa: SIM115 (closed when they are read)
        self._process = subprocess.Popen(
            [*_command(self.address), f"--step={self._sending}", f"--kept={self._kept}", "--run", str(self._run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=self._told[0],
            stderr=self._told[1],
            preexec_fn=end_with_parent,
        )

    def _end(self, code: int) -> None:
        assert self._told is not None
        out, err = (_content(file) for file in self._told)
        seconds = round(time.monotonic() - self._began_s, 6)
        if code and self._next > self._sending and self._is_pruned(self._sending):
            pass  # steps are faster than copies; the newer checkpoint is sent next
        elif code:
            self._tell({"step": self._sending, "error": last_line(err) if code > 0 else "was ended"})
        else:
            self._tell({"step": self._sending, "seconds": seconds, "bytes": int(out)})
        self._process = None

    def _is_pruned(self, step: int) -> bool:
        """Whether the run keeps nothing of a checkpoint any more."""
        folder = self._run_dir / FOLDER
        stages = folder.glob(f"stage-*-step-{step}.safetensors")  # of a swarm
        return not checkpoint_folder(self._run_dir, step).exists() and not any(stages)


def _command(address: str) -> list[str]:
    return [sys.executable, "-m", "hetplanner.storage.copying", address]


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    content = file.read(10_000)
    file.close()
    return content
