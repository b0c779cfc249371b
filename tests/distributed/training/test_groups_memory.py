"""The plan's memory against the live tensors of the members of a group, for one stage at work."""

from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.queues import Queue

import pytest
import torch
import torch.distributed as dist

from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.workload.fine_tuning import Adapters
from hetplanner.workload.tensor_degrees import SHARDINGS, Sharding
from hetplanner.workload.workload import Workload
from tests.support.training.real_ranks import FORKS
from tests.support.training.stage_memory import CAPTURES, Case, captured, counted, planned

pytestmark = pytest.mark.distributed

CASES = [
    Case("gpt2", "float32", "middle", 3),
    Case("gpt2", "bfloat16", "first", 2),
    Case("gpt2", "float32", "first", 2, more=(("dropout", 0.1),)),
    Case("llama", "float32", "middle", 3, recompute=True),
    Case("llama", "bfloat16", "last", 1, more=(("vocab", 32_000),)),
    Case("llama", "bfloat16", "all", 2),
]
CAPTURED = [
    Case("captured gpt_neox", "float32", "middle", 3),
    Case("captured phi", "bfloat16", "all", 2),
    Case("captured phi", "float32", "last", 1),
]
ADAPTERS = Adapters(rank=4, alpha=8.0, targets=("c_attn",))
FROZEN = Case("gpt2", "float32", "all", 1, more=(("hidden", 512),), adapters=ADAPTERS)
"""Not for tensor parallelism, which adapters refuse."""
TOO_MUCH, TOO_LITTLE = 1.1, 0.94
REPLICAS = (1, 2)
"""With more than one each has its shard of the optimizer's states (ZeRO stage 1)."""


def cases_of(sharding: Sharding) -> list[tuple[Case, int]]:
    """Each with its number of replicas."""
    cases = [(case, replicas) for case in CASES for replicas in REPLICAS] + [(case, 1) for case in CAPTURED]
    return cases if sharding == "tensor" else [*cases, (FROZEN, 1)]


def counted_by_member(
    port: int,
    index: int,
    degree: int,
    sharding: Sharding,
    captures: Mapping[str, Workload],
    answers: "Queue[list[int]]",
) -> None:
    torch.set_num_threads(1)
    CAPTURES.update(captures)
    store = store_at("127.0.0.1", port, timedelta(seconds=60), is_master=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=degree)
    group = DeviceGroup(index, degree, 0, dist.group.WORLD, sharding=sharding)
    cases = cases_of(sharding)
    answers.put([live_bytes(case, group, replicas) for case, replicas in cases])
    dist.barrier()


def live_bytes(case: Case, group: DeviceGroup, replicas: int) -> int:
    """Counted once more where it is too much: gloo frees buffers of an exchange after it has ended, sometimes late."""
    live = counted(case, group, replicas)
    least = planned(case, group.degree, replicas, group.sharding) / live
    is_again = group.summed(float(least < TOO_LITTLE)) > 0
    return min(live, counted(case, group, replicas)) if is_again else live


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_memory_of_each_member_is_what_the_plan_counts(sharding: Sharding) -> None:
    captures = {name: captured(name) for name in ("gpt_neox", "phi")}
    answers, degree = FORKS.Queue(), 2
    store = store_at("127.0.0.1", 0, timedelta(seconds=60), is_master=True)
    members = [
        FORKS.Process(target=counted_by_member, args=(store.port, index, degree, sharding, captures, answers))
        for index in range(degree)
    ]
    for member in members:
        member.start()
    found = [answers.get(timeout=120) for _ in members]
    for member in members:
        member.join()
    most = map(max, zip(*found, strict=True))
    cases = cases_of(sharding)
    ratios = {
        f"{case} of {replicas}": planned(case, degree, replicas, sharding) / live
        for (case, replicas), live in zip(cases, most, strict=True)
    }
    assert not {case: ratio for case, ratio in ratios.items() if not TOO_LITTLE <= ratio <= TOO_MUCH}
