"""The plan's memory against the live tensors of the members of a group, for one stage at work."""

import multiprocessing as mp
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hetplanner.runtime.comm.connect import store_at
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.workload.fine_tuning import Adapters
from hetplanner.workload.tensor_degrees import SHARDINGS, Sharding
from tests.support.training.stage_memory import Case, counted, planned

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
TRIES = 2
REPLICAS = (1, 2)
"""With more than one each has its shard of the optimizer's states (ZeRO stage 1)."""


def cases_of(sharding: Sharding) -> list[tuple[Case, int]]:
    """Each with its number of replicas."""
    cases = [(case, replicas) for case in CASES for replicas in REPLICAS] + [(case, 1) for case in CAPTURED]
    return cases if sharding == "tensor" else [*cases, (FROZEN, 1)]


def counted_by_member(port: int, index: int, degree: int, sharding: Sharding, answers: "mp.Queue[list[int]]") -> None:
    torch.set_num_threads(1)
    store = store_at("127.0.0.1", port, timedelta(seconds=60), is_master=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=degree)
    group = DeviceGroup(index, degree, 0, dist.group.WORLD, sharding=sharding)
    cases = cases_of(sharding)
    # gloo frees buffers of an exchange after it has ended, sometimes late.
    answers.put([min(counted(case, group, replicas) for _ in range(TRIES)) for case, replicas in cases])
    dist.barrier()


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_memory_of_each_member_is_what_the_plan_counts(sharding: Sharding) -> None:
    context = mp.get_context("spawn")
    answers, degree = context.Queue(), 2
    store = store_at("127.0.0.1", 0, timedelta(seconds=60), is_master=True)
    members = [
        context.Process(target=counted_by_member, args=(store.port, index, degree, sharding, answers))
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
