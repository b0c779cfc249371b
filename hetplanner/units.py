"""Unit strings at the edge, SI numbers inside: seconds, bytes, bytes/s, FLOP/s.

In files GB is 10^9 and GiB 2^30; a person is shown powers of ten alone (GB), also for memory.
Network rates in files are bits, stored as bytes per second.
"""

import math
import re
from collections.abc import Callable

from hetplanner.errors import InvalidInput

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ/]+)\s*")

# Both the micro sign and the Greek letter are typed.
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1} | {
    f"{p}{i}B": base**e for e, p in enumerate("KMGTP", start=1) for i, base in (("", 1000), ("i", 1024))
}
_BYTES["kB"] = 1000
_RATE = {f"{u}/s": float(v) for u, v in _BYTES.items()} | {
    "bit/s": 1 / 8,
    "kbit/s": 1e3 / 8,
    "Kbit/s": 1e3 / 8,
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
    "Tbit/s": 1e12 / 8,
}
_FLOPS = {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}


def _parsed(text: object, table: dict[str, float], example: str) -> float:
    if not isinstance(text, str):
        raise InvalidInput(f"must be a string with a unit such as '{example}', got {text!r:.60}")
    match = _NUMBER.fullmatch(text) if len(text) < 64 else None
    if match is None or match[2] not in table:
        hint = _meant(match[2], table) if match else ""
        units = ", ".join(dict.fromkeys(table))
        raise InvalidInput(
            f"must be a number with one of the units {units} (as in '{example}'), got {text!r:.60}{hint}"
        )
    value = float(match[1])
    # Dividing by the exact reciprocal keeps decimals exact: "67 ms" is 0.067, not 67 * 0.001 rounded twice.
    scale = table[match[2]]
    value = value / round(1 / scale) if scale < 1 else value * scale
    if not math.isfinite(value):
        raise InvalidInput(f"must be finite, got {text!r:.60}")
    return value


_SPELLINGS = {"bps": "bit/s", "b/s": "bit/s", "bits/s": "bit/s", "bytes/s": "B/s", "flops": "FLOP/s", "sec": "s"}


def _meant(unit: str, table: dict[str, float]) -> str:
    """'; did you mean …?' for a unit that is one of the table in another spelling ('Gbps', 'gib', 'TFLOPS')."""
    folded = unit.casefold()
    for wrong, right in _SPELLINGS.items():
        if folded.endswith(wrong):
            folded = folded.removesuffix(wrong) + right.casefold()
            break
    near = next((known for known in table if known.casefold() == folded), None)
    return f"; did you mean {near}?" if near else ""


def parse_seconds(text: object) -> float:
    """Seconds of a duration such as '67 ms'. Raises InvalidInput."""
    return _parsed(text, _SECONDS, "67 ms")


def parse_bytes(text: object) -> int:
    """Bytes of a size such as '16 GiB' (GiB = 2^30, GB = 10^9). Raises InvalidInput."""
    return round(_parsed(text, {k: float(v) for k, v in _BYTES.items()}, "16 GiB"))


def parse_bytes_per_s(text: object) -> float:
    """Bytes per second of a rate such as '1.12 Gbit/s' or '900 GB/s'. Raises InvalidInput."""
    return _parsed(text, _RATE, "1.12 Gbit/s")


def parse_flops_per_s(text: object) -> float:
    """FLOP/s of a rate such as '125 TFLOP/s'. Raises InvalidInput."""
    return _parsed(text, _FLOPS, "125 TFLOP/s")


def _formatted(value: float, units: list[tuple[str, float]], base: str, parse: Callable[[object], float]) -> str:
    """The largest unit in which the value is at least 1, with the fewest digits that read back exactly."""
    unit, scale = next(((u, s) for u, s in units if abs(value) >= s), units[-1])
    for digits in range(3, 18):
        text = f"{value / scale:.{digits}g} {unit}"
        if parse(text) == value:
            return text
    return f"{value!r} {base}"  # the SI unit is always exact


def format_seconds(value: float) -> str:
    """'67 ms' for 0.067; reads back to the same number."""
    return _formatted(float(value), [("s", 1.0), ("ms", 1e-3), ("us", 1e-6)], "s", parse_seconds)


def format_bytes(value: int) -> str:
    """'16 GiB' for 2^34; reads back to the same number."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("GB", 10**9), ("MB", 10**6)):
        if value >= scale and value % scale == 0:
            return f"{value // scale} {unit}"
    return f"{value} B"


def format_bytes_per_s(value: float) -> str:
    """'1.12 Gbit/s' for 1.4e8; reads back to the same number."""
    units = [("Gbit/s", 1e9 / 8), ("Mbit/s", 1e6 / 8), ("kbit/s", 1e3 / 8), ("B/s", 1.0)]
    return _formatted(float(value), units, "B/s", parse_bytes_per_s)


def format_flops_per_s(value: float) -> str:
    """'125 TFLOP/s' for 1.25e14; reads back to the same number."""
    units = [("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6), ("FLOP/s", 1.0)]
    return _formatted(float(value), units, "FLOP/s", parse_flops_per_s)


def short_bytes(value: float) -> str:
    """A size for a person, three digits ('12.3 MB'); not meant to be read back."""
    return _short(value, [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)])


def short_count(value: float) -> str:
    """How many there are for a person, three digits ('12.3 M'); not meant to be read back."""
    return _short(value, [("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)]).rstrip()


def short_seconds(value: float) -> str:
    """A duration for a person, three digits ('1.25 s', '42.1 ms', '57.8 min'); not meant to be read back.

    Minutes from 10 on, hours from 2, days from 2.
    """
    if abs(value) >= _MINUTES_FROM_S and math.isfinite(value):
        hours, days = abs(value) >= 2 * 3600, abs(value) >= 2 * 86_400
        unit, scale = ("d", 86_400.0) if days else ("h", 3600.0) if hours else ("min", 60.0)
        return _short(value, [(unit, scale)])
    return _short(value, [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)])


def short_rate(value: float) -> str:
    """A network rate for a person ('1.12 Gbit/s'); not meant to be read back."""
    return _short(value, [("Tbit/s", 1e12 / 8), ("Gbit/s", 1e9 / 8), ("Mbit/s", 1e6 / 8), ("kbit/s", 1e3 / 8)])


def short_flops_per_s(value: float) -> str:
    """A device's speed for a person ('16.6 GFLOP/s'); not meant to be read back."""
    return _short(value, [("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6), ("FLOP/s", 1.0)])


_MINUTES_FROM_S = 600.0


def _short(value: float, units: list[tuple[str, float]]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {next((u for u, s in units if s == 1), units[-1][0])}"
    unit, scale = next(((u, s) for u, s in units if abs(value) >= s), units[-1])
    number = value / scale
    return f"{number:,.0f} {unit}" if abs(number) >= 999.5 else f"{number:.3g} {unit}"
