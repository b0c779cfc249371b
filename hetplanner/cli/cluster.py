"""hetplanner cluster show|validate|convert|generate|add-host|set-link|gpus|probe."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hetplanner.cli.output import AsJson, bold, console, print_json, table
from hetplanner.cli.probing import probe
from hetplanner.reading import noting
from hetplanner.units import short_bytes, short_flops_per_s, short_rate, short_seconds

app = typer.Typer(no_args_is_help=True, help="Look at cluster files, check them, turn one form into another.")

app.command()(probe)

NAMED_GAPS = 8
"""Pairs of sites without links that are named."""

ClusterFile = Annotated[Path, typer.Argument(help="A cluster file (JSON).")]


@app.command()
def show(file: ClusterFile, as_json: AsJson = False) -> None:
    """Print sites, devices and links of a cluster."""
    from hetplanner.cluster.egress import egress_rows
    from hetplanner.cluster.formats.cluster_files import cluster_to_data, load_cluster

    cluster = load_cluster(file)
    if as_json:
        print_json(cluster_to_data(cluster) | {"devices": _devices(cluster), "egress_prices": egress_rows(cluster)})
        return
    console.print(bold(cluster.name), cluster.description, sep="  ")
    if cluster.provenance:
        console.print(cluster.provenance, style="dim")
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
    from hetplanner.cluster.egress import EgressTable, price_text, source_text

    right = ("devices", "memory", "hosts", "egress")
    sites = table("Sites", "site", "devices", "kinds", "memory", "hosts", "egress", right=right)
    rows, prices, sources = _devices(cluster), EgressTable.of(cluster), set[str]()
    for s, site in enumerate(cluster.sites):
        members = [row for row in rows if row["site"] == site.name]
        kinds = sorted({row["kind"] for row in members})
        memory = sum(row["memory_bytes"] for row in members)
        hosts = len({row["host"] for row in members})
        paid = [price for price, _ in prices.prices_from(s)]
        sources.add(source_text(paid))
        text = price_text(paid) if paid else "–"
        sites.add_row(site.name, str(len(members)), ", ".join(kinds), short_bytes(memory), str(hosts), text)
    console.print(sites)
    for source in sorted(sources - {""}):
        console.print(f"egress: {source}", style="dim")


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
    _print_gaps(cluster)
    if cluster.host_links or cluster.device_links:
        console.print(f"and {len(cluster.host_links)} links inside hosts, {len(cluster.device_links)} of single pairs")


def _print_gaps(cluster: Any) -> None:
    """Names the sites between whose devices links are missing, which plans leave out."""
    gaps = cluster.site_gaps()
    named = [f"{a} and {b} ({count} pairs of devices)" for a, b, count in gaps[:NAMED_GAPS]]
    if gaps:
        more = f" and {len(gaps) - NAMED_GAPS} more pairs of sites" if len(gaps) > NAMED_GAPS else ""
        console.print(f"no link between {', '.join(named)}{more}: plans let no such devices talk to each other")


@app.command()
def validate(file: ClusterFile, as_json: AsJson = False) -> None:
    """Check a cluster file; exit code 2 and one line if it is not valid, a warning for what is hardly meant."""
    from hetplanner.cluster.catalog import resolve_device
    from hetplanner.cluster.formats.cluster_files import load_cluster

    warnings: list[str] = []
    with noting(warnings.append):
        cluster = load_cluster(file)
    for device in cluster.devices:
        resolve_device(device)
    counts = {"devices": len(cluster.devices), "hosts": len(cluster.hosts), "sites": len(cluster.sites)}
    if as_json:
        gaps = [{"sites": [a, b], "pairs": count} for a, b, count in cluster.site_gaps()]
        print_json({"valid": True, "name": cluster.name} | counts | {"unlinked": gaps, "warnings": warnings})
    else:
        console.print(f"{file}: valid, " + ", ".join(f"{n} {what}" for what, n in counts.items()))
        _print_gaps(cluster)
        for text in warnings:
            console.print(f"warning: {text}")


@app.command()
def generate(
    name: Annotated[str, typer.Argument(help="r10, r10j, jit or mixed-gpus; see hetplanner/cluster/generators.py.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the cluster file here.")],
    seed: Annotated[int, typer.Option(help="Of every draw.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw a cluster from a seed, for comparisons and benchmarks."""
    from hetplanner.cluster.formats.cluster_files import save_cluster
    from hetplanner.cluster.generators import generate_cluster

    cluster = generate_cluster(name, seed)
    save_cluster(cluster, out)
    if as_json:
        print_json({"name": cluster.name, "devices": len(cluster.devices), "file": str(out)})
    else:
        console.print(f"{cluster.name}: {cluster.description}; wrote {out}")


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A cluster file, site-tables JSON, graph (GraphML, node-link JSON), or folder of CSV or NPY tables."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="A file, or a folder for tables.")],
    to: Annotated[
        str,
        typer.Option(help="json; csv, npy (device × device); site-csv, site-json (site × site); graphml, node-link."),
    ] = "json",
    round_trip: Annotated[bool, typer.Option("--round-trip", help="Latencies in the folder are round trips.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a cluster from one form into another; tables state Gbit/s and ms."""
    cluster = _read_any(source, round_trip)
    written = _write_any(cluster, out, to)
    if as_json:
        print_json({"name": cluster.name, "devices": len(cluster.devices), "files": [str(file) for file in written]})
    else:
        console.print(f"{cluster.name}, {len(cluster.devices)} devices: wrote " + ", ".join(map(str, written)))


def _read_any(source: Path, round_trip: bool) -> Any:
    from hetplanner.cluster.formats.tables import cluster_from_folder
    from hetplanner.cluster.formats.uploads import cluster_from_file
    from hetplanner.errors import InvalidInput
    from hetplanner.schema import read_text

    if source.is_dir():
        return cluster_from_folder(source, round_trip=round_trip)
    if round_trip:
        raise InvalidInput(f"{source}: --round-trip is for a folder of tables; a file of another form says it itself")
    return cluster_from_file(read_text(source), source.name)


def _write_any(cluster: Any, out: Path, to: Any) -> list[Path]:
    from typing import get_args

    from hetplanner.cluster.formats.cluster_files import save_cluster
    from hetplanner.cluster.formats.graph_files import graphml_text, node_link_json
    from hetplanner.cluster.formats.table_export import TableForm, export_tables
    from hetplanner.errors import InvalidInput
    from hetplanner.schema import write_text

    if to == "json":
        save_cluster(cluster, out)
        return [out]
    if to in ("graphml", "node-link"):
        write_text(out, graphml_text(cluster) if to == "graphml" else node_link_json(cluster))
        return [out]
    if to not in get_args(TableForm):
        raise InvalidInput(
            f"--to: must be one of json, graphml, node-link, {', '.join(get_args(TableForm))}, got {to!r:.40}"
        )
    return export_tables(cluster, out, to)


@app.command()
def gpus(as_json: AsJson = False) -> None:
    """List the device kinds that a cluster file may name, with their speed, memory and price."""
    from hetplanner.cluster.catalog import known_kinds

    kinds = known_kinds()
    if as_json:
        print_json([vars(kind) | {"peak_flops_per_s": dict(kind.peak_flops_per_s)} for kind in kinds])
        return
    right = ("memory", "its bandwidth", "float16", "bfloat16", "tf32", "float32", "$/h")
    rows = table("Device kinds; dense peaks", "kind", "also called", "grade", *right, right=right)
    for kind in kinds:
        peaks = (kind.peak_flops_per_s.get(dtype) for dtype in ("float16", "bfloat16", "tf32", "float32"))
        rows.add_row(
            kind.name,
            ", ".join(kind.aliases),
            kind.grade,
            short_bytes(kind.memory_bytes),
            f"{short_bytes(kind.memory_bandwidth_bytes_per_s)}/s",
            *("–" if peak is None else short_flops_per_s(peak) for peak in peaks),
            "–" if kind.price_usd_per_hour is None else f"{kind.price_usd_per_hour:.2f}",
        )
    console.print(rows)
    console.print("a device of another kind states its own peak, memory and memory_bandwidth in the cluster file")


Text = Annotated[Path, typer.Argument(help="A file with the output of the tool.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Write the cluster file here; may be the same.")]


@app.command("add-host")
def add_host(
    file: ClusterFile,
    text: Text,
    out: Out,
    site: Annotated[str, typer.Option("--site", help="A site of the cluster, a city, or 'latitude, longitude'.")],
    host: Annotated[str, typer.Option("--host", help="The host's name; left out, it gets one of its site's.")] = "",
    as_json: AsJson = False,
) -> None:
    """Add a host with the GPUs that `nvidia-smi -L` or `--query-gpu=name,memory.total --format=csv` listed on it."""
    from hetplanner.cluster.formats.cluster_files import load_cluster
    from hetplanner.cluster.formats.gpu_lists import add_host, read_gpus
    from hetplanner.schema import utf8_text

    before = load_cluster(file)
    _save(before, add_host(before, read_gpus(utf8_text(text), text.name), site, host, text.name), out, as_json)


@app.command("set-link")
def set_link(
    file: ClusterFile,
    text: Text,
    out: Out,
    start: Annotated[str, typer.Option("--from", help="The site, host or device where iperf3's client ran.")],
    end: Annotated[str, typer.Option("--to", help="Where its server ran.")],
    as_json: AsJson = False,
) -> None:
    """Give a link the bandwidth that `iperf3 -J` measured, in each direction that it tested."""
    from hetplanner.cluster.formats.cluster_files import load_cluster
    from hetplanner.cluster.formats.iperf import read_iperf, set_measured
    from hetplanner.schema import utf8_text

    before = load_cluster(file)
    _save(before, set_measured(before, read_iperf(utf8_text(text), text.name), start, end), out, as_json)


def _save(before: Any, after: Any, out: Path, as_json: bool) -> None:
    from hetplanner.cluster.formats.cluster_files import save_cluster

    save_cluster(after, out)
    devices = [device for device in after.device_ids if device not in before.device_ids]
    links = [link for link in after.links if link not in before.links]
    if as_json:
        print_json({"name": after.name, "file": str(out), "new_devices": devices, "changed_links": len(links)})
    else:
        said = f"new devices: {len(devices)} ({', '.join(devices)})" if devices else f"{len(links)} link(s) changed"
        console.print(f"{after.name}: {said}; wrote {out}")
