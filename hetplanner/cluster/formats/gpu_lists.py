"""GPUs of a host as `nvidia-smi` lists them, as devices of a cluster."""

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hetplanner.cluster.catalog import DeviceKind, find_kind, nearest_kinds
from hetplanner.cluster.distance import distance_link
from hetplanner.cluster.edits import INSIDE_HOST_S
from hetplanner.cluster.model import MAX_DEVICES, Cluster, Device, Host, HostLink, Site
from hetplanner.cluster.places import meaning, place_named
from hetplanner.errors import InvalidInput
from hetplanner.reading import note, reader
from hetplanner.schema import checked
from hetplanner.units import short_bytes

MAX_TEXT = 2_000_000
MAX_GPUS = 64
"""Of one host."""
_LISTED = re.compile(r"GPU (\d{1,4}): (.{1,120}?) \(UUID: [^)]*\)\s*")
_LEFT_OUT = {"nvidia", "tesla", "geforce", "quadro", "hbm2", "hbm2e", "hbm3", "hbm3e"}


class Gpu(NamedTuple):
    """A GPU as the driver calls it; memory in GiB, None where nothing says it."""

    name: str
    memory_gib: float | None = None


def is_gpu_list(text: str) -> bool:
    """Whether a text is a list of GPUs by `nvidia-smi -L` or `--query-gpu=… --format=csv`."""
    first = text.lstrip("\ufeff \r\n")[:400].splitlines()[:1]
    columns = [cell.strip() for cell in first[0].split(",")] if first else []
    queried = "name" in columns and not {"id", "kind"} & set(columns)
    return bool(first) and (first[0].startswith("GPU 0: ") or bool(_LISTED.fullmatch(first[0])) or queried)


@reader("list of GPUs by nvidia-smi", at="place")
def read_gpus(text: str, place: str = "nvidia-smi") -> list[Gpu]:
    """The GPUs of a host, from `nvidia-smi -L`, or `--query-gpu=name,memory.total --format=csv` with its header.

    Raises:
        InvalidInput: no such text, no GPU, or more than `MAX_GPUS`.
    """
    if len(text) > MAX_TEXT:
        raise InvalidInput(f"{place}: must be at most {short_bytes(MAX_TEXT)}; give what nvidia-smi lists for one host")
    lines = [line for line in text.strip("\ufeff \r\n").splitlines() if line.strip()]
    if not lines or not is_gpu_list(text):
        form = "--query-gpu=name,memory.total --format=csv"
        raise InvalidInput(f"{place}: must be what `nvidia-smi -L` prints, or {form} with its header")
    gpus = _listed(lines, place) if lines[0].startswith("GPU") else _queried(lines, place)
    if not 0 < len(gpus) <= MAX_GPUS:
        raise InvalidInput(f"{place}: must list 1 to {MAX_GPUS} GPUs of one host, lists {len(gpus)}")
    return gpus


def _listed(lines: Sequence[str], place: str) -> list[Gpu]:
    gpus, parts = [], 0
    for i, line in enumerate(lines, start=1):
        found = _LISTED.fullmatch(line)
        if found is not None:
            gpus.append(Gpu(found[2].strip()))
        elif line.startswith((" ", "\t")) and "MIG" in line:
            parts += 1
        else:
            raise InvalidInput(f"{place}: line {i}: must be 'GPU 0: name (UUID: …)', got {line!r:.60}; paste it whole")
    if parts:
        note(f"{place}: {parts} MIG parts are left aside: a device here is a whole GPU")
    return gpus


def _queried(lines: Sequence[str], place: str) -> list[Gpu]:
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    except csv.Error as error:
        raise InvalidInput(f"{place}: cannot be read as a table: {error}; paste it whole") from None
    column = {name.split(" [")[0]: i for i, name in enumerate(rows[0])}
    if "name" not in column:
        raise InvalidInput(f"{place}: row 1: must be the header with a column 'name', got {lines[0]!r:.60}")
    gpus = []
    for i, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]) or not row[column["name"]]:
            raise InvalidInput(f"{place}: row {i}: must have {len(rows[0])} cells and a name; paste it whole")
        memory = re.fullmatch(r"(\d{1,9})( MiB)?", row[column["memory.total"]]) if "memory.total" in column else None
        gpus.append(Gpu(row[column["name"]][:120], int(memory[1]) / 1024 if memory else None))
    return gpus


def kind_of_gpu(gpu: Gpu) -> DeviceKind | None:
    """The catalog's kind of what the driver calls "NVIDIA A100-SXM4-80GB"; None without one."""
    words = [w for w in re.split(r"[\s_-]+", gpu.name.strip()) if w.casefold() not in _LEFT_OUT]
    sizes = [size[1] for w in words if (size := re.fullmatch(r"(\d{1,4})GB", w, re.IGNORECASE))]
    forms = [w for w in words if re.fullmatch(r"sxm\d?|pcie", w, re.IGNORECASE)]
    model = " ".join(w for w in words if w not in forms and not re.fullmatch(r"\d{1,4}GB", w, re.IGNORECASE))
    sizes += [] if gpu.memory_gib is None else [f"{gpu.memory_gib:.0f}"]
    names = [f"{model}-{size}" for size in sizes] + [f"{model}-{re.sub(r'[0-9]', '', form)}" for form in forms]
    kind = next((each for name in [*names, model] if (each := find_kind(name))), None)
    if kind is None or not sizes or sizes[0] in kind.name:
        return kind
    # "A100-SXM-64GB" is no A100 of the catalog's: its memory must be near what the name says.
    return kind if abs(float(sizes[0]) * 1e9 - kind.memory_bytes) < 0.25 * kind.memory_bytes else None


def add_host(cluster: Cluster | None, gpus: Sequence[Gpu], site: str, host: str, place: str = "nvidia-smi") -> Cluster:
    """A cluster with one more host, whose devices are these GPUs; what the catalog lacks is left out, and noted.

    Args:
        cluster: what to edit, or None to begin one.
        gpus: of the host.
        site: one of the cluster's, or a city, a cloud region, "latitude, longitude".
        host: its name; '' takes one of the site's.
        place: what to call the text in messages.

    Raises:
        InvalidInput: no GPU is in the catalog, the host is there already, or the site cannot be found.
    """
    kinds = [kind_of_gpu(gpu) for gpu in gpus]
    unknown = [gpu for gpu, kind in zip(gpus, kinds, strict=True) if kind is None]
    known = [kind for kind in kinds if kind is not None]
    for gpu in unknown[:1]:
        said = f"{place}: {gpu.name!r:.60} is not in the GPU catalog ({nearest_kinds(gpu.name)})"
        if not known:
            raise InvalidInput(f"{said}; write its peak and memory into a cluster file")
        note(f"{said}: {len(unknown)} of {len(gpus)} GPUs are left out; found {', '.join(k.name for k in known):.200}")
    where = _site(cluster, site)
    taken = {h.id for h in cluster.hosts} | set(cluster.device_ids) if cluster is not None else set()
    name = " ".join(host.split()) or _free(f"{where.name}-host", taken)
    ids = [f"{name}-gpu{i}" for i in range(len(known))]
    clash = next((each for each in (name, *ids) if each in taken), None)
    if clash is not None:
        raise InvalidInput(f"{place}: host {name!r:.60}: {clash!r:.60} is there already; give another host name")
    if cluster is not None and len(cluster.devices) + len(ids) > MAX_DEVICES:
        raise InvalidInput(f"{place}: a cluster has at most {MAX_DEVICES} devices; remove some first")
    return _with_host(cluster, where, name, dict(zip(ids, known, strict=True)))


def _with_host(cluster: Cluster | None, site: Site, name: str, kinds: Mapping[str, DeviceKind]) -> Cluster:
    before: dict[str, Any] = {field: getattr(cluster, field, ()) for field in ("sites", "hosts", "devices")}
    links = {field: getattr(cluster, field, ()) for field in ("site_links", "host_links")}
    if site not in before["sites"]:
        others = [pair for other in before["sites"] for pair in ((site, other), (other, site))]
        links["site_links"] = (*links["site_links"], *(distance_link(a, b) for a, b in others))
        before["sites"] = (*before["sites"], site)
    if not any(k.from_site == k.to_site == site.name for k in links["site_links"]):
        links["site_links"] = (*links["site_links"], distance_link(site, site))
    place = f"host {name!r:.60}"
    before["hosts"] = (*before["hosts"], checked(Host, {"id": name, "site": site.name}, place))
    devices = [checked(Device, {"id": i, "kind": kind.name, "host": name}, place) for i, kind in kinds.items()]
    before["devices"] = (*before["devices"], *devices)
    if len(kinds) > 1:
        slowest = min(kind.link_bytes_per_s for kind in kinds.values())
        inside = {"host": name, "latency": INSIDE_HOST_S, "bandwidth": slowest, "source": "specified"}
        links["host_links"] = (*links["host_links"], checked(HostLink, inside, place))
    if cluster is None:
        return checked(Cluster, {"name": site.name} | before | links, place)
    return cluster.replace(**before, **links)


def _site(cluster: Cluster | None, text: str) -> Site:
    text = " ".join(text.split())
    if not text:
        raise InvalidInput("site: must be said for GPUs; give a site of the cluster, or a city")
    sites = cluster.sites if cluster is not None else ()
    for same in (lambda s: s.name == text, lambda s: meaning(s.name) == meaning(text)):
        found = next(filter(same, sites), None)
        if found is not None:
            return found
    point = place_named(text)
    name = point.name or text
    return checked(Site, {"name": name, "latitude": point.latitude, "longitude": point.longitude}, "site")


def _free(stem: str, taken: set[str]) -> str:
    stem = "-".join(stem.lower().split())[:100]
    return next(name for i in range(len(taken) + 1) if (name := f"{stem}-{i}") not in taken)
