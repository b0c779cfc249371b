"""The node process: runs a host's torchrun, watches its ranks, and ends them when it must. Runs on the host.

It outlives the ssh that started it. What it knows is in `node-state.json`; what is wanted of it comes by files and
signals, so that nothing is lost when the head is out of reach:

    stop               the run's user wants it to stop: ranks end their step and save, and are killed if they do not
    SIGTERM            a scheduler or cloud takes the machines away: ranks save what they hold and end
    head.seen          touched whenever the head was heard of; without it for the lease the run is ended
"""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetplanner.atomic_files import write_whole
from hetplanner.errors import Preempted
from hetplanner.hosts.on_host.sending import (
    HEARTBEATS_NOTE,
    LEASE_S,
    ORDER_FILE,
    SEEN_FILE,
    STATE_FILE,
    STOP_FILE,
    TORCHRUN_LOG,
)
from hetplanner.liveness.heartbeat import HEARTBEAT_VARIABLE, Beat, create_heartbeats, new_heartbeats, remove_heartbeats
from hetplanner.liveness.processes import processes_of_run, send_signal, start_in_session
from hetplanner.liveness.ranks import LivenessWatch

log = logging.getLogger(__name__)

TICK_S = 0.1
GRACE_S, GRACE_BEFORE_TRAINING_S, TERMINATE_S = 3.2, 0.3, 0.3
"""After a stop ranks have so long, are told by a signal, and then killed: within 5 s of it no process is left."""
PREEMPTION_S = 25.0
ALONE_S = 6.0
"""Ranks whose torchrun was killed end their step, save and exit; after so long they are killed."""
SWEEP_S = 2.0
MAX_LOG_BYTES = 256 * 1024
_FAILED = re.compile(r"^\s*(?:\S+\])?\s*rank\s*: \d+ \(local_rank: (\d+)\)\s*$")
_EXIT_CODE = re.compile(r"^\s*(?:\S+\])?\s*exitcode\s*: (-?\d+) ")
_WORDS = re.compile(r"^(?:\[\S+\]:)?hetplanner worker: (.{1,1000})$")


@dataclass
class State:
    """What the head is told.

    Attributes:
        attempt: of the run.
        ended: the torchrun is gone, and with it every process of the run on this host.
        exit_code: the torchrun's; None: it was not seen.
        ranks: exit codes of ranks that are known to have ended.
        words: why a rank refused, or torchrun ended before there were any, as they said.
        lost: rank (or None) and words about one that was given up.
        stands: why nothing gets on here; empty: something does, or may.
        warnings: sentences about ranks that hold the run up.
    """

    attempt: int
    ended: bool = False
    exit_code: int | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    lost: tuple[int | None, str] | None = None
    stands: str = ""
    warnings: list[str] = field(default_factory=list)


class Keeper:
    """A host's part of one attempt of a run.

    Args:
        run_dir: the run's folder on this host, with its order: argv, env, attempt, ranks, num_ranks, names, lease_s.
            Without ranks it is a part of a swarm, which looks after its processes by itself.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        order = json.loads((run_dir / ORDER_FILE).read_text(encoding="utf-8"))
        self.argv: list[str] = order["argv"]
        self.env: dict[str, str] = order["env"]
        self.ranks: list[int] = order["ranks"]
        self._lease_s: float = order.get("lease_s", LEASE_S)
        self._is_swarm = not self.ranks
        self.state = State(order["attempt"])
        self._written = ""
        self._heartbeats = Path(new_heartbeats(run_dir))
        (run_dir / HEARTBEATS_NOTE).write_text(str(self._heartbeats), encoding="utf-8")
        create_heartbeats(self._heartbeats, max(1, order["num_ranks"]))
        self._watch = LivenessWatch(self._heartbeats, order["names"], knows_all=False)
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._seen, self._seen_s = 0, time.monotonic()
        self._terminate_at_s = self._kill_at_s = float("inf")
        self._is_stopped = self._is_told = False

    def run(self) -> None:
        """Runs the torchrun to its end."""
        signal.signal(signal.SIGTERM, self._preempt)
        try:
            env = self.env | {HEARTBEAT_VARIABLE: str(self._heartbeats)}
            self._torchrun = start_in_session(
                self.argv, env, self.run_dir, self.run_dir / TORCHRUN_LOG, ends_with_parent=True
            )
            while self._torchrun.poll() is None:
                self._look(self._torchrun.pid)
                time.sleep(TICK_S)
            self._end(self._torchrun.returncode)
        finally:
            remove_heartbeats(self._heartbeats)

    # -- while it runs ----------------------------------------------------------------------------

    def _look(self, pid: int) -> None:
        now_s = time.monotonic()
        if not self._is_stopped and (self.run_dir / STOP_FILE).exists():
            self._is_stopped = True
            trains = self._is_swarm or any(beat.steps for beat in self._beats())
            self._terminate_at_s = now_s + (GRACE_S if trains else GRACE_BEFORE_TRAINING_S)
            self._kill_at_s = self._terminate_at_s + TERMINATE_S
        if not self._head_was_seen(now_s):
            self._kill_at_s = min(self._kill_at_s, now_s)
        if now_s >= self._kill_at_s:
            self._kill()
        elif now_s >= self._terminate_at_s:
            self._terminate_at_s = float("inf")
            send_signal(self._processes(), signal.SIGTERM)
        elif self.state.lost is None and not self._is_swarm:
            self._look_for_lost(pid)
        self._write()

    def _look_for_lost(self, pid: int) -> None:
        lost = self._watch.find_lost(self.state.attempt, pid)
        self.state.warnings = list(self._watch.warnings())
        self.state.stands = self._watch.stall_text()
        if lost is not None and not self._is_stopped:
            log.warning("%s", lost.message)
            self.state.lost = lost.rank, lost.message
            self._kill()

    def _head_was_seen(self, now_s: float) -> bool:
        try:
            seen = (self.run_dir / SEEN_FILE).stat().st_mtime_ns
        except OSError:
            seen = 0
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        return now_s - self._seen_s < self._lease_s

    def _preempt(self, signum: int, frame: object) -> None:
        if self._is_told:
            return
        self._is_told = True
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + PREEMPTION_S)
        found, own = self._processes(), self._torchrun.pid if self._torchrun is not None else None
        launcher = [process for process in found if process.pid == own]
        ranks = [process for process in found if process.pid != own]
        send_signal(launcher if self._is_swarm else ranks or found, signal.SIGTERM)

    # -- its end ----------------------------------------------------------------------------------

    def _end(self, exit_code: int) -> None:
        """No process of the run stays; then the head is told how it ended."""
        grace_s = ALONE_S if exit_code < 0 and self.state.lost is None and not self._is_stopped else 0.0
        saving_s = time.monotonic() + grace_s
        while time.monotonic() < saving_s and self._may_save() and self._processes():
            time.sleep(TICK_S)
        deadline_s = time.monotonic() + SWEEP_S
        while self._processes() and time.monotonic() < deadline_s:
            self._kill()
            time.sleep(TICK_S / 2)
        text = _last_text(self.run_dir / TORCHRUN_LOG)
        told = {rank: beat.exit_code for rank, beat in enumerate(self._beats()) if beat.exit_code is not None}
        self.state.ranks = told | exit_codes(text, self.ranks)
        self.state.words = worker_words(text)
        if exit_code and not self.state.ranks and not self.state.words:  # no rank was started
            self.state.words = [line.strip()[:1000] for line in text.splitlines() if line.strip()][-1:]
        self.state.exit_code, self.state.ended, self.state.stands = exit_code, True, ""
        self.state.warnings = []
        self._write()

    def _may_save(self) -> bool:
        return any(beat.pid and beat.exit_code is None and beat.steps for beat in self._beats())

    def _beats(self) -> list[Beat]:
        return [] if self._is_swarm else self._watch.beats(self.state.attempt)

    def _processes(self) -> Sequence[Any]:
        return processes_of_run(self.run_dir, self._torchrun.pid if self._torchrun is not None else None)

    def _kill(self) -> None:
        send_signal(self._processes(), signal.SIGKILL)

    def _write(self) -> None:
        text = json.dumps(vars(self.state))
        if text != self._written:
            with contextlib.suppress(OSError):  # a full disk: tried again at the next look
                write_whole(self.run_dir / STATE_FILE, text, mode=0o600)
                self._written = text


def exit_codes(text: str, ranks: Sequence[int]) -> dict[int, int]:
    """Exit codes by the plan's rank, from torchrun's summary of failures.

    Args:
        text: of torchrun's log.
        ranks: of this host, by local rank.
    """
    codes: dict[int, int] = {}
    local = -1
    for line in text.splitlines():
        if found := _FAILED.match(line):
            local = int(found[1])
        elif 0 <= local < len(ranks) and (found := _EXIT_CODE.match(line)):
            codes[ranks[local]] = int(found[1])
            local = -1
    return codes


def worker_words(text: str) -> list[str]:
    """What ranks told the terminal, in a torchrun's log: the last lines."""
    return [found[1] for line in text.splitlines() if (found := _WORDS.match(line))][-8:]


def _last_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def keep(run_dir: Path) -> int:
    """Runs a host's part of a run to its end; the node process."""
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    keeper = Keeper(run_dir)
    keeper.run()
    return Preempted.exit_code if keeper.state.exit_code is None else 0
