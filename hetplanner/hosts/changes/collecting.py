"""Brings what a lost host still has of an earlier run, when it is back: telemetry and logs that were not sent."""

import logging
from pathlib import Path
from typing import Any

from hetplanner.hosts.connection import Connection
from hetplanner.hosts.mirror import Mirror, lost_before, wanted_files
from hetplanner.hosts.transport import Transport
from hetplanner.launchers.hosts_file import place_hosts
from hetplanner.launchers.launch_file import load_launch
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.files.resumable import PLAN_FILE
from hetplanner.plan.files.train_files import CONFIG_FILE, load_config

log = logging.getLogger(__name__)


def collect_rest(run_dir: Path, host: str, transport: Transport) -> None:
    """Brings the rest of a run's files from a host, where the host has any; what is not there is not missed.

    Args:
        run_dir: of a run that is over.
        host: its name in the plan.
        transport: the way to it.

    Raises:
        Unreachable: the host does not answer.
        Unfit, InvalidInput, RunError, OSError: its files cannot be had.
    """
    launch = load_launch(run_dir)
    if launch.is_local or launch.hosts is None or launch.run is None:
        return
    plan, config = load_plan(run_dir / PLAN_FILE), load_config(run_dir / CONFIG_FILE)
    placed = next((one for one in place_hosts(plan, launch.hosts) if one.name == host), None)
    if placed is None:
        return
    wanted = wanted_files(plan, config, placed)
    mirror = Mirror(run_dir, wanted, config.checkpoints_kept, lost_before(run_dir).get(host, {}))
    folder = f"{placed.run_folder}/{launch.run}"

    def take(header: dict[str, Any], body: bytes) -> None:
        if "file" in header:
            mirror.take(header, body)
        elif "state" in header and header.get("lives"):  # the host was cut off, and works on by itself
            connection.send("end", folder=folder)
        elif "state" in header or header.get("ended"):  # a state comes behind all files
            raise _Complete("all is here")

    connection = Connection(placed, transport)
    try:
        connection.send("follow", folder=folder, attempt=0, files=mirror.rows())
        connection.follow(take)
    except _Complete:
        pass
    finally:
        connection.close()
    if mirror.bytes:
        log.info("host %s: %d bytes of run %s came late", host, mirror.bytes, launch.run)


class _Complete(Exception):
    """Ends the following."""
