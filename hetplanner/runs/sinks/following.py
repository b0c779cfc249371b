"""Processes that follow a run for its sinks, each for one of them; they outlive the terminal that started them.

    python -m hetplanner.runs.sinks.following RUN SINK

They are started by who trains, not by the agent: what a library reads from its environment (keys, addresses, modes) is
that of this terminal, and never travels.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hetplanner.errors import HetplannerError, RunError
from hetplanner.liveness.processes import RUN_MARK
from hetplanner.runs.home import private_directory
from hetplanner.runs.run import Run, open_run
from hetplanner.runs.sinks.record import SINKS_FOLDER, SinkRecord, read_record, write_record
from hetplanner.runs.sinks.sending import send

log = logging.getLogger(__name__)
NICENESS = 19
"""Of processes of sinks: they take no time from ranks that want it."""


class Followers:
    """The processes that follow one run."""

    def __init__(self, run: Run, sinks: Sequence[str]) -> None:
        """Starts one for each sink. Raises RunError."""
        self._run, self._sinks = run, tuple(sinks)
        self._processes = [_start(run, sink) for sink in sinks]

    def problems(self) -> Iterable[str]:
        """What went wrong so far, a line for each sink."""
        return [f"sink {record}" for record in self._records() if record.error]

    def wait(self, timeout_s: float) -> list[str]:
        """How far each has come once they are done, or after so long."""
        deadline = time.monotonic() + timeout_s
        while any(p.poll() is None for p in self._processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        goes_on = dict(zip(self._sinks, (p.poll() is None for p in self._processes), strict=True))
        return [f"{record}{' (goes on)' if goes_on[record.sink] else ''}" for record in self._records()]

    def _records(self) -> list[SinkRecord]:
        found = []
        for sink in self._sinks:
            try:
                found.append(read_record(self._run.path, sink))
            except HetplannerError as error:
                found.append(SinkRecord(sink=sink, error=str(error)[:400]))
        return found


def _start(run: Run, sink: str) -> "subprocess.Popen[bytes]":
    folder = private_directory(run.path / SINKS_FOLDER)
    env = {name: value for name, value in os.environ.items() if name != RUN_MARK}
    try:
        with (folder / f"{sink}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "hetplanner.runs.sinks.following", str(run.path), sink],
                env=env | {"HETPLANNER_HOME": str(run.home), "PYTHONSAFEPATH": "1"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise RunError(f"sink {sink}: its process cannot be started: {error.strerror}") from None
    # While we live a thread takes its exit status, or it would stay as a zombie.
    threading.Thread(target=process.wait, name=f"{sink}-reaper", daemon=True).start()
    return process


def follow_run(run: Run, sink: str) -> None:
    """Sends a run to a sink until it is over, then the runs that go on in its place. Raises InvalidInput, RunError."""
    send(run, sink, follow=True)
    while (successor := run.successor()) is not None:
        run = successor
        send(run, sink, follow=True)


def main(arguments: list[str]) -> int:
    """Exit codes are those of the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(NICENESS)
    path, sink = arguments
    run = open_run(Path(path))
    try:
        follow_run(run, sink)
    except HetplannerError as error:
        log.error("%s", error)
        _tell(run, sink, str(error))
        return error.exit_code
    return 0


def _tell(run: Run, sink: str, text: str) -> None:
    """Leaves the last word where the terminal looks, unless it is there."""
    try:
        record = read_record(run.path, sink)
        if not record.error:
            write_record(run.path, record.replace(error=text[:400]))
    except (HetplannerError, OSError) as error:
        log.error("%s", error)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
