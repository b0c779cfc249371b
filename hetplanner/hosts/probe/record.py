"""What a probe has found so far: `hetplanner/probe@1`, SI units. It is written after every round, and gone on from."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hetplanner.cluster.model import Cluster
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, checked_json, read_text, write_text

PROBE_VERSION = 1
MAX_PROBE_BYTES = 2**26

Rate = Annotated[float, Field(strict=True, gt=0, le=1e15)]
Time = Annotated[float, Field(strict=True, ge=0, le=1e6)]


class ProbedLink(Noun):
    """From one host to another.

    Attributes:
        latency_s: one way, half of the median round trip.
        latency_spread_s: one way, from the 10th to the 90th of 100 round trips.
        bytes_per_s: of one connection.
        several_bytes_per_s: of `streams` connections at once.
    """

    from_host: Name
    to_host: Name
    latency_s: Time
    latency_spread_s: Time
    bytes_per_s: Rate
    several_bytes_per_s: Rate
    streams: Annotated[int, Field(strict=True, ge=1, le=256)]


class ProbedTogether(Noun):
    """Connections out of a host or a site, or into it, one by one and at once; bytes per second of all.

    Attributes:
        host, site: which; the other one is None.
    """

    host: Name | None = None
    site: Name | None = None
    way: Annotated[str, Field(pattern="out|in")]
    connections: Annotated[int, Field(strict=True, ge=1, le=1024)]
    one_by_one_bytes_per_s: Rate
    together_bytes_per_s: Rate


class ProbedDevice(Noun):
    """What a device does while the others of its host do the same.

    Attributes:
        name: as torch calls it; cpu for a processor.
        flops_per_s: of matrix products, by dtype.
        efficiency: share of it that a transformer's block keeps, forward and backward.
        memory_bandwidth_bytes_per_s: of a copy, reads and writes.
    """

    device: Name
    name: Annotated[str, Field(max_length=200)]
    flops_per_s: Annotated[dict[DType, Rate], Field(min_length=1, max_length=16)]
    efficiency: Annotated[float, Field(strict=True, gt=0, le=1)]
    memory_bandwidth_bytes_per_s: Rate
    memory_bytes: Rate


class Record(Noun):
    """All that was measured.

    Attributes:
        cluster: its name.
        hosts: its hosts, in file order.
        begun_unix_s: when.
    """

    cluster: Name
    hosts: Annotated[tuple[Name, ...], Field(min_length=1, max_length=4096)]
    begun_unix_s: Annotated[float, Field(strict=True, ge=0, le=1e11)]
    devices: tuple[ProbedDevice, ...] = ()
    links: tuple[ProbedLink, ...] = ()
    together: tuple[ProbedTogether, ...] = ()


def save_record(record: Record, path: Path) -> None:
    """Writes the file. Raises InvalidInput: it cannot be written."""
    fields = {"format": f"hetplanner/probe@{PROBE_VERSION}"} | record.model_dump(mode="json", exclude_none=True)
    write_text(path, json.dumps(fields, indent=1) + "\n")


@reader("probe's record", at="path")
def load_record(path: Path) -> Record:
    """Reads the file. Raises InvalidInput."""
    return checked_json(Record, read_text(path, MAX_PROBE_BYTES), "probe", PROBE_VERSION, path.name)


def check_record(record: Record, cluster: Cluster, place: str) -> None:
    """Refuses a record of other hosts or devices. Raises InvalidInput."""
    hosts = {host.id for host in cluster.hosts}
    if set(record.hosts) != hosts:
        raise InvalidInput(
            f"{place}: holds measurements of {record.cluster} with {len(record.hosts)} hosts, not of {cluster.name}"
            f" with these {len(hosts)}; write to another file, or start again without --resume"
        )
    named = {*record.hosts, *(one.host for one in record.together if one.host is not None)}
    named |= {name for link in record.links for name in (link.from_host, link.to_host)}
    for kind, names, known in (
        ("host", named, hosts),
        ("site", {one.site for one in record.together if one.site is not None}, {site.name for site in cluster.sites}),
        ("device", {one.device for one in record.devices}, set(cluster.device_ids)),
    ):
        if unknown := sorted(names - known):
            raise InvalidInput(
                f"{place}: {cluster.name} has no {kind} {unknown[0]!r:.60}; start again without --resume"
            )
