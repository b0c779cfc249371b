"""What one device of this host sustains: `python -m hetplanner.runtime.measure.device_probe INDEX COUNT`.

It prints `ready`, waits for a line, so that all devices of a host are measured at the same time, as they are used in
training, and prints a line of JSON. A processor that stands for several devices gives each of them its share of cores
and memory.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode

from hetplanner.dtypes import DType
from hetplanner.liveness.processes import end_process
from hetplanner.runtime.model.precision import TORCH_DTYPES, set_matrix_products

WINDOW_S = 0.8
LEAST_RUNS = 3
PRODUCT = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied."""
SLOW_PRODUCT = {"cpu": 256, "cuda": 2048}
"""The same for a number format that would take longer than the window; a processor may have to emulate it."""
COPIED_BYTES = {"cpu": 2**27, "cuda": 2**30}
BLOCK = {"cpu": (512, 8, 128, 4), "cuda": (2048, 16, 1024, 4)}
"""Width, heads, tokens and sequences of the transformer's block."""


def main(arguments: list[str]) -> int:
    """The command."""
    index, count = (int(word) for word in arguments)
    device = torch.device("cuda", index) if torch.cuda.device_count() >= count else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
    torch.zeros(1, device=device)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    flops_per_s = {name: product_flops_per_s(device, name) for name in get_args(DType)}
    name: DType = "float32" if device.type == "cpu" else "bfloat16"
    found = {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "flops_per_s": flops_per_s,
        "efficiency": min(1.0, block_flops_per_s(device, TORCH_DTYPES[name]) / flops_per_s[name]),
        "memory_bandwidth_bytes_per_s": copied_bytes_per_s(device),
        "memory_bytes": memory_bytes(device, count),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def product_flops_per_s(device: torch.device, name: DType) -> float:
    """FLOP per second of square matrix products in a number format."""
    set_matrix_products(name)

    def measured(size: int, window_s: float) -> float:
        left, right = (torch.rand(size, size, device=device).to(TORCH_DTYPES[name]) for _ in range(2))
        return 2.0 * size**3 / _each_s(device, lambda: torch.mm(left, right), window_s)

    large, small = PRODUCT[device.type], SLOW_PRODUCT[device.type]
    flops_per_s = measured(small, 0.0)
    is_slow = LEAST_RUNS * 2.0 * large**3 / flops_per_s > WINDOW_S
    return measured(small if is_slow else large, WINDOW_S)


def block_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP per second of a transformer's block, forward and backward; norms and activations cost time, no FLOP."""
    width, heads, tokens, sequences = BLOCK[device.type]
    block = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, device=device, dtype=dtype)
    inputs = torch.rand(sequences, tokens, width, device=device).to(dtype).requires_grad_()

    def step() -> None:
        block(inputs).float().sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops()) / _each_s(device, step)


def copied_bytes_per_s(device: torch.device) -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.numel() / _each_s(device, lambda: target.copy_(source))


def memory_bytes(device: torch.device, count: int) -> int:
    """Memory of the device; of a processor its share."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total // count)


def _each_s(device: torch.device, act: Callable[[], Any], window_s: float = WINDOW_S) -> float:
    """Seconds of one run, the mean over a window; the first run is not counted."""
    act()
    _wait(device)
    began_s, runs = time.perf_counter(), 0
    while runs < LEAST_RUNS or time.perf_counter() - began_s < window_s:
        act()
        _wait(device)
        runs += 1
    return (time.perf_counter() - began_s) / runs


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
