"""hetplanner cluster probe: measure the devices and links of a cluster's hosts over ssh."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetplanner.cli.output import AsJson, console, notices, print_json, progress_line, table
from hetplanner.units import short_rate, short_seconds

if TYPE_CHECKING:
    from hetplanner.cluster.model import Cluster
    from hetplanner.hosts.probe.measuring import Job
    from hetplanner.hosts.probe.record import Record

MOST_FINDINGS, MOST_LINKS = 20, 40
"""Lines that are printed; the files have all."""
_RIGHT = ("latency (one way)", "spread", "one connection", "several")


def probe(
    file: Annotated[Path, typer.Argument(help="A cluster file (JSON) with the hosts to measure.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the cluster with the measured numbers here.")],
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How ssh reaches the hosts; default: each by its own name."),
    ] = None,
    only: Annotated[str, typer.Option(help="What to measure: all, devices or links.")] = "all",
    all_pairs: Annotated[
        bool,
        typer.Option("--all-pairs", help="Every pair of hosts; else each host meets one host of every other site."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a probe that was interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure devices and links of a cluster's hosts over ssh, and write a cluster file with the numbers."""
    from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
    from hetplanner.errors import InvalidInput, RunError
    from hetplanner.hosts.probe.kept import ONLY, kept_record, new_record, run_kept, targets, when_text
    from hetplanner.hosts.probe.measuring import Probe
    from hetplanner.hosts.probe.pace import Pace, left_text
    from hetplanner.hosts.probe.record import load_record
    from hetplanner.hosts.probe.result import probed_cluster
    from hetplanner.launchers.hosts_file import Hosts, place_cluster, read_hosts
    from hetplanner.schema import check_writable

    if only not in ONLY:
        raise InvalidInput(f"--only: must be {', '.join(ONLY[:-1])} or {ONLY[-1]}, got {only!r:.40}")
    cluster = load_cluster(file)
    given = read_hosts(hosts) if hosts is not None else Hosts()
    placed = place_cluster(cluster, given)
    kept = out.with_name(f"{out.stem}.probe.json")
    record = kept_record(kept, cluster) if resume else new_record(cluster)
    check_writable(out)
    site_of, devices_of = targets(cluster, only)
    pace = Pace()
    session = Probe(placed, site_of, given.ssh_config)
    try:
        with progress_line("connecting") as (show, stopped):

            def tell(now: "Record", job: "Job") -> bool:
                words = [f"measuring {job.words}" if job.words else "done", left_text(pace.left_s(job))]
                show(description=", ".join(filter(None, words)), completed=job.done, total=job.total)
                return not stopped()

            try:
                run_kept(session, record, devices_of, kept, all_pairs=all_pairs, tell=tell)
            except RunError as error:  # Ctrl-C ends the ssh of a host, too
                if not stopped():
                    raise RunError(f"{error}; {kept} holds the measurements; --resume continues") from None
            is_whole = not stopped()
    finally:
        session.close()
    record = load_record(kept)
    save_cluster(probed_cluster(cluster, record, when_text(record)), out)
    _print(cluster, record, out, as_json)
    if not is_whole:
        notices.print(f"interrupted; {out} holds the measurements; the same command with --resume continues")
        raise KeyboardInterrupt


def _print(cluster: "Cluster", record: "Record", out: Path, as_json: bool) -> None:
    from hetplanner.hosts.probe.result import device_words, findings

    told = findings(cluster, record)
    if as_json:
        print_json({"file": str(out), "findings": list(told)} | record.model_dump(mode="json"))
        return
    for device in record.devices:
        console.print(device_words(device))
    rows = table("Links", "from", "to", "latency (one way)", "spread", "one connection", "several", right=_RIGHT)
    for link in record.links[:MOST_LINKS]:
        rows.add_row(
            link.from_host,
            link.to_host,
            short_seconds(link.latency_s),
            short_seconds(link.latency_spread_s),
            short_rate(link.bytes_per_s),
            short_rate(link.several_bytes_per_s),
        )
    if record.links:
        console.print(rows)
    if len(record.links) > MOST_LINKS:
        console.print(f"and {len(record.links) - MOST_LINKS} more links")
    for text in told[:MOST_FINDINGS]:
        console.print(f"note: {text}")
    if len(told) > MOST_FINDINGS:
        console.print(f"and {len(told) - MOST_FINDINGS} more notes (--json has all)")
    console.print(f"wrote {out}")
