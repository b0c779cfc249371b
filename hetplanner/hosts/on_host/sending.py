"""What is new in a run's files on a host, as frames for the head. Runs on the host.

Files are of two kinds: some grow (telemetry by whole lines, logs by bytes) and are sent from where the head stands;
some are there whole (the model) and are sent again when they are another. Imports nothing but the standard library.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetplanner.hosts.framing import PIECE_BYTES

ORDER_FILE, STATE_FILE, SEEN_FILE, STOP_FILE, PID_FILE = "node.json", "node-state.json", "head.seen", "stop", "node.pid"
"""Of a run on a host: what its node process does, says, when the head was heard of, a wish to stop, its number."""
HEARTBEATS_NOTE = "node.heartbeats"
"""Says where a node process has its ranks' heartbeats, for the process that ends it."""
TORCHRUN_LOG = "torchrun.txt"
LEASE_S = 60.0
"""A process on a host that has not heard of the head for so long, or as long as the head said, ends."""
GROWS, LINES, WHOLE = "grows", "lines", "whole"
MANIFESTS = "checkpoints/step-*[0-9]/manifest.json"  # of whole checkpoints: step-00000008.part is being written

Frame = tuple[dict[str, Any], bytes]


class Growing:
    """A file that grows.

    Args:
        path: on this host.
        name: for the head.
        at: bytes that the head has.
        most: bytes that the head takes.
        by_lines: send no part of a line: a killed writer's torn line is cut off when another one goes on.
    """

    def __init__(self, path: Path, name: str, at: int, most: int, *, by_lines: bool) -> None:
        self._path, self._name, self._at, self._most, self._by_lines = path, name, at, most, by_lines

    def frames(self) -> Iterator[Frame]:
        """What the head has not."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._at:  # the machine was lost before its disk had it
                self._at = size
                yield {"file": self._name, "at": size, "lost": True}, b""
            file.seek(self._at)
            while piece := file.read(max(0, min(PIECE_BYTES, min(size, self._most) - self._at))):
                if self._by_lines:
                    piece = piece[: piece.rfind(b"\n") + 1]
                    if not piece:
                        return
                    file.seek(self._at + len(piece))
                yield {"file": self._name, "at": self._at}, piece
                self._at += len(piece)


class Whole:
    """A file that is written whole.

    Args:
        path: on this host.
        name: for the head.
        known: (size, time) of what the head has; None: nothing.
    """

    def __init__(self, path: Path, name: str, known: list[int] | None) -> None:
        self._path, self._name, self._known = path, name, known

    def frames(self) -> Iterator[Frame]:
        """The file, if it is another than the head's."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            info = os.fstat(file.fileno())
            mark = [info.st_size, info.st_mtime_ns]
            if mark == self._known:
                return
            at = 0
            while piece := file.read(PIECE_BYTES):
                yield {"file": self._name, "at": at, "mark": mark}, piece
                at += len(piece)
            if at == info.st_size:
                self._known = mark


class Changes:
    """All files of a run that the head wants.

    Args:
        run_dir: the run's folder on this host.
        wanted: rows of name, kind, what the head has of it, and the most bytes that it takes.
    """

    def __init__(self, run_dir: Path, wanted: list[list[Any]]) -> None:
        self._run_dir = run_dir
        self._files: dict[str, Growing | Whole] = {}
        self._manifests: dict[str, Whole] = {}
        self._known_manifests: dict[str, Any] | None = None
        for name, kind, has, most in wanted:
            if name == MANIFESTS:
                self._known_manifests = has or {}
            elif kind == WHOLE:
                self._files[name] = Whole(run_dir / name, name, has)
            else:
                self._files[name] = Growing(run_dir / name, name, has or 0, most, by_lines=kind == LINES)

    def frames(self) -> Iterator[Frame]:
        """What is new since the last time."""
        if self._known_manifests is not None:  # old ones go
            paths = sorted(self._run_dir.glob(MANIFESTS))
            found = {path.relative_to(self._run_dir).as_posix(): path for path in paths}
            before, known = self._manifests, self._known_manifests
            self._manifests = {n: before.get(n) or Whole(p, n, known.get(n)) for n, p in found.items()}
        for file in (*self._files.values(), *self._manifests.values()):
            yield from file.frames()
