"""Telemetry of one rank: appended to a queue by the training loop, written as JSON lines by a thread.

The queue keeps the loop free of I/O; a line costs it about a microsecond. A full disk never ends the training: lines
wait for space, spans are the first to be dropped, and the file tells how many were. No torch.
"""

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from hetplanner.line_files import LineFile

FLUSH_S = 0.2
ALL_SPANS_BELOW = 500


def keeps_spans(step: int) -> bool:
    """Whether the spans of a step are written: all of the first 500, then 2 of 10, from 5,000 on 2 of 100 …

    Always two steps in a row: where a step begins is where the one before it ends. A long run would otherwise write
    gigabytes; the `step` lines are always written.
    """
    every = 1
    while step >= ALL_SPANS_BELOW * every:
        every *= 10
    return step % every < 2


class Telemetry:
    """Writes `rank-<R>.jsonl`.

    Args:
        path: the file; must not exist, but after a restart.
        rank: goes into every span.
        attempt: how often the run was started again; its lines are appended.
    """

    def __init__(self, path: Path, rank: int, attempt: int = 0) -> None:
        self.rank = rank
        self.origin_s = 0.0
        self._lines: deque[dict[str, Any] | tuple[Any, ...]] = deque()
        self._file = LineFile(path, _told, new=not attempt)
        self._writing = threading.Lock()
        self._closed = threading.Event()
        if attempt:
            self.write("restart", attempt=attempt, time_s=time.time())
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def write(self, type_: str, **fields: Any) -> None:
        """Queues one line."""
        self._lines.append({"type": type_, **fields})

    def phase(self, name: str) -> None:
        """Says what the rank begins to do."""
        self.write("phase", name=name, time_s=time.time())
        self.flush()

    def set_origin(self, origin_s: float, unix_s: float, error_s: float = 0.0) -> None:
        """The monotonic time (and its unix time) from which spans count; `error_s`: by how much it may be wrong."""
        self.origin_s = origin_s
        self.write("origin", unix_s=unix_s, **({"error_s": error_s} if error_s else {}))

    def span(
        self, kind: str, step: int, micro_batch: int, start_s: float, end_s: float, *, num_bytes: int = 0,
        peer: int = -1, stage: int = -1, role: str = "", depth: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        """Queues one span; times are monotonic.

        `depth`: when it ended, micro-batches in flight, receives posted, and messages sent whose buffers are kept.
        """
        self._lines.append((kind, step, micro_batch, start_s, end_s, num_bytes, peer, stage, role, depth))

    def flush(self) -> bool:
        """Writes what is queued, as far as the disk takes it. Returns whether all of it is written; raises nothing."""
        with self._writing:
            while self._lines:
                line = self._lines.popleft()
                if isinstance(line, tuple):
                    self._file.add(self._span(*line), may_be_lost=True)
                else:
                    self._file.add(json.dumps(line).encode())
            return self._file.flush()

    def _span(
        self, kind: str, step: int, micro_batch: int, start_s: float, end_s: float, num_bytes: int, peer: int,
        stage: int, role: str, depth: tuple[int, int, int] | None,
    ) -> bytes:  # fmt: skip
        """The line; written by hand, as most lines are spans and `json.dumps` takes several times as long."""
        queues = "" if depth is None else f', "in_flight": {depth[0]}, "posted": {depth[1]}, "held": {depth[2]}'
        return (
            f'{{"type": "span", "rank": {self.rank}, "kind": "{kind}", "step": {step}, "micro_batch": {micro_batch},'
            f' "start_s": {start_s - self.origin_s:.6f}, "end_s": {end_s - self.origin_s:.6f}, "bytes": {num_bytes},'
            f' "peer": {peer}, "stage": {stage}, "role": "{role}"{queues}}}'
        ).encode()

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_S):
            self.flush()

    def close(self) -> None:
        """Writes the rest and closes the file."""
        self._closed.set()
        self._thread.join()
        self.flush()
        with self._writing:
            self._file.close()


def _told(lost: int) -> bytes:
    return json.dumps({"type": "lost", "lines": lost, "time_s": time.time()}).encode()
