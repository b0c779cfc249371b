"""Where every random number of training comes from: pure functions of the run's seed and of what is drawn."""

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class RngKey:
    """What random calls draw from: the same masks whatever the cut, and again on recompute."""

    seed: int
    step: int
    micro_batch: int


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all parts; equal on every machine and Python."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
