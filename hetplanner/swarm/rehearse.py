"""Runs the elastic plan of a run directory on this machine: `python -m hetplanner.swarm.rehearse RUN_DIR`.

All peers of the plan's start, its trainers and the coordinator are processes of this one; speeds of devices and links
between them are emulated where the settings say so. A file `stop` in the folder, SIGTERM or SIGINT end the run after
the step that is being closed; the coordinator saves the model first. Lines of the file `asked.jsonl` have peers leave,
or kill them.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path

from hetplanner.cost.swarm_costs import expected_speeds
from hetplanner.errors import HetplannerError, RunError
from hetplanner.plan.files import load_elastic_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.watch import SIGNALLED_FILE, STOP_FILE
from hetplanner.runtime.worker import ATTEMPT_VARIABLE
from hetplanner.schema import check_format, checked, parse_json, read_text
from hetplanner.swarm.asked import Asked, asked_so_far
from hetplanner.swarm.rehearsal import Rehearsal
from hetplanner.swarm.spec import spec_of

log = logging.getLogger(__name__)

POLL_S = 0.1
SAVE_S = 2.5
"""After a stop every process of a run is to be gone within 5 s."""
RUN_VERSION = 1


def read_config(path: Path) -> TrainConfig:
    """The settings in a run.json. Raises InvalidInput."""
    fields = check_format(parse_json(read_text(path), path.name), "run", RUN_VERSION, path.name)
    return checked(TrainConfig, {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}, path.name)


def rehearse(run_dir: Path) -> None:
    """Plays a run to its end, or until it is stopped. Raises InvalidInput, RunError."""
    plan, config = load_elastic_plan(run_dir / "plan.json"), read_config(run_dir / "run.json")
    speeds = expected_speeds(plan) if config.emulate_links else {}
    cluster = plan.problem.cluster
    with Rehearsal(spec_of(plan, config), run_dir, cluster=cluster if config.emulate_links else None) as rehearsal:
        rehearsal.start_coordinator()
        for number in range(plan.wiring.trainers):
            rehearsal.start_trainer(f"trainer-{number}", plan.wiring.slots)
        for peer in plan.peers:
            kind = cluster.devices[cluster.device_index(peer)].kind
            rehearsal.start_peer(peer, speeds.get(peer), device=config.device_for(kind))
        _watch(rehearsal, run_dir)


def _watch(rehearsal: Rehearsal, run_dir: Path) -> None:
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(1))
    coordinator = rehearsal.processes["coordinator"]
    attempt, done = int(os.environ.get(ATTEMPT_VARIABLE, "0")), 0
    while coordinator.exitcode is None:
        asked = asked_so_far(run_dir, attempt)
        for one in asked[done:]:
            _carry_out(rehearsal, one)
        done = len(asked)
        if stopped or any((run_dir / name).exists() for name in (STOP_FILE, SIGNALLED_FILE)):
            rehearsal.signal("coordinator", signal.SIGTERM)
            coordinator.join(SAVE_S)
            return
        time.sleep(POLL_S)
    if coordinator.exitcode:
        raise RunError(f"coordinator: ended with {coordinator.exitcode}; see log-0.txt")


def _carry_out(rehearsal: Rehearsal, asked: Asked) -> None:
    """Has a peer leave between two steps, or kills it; only what this process started as a peer can be named."""
    if asked.peer not in rehearsal.peers:
        log.warning("%s: there is no such peer", asked.peer)
        return
    log.info("%s: %s", asked.peer, asked.act)
    rehearsal.signal(asked.peer, signal.SIGKILL if asked.act == "kill" else signal.SIGINT)


def main() -> int:
    """The command; the exit code is 0 or an error's."""
    parser = argparse.ArgumentParser(prog="hetplanner.swarm.rehearse", description="An elastic plan on this machine.")
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir.resolve()
    try:
        rehearse(run_dir)
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
