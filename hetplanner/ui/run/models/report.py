"""The run report as a file to download, made in a process of its own: fitting the model again takes a second."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from hetplanner.errors import RunError
from hetplanner.runs.home import home_directory

TIMEOUT_S = 120.0
_one_at_a_time = threading.BoundedSemaphore(1)


def made_report(folder: Path, home: Path | None = None) -> bytes:
    """The HTML page of the run in `folder`, which `home` knows. Waits for its turn; raises RunError."""
    if not _one_at_a_time.acquire(timeout=TIMEOUT_S):
        raise RunError("report: other pages are making reports; try again in a moment")
    try:
        with tempfile.TemporaryDirectory(prefix="hetplanner-report-") as made:
            return _made(folder, Path(made) / "report.html", home or home_directory())
    finally:
        _one_at_a_time.release()


def _made(folder: Path, page: Path, home: Path) -> bytes:
    command = [sys.executable, "-m", "hetplanner.cli", "runs", "report", str(folder), "--html", str(page), "--json"]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"HETPLANNER_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"report: took more than {TIMEOUT_S:g} s") from None
    if done.returncode or not page.exists():
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RunError(f"report: {lines[-1][:300] if lines else 'the process ended without a word'}")
    return page.read_bytes()
