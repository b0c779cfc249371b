"""Speed of every codec on one core, and its passes over memory (a copy is two), which `WORK_PASSES` holds.

python tests/benchmarks/bench_codecs.py [elements]
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from hetplanner.codecs.spec import WORK_AT_POSITIONS, Codec
from hetplanner.codecs.torch_codecs import AtPositions, TopK, tensor_codec

ROTATING = 4  # buffers, so that no cache keeps a tensor warm
ROUNDS = 7
CODECS = [
    Codec(name="fp16"),
    Codec(name="bf16"),
    Codec(name="int8"),
    Codec(name="int4"),
    *(Codec(name="topk", ratio=r) for r in (3.0, 10.0, 30.0, 100.0)),
]


def seconds(work: Callable[[int], object]) -> float:
    """CPU seconds of one call, the median of some rounds."""
    work(0)
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for i in range(ROTATING):
            work(i)
        times.append((time.thread_time() - start) / ROTATING)
    return statistics.median(times)


def main() -> None:
    """Prints a row per codec."""
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 2**22
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(elements, generator=generator) for _ in range(ROTATING)]
    target = torch.empty(elements)
    pass_s = seconds(lambda i: target.copy_(x[i])) / 2
    print(f"{elements:,} float32 elements; a copy moves {4 * elements / 2 / pass_s / 1e9:.1f} GB/s")
    titles = ("codec", "bytes", "encode GB/s", "decode GB/s", "passes to encode", "decode")
    print("{:>14} {:>10} {:>12} {:>12} {:>18} {:>8} (table)".format(*titles))

    def row(name: str, size: int, encode_s: float, decode_s: float, table: tuple[float, float]) -> None:
        rates = [4 * elements / t / 1e9 for t in (encode_s, decode_s)]
        passes = f"{encode_s / pass_s:18.1f} {decode_s / pass_s:8.1f} ({table[0]:g}, {table[1]:g})"
        print(f"{name:>14} {size:>10,} {rates[0]:12.2f} {rates[1]:12.2f} {passes}")

    for codec in CODECS:
        tensor, size = tensor_codec(codec), codec.wire_bytes(elements, 4)
        data = [torch.empty(size, dtype=torch.uint8) for _ in range(ROTATING)]
        encode_s = seconds(lambda i: tensor.encode(x[i], data[i]))  # noqa: B023
        decode_s = seconds(lambda i: tensor.decode(data[i], elements))  # noqa: B023
        row(str(codec), size, encode_s, decode_s, codec.work())
        if isinstance(tensor, TopK):
            known, short = AtPositions(tensor.position_M), codec.wire_bytes(elements, 4, positions_known=True)
            encode_s = seconds(lambda i: known.encode(x[i], data[i][:short]))  # noqa: B023
            decode_s = seconds(lambda i: known.decode(data[i][:short], elements))  # noqa: B023
            row(f"{codec} back", short, encode_s, decode_s, WORK_AT_POSITIONS)


if __name__ == "__main__":
    main()
