"""Asking all hosts of a plan at the same time whether they can run it, and whether they reach each other."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from hetplanner.data.digits import WORD as DIGITS
from hetplanner.data.need import TokenNeed, need_of
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.hosts.checks import Facts, Found, problems, told_at_once, warnings
from hetplanner.hosts.connection import Connection
from hetplanner.hosts.transport import SshTransport, Unfit, Unreachable
from hetplanner.launchers.hosts_file import Hosts, PlacedHost
from hetplanner.launchers.launch_file import load_launch
from hetplanner.launchers.ssh import placed_over_ssh
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.placement import planned_gpus, stages_on_host
from hetplanner.plan.train import TrainConfig
from hetplanner.schema import checked

log = logging.getLogger(__name__)

REACH_S = 12.0
"""Seconds that a host has to reach another: WireGuard repeats a lost first handshake after 5."""
MOST_AT_ONCE = 64
ResultT = TypeVar("ResultT")


def at_once(act: Callable[[PlacedHost], ResultT], hosts: Sequence[PlacedHost]) -> dict[str, ResultT]:
    """Does something for all hosts at the same time; results by name."""
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(hosts))) as pool:
        return dict(zip((host.name for host in hosts), pool.map(act, hosts), strict=True))


# -- asking ---------------------------------------------------------------------------------------


def question(
    plan: AnyPlan, config: TrainConfig, host: PlacedHost, port: int | None, resume: str | None
) -> dict[str, Any]:
    """What a host is asked before it runs its part of a plan.

    Args:
        port: of the store, or the coordinator; None where it need not be free.
        resume: the run to go on from, by the name of its folder.
    """
    return {
        "address": host.address,
        "port": port if host.node == 0 else None,
        "data": _asked_data(plan, config) if reads_data(plan, host) else None,
        "gpus": bool(planned_gpus(plan, config.device, host.ranks)),
        "folder": host.run_folder,
        "resume": resume,
        "swarm": resume,
    }


def ask_facts(connection: Connection, asked: dict[str, Any]) -> Found:
    """What a host says, and how far its clock is off. Raises Unreachable, Unfit."""
    began_unix_s, began_s = time.time(), time.monotonic()
    clock = float(connection.ask("ping", id=0)["unix_s"])
    took_s = time.monotonic() - began_s
    answer = connection.ask("check", **asked).get("facts")
    try:
        facts = checked(Facts, answer, "its answer")
    except InvalidInput as error:
        raise Unfit(str(error)) from None
    return Found(connection.host, facts, None, clock - (began_unix_s + took_s / 2), took_s / 2)


def reads_data(plan: AnyPlan, host: PlacedHost) -> bool:
    """Whether one of its ranks reads inputs or labels; of a swarm its trainers do, on the first host."""
    if isinstance(plan, ElasticPlan):
        return host.node == 0
    return not stages_on_host(plan, host.ranks).isdisjoint({0, len(plan.stages) - 1})


def _asked_data(plan: AnyPlan, config: TrainConfig) -> dict[str, str]:
    if config.data == DIGITS or (config.data is None and not isinstance(need_of(plan.problem.workload), TokenNeed)):
        return {"kind": "digits"}
    return {"kind": "sources"} if config.data is None else {"kind": "path", "path": config.data}


def resumed_run(config: TrainConfig) -> str | None:
    """Name, on every host, of the run that settings go on from. Raises InvalidInput: it was not on hosts."""
    if config.resume is None:
        return None
    launch = load_launch(Path(config.resume))
    if launch.is_local or launch.run is None:
        raise InvalidInput(
            f"resume: {config.resume} ran on this machine, and its checkpoints are here; go on with --launcher local"
        )
    return launch.run


def check_hosts(plan: AnyPlan, config: TrainConfig, hosts: Hosts, own_version: str) -> list[str]:
    """Asks all hosts whether they can run the plan, and each whether it reaches the others; takes seconds.

    Args:
        plan, config: what shall run.
        hosts: where.
        own_version: of hetplanner here.

    Returns:
        Warnings.

    Raises:
        InvalidInput: everything that is wrong, on any of them.
    """
    placed = placed_over_ssh(plan, config, hosts)
    resume = resumed_run(config)
    connections: dict[str, Connection] = {}

    def look(host: PlacedHost) -> Found:
        try:
            connections[host.name] = connection = Connection(host, SshTransport(hosts.ssh_config))
            return ask_facts(connection, question(plan, config, host, hosts.port, resume))
        except (Unreachable, Unfit) as error:
            return Found(host, error=error)

    try:
        found = list(at_once(look, placed).values())
        told = problems(plan, config, found, own_version)
        if not told and len(placed) > 1:
            _try_reach(found, connections)
            told = problems(plan, config, found, own_version)
    finally:
        for connection in connections.values():
            connection.close()
    if told:
        raise InvalidInput(told_at_once(told))
    return warnings(found)


def _try_reach(found: Sequence[Found], connections: Mapping[str, Connection]) -> None:
    """Has every host try to reach every other at its address."""
    numbers = {each.host.name: each.facts.address for each in found if each.facts is not None}
    hosts = [each.host for each in found]

    def listen(host: PlacedHost) -> list[Any]:
        answer = connections[host.name].ask("listen", address=numbers[host.name])
        return [host.name, numbers[host.name], int(answer["port"]), str(answer["token"])[:64]]

    def reach(host: PlacedHost) -> dict[str, str]:
        others = [row for name, row in doors.items() if name != host.name]
        answer = connections[host.name].ask("reach", others=others, timeout_s=REACH_S)["unreached"]
        return {str(name)[:120]: str(why)[:200] for name, why in answer.items() if name in doors}

    try:
        doors = at_once(listen, hosts)
        unreached = at_once(reach, hosts)
    except (HetplannerError, LookupError, ValueError, AttributeError) as error:
        log.warning("whether the hosts reach each other is not known: %s", error)
        return
    for each in found:
        each.unreached = unreached[each.host.name]
