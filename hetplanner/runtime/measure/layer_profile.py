"""Seconds and kept bytes of a model's layers on one device of this host, measured with the runtime's own stages.

`python -m hetplanner.runtime.measure.layer_profile FILE` reads a request, and prints a line of JSON for every layer and
micro-batch as it is measured; `hetplanner.profiles.measuring` starts it. A layer is a stage by itself: several
micro-batches go forward before the first goes back, as in training, and the first round is not counted.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hetplanner.cluster.catalog import plain_kind
from hetplanner.cluster.formats.gpu_lists import Gpu, kind_of_gpu
from hetplanner.errors import HetplannerError
from hetplanner.plan.train import TrainConfig
from hetplanner.profiles.layers import layer_runs
from hetplanner.runtime.device import named_device
from hetplanner.runtime.measure.live_bytes import LiveBytes
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.files import workload_from_data
from hetplanner.workload.workload import Workload

IN_FLIGHT = 3
LEAST_ROUNDS = 4
KEY = RngKey(0, 0, 0)


def main(arguments: list[str]) -> int:
    """The command."""
    try:
        request = json.loads(Path(arguments[0]).read_text())
        device = named_device(request["device"])
        if device.type == "cpu" and request["threads"]:
            torch.set_num_threads(request["threads"])
        _tell(about_device(device))
        workload = workload_from_data(request["workload"], "workload")
        for size in request["micro_batches"]:
            sized = workload.replace(micro_batch=size, global_batch=size * IN_FLIGHT, recompute=False)
            for row in profiled(sized, device, request["window_s"]):
                _tell(row | {"micro_batch": size})
    except (HetplannerError, torch.OutOfMemoryError, MemoryError) as error:
        _tell({"error": str(error).splitlines()[0] if str(error) else "out of memory"})
        return 1
    return 0


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def about_device(device: torch.device) -> dict[str, Any]:
    """The catalog's kind of the device, its own name, and what it was measured with."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        known = kind_of_gpu(Gpu(properties.name, properties.total_memory / 2**30))
        name, kind, more = properties.name, known.name if known else properties.name, f"CUDA {torch.version.cuda}"
    else:
        cores = len(os.sched_getaffinity(0))
        name, kind = platform.processor() or platform.machine(), plain_kind("CPU generic")
        more = f"{torch.get_num_threads()} threads of {cores} cores"
    return {"kind": kind, "device": name, "with": more, "torch": torch.__version__.split("+")[0]}


def profiled(workload: Workload, device: torch.device, window_s: float) -> Iterator[dict[str, Any]]:
    """A row for every distinct layer at the workload's micro-batch, in the model's order."""
    first, known = 0, set()
    for run in layer_runs(workload):
        if run.name not in known:
            known.add(run.name)
            yield {"layer": run.name} | _LayerAtWork(workload, first, first + run.ops, device).measured(window_s)
        first += run.ops * run.times


@dataclass
class _LayerAtWork:
    """One layer as a stage of its own."""

    workload: Workload
    first: int
    end: int
    device: torch.device

    def __post_init__(self) -> None:
        config = TrainConfig()
        self.model = StageModel(self.workload, self.first, self.end, config.seed, self.device)
        self.runner = StageRunner(self.model)
        self.optimizer = StageOptimizer(
            self.workload, self.first, self.end, config, self.model.flat, self.model.flat_grad
        )
        self.batch: Batch = open_batches(config, self.workload).draw(0, 0).to(self.device)
        self.input_size, self.output_size = (self.workload.boundary_elements[k] for k in (self.first, self.end))
        self.gradient = None if self.model.is_last else torch.randn(self.output_size, device=self.device)

    def measured(self, window_s: float) -> dict[str, float]:
        """Median seconds over a window, and bytes that a micro-batch keeps."""
        kept = self._kept_bytes()
        seconds: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}
        self._round({name: [] for name in seconds})
        began_s, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or time.perf_counter() - began_s < window_s:
            self._round(seconds)
            rounds += 1
        return {name: float(f"{statistics.median(values):.4g}") for name, values in seconds.items()} | {"kept": kept}

    def _round(self, seconds: dict[str, list[float]]) -> None:
        inputs = [self._input() for _ in range(IN_FLIGHT)]
        for number, x in enumerate(inputs):
            seconds["forward"].append(self._timed(partial(self.runner.forward, number, x, self.batch, KEY)))
        for number in range(IN_FLIGHT):
            seconds["backward"].append(self._timed(partial(self.runner.backward, number, self.gradient)))
        seconds["update"].append(self._timed(self._update))

    def _input(self) -> Tensor | None:
        return None if self.model.is_first else torch.randn(self.input_size, device=self.device)

    def _update(self) -> None:
        self.optimizer.step(0.0)
        self.model.flat_grad.zero_()

    def _timed(self, work: Callable[[], object]) -> float:
        self._wait()
        began_s = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - began_s

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _kept_bytes(self) -> int:
        """What a forward leaves behind for its backward, its input included."""
        held: list[Tensor] = [self.model.flat, self.model.flat_grad, self.model.frozen, *self.optimizer.states.values()]
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.device)
            self.runner.forward(0, self._input(), self.batch, KEY)
            kept = torch.cuda.memory_allocated(self.device) - before
        else:
            live = LiveBytes()
            live.leave_out(*held, *(part for part in self.batch if part is not None))
            with live:
                self.runner.forward(0, self._input(), self.batch, KEY)
                kept = live.now
        self.runner.backward(0, self.gradient)
        self.model.flat_grad.zero_()
        return int(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
