"""What a rank's parts of a step cost, measured on the stages themselves, by all ranks at once.

First all ranks compute during the same window: `cores` is how much CPU a rank got per second, and the simulator shares
out what the ranks of a machine got. A group without GPUs is timed by the clock, before that alone on its machine. Hosts
that are namespaces or containers of one machine share it. Then all do their parts with a short message before each, as
in training: a rank that has slept finds other ranks' numbers in the caches, and the same work takes 5 to 20 % more.
Costs are CPU seconds of that: what the work would take alone.

Shape legend: N ranks.
"""

import hashlib
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache, partial
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hetplanner.codecs.spec import NO_CODEC
from hetplanner.codecs.torch_codecs import AtPositions, TensorCodec
from hetplanner.plan.action import Kind
from hetplanner.plan.durations import LEAST_CORES, Durations
from hetplanner.plan.model import Plan, Role
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.runtime.comm.delta import ChangeCodec, SampleMemory
from hetplanner.runtime.comm.transport import Expected, Topic, Transport
from hetplanner.runtime.model.chunk import Chunk
from hetplanner.runtime.model.precision import boundary_codec
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.executor import Executor, role_of

WINDOW_S = 0.4
MIN_ROUNDS, MOST_ROUNDS = 3, 3
MOST_IN_FLIGHT = 4
"""More of them fill no cache that these leave."""
NUM_PROBES, NUM_NETWORK_PROBES, NUM_RINGS = 8, 4, 3
SHORT_BYTES = 2**10
MOST_MESSAGE_S = 5e-3
MIN_LONG_BYTES, MAX_LONG_BYTES = 2**17, 2**20
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
"""Names a Linux machine from its start to its end; the same in all its namespaces."""


Piece = tuple[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one rank; the fields of `Durations`, and where they were measured.

    Attributes:
        forward_s, backward_s: by chunk, in stage order.
        cores: CPU seconds per second that the rank got while all of its machine computed; of a group the seconds that
            it takes alone, by those that it took then.
        processors: that it may use.
        machine: number of the machine whose processors it uses; of a GPU, of the rank alone.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: float
    encode_s: float
    decode_s: float
    reduce_s: float
    message_s: float
    cores: float
    processors: int
    machine: int

    def row(self) -> list[float]:
        """All numbers, as they travel between ranks: chunk by chunk, then the rank's."""
        forward_s, backward_s, *rest = astuple(self)
        return [*forward_s, *backward_s, *rest]

    @classmethod
    def from_row(cls, row: list[float], num_chunks: int) -> Self:
        """From `row`; what lies behind is ignored."""
        numbers = iter(row)
        forward_s, backward_s = (tuple(next(numbers) for _ in range(num_chunks)) for _ in range(2))
        optimizer_s, encode_s, decode_s, reduce_s, message_s, cores, processors, machine = (
            next(numbers) for _ in range(8)
        )
        seconds = (optimizer_s, encode_s, decode_s, reduce_s, message_s)
        return cls(forward_s, backward_s, *seconds, cores, int(processors), int(machine))


class _Meter:
    """Mean seconds of named pieces of work: CPU seconds of this thread.

    On a GPU it is the time until a piece is done, and so it is for a group, whose members wait for each other in it. Of
    times the longest eighth is left out: waits end late now and then.

    Attributes:
        by_clock: whether it is the time.
        is_timed_on_processors: whether it is that of a group without GPUs.
        cpu_s: CPU seconds of this thread in all of them.
    """

    def __init__(self, executor: Executor) -> None:
        self._on_gpu = executor.transport.device.type == "cuda"
        self.is_timed_on_processors = executor.group.degree > 1 and not self._on_gpu
        self.by_clock = self._on_gpu or self.is_timed_on_processors
        self.cpu_s = 0.0
        self._seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], object]) -> None:
        start, cpu_began = self._now_s(), time.thread_time()
        work()
        self._seconds.setdefault(name, []).append(self._now_s() - start)
        self.cpu_s += time.thread_time() - cpu_began

    def _now_s(self) -> float:
        if not self.by_clock:
            return time.thread_time()
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.monotonic()

    def mean_s(self, name: str) -> float:
        if name not in self._seconds:
            return 0.0
        seconds = sorted(self._seconds[name])
        return statistics.fmean(seconds[: len(seconds) - len(seconds) // 8] if self.by_clock else seconds)


class _ChunkRehearsal:
    """Micro-batches through a chunk and back, on numbers of the right size.

    Several go forward before the first goes back, as in training: what each keeps is then in memory, not in a cache.

    Attributes:
        count: how many.
    """

    def __init__(self, executor: Executor, chunk: Chunk) -> None:
        self.executor, self.chunk = executor, chunk
        device, plan = chunk.model.device, executor.plan
        self.count = min(plan.stages[chunk.stage].in_flight, plan.problem.workload.num_micro_batches, MOST_IN_FLIGHT)

        def tensors(boundary: int, needed: bool) -> list[Tensor | None]:
            if not needed:
                return [None] * self.count
            size = plan.boundary_elements(boundary)
            return [executor.own_part(torch.randn(size, device=device), boundary) for _ in range(self.count)]

        self.inputs = tensors(chunk.stage - 1, not chunk.model.is_first)
        self.gradients = tensors(chunk.stage, not chunk.model.is_last)
        self.running = {name: tensor.clone() for name, tensor in chunk.model.running.items()}

    def forward(self, micro_batch: int) -> None:
        x = self.inputs[micro_batch]
        draw = self.executor.draw(self.chunk, micro_batch)
        self.chunk.runner.forward(micro_batch, None if x is None else x.detach(), draw, RngKey(0, 0, micro_batch))

    def backward(self, micro_batch: int) -> None:
        self.chunk.runner.backward(micro_batch, self.gradients[micro_batch])

    def end(self) -> None:
        self.chunk.model.flat_grad.zero_()
        self.chunk.model.load_running(self.running)
        self.chunk.optimizer.num_steps = 0
        for states in self.chunk.optimizer.states.values():
            states.zero_()  # with sgd, weight decay goes through the momentum


class _Rehearsal:
    """A rank's parts of a step, without the network.

    Attributes:
        parts: of the step, in order; each is some named pieces of work between which a rank waits for no other.
            Several micro-batches go forward before the first goes back.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        rank = executor.rank
        sends = [a for a in executor.actions if a.kind is Kind.SEND]
        takes = [a for a in executor.actions if a.kind is Kind.RECV]
        message = cache(self._message)
        # In turn, so that the mean weighs every message of the step alike.
        self.sends = cycle([(a, *message(a.stage, rank, a.peer, role_of(a))) for a in sends])
        self.takes = cycle([(a, *message(a.stage, a.peer, rank, role_of(a))) for a in takes])
        self.chunks = [_ChunkRehearsal(executor, chunk) for chunk in executor.chunks]
        before: list[Piece] = [("decode", self.decode)] if takes else []
        after: list[Piece] = [("encode", self.encode)] if sends else []
        self.parts: list[list[Piece]] = []
        for part in self.chunks:
            stage, numbers = part.chunk.stage, range(part.count)
            for number in numbers:
                self.parts.append([*before, (f"forward {stage}", partial(part.forward, number)), *after])
            for number in numbers:
                self.parts.append([*before, (f"backward {stage}", partial(part.backward, number)), *after])
        self.parts.append([("optimizer", self.optimizer)])
        if executor.reductions.reducers:
            self.parts.append([("reduce", self.reduce)])

    def optimizer(self) -> None:
        """A step that changes no weight: no gradient, no learning rate."""
        for whole in self.executor.wholes:
            whole.finish_gradients()
        for chunk in self.executor.chunks:
            chunk.model.flat_grad.zero_()
        self.executor.update.average_gradients()
        for chunk in self.executor.chunks:
            if self.executor.plan.zero:
                chunk.optimizer.step_into_gradients(0.0)
                chunk.model.flat_grad.copy_(chunk.model.flat.detach())  # as long as the other way round
            else:
                chunk.optimizer.step(0.0)
        self.executor.gather_weights()

    def _message(self, boundary: int, source: int, target: int, role: Role) -> tuple[Tensor, TensorCodec, Tensor]:
        """A boundary's tensor, its codec, and its bytes on the wire."""
        plan = self.executor.plan
        device = self.executor.transport.device
        x = torch.randn(plan.boundary_elements(boundary, role), device=device)
        if not x.numel():
            return x, boundary_codec(NO_CODEC, "float32"), torch.empty(0, dtype=torch.uint8, device=device)
        spec = plan.codec_between(source, target, role)
        codec = boundary_codec(spec, plan.problem.workload.dtype)
        if spec.name == "topk" and role == "gradient":
            kept = spec.kept(x.numel())
            codec = AtPositions(torch.arange(kept, device=device) * (x.numel() // kept))
        if spec.delta:
            workload, most = plan.problem.workload, self.executor.config.delta_cache_bytes
            ids_B = np.arange(workload.micro_batch)  # of a memory of its own: both ends' stay equal
            codec = ChangeCodec(
                codec, SampleMemory(workload, plan.stages[boundary].end_op, len(ids_B), most, device), ids_B
            )
        data = torch.empty(plan.boundary_bytes(boundary, source, target, role), dtype=torch.uint8, device=device)
        codec.encode(x, data)
        return x, codec, data

    def encode(self) -> None:
        action, x, codec, data = next(self.sends)
        whole = self.executor.gathered(self.executor.own_part(x, action.stage), action)
        if whole is not None:
            codec.encode(whole, torch.empty_like(data))

    def decode(self) -> None:
        action, x, codec, data = next(self.takes)
        if self.executor.group.is_leader:
            codec.decode(data, x.numel())
        self.executor.scattered(x, action)

    def reduce(self) -> None:
        for whole in self.executor.wholes:
            whole.gather_gradients()
        if self.executor.group.is_leader:
            for reducer in self.executor.reductions.reducers.values():
                reducer.rehearse()
        for whole in self.executor.wholes if self.executor.plan.zero else ():  # weights go the same ways
            whole.finish_gradients(are_stepped=True)
            whole.gather_gradients(are_stepped=True)

    def end(self) -> None:
        for whole in self.executor.wholes:
            whole.has_gradients = False
        for part in self.chunks:
            part.end()


def profile_rank(executor: Executor, *, in_one_machine: bool = True) -> Profile:
    """Measures this rank; every rank must call it at the same time. Weights and moments end as they began.

    Args:
        executor: the rank's.
        in_one_machine: messages pass no network; where they do, fewer and shorter ones are sent.
    """
    rehearsal = _Rehearsal(executor)
    for _, work in chain.from_iterable(rehearsal.parts):  # first calls allocate
        work()
    dist.barrier()
    meter = _Meter(executor)
    cores, round_s = _windows(executor, rehearsal, meter)
    if dist.get_world_size() > 1:
        between = _Meter(executor)
        byte_s = _byte_seconds(executor, in_one_machine)
        message_s = _measure_between_messages(executor, rehearsal, between, round_s, byte_s)
        meter = meter if meter.by_clock else between
    else:
        message_s = byte_s = 0.0
    rehearsal.end()
    sent, taken, reduced = _mean_bytes(executor)
    return Profile(
        forward_s=tuple(meter.mean_s(f"forward {one.chunk.stage}") for one in rehearsal.chunks),
        backward_s=tuple(meter.mean_s(f"backward {one.chunk.stage}") for one in rehearsal.chunks),
        optimizer_s=meter.mean_s("optimizer"),
        encode_s=meter.mean_s("encode") + byte_s * sent,
        decode_s=meter.mean_s("decode") + byte_s * taken,
        reduce_s=meter.mean_s("reduce") + byte_s * reduced,
        message_s=message_s,
        cores=cores,
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        machine=-1 - executor.rank if executor.transport.device.type == "cuda" else _machine(),
    )


def _windows(executor: Executor, rehearsal: _Rehearsal, meter: _Meter) -> tuple[float, float]:
    """Measures all parts again and again: `Profile.cores`, and seconds of a round.

    Groups that are timed on a machine's processors do so one after the other, and with all others at last.
    """
    own_turn, turns = _turn(executor)
    for turn in range(turns):
        dist.barrier()
        if turn == own_turn:
            _, alone_s = _window(executor, rehearsal, meter)
    if turns:
        dist.barrier()
    if own_turn is None:
        cores, round_s = _window(executor, rehearsal, meter)
        return 1.0 if meter.by_clock else cores, round_s
    _, round_s = _window(executor, rehearsal, _Meter(executor))
    return min(1.0, alone_s / round_s), round_s


def _window(executor: Executor, rehearsal: _Rehearsal, meter: _Meter) -> tuple[float, float]:
    """CPU seconds per second of this process, and seconds of a round."""
    began, cpu_began, rounds = time.monotonic(), time.process_time(), 0
    while executor.group.of_leader(rounds < MIN_ROUNDS or time.monotonic() - began < WINDOW_S):
        for name, work in chain.from_iterable(rehearsal.parts):
            meter.time(name, work)
        rounds += 1
    lasted_s = time.monotonic() - began
    return (time.process_time() - cpu_began) / lasted_s, lasted_s / rounds


def _turn(executor: Executor) -> tuple[int | None, int]:
    """When this rank is timed alone, and how many turns there are; none where no machine has several such ranks."""
    is_timed = executor.group.degree > 1 and executor.transport.device.type != "cuda"
    own = torch.tensor([_machine(), executor.rank if is_timed else -1], dtype=torch.float64)
    found = [torch.empty_like(own) for _ in executor.plan.processes]
    if len(found) == 1:
        return None, 0
    dist.all_gather(found, own)
    on: dict[int, set[int]] = {}
    for machine, rank in (map(int, one.tolist()) for one in found):
        on.setdefault(machine, set()).add(rank)
    timed = sorted(on[_machine()] - {-1})
    turns = max(len(ranks - {-1}) if len(ranks) > 1 else 0 for ranks in on.values())
    return (timed.index(executor.rank) if is_timed and turns else None), turns


def _machine() -> int:
    """A number of this machine, which float64 holds."""
    try:
        name = BOOT_FILE.read_text(encoding="ascii")
    except OSError:
        name = socket.gethostname()
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)


def _mean_bytes(executor: Executor) -> tuple[float, float, int]:
    """Bytes of a rank's mean boundary message sent and taken, and of all its reductions in one step, both ways."""
    plan, rank = executor.plan, executor.rank
    sent = [plan.boundary_bytes(a.stage, rank, a.peer, role_of(a)) for a in executor.actions if a.kind is Kind.SEND]
    taken = [plan.boundary_bytes(a.stage, a.peer, rank, role_of(a)) for a in executor.actions if a.kind is Kind.RECV]
    reduced = sum(
        m.num_bytes
        for r in executor.reductions.reducers.values()
        for part in r.rounds
        for m in (*part.sends, *part.takes)
    )
    return sum(sent) / max(1, len(sent)), sum(taken) / max(1, len(taken)), reduced


def _measure_between_messages(
    executor: Executor, rehearsal: _Rehearsal, meter: _Meter, round_s: float, byte_s: float
) -> float:
    """Does a rank's parts with a message to the next rank, and one of the one before, ahead of each.

    Args:
        executor, rehearsal: of the rank.
        meter: takes the seconds of the parts.
        round_s: that all parts take once.
        byte_s: CPU seconds per byte of a message.

    Returns:
        CPU seconds to hand over one message or to take one, but for its bytes: what the process computed beside its
        parts.
    """
    rank, n = executor.transport.rank, dist.get_world_size()
    num_bytes = _usual_bytes(executor)
    most = torch.tensor([round_s, float(len(rehearsal.parts))], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    slowest_s, num_parts = most.tolist()
    rounds = max(1, min(MOST_ROUNDS, round(WINDOW_S / slowest_s)))
    count = rounds * int(num_parts)
    parts: list[list[Piece]] = [*rehearsal.parts, *[[]] * (int(num_parts) - len(rehearsal.parts))]
    transport = Transport(rank, None, window=MOST_IN_FLIGHT)
    probes = [Expected((rank - 1) % n, Topic.PROBE, i, num_bytes) for i in range(count)]
    transport.expect(probes)
    dist.barrier()
    began = time.process_time()
    for i, (probe, part) in enumerate(zip(probes, cycle(parts), strict=False)):
        transport.send(transport.buffer(num_bytes), (rank + 1) % n, Topic.PROBE, i)
        transport.receive(probe)
        for name, work in part:
            meter.time(name, work)
    transport.finish()
    return max(0.0, (time.process_time() - began - meter.cpu_s) / (2 * count) - num_bytes * byte_s)


def _usual_bytes(executor: Executor) -> int:
    """Bytes of the ranks' messages, where all links carry so many in no time; else few. The same on every rank."""
    sent, taken, _ = _mean_bytes(executor)
    asked = torch.tensor([max(sent, taken, float(SHORT_BYTES))], dtype=torch.float64)
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    num_bytes = min(int(asked), MAX_LONG_BYTES)
    began = time.monotonic()
    _ring_seconds(executor, num_bytes, 1)
    lasted = torch.tensor([time.monotonic() - began], dtype=torch.float64)
    dist.all_reduce(lasted, dist.ReduceOp.MAX)
    return num_bytes if float(lasted) < MOST_MESSAGE_S else SHORT_BYTES


def _byte_seconds(executor: Executor, in_one_machine: bool) -> float:
    """CPU seconds per byte to hand over a message or to take one; gloo's thread included.

    A straight line through rings of probes, short and long: the median of some of each.
    """
    long, count = max(MIN_LONG_BYTES, min(MAX_LONG_BYTES, _longest_message(executor.plan))), NUM_PROBES
    if not in_one_machine:
        long, count = MIN_LONG_BYTES, NUM_NETWORK_PROBES
    short_s = statistics.median(_ring_seconds(executor, SHORT_BYTES, count) for _ in range(NUM_RINGS))
    long_s = statistics.median(_ring_seconds(executor, long, count) for _ in range(NUM_RINGS))
    return max(0.0, (long_s - short_s) / (long - SHORT_BYTES))


def _ring_seconds(executor: Executor, num_bytes: int, count: int) -> float:
    """CPU seconds per end of a message when every rank sends to the next, all at once."""
    rank, n = executor.transport.rank, dist.get_world_size()
    transport = Transport(rank, None, window=count)
    probes = [Expected((rank - 1) % n, Topic.PROBE, i, num_bytes) for i in range(count)]
    transport.expect(probes)
    dist.barrier()
    began = time.process_time()
    for i, probe in enumerate(probes):
        transport.send(transport.buffer(num_bytes), (rank + 1) % n, Topic.PROBE, i)
        transport.receive(probe)
    transport.finish()
    return (time.process_time() - began) / (2 * count)


def _longest_message(plan: Plan) -> int:
    """Bytes of the plan's longest message, the same on every rank."""
    workload = plan.problem.workload
    paths = {plan.path_of_micro_batch(m) for m in range(workload.num_micro_batches)}
    lengths = [plan.boundary_bytes(s, a, b, "activation") for p in paths for s, (a, b) in enumerate(pairwise(p))]
    lengths += [group.transfer_bytes(t) for group in reduction_groups(plan) for t in group.program]
    return max(lengths, default=0)


def gather_profiles(mine: Profile, plan: Plan) -> list[Profile]:
    """All ranks' profiles, on every process; of a group that of its leader."""
    counts = [len(places) for places in plan.places_of_rank]
    row = torch.zeros(2 * max(counts) + 8, dtype=torch.float64)
    numbers = mine.row()
    row[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    rows = [torch.empty_like(row) for _ in plan.processes]
    dist.all_gather(rows, row)
    return [Profile.from_row(other.tolist(), count) for other, count in zip(rows, counts, strict=False)]


def durations_from(profiles: list[Profile]) -> Durations:
    """The simulator's input."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(p, name) for p in profiles])

    _, machine_N = np.unique(column("machine"), return_inverse=True)
    cores_N = column("cores")
    for machine in range(machine_N.max() + 1):
        here = machine_N == machine
        # Windows of ranks that wait for each other overlap in part: each sees more than its share.
        cores_N[here] *= min(1.0, column("processors")[here].max() / max(cores_N[here].sum(), LEAST_CORES))

    return Durations(
        forward_s_C=np.concatenate([p.forward_s for p in profiles]),
        backward_s_C=np.concatenate([p.backward_s for p in profiles]),
        optimizer_s_N=column("optimizer_s"),
        encode_s_N=column("encode_s"),
        decode_s_N=column("decode_s"),
        reduce_s_N=column("reduce_s"),
        message_s=float(column("message_s").mean()),
        cores_N=np.maximum(cores_N, LEAST_CORES),
        machine_N=machine_N.astype(np.float64),
    )
