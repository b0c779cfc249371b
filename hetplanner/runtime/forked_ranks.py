"""Ranks as forks of their launcher, which has loaded torch already: a host loads it once, not once more for each rank.

They are forked while the launcher has one thread, no store and no connection, and wait for their environment until the
hosts have met. An agent of torch begins, watches and ends them, extended as its documentation says:
https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from torch.distributed.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import ProcessFailure, SignalException

from hetplanner.runtime.worker import run_to_exit

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""On these a launcher ends its ranks."""
POLL_S, WAITING_POLL_S = 0.02, 0.2


class ForkedRank:
    """A fork of this process that becomes a rank once it is given its environment.

    Args:
        arguments: of the worker.

    Attributes:
        exit_code: negative for a signal; None: it had not ended at the last look.

    Raises:
        OSError: there may be no more processes.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.exit_code: int | None = None
        reader, self._writer = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # else the fork writes what waits there, too
            stream.flush()
        launcher = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_rank(reader, launcher, arguments)
        os.close(reader)

    def begin(self, environment: Mapping[str, str]) -> None:
        """Has it begin, with these variables on top of the launcher's."""
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._writer, "w", encoding="utf-8") as pipe:
            json.dump(dict(environment), pipe)

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self.exit_code

    def send(self, signum: signal.Signals) -> None:
        """Sends it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)


class ForkAgent(SimpleElasticAgent):
    """Gives forks their place among the ranks and ends them together, as torch's own agent does its programs.

    Args:
        spec: of this host's ranks; they are started once.
        ranks: by local rank.
    """

    def __init__(self, spec: WorkerSpec, ranks: Sequence[ForkedRank]) -> None:
        super().__init__(spec)
        self._ranks = ranks
        self._have_met = threading.Event()
        self._waiting = threading.Thread(target=self._end_with_waiting, name="waiting-ranks", daemon=True)
        self._waiting.start()

    def _end_with_waiting(self) -> None:
        """Ends this process with a rank that is ended before it begins: no handler of a signal runs in a rendezvous."""
        while not self._have_met.wait(WAITING_POLL_S):
            code = next((code for rank in self._ranks if (code := rank.poll()) is not None), None)
            if code is not None:
                os.kill(os.getpid(), -code if code < 0 else signal.SIGTERM)

    def _end_waiting(self) -> None:
        self._have_met.set()
        self._waiting.join()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._end_waiting()
        for signum in HANDLED:
            signal.signal(signum, _end_by_signal)
        for local_rank, rank in enumerate(self._ranks):
            rank.begin(rank_environment(worker_group, local_rank))
        return {local_rank: rank.pid for local_rank, rank in enumerate(self._ranks)}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = [rank.poll() for rank in self._ranks]
        if any(codes):
            first = [local_rank for local_rank, code in enumerate(codes) if code]
            self._shutdown()
            return RunResult(WorkerState.FAILED, failures=self._failures(worker_group, first))
        if None in codes:
            return RunResult(WorkerState.HEALTHY)
        return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in worker_group.workers})

    def _failures(self, worker_group: WorkerGroup, first: list[int]) -> dict[int, ProcessFailure]:
        """By global rank; those that failed by themselves come first."""
        order = first + [local_rank for local_rank in range(len(self._ranks)) if local_rank not in first]
        return {
            worker_group.workers[local_rank].global_rank: ProcessFailure(local_rank, rank.pid, code, os.devnull)
            for local_rank, rank in ((local_rank, self._ranks[local_rank]) for local_rank in order)
            if (code := rank.poll())
        }

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._end_waiting()
        for rank in self._ranks:
            rank.send(death_sig)
        until_s = time.monotonic() + timeout
        while any(rank.poll() is None for rank in self._ranks) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        for rank in self._ranks:
            rank.send(signal.SIGKILL)
        while any(rank.poll() is None for rank in self._ranks):
            time.sleep(POLL_S)


def rank_environment(group: WorkerGroup, local_rank: int) -> dict[str, str]:
    """The variables that torchrun documents, and whether the agent holds the store."""
    spec, worker = group.spec, group.workers[local_rank]
    found = {
        "RANK": worker.global_rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": group.group_rank,
        "ROLE_RANK": worker.role_rank,
        "ROLE_NAME": spec.role,
        "WORLD_SIZE": worker.world_size,
        "LOCAL_WORLD_SIZE": spec.local_world_size,
        "GROUP_WORLD_SIZE": group.group_world_size,
        "ROLE_WORLD_SIZE": worker.role_world_size,
        "MASTER_ADDR": group.master_addr,
        "MASTER_PORT": group.master_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
        "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
    }
    return {name: str(value) for name, value in found.items()}


def _end_by_signal(signum: int, frame: FrameType | None) -> None:
    raise SignalException(f"process {os.getpid()} got signal {signum}", signal.Signals(signum))


def _become_rank(environment: int, launcher: int, arguments: Sequence[str]) -> NoReturn:
    """In the fork: reads its environment from a pipe, then runs a rank to its end."""
    code: object = 1
    try:
        os.setsid()
        _close_all_but(environment)  # a pipe is read to its end only when no process holds its other end
        with os.fdopen(environment, encoding="utf-8") as pipe:
            text = pipe.read()
        if text and os.getppid() == launcher:
            os.environ.update(json.loads(text))
            run_to_exit(list(arguments))
    except SystemExit as end:  # of the command line
        code = end.code
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _close_all_but(kept: int) -> None:
    """Closes all descriptors but one and those of the terminal, as a program that is started has them."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # that of the listing is closed already
                os.close(number)
