"""Speed of every codec on one core against a plain copy, and its passes over memory, which `WORK_PASSES` holds.

A copy is 1.0 and two passes. "tensor" rows: tensor operations, which serve other devices, on the processor; the rest
are compiled loops; "delta" rows: changes, with what both ends remember. With a GPU its rows follow, against the
device's own copy.

python tests/benchmarks/training/bench_codecs.py [elements]
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from hetplanner.codecs.spec import WORK_AT_POSITIONS, Codec, Work
from hetplanner.codecs.torch_codecs import AtPositions, TopK, tensor_codec
from hetplanner.runtime.comm.delta import ChangingEnd, SampleMemory
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

ROTATING = 4  # buffers, so that no cache keeps a tensor warm
ROUNDS = 9
CODECS = [
    Codec(name="fp16"),
    Codec(name="bf16"),
    Codec(name="int8"),
    Codec(name="int4"),
    *(Codec(name="topk", ratio=r) for r in (3.0, 10.0, 30.0, 100.0)),
]
BARS = {"fp16": 0.9, "int8": 0.5, "int8 tensor": 0.25, "topk:100": 0.08}


def now(device: str) -> float:
    """A clock that waits for the device."""
    if device == "cpu":
        return time.thread_time()
    torch.cuda.synchronize()
    return time.monotonic()


class Table:
    """Prints rows against a copy of the same tensor."""

    def __init__(self, elements: int, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.elements, self.device = elements, device
        self.x = [torch.randn(elements, generator=generator).to(device) for _ in range(ROTATING)]
        self.target = torch.empty(elements, device=device)
        copy_s = statistics.median(self._seconds(self._copy) for _ in range(ROUNDS))
        print(f"\n{device}: {elements:,} float32 elements; a copy moves {4 * elements / copy_s / 1e9:.1f} GB/s")
        titles = ("codec", "bytes", "encode: copy=1", "decode: copy=1", "passes to encode", "decode")
        print("{:>14} {:>10} {:>14} {:>14} {:>17} {:>7} (table)".format(*titles))

    def row(self, codec: Codec, *, compiled: bool) -> None:
        """Times one codec; top-k's way back too."""
        tensor, size = tensor_codec(codec, compiled=compiled), codec.wire_bytes(self.elements, 4)
        data = [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(ROTATING)]
        speeds = (
            self._speed(lambda i: tensor.encode(self.x[i], data[i])),
            self._speed(lambda i: tensor.decode(data[i], self.elements)),
        )
        self._print(f"{codec}{'' if compiled else ' tensor'}", size, speeds, codec.work())
        if codec.name in ("int8", "int4") and compiled:
            self._delta_row(codec.replace(delta=True), data)
        if isinstance(tensor, TopK):
            known, short = AtPositions(tensor.position_M), codec.wire_bytes(self.elements, 4, positions_known=True)
            speeds = (
                self._speed(lambda i: known.encode(self.x[i], data[i][:short])),
                self._speed(lambda i: known.decode(data[i][:short], self.elements)),
            )
            self._print(f"{codec} back", short, speeds, WORK_AT_POSITIONS)

    def _delta_row(self, codec: Codec, data: list[torch.Tensor]) -> None:
        """The same of changes; every buffer is a micro-batch of two samples of its own."""
        hidden, seq_len = 1024, self.elements // 2048
        config = TransformerConfig(vocab=1, max_seq_len=seq_len, hidden=hidden, layers=1, heads=1, ffn=1)
        workload = Workload(
            name="wide", transformer=config, global_batch=2, micro_batch=2, seq_len=seq_len, dtype="float32"
        )
        memory = SampleMemory(workload, 1, 2 * ROTATING, 2**40, torch.device(self.device))
        end = ChangingEnd(tensor_codec(codec), memory)
        visits = [end.visit(np.arange(2 * i, 2 * i + 2)) for i in range(ROTATING)]
        speeds = (
            self._speed(lambda i: visits[i].encode(self.x[i], data[i])),
            self._speed(lambda i: visits[i].decode(data[i], self.elements)),
        )
        self._print(str(codec), len(data[0]), speeds, codec.work())

    def _copy(self, i: int) -> None:
        self.target.copy_(self.x[i])

    def _speed(self, work: Callable[[int], object]) -> float:
        """Times faster than a copy: the median of rounds in each of which both are timed, as others use the machine."""
        self._seconds(work)
        return statistics.median(self._seconds(self._copy) / self._seconds(work) for _ in range(ROUNDS))

    def _seconds(self, work: Callable[[int], object]) -> float:
        start = now(self.device)
        for i in range(ROTATING):
            work(i)
        return (now(self.device) - start) / ROTATING

    def _print(self, name: str, size: int, speeds: tuple[float, float], table: Work) -> None:
        speed, back = speeds
        line = f"{name:>14} {size:>10,} {speed:14.3f} {back:14.3f} {2 / speed:17.1f} {2 / back:7.1f}"
        bar = BARS.get(name) if self.device == "cpu" else None
        verdict = f"  bar {bar}: {'reached' if speed >= bar else 'MISSED'}" if bar else ""
        print(f"{line} ({table.encode:g}, {table.decode:g}){verdict}")


def main() -> None:
    """Prints a row per codec."""
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 2**22
    torch.set_num_threads(1)
    table = Table(elements, "cpu")
    for codec in CODECS:
        table.row(codec, compiled=True)
    for codec in CODECS[:4]:
        table.row(codec, compiled=False)
    if torch.cuda.is_available():
        table = Table(elements, "cuda")
        for codec in CODECS:
            table.row(codec, compiled=False)


if __name__ == "__main__":
    main()
