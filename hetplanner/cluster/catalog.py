"""The GPU catalog: what a device of a known kind can do, where its file does not say.

Facts and their sources stand in `gpu_specs.csv` beside this module. What no data sheet says is assumed here:
the share of peak that training reaches, and the memory that the driver and allocator keep for themselves.
"""

import csv
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType

from hetplanner.cluster.model import Device
from hetplanner.dtypes import DType
from hetplanner.errors import InvalidInput

EFFICIENCY = {"datacenter": 0.45, "consumer": 0.35, "cpu": 0.6}
"""Assumed share of peak in transformer training by grade, where a device states none.

Well-tuned runs report 0.3 to 0.55 of dense peak on data-centre GPUs (Narayanan et al. 2021; Chowdhery et
al. 2022); consumer boards are held back by memory bandwidth and power. The CPU's catalog rate is already that
of a real matrix product, so only what is not one is taken off.
"""

RESERVE_BYTES = {"datacenter": 2**30, "consumer": 2**30, "cpu": 2**28}
"""Assumed memory that a framework's context, allocator and communication buffers keep, by grade."""


@dataclass(frozen=True)
class DeviceKind:
    """One row of the catalog.

    Attributes:
        peak_flops_per_s: dense peak by dtype; a dtype that the hardware lacks is left out.
        link_bytes_per_s: one way between devices of one host (NVLink, PCIe).
        price_usd_per_hour: on demand; None where it is not rented out.
    """

    name: str
    vendor: str
    grade: str
    aliases: tuple[str, ...]
    peak_flops_per_s: Mapping[DType, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    interconnect: str
    link_bytes_per_s: float
    price_usd_per_hour: float | None
    spot_price_usd_per_hour: float | None
    notes: str


@dataclass(frozen=True)
class DeviceSpec:
    """A device with nothing left open: its file's numbers, else its kind's, else the stated assumptions.

    Attributes:
        kind: the catalog's name of its kind, or the file's where the catalog has none.
        peak_flops_per_s: by dtype; read it through `flops_per_s`.
        price_usd_per_hour: None where unknown.
    """

    kind: str
    peak_flops_per_s: Mapping[DType, float]
    efficiency: float
    memory_bytes: float
    reserve_bytes: float
    memory_bandwidth_bytes_per_s: float
    price_usd_per_hour: float | None

    def flops_per_s(self, dtype: DType) -> float:
        """Peak rate in a dtype; one that the device has no units for runs at its float32 rate.

        Raises:
            InvalidInput: if neither rate is known.
        """
        rate = self.peak_flops_per_s.get(dtype) or self.peak_flops_per_s.get("float32")
        if rate is None:
            raise InvalidInput(f"device kind {self.kind!r:.60}: no {dtype} or float32 rate is known; add one to peak")
        return rate

    @property
    def usable_bytes(self) -> float:
        """Memory less the reserve."""
        return max(0.0, self.memory_bytes - self.reserve_bytes)


def _key(name: str) -> str:
    return "-".join(name.casefold().removeprefix("nvidia").replace("-", " ").replace("_", " ").split())


def _optional(cell: str) -> float | None:
    return float(cell) if cell else None


def _read_row(row: dict[str, str]) -> DeviceKind:
    columns: tuple[tuple[DType, str], ...] = (
        ("float16", "fp16_dense_tflops"),
        ("bfloat16", "bf16_dense_tflops"),
        ("tf32", "tf32_dense_tflops"),
        ("float32", "fp32_tflops"),
    )
    return DeviceKind(
        name=row["name"],
        vendor=row["vendor"],
        grade=row["grade"],
        aliases=tuple(filter(None, row["aliases"].split("|"))),
        peak_flops_per_s=MappingProxyType({d: float(row[c]) * 1e12 for d, c in columns if row[c]}),
        memory_bytes=float(row["memory_gb"]) * 1e9,
        memory_bandwidth_bytes_per_s=float(row["memory_bandwidth_gbs"]) * 1e9,
        interconnect=row["interconnect"],
        link_bytes_per_s=float(row["interconnect_gbs_per_dir"]) * 1e9,
        price_usd_per_hour=_optional(row["price_on_demand_usd_h"]),
        spot_price_usd_per_hour=_optional(row["price_spot_usd_h"]),
        notes=row["notes"] or "",
    )


def table_rows(file: str) -> Iterable[dict[str, str]]:
    """Rows of a CSV file beside this module, in which lines that begin with # are comments."""
    text = files("hetplanner.cluster").joinpath(file).read_text("utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


@cache
def _catalog() -> dict[str, DeviceKind]:
    kinds = [_read_row(row) for row in table_rows("gpu_specs.csv")]
    return {_key(name): kind for kind in kinds for name in (kind.name, *kind.aliases)}


def known_kinds() -> tuple[DeviceKind, ...]:
    """All kinds of the catalog, in its order."""
    return tuple({kind.name: kind for kind in _catalog().values()}.values())


def kind_names() -> tuple[str, ...]:
    """Names of all kinds in the catalog, without aliases."""
    return tuple(kind.name for kind in known_kinds())


def find_kind(name: str) -> DeviceKind | None:
    """The catalog's entry for a name or alias (case, spaces and hyphens do not matter), or None."""
    return _catalog().get(_key(name))


def plain_kind(name: str) -> str:
    """A kind's name in the catalog, whichever alias it is called by; one that it doesn't know stays as it is."""
    found = find_kind(name)
    return name if found is None else found.name


def is_processor(kind: str) -> bool:
    """Whether a device kind of the catalogue is a processor; a kind that it doesn't know is none."""
    found = find_kind(kind)
    return found is not None and found.grade == "cpu"


def device_kind(name: str) -> DeviceKind:
    """The catalog's entry for a name or alias.

    Raises:
        InvalidInput: listing the nearest names.
    """
    kind = find_kind(name)
    if kind is None:
        raise InvalidInput(f"kind: {name!r:.60} is not in the catalog; {nearest_kinds(name)}")
    return kind


def nearest_kinds(name: str) -> str:
    """'nearest are A100-40, A100-80', or all that are known; then the command that lists them."""
    near = difflib.get_close_matches(_key(name[:60]), _catalog(), n=3, cutoff=0.4)
    names = dict.fromkeys(_catalog()[key].name for key in near)
    named = f"nearest are {', '.join(names)}" if names else f"known are {', '.join(kind_names())}"
    return f"{named} (see: hetplanner cluster gpus)"


def resolve_device(device: Device) -> DeviceSpec:
    """The device with every open field filled from the catalog by its kind. Cached: planning asks often.

    Raises:
        InvalidInput: an unknown kind whose file leaves peak, memory or memory bandwidth open.
    """
    peak = tuple(sorted(device.peak.items())) if device.peak else ()
    try:
        return _spec(
            device.kind,
            peak,
            device.memory,
            device.memory_bandwidth,
            device.efficiency,
            device.reserve,
            device.price_usd_per_hour,
        )
    except InvalidInput as error:
        raise InvalidInput(f"device {device.id!r:.60}: {error}") from None


@lru_cache(maxsize=4096)
def _spec(
    name: str,
    peak: tuple[tuple[DType, float], ...],
    memory: float | None,
    memory_bandwidth: float | None,
    efficiency: float | None,
    reserve: float | None,
    price: float | None,
) -> DeviceSpec:
    kind = find_kind(name)
    if kind is None:
        given = {
            "peak": bool(peak),
            "memory": memory is not None,
            "memory_bandwidth": memory_bandwidth is not None,
        }
        missing = [field for field, is_there in given.items() if not is_there]
        if missing:
            raise InvalidInput(
                f"kind {name!r:.60} is not in the catalog, so {', '.join(missing)} must be given; {nearest_kinds(name)}"
            )
    grade = kind.grade if kind else "datacenter"
    memory_bytes = kind.memory_bytes if memory is None and kind else memory
    bandwidth = kind.memory_bandwidth_bytes_per_s if memory_bandwidth is None and kind else memory_bandwidth
    assert memory_bytes is not None  # an unknown kind has both, checked above
    assert bandwidth is not None
    return DeviceSpec(
        kind=kind.name if kind else name,
        peak_flops_per_s=MappingProxyType((dict(kind.peak_flops_per_s) if kind else {}) | dict(peak)),
        efficiency=EFFICIENCY[grade] if efficiency is None else efficiency,
        memory_bytes=memory_bytes,
        reserve_bytes=float(RESERVE_BYTES[grade]) if reserve is None else reserve,
        memory_bandwidth_bytes_per_s=bandwidth,
        price_usd_per_hour=kind.price_usd_per_hour if price is None and kind else price,
    )
