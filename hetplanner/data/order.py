"""Which samples a micro-batch takes: a new order every epoch, each sample once in it, computed and never stored.

Micro-batch m of step t is a pure function of (seed, t, m): nothing to save for a resume, nothing to agree on
between ranks, the same for every plan.

Shape legend: B samples of a micro-batch.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ROUNDS = 6
BLOCK = 1024
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SampleOrder:
    """Deals samples out: step by step, micro-batch by micro-batch, epoch by epoch."""

    num_samples: int
    seed: int
    micro_batch: int
    num_micro_batches: int

    def ids(self, step: int, micro_batch: int) -> np.ndarray:
        """Sample ids [B] (int64) of one micro-batch."""
        first = (step * self.num_micro_batches + micro_batch) * self.micro_batch
        end = first + self.micro_batch
        parts = []
        for block in range(first // BLOCK, -(-end // BLOCK)):
            begin = block * BLOCK
            parts.append(_block(self.num_samples, self.seed, block)[max(0, first - begin) : end - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@lru_cache(maxsize=16)
def _block(num_samples: int, seed: int, number: int) -> np.ndarray:
    """Sample ids of BLOCK places in a row; computed at once, as a few take nearly as long."""
    place_B = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.int64)
    epoch_B, index_B = np.divmod(place_B, num_samples)
    found = permuted(index_B, num_samples, seed, epoch_B)
    found.flags.writeable = False
    return found


def permuted(index_B: np.ndarray, num: int, seed: int, epoch_B: np.ndarray) -> np.ndarray:
    """Where a pseudo-random permutation of 0..num-1, one per (seed, epoch), takes every index (int64).

    A Feistel network permutes the next even power of two; what falls outside is sent through again until it is
    inside. So memory does not grow with the data (a shuffled list of a large corpus would take gigabytes), and the
    order does not depend on a library's generator.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains" (cycle walking).
    """
    half = np.uint64(max(1, (max(1, num - 1).bit_length() + 1) // 2))
    key_B = _mixed(np.full(len(epoch_B), seed, dtype=np.uint64) * _GOLDEN + epoch_B.astype(np.uint64))
    x_B = index_B.astype(np.uint64)
    outside = np.ones(len(x_B), dtype=bool)
    while outside.any():
        x_B[outside] = _feistel(x_B[outside], half, key_B[outside])
        outside = x_B >= np.uint64(num)
    return x_B.astype(np.int64)


def _feistel(x_B: np.ndarray, half: np.uint64, key_B: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x_B >> half, x_B & mask
    for _ in range(ROUNDS):
        key_B = _mixed(key_B + _GOLDEN)
        left, right = right, left ^ (_mixed(right + key_B) & mask)
    return (left << half) | right


def _mixed(x: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_numbers(seed: int, step: int, ids_B: np.ndarray, count: int) -> np.ndarray:
    """Pseudo-random numbers (uint64) [B, count] of samples in a step, the same on every machine."""
    run_1 = _mixed(_mixed(np.array([seed], dtype=np.uint64) + _GOLDEN) + np.array([step], dtype=np.uint64))
    sample_B = _mixed(run_1 + ids_B.astype(np.uint64) * _GOLDEN)
    return _mixed(sample_B[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
