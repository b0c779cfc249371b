"""A host's part of a swarm over hosts: `python -m hetplanner.swarm.launch.host_part RUN_DIR/plan.json`.

The environment says which host this is, its address and that of the coordinator. The plan's first host has the
coordinator and the trainers, every host its peers. They are started again as often as the settings allow.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import InvalidInput, Preempted, RunError
from hetplanner.liveness.notices import NOTICE_VARIABLE
from hetplanner.liveness.swarm import SwarmLiveness
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_elastic_plan
from hetplanner.plan.files.stage_checkpoints import checkpoint_path, of_first_lineage
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.placement import ADDRESS_VARIABLE, COORDINATOR_VARIABLE, HOST_VARIABLE, ranks_by_host
from hetplanner.runtime.watch import STOP_FILE
from hetplanner.runtime.worker import ATTEMPT_VARIABLE
from hetplanner.swarm.decision_file import DECISIONS_FILE
from hetplanner.swarm.initial_state import adopt_from_hosts, begin, take_over, with_initial_weights
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.launch.rehearse import (
    POLL_S,
    PREEMPTED_SAVE_S,
    SAVE_S,
    EndRequests,
    PeerRequests,
    run_to_end,
    start_leading,
    start_peers,
    watch,
    when_there_is_space,
)
from hetplanner.swarm.launch.restarts import Keeper
from hetplanner.swarm.launch.saved_on_hosts import saved_on_hosts
from hetplanner.swarm.spec import spec_of
from hetplanner.swarm.wire.certificates import RUN_FOLDER
from hetplanner.weights.adapters import initial_weights


@dataclass(frozen=True)
class Part:
    """What one host does.

    Attributes:
        address: at which the other hosts reach it.
        coordinator: address and port of the coordinator.
        peers: that run here.
        leads: the coordinator and the trainers run here.
        notice: the cloud that says before it takes this machine away; None: none does.
    """

    address: str
    coordinator: str
    peers: tuple[str, ...]
    leads: bool
    notice: str | None


def part_of(plan: ElasticPlan) -> Part:
    """What the environment says of this host. Raises InvalidInput."""
    name, address = os.environ.get(HOST_VARIABLE, ""), os.environ.get(ADDRESS_VARIABLE, "")
    coordinator = os.environ.get(COORDINATOR_VARIABLE, "")
    hosts = ranks_by_host(plan)
    if name not in hosts:
        raise InvalidInput(f"{HOST_VARIABLE}: {name!r:.80} is no host of the plan ({', '.join(list(hosts)[:8])})")
    if not address or not coordinator.rpartition(":")[2].isdecimal():
        raise InvalidInput(f"{ADDRESS_VARIABLE}, {COORDINATOR_VARIABLE}: must be an address, and ADDRESS:PORT")
    peers = tuple(plan.peers[number] for number in hosts[name])
    return Part(address, coordinator, peers, name == next(iter(hosts)), os.environ.get(NOTICE_VARIABLE) or None)


def places_with_weights(
    plan: ElasticPlan, saved: Mapping[str, frozenset[str]], versions: Mapping[int, Version]
) -> dict[str, int]:
    """Stages of the peers of the start: as planned where a host has that stage's checkpoint, else one that it has.

    Args:
        plan: of the run.
        saved: by host, names of the checkpoints that it has.
        versions: by stage, the checkpoint that all begin with; none where they begin anew.
    """
    places = dict(plan.stage_of_peer)
    names = {stage: checkpoint_path(Path(), stage, version).name for stage, version in versions.items()}
    for host, numbers in ranks_by_host(plan).items():
        held = [stage for stage, name in names.items() if name in saved.get(host, ())]
        for peer in (plan.peers[number] for number in numbers):
            if held and places[peer] not in held:
                places[peer] = held[0]
    return places


def take_part(run_dir: Path) -> None:
    """Runs this host's processes to their end, or until they are stopped.

    Raises:
        InvalidInput: the run cannot begin so.
        Preempted: they were told to end before the last step, or left since the machine is taken away.
        RunError: they cannot go on.
    """
    asked = EndRequests()
    plan, config = load_elastic_plan(run_dir / "plan.json"), load_config(run_dir / "run.json")
    part, spec = part_of(plan), spec_of(plan, config)
    if config.init_from is not None and config.resume is None and not int(os.environ.get(ATTEMPT_VARIABLE, "0")):
        initial_weights(config.init_from, config.adapter, spec.workload)  # of this host
    spec = spec.replace(settings=replace(spec.settings, all_save=True))

    def prepare() -> Rehearsal | None:
        own = spec
        saved = saved_on_hosts(run_dir) if part.leads else {}
        if config.resume is not None:
            earlier = (run_dir / config.resume).resolve()
            take_over(run_dir, earlier)
            if part.leads and not (run_dir / DECISIONS_FILE).exists():
                adopt_from_hosts(run_dir, earlier, spec.num_stages, frozenset[str]().union(*saved.values()))
                saved = {host: frozenset(map(of_first_lineage, names)) for host, names in saved.items()}
        if part.leads:
            ledger = begin(run_dir, spec.num_stages, None, frozenset[str]().union(*saved.values()))
            if ledger.is_finished(config.steps):
                return None
            versions = ledger.checkpoints.get(ledger.version.step, {})
            own = with_initial_weights(spec, ledger).replace(places=places_with_weights(plan, saved, versions))
        certificates = run_dir / RUN_FOLDER
        return Rehearsal(own, run_dir, certificates, host=part.address, coordinator=part.coordinator)

    prepared = when_there_is_space(prepare, asked)
    if prepared is None:
        return
    with prepared as rehearsal:
        if part.leads:
            start_leading(rehearsal, plan)
        start_peers(rehearsal, plan, config, part.peers, part.notice)
        liveness = SwarmLiveness(rehearsal.heartbeats)
        keeper = Keeper(
            rehearsal,
            config.max_restarts,
            lambda: liveness.find_hung(rehearsal.living()),
            has_all=False,
            is_leaving=part.notice is not None,
        )
        requests = PeerRequests(rehearsal, keeper)
        if part.leads:
            watch(rehearsal, keeper, asked, requests)
        else:
            _watch_peers(run_dir, rehearsal, keeper, asked, requests)


def _watch_peers(
    run_dir: Path, rehearsal: Rehearsal, keeper: Keeper, asked: EndRequests, requests: PeerRequests
) -> None:
    """Until all peers are gone: the coordinator ends them, with a checkpoint or the model where they are needed.

    Where all were asked to leave, the user may have one come back until the run is over.
    """
    until_s = float("inf")
    while time.monotonic() < until_s:
        is_stopped = asked.stop or (run_dir / STOP_FILE).exists()
        if is_stopped or asked.preempt:
            until_s = min(until_s, time.monotonic() + (SAVE_S if is_stopped else PREEMPTED_SAVE_S))
        requests.carry_out()
        keeper.look()
        if keeper.has_ended and (is_stopped or asked.preempt or not keeper.may_come_back):
            break
        time.sleep(POLL_S)
    codes = [process.exitcode for name, process in rehearsal.processes.items() if name not in keeper.excused]
    if all(code == 0 for code in codes) or asked.stop or (run_dir / STOP_FILE).exists():
        return
    if asked.preempt or Preempted.exit_code in codes:
        raise Preempted("its peers were told to end")
    raise RunError(f"no peer is left here: {keeper.last_problem()}")


def main() -> int:
    """The command; the exit code is 0 or an error's."""
    parser = argparse.ArgumentParser(prog="hetplanner.swarm.launch.host_part", description="A host's part of a swarm.")
    parser.add_argument("plan", type=Path, help="plan.json in the run's folder")
    return run_to_end(take_part, parser.parse_args().plan.resolve().parent)


if __name__ == "__main__":
    sys.exit(main())
