"""How busy this host is: processors, memory, network cards and GPUs. One rank of a host writes it. No torch.

Everything that runs on the host counts, not the run alone: other work beside a run explains steps that are late.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from typing import Any

import psutil

from hetplanner.runtime.measure.telemetry import Telemetry

EVERY_S = 1.0
GPUS_EVERY = 5
"""Samples between two looks at the GPUs, which cost a process."""
ANSWER_S = 3.0
"""How long `nvidia-smi` may take; a GPU that hangs is not waited for."""
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
LOOPBACK = "lo"


class HostLoad:
    """Writes a `load` line every second while it is open.

    Fields of a line: `time_s` (unix), `host`, `cpu` and `memory` (shares in use, 0 to 1), `sent` and `received` (bytes
    a second through the network cards), `loopback` (bytes a second between processes of this host), and, where
    `nvidia-smi` answers, `gpus`: [share of time that is busy, share of memory in use] of each.
    """

    def __init__(self, telemetry: Telemetry, host: str) -> None:
        self._telemetry, self._host = telemetry, host
        self._has_gpus = shutil.which(QUERY[0]) is not None
        self._count = 0
        self._closed = threading.Event()
        self._before = (time.monotonic(), *_bytes())
        self._thread = threading.Thread(target=self._run, name="host load", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it; a look at the GPUs may go on for a moment."""
        self._closed.set()

    def _run(self) -> None:
        psutil.cpu_percent()  # counts from here, for this thread
        while not self._closed.wait(EVERY_S):
            self._telemetry.write("load", **self._sample())

    def _sample(self) -> dict[str, Any]:
        before_s, *before = self._before
        now = _bytes()
        self._before = (time.monotonic(), *now)
        seconds = self._before[0] - before_s
        rates = [round(max(0, new - old) / seconds) for new, old in zip(now, before, strict=True)]
        line: dict[str, Any] = {
            "time_s": round(time.time(), 3),
            "host": self._host,
            "cpu": round(psutil.cpu_percent() / 100, 4),
            "memory": round(psutil.virtual_memory().percent / 100, 4),
            **dict(zip(("sent", "received", "loopback"), rates, strict=True)),
        }
        if self._has_gpus and self._count % GPUS_EVERY == 0:
            line["gpus"] = gpu_load()
        self._count += 1
        return line


def gpu_load() -> list[tuple[float, float]]:
    """Share of time busy and share of memory in use of each GPU; empty where `nvidia-smi` does not answer."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=ANSWER_S, check=True)
        rows = [[float(cell) for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        return [(busy / 100, used / total) for busy, used, total in rows]
    except (OSError, subprocess.SubprocessError, ValueError, ZeroDivisionError):
        return []


def _bytes() -> tuple[int, int, int]:
    """Sent and received through network cards since the host's start, and over loopback."""
    cards = dict(psutil.net_io_counters(pernic=True))
    own = cards.pop(LOOPBACK, None)
    sent = sum(card.bytes_sent for card in cards.values())
    received = sum(card.bytes_recv for card in cards.values())
    return sent, received, own.bytes_sent if own is not None else 0
