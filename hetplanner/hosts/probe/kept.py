"""A probe of a cluster whose record is kept in a file after every round: what the command and the page have in common.

site_of, devices_of = targets(cluster, "all")
session = Probe(place_cluster(cluster, hosts), site_of, hosts.ssh_config)
run_kept(session, new_record(cluster), devices_of, file, all_pairs=False, tell=tell)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hetplanner.cluster.model import Cluster, Device
from hetplanner.hosts.probe.measuring import Job, Probe
from hetplanner.hosts.probe.record import Record, check_record, load_record, save_record

ONLY = ("all", "devices", "links")
"""What can be measured."""


def new_record(cluster: Cluster) -> Record:
    """A record in which nothing is measured yet."""
    hosts = tuple(host.id for host in cluster.hosts)
    return Record(cluster=cluster.name, hosts=hosts, begun_unix_s=round(time.time(), 1))


def kept_record(path: Path, cluster: Cluster) -> Record:
    """The record in a file, to go on from. Raises InvalidInput: it is damaged, or of other hosts."""
    record = load_record(path)
    check_record(record, cluster, str(path))
    return record


def when_text(record: Record) -> str:
    """When a probe was begun, in words."""
    return datetime.fromtimestamp(record.begun_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def targets(cluster: Cluster, only: str) -> tuple[dict[str, str], dict[str, list[Device]]]:
    """What is measured: hosts with their sites, whose links are, and hosts with their devices.

    Args:
        cluster: whose.
        only: of `ONLY`.
    """
    site_of = {host.id: host.site for host in cluster.hosts} if only != "devices" else {}
    devices_of: dict[str, list[Device]] = {}
    for device in cluster.devices if only != "links" else ():
        devices_of.setdefault(device.host, []).append(device)
    return site_of, devices_of


def run_kept(
    session: Probe,
    record: Record,
    devices_of: Mapping[str, Sequence[Device]],
    path: Path,
    *,
    all_pairs: bool,
    tell: Callable[[Record, Job], bool],
) -> Record:
    """Measures what a record lacks, and writes it to a file before the first round and after each.

    Args:
        session: the connections.
        record, devices_of, all_pairs: see `Probe.run`.
        path: the file.
        tell: as of `Probe.run`; called when the file is written.

    Raises:
        InvalidInput: the file cannot be written.
        RunError: a host went away, or refused to measure.
    """

    def keep(now: Record, job: Job) -> bool:
        save_record(now, path)
        return tell(now, job)

    return session.run(record, devices_of, all_pairs=all_pairs, tell=keep)
