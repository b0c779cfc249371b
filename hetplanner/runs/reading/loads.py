"""How much of its links a run uses: bytes by link as the ranks count them, against what each link can carry."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hetplanner.runs.reading.reader import RunReader
from hetplanner.units import short_bytes, short_rate, short_seconds

LOAD_HEAD = ("link", "what", "bytes a step", "rate", "limit", "used", "waited a step", "late")


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What runs from one rank to another, as a mean over the steps counted so far.

    Attributes:
        source, target: ranks; source_device, target_device: their devices.
        bytes_per_step: all roles together; by_role the same, apart.
        bytes_per_s: over the run's step time.
        limit_bytes_per_s: the link's bandwidth in the plan's cluster.
        late: late deliveries of the emulator, in all.
        wait_s: what the receiver waited for these messages in a mean step.
    """

    source: int
    target: int
    source_device: str
    target_device: str
    bytes_per_step: float
    by_role: dict[str, float]
    bytes_per_s: float
    limit_bytes_per_s: float
    late: int
    wait_s: float

    @property
    def share(self) -> float:
        """Of the link's bandwidth."""
        return self.bytes_per_s / self.limit_bytes_per_s

    @property
    def texts(self) -> list[str]:
        """What a table with LOAD_HEAD says of it, behind its name."""
        return [
            ", ".join(sorted(self.by_role)),
            short_bytes(self.bytes_per_step),
            short_rate(self.bytes_per_s),
            short_rate(self.limit_bytes_per_s),
            f"{100 * self.share:.1f} %",
            short_seconds(self.wait_s),
            str(self.late),
        ]


@dataclass(frozen=True, slots=True)
class SiteLoad:
    """All that runs from one site to another; `busiest` is the link that is nearest to its limit."""

    source: str
    target: str
    bytes_per_s: float
    busiest: LinkLoad


def link_loads(run: RunReader, step_s: float | None = None) -> list[LinkLoad]:
    """The links that were used, the fullest first; empty before the ranks have counted anything.

    Args:
        run: polled as far as it shall be counted.
        step_s: seconds of a step; None takes the run's median.
    """
    step_s = step_s or run.measured_step_s()
    if not step_s:
        return []
    cluster, devices = run.plan.problem.cluster, run.plan.ranks
    loads = []
    for telemetry in run.ranks:
        by_peer: dict[int, dict[str, float]] = defaultdict(dict)
        for (peer, role), total in telemetry.links.items():
            if total.taken and peer < len(devices) and peer != telemetry.rank and telemetry.links_steps:
                by_peer[peer][role] = total.taken_bytes / telemetry.links_steps
        for peer, by_role in by_peer.items():
            totals = [total for (other, _), total in telemetry.links.items() if other == peer]
            num_bytes = sum(by_role.values())
            loads.append(
                LinkLoad(
                    source=peer,
                    target=telemetry.rank,
                    source_device=devices[peer],
                    target_device=devices[telemetry.rank],
                    bytes_per_step=num_bytes,
                    by_role=by_role,
                    bytes_per_s=num_bytes / step_s,
                    limit_bytes_per_s=cluster.link(devices[peer], devices[telemetry.rank]).bandwidth,
                    late=sum(total.late for total in totals),
                    wait_s=sum(total.wait_s for total in totals) / telemetry.links_steps,
                )
            )
    return sorted(loads, key=lambda load: -load.share)


def site_loads(run: RunReader, loads: Sequence[LinkLoad]) -> list[SiteLoad]:
    """Loads between sites, the fullest first; what stays inside a site is left out."""
    cluster = run.plan.problem.cluster
    by_sites: dict[tuple[str, str], list[LinkLoad]] = defaultdict(list)
    for load in loads:
        ends = cluster.site_of(load.source_device).name, cluster.site_of(load.target_device).name
        if ends[0] != ends[1]:
            by_sites[ends].append(load)
    found = [
        SiteLoad(source, target, sum(x.bytes_per_s for x in group), max(group, key=lambda x: x.share))
        for (source, target), group in by_sites.items()
    ]
    return sorted(found, key=lambda load: -load.busiest.share)
