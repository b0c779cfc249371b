"""Seconds and kept bytes of a model's layers on one device of this host, measured with the runtime's own stages.

`python -m hetplanner.runtime.measure.layer_profile FILE` reads a request, and prints a line of JSON for every layer and
micro-batch as it is measured; `hetplanner.profiles.measuring` starts it. A layer is a stage by itself: several
micro-batches go forward before the first goes back, as in training, and the first round is not counted.

Where several devices share a layer this process is the leader of their group; it starts the others with
`FILE DEGREE NUMBER PORT`. All of them do the same rounds, and the leader's seconds count.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hetplanner.cluster.catalog import plain_kind
from hetplanner.cluster.formats.gpu_lists import Gpu, kind_of_gpu
from hetplanner.errors import HetplannerError
from hetplanner.liveness.processes import end_process
from hetplanner.plan.train import TrainConfig
from hetplanner.profiles.layers import layer_runs
from hetplanner.profiles.measuring import REFUSED
from hetplanner.runtime.device_group.group import ALONE, DeviceGroup
from hetplanner.runtime.device_group.one_host import member_device
from hetplanner.runtime.measure.live_bytes import LiveBytes
from hetplanner.runtime.measure.profiled_group import collective_seconds, joined_group, measuring_group, member_command
from hetplanner.runtime.model.build import Batch, StageModel
from hetplanner.runtime.model.layout import own_pieces
from hetplanner.runtime.model.stage import StageRunner
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.workload.files import workload_from_data
from hetplanner.workload.workload import Workload

IN_FLIGHT = 3
LEAST_ROUNDS = 4
COLLECTIVE_BYTES = (2**12, 2**16, 2**20, 2**24)
COLLECTIVE_SHARE = 0.2
"""Of the window of a layer, that each size of all collectives takes."""
KEY = RngKey(0, 0, 0)


def main(arguments: list[str]) -> int:
    """The command."""
    try:
        request = json.loads(Path(arguments[0]).read_text())
        if arguments[1:]:
            return _serve(request, *map(int, arguments[1:]))
        for degree in request["degrees"]:
            device = member_device(request["device"], 0, degree)
            _set_threads(request, device, degree)
            if degree == request["degrees"][0]:
                _tell(about_device(device))
            with measuring_group(degree, device, member_command(__spec__.name, arguments[0])) as group:
                for row in chain(measured_rows(request, device, group), measured_collectives(request, device, group)):
                    _tell(row)
    except (HetplannerError, torch.OutOfMemoryError, MemoryError) as error:
        _tell({"error": str(error).splitlines()[0] if str(error) else "out of memory"})
        return REFUSED
    return 0


def _serve(request: dict[str, Any], degree: int, index: int, port: int) -> int:
    """A member that is not the leader."""
    device = member_device(request["device"], index, degree)
    _set_threads(request, device, degree)
    group = joined_group(degree, index, port, device)
    for _ in chain(measured_rows(request, device, group), measured_collectives(request, device, group)):
        pass
    return 0


def _set_threads(request: dict[str, Any], device: torch.device, degree: int) -> None:
    """Of a processor, which the members of a group share evenly."""
    if device.type == "cpu":
        torch.set_num_threads(request["threads"] or max(1, len(os.sched_getaffinity(0)) // degree))


def measured_rows(request: dict[str, Any], device: torch.device, group: DeviceGroup) -> Iterator[dict[str, Any]]:
    """A row for every distinct layer and micro-batch."""
    workload = workload_from_data(request["workload"], "workload")
    more = {"degree": group.degree} if group.degree > 1 else {}
    for size in request["micro_batches"]:
        sized = workload.with_micro_batch(size, global_batch=size * IN_FLIGHT, recompute=False)
        for row in profiled(sized, device, request["window_s"], group):
            yield row | {"micro_batch": size} | more


def measured_collectives(request: dict[str, Any], device: torch.device, group: DeviceGroup) -> Iterator[dict[str, Any]]:
    """A row for every collective of a group and size; none of a single device."""
    window_s = request["window_s"] * COLLECTIVE_SHARE
    for size in COLLECTIVE_BYTES if group.degree > 1 else ():
        for name, seconds in collective_seconds(group, device, size, window_s).items():
            yield {"collective": name, "degree": group.degree, "size": size, "seconds": float(f"{seconds:.4g}")}


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


def profiled(
    workload: Workload, device: torch.device, window_s: float, group: DeviceGroup = ALONE
) -> Iterator[dict[str, Any]]:
    """A row for every distinct layer at the workload's micro-batch, in the model's order."""
    first, known = 0, set()
    for run in layer_runs(workload):
        if run.name not in known:
            known.add(run.name)
            yield {"layer": run.name} | _LayerAtWork(workload, first, first + run.ops, device, group).measured(window_s)
        first += run.ops * run.times


@dataclass
class _LayerAtWork:
    """One layer as a stage of its own."""

    workload: Workload
    first: int
    end: int
    device: torch.device
    group: DeviceGroup

    def __post_init__(self) -> None:
        config = TrainConfig()
        self.model = StageModel(self.workload, self.first, self.end, config.seed, self.device, self.group)
        self.runner = StageRunner(self.model)
        self.optimizer = StageOptimizer(
            self.workload, self.first, self.end, config, self.model.flat, self.model.flat_grad,
            self.model.weights if self.group.degree > 1 else None,
        )  # fmt: skip
        self.batch: Batch = open_batches(config, self.workload).draw(0, 0).to(self.device)
        self.input_size, self.output_size = (
            sum(self.group.sizes_of(own_pieces(self.workload, boundary, self.group), self.group.index))
            for boundary in (self.first, self.end)
        )
        self.gradient = None if self.model.is_last else torch.randn(self.output_size, device=self.device)

    def measured(self, window_s: float) -> dict[str, float]:
        """Median seconds over a window, and bytes that a micro-batch keeps on this device."""
        kept = self._kept_bytes()
        seconds: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}
        self._round({name: [] for name in seconds})
        began_s, rounds = time.perf_counter(), 0
        while self.group.of_leader(rounds < LEAST_ROUNDS or time.perf_counter() - began_s < window_s):
            self._round(seconds)
            rounds += 1
        return {name: float(f"{statistics.median(values):.4g}") for name, values in seconds.items()} | {"kept": kept}

    def _round(self, seconds: dict[str, list[float]]) -> None:
        """Micro-batches one behind the other, as in training: a GPU never waits for the next call."""
        inputs = [self._input() for _ in range(IN_FLIGHT)]

        def forward() -> None:
            for number, x in enumerate(inputs):
                self.runner.forward(number, x, self.batch, KEY)

        def backward() -> None:
            for number in range(IN_FLIGHT):
                self.runner.backward(number, self.gradient)

        seconds["forward"].append(self._timed(forward) / IN_FLIGHT)
        seconds["backward"].append(self._timed(backward) / IN_FLIGHT)
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
    end_process(main(sys.argv[1:]))
