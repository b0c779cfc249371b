"""Runs the elastic plan of a run directory on this machine: `python -m hetplanner.swarm.launch.rehearse RUN_DIR`.

All peers of the plan's start, its trainers and the coordinator are processes of this one, which starts them again as
often as the settings allow; speeds of devices and links between them are emulated where the settings say so. A file
`stop` in the folder or SIGINT end the run after the step that is being closed, with the model; SIGTERM with a
checkpoint, from which it goes on when it is started again. Lines of the file `asked.jsonl` have peers leave, or kill
them.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hetplanner.cost.elastic.swarm_costs import expected_speeds
from hetplanner.errors import HetplannerError, Preempted, RunError
from hetplanner.liveness.swarm import SwarmLiveness
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_elastic_plan
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.watch import STOP_FILE
from hetplanner.runtime.worker import ATTEMPT_VARIABLE
from hetplanner.swarm.initial_state import begin, read_ledger, with_initial_weights
from hetplanner.swarm.launch.rehearsal import COORDINATOR, Rehearsal, keep_sockets_in, remove_sockets
from hetplanner.swarm.launch.requests import PeerOrder, orders_so_far
from hetplanner.swarm.launch.restarts import Keeper
from hetplanner.swarm.spec import spec_of
from hetplanner.swarm.wire.certificates import run_certificates

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.1
SAVE_S = 2.5
"""After a stop every process of a run is to be gone within 5 s."""
SPACE_POLL_S = 1.0
PREEMPTED_SAVE_S = 25.0
"""So long the coordinator has for the step that is being closed and a checkpoint of it."""


class EndRequests:
    """What this process was told by signals, from its first moment on."""

    def __init__(self) -> None:
        self.stop = self.preempt = False
        signal.signal(signal.SIGINT, lambda *_: setattr(self, "stop", True))
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "preempt", True))


def rehearse(run_dir: Path) -> None:
    """Plays a run to its end, or until it is stopped.

    Raises:
        InvalidInput: the run cannot begin so.
        Preempted: it was told to end before its last step.
        RunError: it cannot go on.
    """
    asked = EndRequests()
    plan, config = load_elastic_plan(run_dir / "plan.json"), load_config(run_dir / "run.json")
    spec = spec_of(plan, config)
    links_of = plan.problem.cluster if config.emulate_links else None

    def prepare() -> Rehearsal | None:
        ledger = begin(run_dir, spec.num_stages, config.resume)
        if ledger.is_finished(config.steps):
            return None
        return Rehearsal(with_initial_weights(spec, ledger), run_dir, run_certificates(run_dir), links_of)

    prepared = when_there_is_space(prepare, asked)
    if prepared is None:
        return
    with prepared as rehearsal:
        start_leading(rehearsal, plan)
        start_peers(rehearsal, plan, config, plan.peers)
        liveness = SwarmLiveness(rehearsal.heartbeats)
        keeper = Keeper(rehearsal, config.max_restarts, lambda: liveness.find_hung(rehearsal.living()))
        watch(rehearsal, keeper, asked, PeerRequests(rehearsal, keeper))


def when_there_is_space(work: Callable[[], T], asked: EndRequests) -> T:
    """Does it, as soon as the disk takes it. Raises RunError where it is something else, or the run is to end."""
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or asked.stop or asked.preempt:
                raise RunError(f"the swarm cannot begin: {error}") from None
            log.warning("the swarm waits for space on its disk: %s", error)
            time.sleep(SPACE_POLL_S)


def start_leading(rehearsal: Rehearsal, plan: ElasticPlan) -> None:
    """Starts the coordinator and the trainers."""
    rehearsal.start_coordinator()
    for number in range(plan.wiring.trainers):
        rehearsal.start_trainer(f"trainer-{number}", plan.wiring.slots)


def start_peers(
    rehearsal: Rehearsal, plan: ElasticPlan, config: TrainConfig, peers: Sequence[str], notice: str | None = None
) -> None:
    """Starts some of the plan's peers. `notice`: see `Rehearsal.start_peer`."""
    cluster = plan.problem.cluster
    speeds = expected_speeds(plan) if config.emulate_links else {}
    for peer in peers:
        kind = cluster.devices[cluster.device_index(peer)].kind
        rehearsal.start_peer(
            peer,
            speeds.get(peer),
            device=config.device_for(kind),
            notice=notice,
            degree=plan.problem.degree_of(peer),
            sharding=plan.problem.sharding_of(peer),
        )


class PeerRequests:
    """Carries out what is asked of the peers that run here; what was asked before is not for these processes."""

    def __init__(self, rehearsal: Rehearsal, keeper: Keeper) -> None:
        self.rehearsal, self.keeper = rehearsal, keeper
        self._attempt = int(os.environ.get(ATTEMPT_VARIABLE, "0"))
        self._done = len(orders_so_far(rehearsal.run_dir, self._attempt))

    def carry_out(self) -> None:
        """Does what is new; to be called often."""
        wanted = orders_so_far(self.rehearsal.run_dir, self._attempt)
        for one in wanted[self._done :]:
            self._carry_out(one)
        self._done = len(wanted)

    def _carry_out(self, asked: PeerOrder) -> None:
        """Has a peer leave between two steps, kills it or starts it again; it must be one that was started here."""
        if asked.peer not in self.rehearsal.peers:
            log.warning("%s: there is no such peer", asked.peer)
            return
        log.info("%s: %s", asked.peer, asked.act)
        if asked.act == "rejoin":
            self.keeper.bring_back(asked.peer)
            return
        self.keeper.expect_end(asked.peer)
        self.rehearsal.signal(asked.peer, signal.SIGKILL if asked.act == "kill" else signal.SIGINT)


def watch(rehearsal: Rehearsal, keeper: Keeper, asked: EndRequests, requests: PeerRequests) -> None:
    """Until the coordinator has ended well, or was told to end."""
    run_dir, told = rehearsal.run_dir, ""
    while not told and rehearsal.processes[COORDINATOR].exitcode != 0:
        requests.carry_out()
        if asked.stop or (run_dir / STOP_FILE).exists():
            told = "told to end by SIGINT"
            _end_coordinator(rehearsal, signal.SIGINT, SAVE_S)
        elif asked.preempt:
            told = "told to end by SIGTERM"
            _end_coordinator(rehearsal, signal.SIGTERM, PREEMPTED_SAVE_S)
        else:
            keeper.look()
            time.sleep(POLL_S)
    if (run_dir / STOP_FILE).exists() or read_ledger(run_dir).is_finished(rehearsal.spec.train.steps):
        return
    if told:
        raise Preempted(f"{told}, {_progress(rehearsal)}")
    raise RunError(f"coordinator: ended {_progress(rehearsal)}; see log-0.txt")


def _end_coordinator(rehearsal: Rehearsal, number: signal.Signals, patience_s: float) -> None:
    """Tells it once: it closes the step and saves."""
    rehearsal.signal(COORDINATOR, number)
    rehearsal.processes[COORDINATOR].join(patience_s)


def _progress(rehearsal: Rehearsal) -> str:
    step = read_ledger(rehearsal.run_dir).version.step
    return f"after step {step} of {rehearsal.spec.train.steps}"


def main() -> int:
    """The command; the exit code is 0 or an error's."""
    parser = argparse.ArgumentParser(
        prog="hetplanner.swarm.launch.rehearse", description="An elastic plan on this machine."
    )
    parser.add_argument("run_dir", type=Path)
    return run_to_end(rehearse, parser.parse_args().run_dir.resolve())


def run_to_end(work: Callable[[Path], None], run_dir: Path) -> int:
    """Does the work of a process that holds one rehearsal; returns its exit code, and its last line tells an error."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    keep_sockets_in(run_dir)
    try:
        work(run_dir)
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")  # the last line says why it ended
        return error.exit_code
    finally:
        remove_sockets(run_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
