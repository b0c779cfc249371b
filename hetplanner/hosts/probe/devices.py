"""Has all devices of this host measured at the same time. Runs on the host."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from hetplanner.errors import RunError

MODULE = "hetplanner.runtime.measure.device_probe"
MAX_DEVICES = 64
MEASURE_S = 300.0
"""Longest time for all devices of a host; a busy one takes longer than ten seconds."""


def measure_devices(count: int) -> list[dict[str, Any]]:
    """What each of this host's devices sustains, see `record.ProbedDevice`; takes about ten seconds on an idle host.

    Args:
        count: devices that the cluster has on this host.

    Raises:
        RunError: one could not be measured, or not within `MEASURE_S`.
    """
    if not 0 < count <= MAX_DEVICES:
        raise RunError(f"measures 1 to {MAX_DEVICES} devices of a host, not {count}")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, str(index), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    limit = threading.Timer(MEASURE_S, _kill_all, [processes])
    limit.start()
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # ready, or the end
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write("\n")
                process.stdin.flush()
        return [_answer(process) for process in processes]
    except RunError:
        if limit.finished.is_set():
            raise RunError(f"its devices were not measured within {MEASURE_S:g} s") from None
        raise
    finally:
        limit.cancel()
        _kill_all(processes)
        for process in processes:
            process.wait()


def _kill_all(processes: "Sequence[subprocess.Popen[str]]") -> None:
    for process in processes:
        process.kill()


def _answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    said, errors = process.communicate()
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise RunError(f"its devices cannot be measured: {last[:300]}") from None
    return found
