"""hetplanner cluster show|validate|convert."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hetplanner.cli.output import AsJson, console, print_json, table
from hetplanner.units import short_bytes, short_rate, short_seconds

app = typer.Typer(no_args_is_help=True, help="Look at cluster files, check them, turn one form into another.")

ClusterFile = Annotated[Path, typer.Argument(help="A cluster file (JSON).")]


@app.command()
def show(file: ClusterFile, as_json: AsJson = False) -> None:
    """Print sites, devices and links of a cluster."""
    from hetplanner.cluster.files import cluster_to_data, load_cluster

    cluster = load_cluster(file)
    if as_json:
        print_json(cluster_to_data(cluster) | {"devices": _devices(cluster)})
        return
    console.print(f"[bold]{cluster.name}[/bold]  {cluster.description}")
    if cluster.provenance:
        console.print(f"[dim]{cluster.provenance}[/dim]")
    _print_sites(cluster)
    _print_links(cluster)


def _devices(cluster: Any) -> list[dict[str, Any]]:
    from hetplanner.cluster.catalog import resolve_device

    rows = []
    for device in cluster.devices:
        spec = resolve_device(device)
        rows.append(
            {
                "id": device.id,
                "kind": device.kind,
                "host": device.host,
                "site": cluster.site_of(device.id).name,
                "memory_bytes": spec.memory_bytes,
                "peak_flops_per_s": dict(spec.peak_flops_per_s),
                "efficiency": spec.efficiency,
                "price_usd_per_hour": spec.price_usd_per_hour,
            }
        )
    return rows


def _print_sites(cluster: Any) -> None:
    sites = table("Sites", "site", "devices", "kinds", "memory", "hosts", right=("devices", "memory", "hosts"))
    rows = _devices(cluster)
    for site in cluster.sites:
        members = [row for row in rows if row["site"] == site.name]
        kinds = sorted({row["kind"] for row in members})
        memory = sum(row["memory_bytes"] for row in members)
        hosts = len({row["host"] for row in members})
        sites.add_row(site.name, str(len(members)), ", ".join(kinds), short_bytes(memory), str(hosts))
    console.print(sites)


def _print_links(cluster: Any) -> None:
    links = table(
        "Links between and inside sites",
        "from",
        "to",
        "bandwidth",
        "latency (one way)",
        "known",
        right=("bandwidth", "latency (one way)"),
    )
    for link in cluster.site_links:
        links.add_row(
            link.from_site, link.to_site, short_rate(link.bandwidth), short_seconds(link.latency), link.source
        )
    console.print(links)
    if cluster.host_links or cluster.device_links:
        console.print(f"and {len(cluster.host_links)} links inside hosts, {len(cluster.device_links)} of single pairs")


@app.command()
def validate(file: ClusterFile, as_json: AsJson = False) -> None:
    """Check a cluster file; exit code 2 and one line if it is not valid."""
    from hetplanner.cluster.catalog import resolve_device
    from hetplanner.cluster.files import load_cluster

    cluster = load_cluster(file)
    for device in cluster.devices:
        resolve_device(device)
    counts = {"devices": len(cluster.devices), "hosts": len(cluster.hosts), "sites": len(cluster.sites)}
    if as_json:
        print_json({"valid": True, "name": cluster.name} | counts)
    else:
        console.print(f"{file}: valid, " + ", ".join(f"{n} {what}" for what, n in counts.items()))
