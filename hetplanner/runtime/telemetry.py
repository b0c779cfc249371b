"""Telemetry of one rank: appended to a queue by the training loop, written as JSON lines by a thread.

The queue keeps the loop free of I/O; a line costs it about a microsecond. No torch.
"""

import json
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FLUSH_S = 0.2
MAX_QUEUED = 200_000
"""Oldest lines are dropped beyond this, should the disk stop taking them."""
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
        self._lines: deque[dict[str, Any] | tuple[Any, ...]] = deque(maxlen=MAX_QUEUED)
        torn = attempt > 0 and path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a" if attempt else "x", encoding="utf-8")
        self._writing = threading.Lock()
        self._closed = threading.Event()
        if torn:  # the rank was killed inside a line
            self._file.write("\n")
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

    def set_origin(self, origin_s: float, unix_s: float) -> None:
        """The monotonic time (and its unix time) from which spans count."""
        self.origin_s = origin_s
        self.write("origin", unix_s=unix_s)

    def span(
        self, kind: str, step: int, micro_batch: int, start_s: float, end_s: float, *, num_bytes: int = 0,
        peer: int = -1, stage: int = -1, role: str = "", depth: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        """Queues one span; times are monotonic.

        `depth`: when it ended, micro-batches in flight, receives posted, and messages sent whose buffers are kept.
        """
        self._lines.append((kind, step, micro_batch, start_s, end_s, num_bytes, peer, stage, role, depth))

    def flush(self) -> None:
        """Writes what is queued."""
        with self._writing:
            text = []
            while self._lines:
                line = self._lines.popleft()
                text.append(self._span(*line) if isinstance(line, tuple) else json.dumps(line))
            if text and not self._file.closed:
                self._file.write("\n".join(text) + "\n")
                self._file.flush()

    def _span(
        self, kind: str, step: int, micro_batch: int, start_s: float, end_s: float, num_bytes: int, peer: int,
        stage: int, role: str, depth: tuple[int, int, int] | None,
    ) -> str:  # fmt: skip
        """The line; written by hand, as most lines are spans and `json.dumps` takes several times as long."""
        queues = "" if depth is None else f', "in_flight": {depth[0]}, "posted": {depth[1]}, "held": {depth[2]}'
        return (
            f'{{"type": "span", "rank": {self.rank}, "kind": "{kind}", "step": {step}, "micro_batch": {micro_batch},'
            f' "start_s": {start_s - self.origin_s:.6f}, "end_s": {end_s - self.origin_s:.6f}, "bytes": {num_bytes},'
            f' "peer": {peer}, "stage": {stage}, "role": "{role}"{queues}}}'
        )

    def _run(self) -> None:
        failed = False
        while not self._closed.wait(FLUSH_S):
            try:
                self.flush()
            except OSError as error:  # a full disk must not end the training
                if not failed:
                    log.warning("telemetry cannot be written: %s", error)
                failed = True

    def close(self) -> None:
        """Writes the rest and closes the file."""
        self._closed.set()
        self._thread.join()
        self.flush()
        with self._writing:
            self._file.close()
