"""A run goes on under another plan: other stages, replicas and devices, files of one folder or of many hosts."""

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from hetplanner.plan.files.checkpoints import checkpoint_folder, checkpoint_steps, rank_file
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from hetplanner.runtime.checkpoint.carry_over import carry_over
from hetplanner.runtime.model.chunk import build_chunks
from tests.support.models.programs import residual_workload
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.training.real_ranks import finds_earlier_run, start_ranks, train

pytestmark = pytest.mark.distributed

STEPS, AT = 10, 4
DROPOUT = tiny_workload().transformer.replace(dropout=0.2)
WORKLOAD = tiny_workload(global_batch=8).replace(transformer=DROPOUT)
OLD = chain_plan([3, 1], [4], workload=WORKLOAD)
NEW = {
    "three stages of one": chain_plan([4], [2, 5], workload=WORKLOAD),
    "one device": chain_plan([4], [], workload=WORKLOAD),
    "another cut": chain_plan([2, 2], [1], workload=WORKLOAD),
}


def losses(folder: Path) -> list[float]:
    return [loss for _, loss in Run(folder).read_all().losses()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run under OLD with checkpoints after steps 2, 4 and so on."""
    folder = tmp_path_factory.mktemp("whole")
    train(OLD, TrainConfig(steps=STEPS, checkpoint_every=2, checkpoints_kept=9), folder)
    save_plan(OLD, folder / "plan.json")
    return folder


def part_of(source: Path, target: Path, ranks: tuple[int, ...] = (0, 1, 2, 3), until: int = AT) -> Path:
    """What a host has of a run: the plan, manifests, and files of some ranks, up to a step."""
    target.mkdir(parents=True)
    shutil.copy(source / "plan.json", target)
    for step in checkpoint_steps(source):
        if step <= until:
            folder = checkpoint_folder(target, step)
            folder.mkdir(parents=True)
            for name in ("manifest.json", *map(rank_file, ranks)):
                shutil.copy(checkpoint_folder(source, step) / name, folder)
    return target


@pytest.mark.parametrize("plan", NEW.values(), ids=NEW)
def test_losses_under_another_plan_are_those_of_one_run(whole: Path, tmp_path: Path, plan: Plan) -> None:
    before = part_of(whole, tmp_path / "before")
    train(plan, TrainConfig(steps=STEPS, checkpoint_every=STEPS, resume=str(before)), tmp_path / "rest")
    run = Run(tmp_path / "rest").read_all()
    assert run.resumed() == (AT, str(before), ())
    assert losses(tmp_path / "rest") == pytest.approx(losses(whole)[AT:], rel=2e-6)
    told = [item.text for item in run.ranks[0].happenings if item.kind == "resumed"]
    assert told == [f"goes on from step {AT}, which was trained under plan {OLD.digest()[:8]}"]


def hosts(whole: Path, folder: Path, held: dict[int, tuple[int, ...]]) -> partial:
    for host, ranks in held.items():
        part_of(whole, folder / f"host-{host}" / "before", ranks)
    return partial(finds_earlier_run, folder=str(folder))


def test_the_hosts_that_are_left_have_all_stages_between_them(whole: Path, tmp_path: Path) -> None:
    plan = NEW["three stages of one"]
    train(plan, TrainConfig(steps=STEPS, resume=str(part_of(whole, tmp_path / "before"))), tmp_path / "one")
    fault = hosts(whole, tmp_path, {0: (1,), 1: (0,), 2: (3,)})  # of stage 1 only host 2 has a part; rank 2's is lost
    ranks = start_ranks(plan, TrainConfig(steps=STEPS, resume="before"), tmp_path / "rest", fault=fault)
    assert ranks.wait(90) == [0] * 3, ranks.logs()
    assert losses(tmp_path / "rest") == losses(tmp_path / "one")


def test_a_host_without_files_takes_all_from_the_others(whole: Path, tmp_path: Path) -> None:
    plan = NEW["three stages of one"]
    fault = hosts(whole, tmp_path, {0: (0, 1), 2: (2, 3)})
    (tmp_path / "host-1").mkdir()
    ranks = start_ranks(plan, TrainConfig(steps=AT + 2, resume="before"), tmp_path / "rest", fault=fault)
    assert ranks.wait(90) == [0] * 3, ranks.logs()
    assert losses(tmp_path / "rest") == pytest.approx(losses(whole)[AT : AT + 2], rel=2e-6)


def test_a_stage_that_nobody_has_is_named_and_nothing_begins(whole: Path, tmp_path: Path) -> None:
    fault = hosts(whole, tmp_path, {0: (0,), 1: (1,), 2: (0, 1)})
    plan = NEW["three stages of one"]
    ranks = start_ranks(plan, TrainConfig(steps=STEPS, resume="before"), tmp_path / "rest", fault=fault)
    assert set(ranks.wait(90)) == {1}
    errors = [line["text"] for line in ranks.all_lines("error")]
    assert any("no host has a part of stage 1 of the earlier plan" in text for text in errors), errors
    assert ranks.all_lines("step") == []


def test_a_damaged_part_costs_one_checkpoint(whole: Path, tmp_path: Path) -> None:
    before = part_of(whole, tmp_path / "before")
    path = checkpoint_folder(before, AT) / rank_file(0)
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    train(NEW["one device"], TrainConfig(steps=STEPS, resume=str(before)), tmp_path / "rest")
    step, _, skipped = Run(tmp_path / "rest").read_all().resumed()
    assert step == AT - 2
    assert "rank-0.safetensors: is damaged" in skipped[0]
    assert losses(tmp_path / "rest") == pytest.approx(losses(whole)[AT - 2 :], rel=2e-6)


@pytest.fixture
def alone():
    """This process is a group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_weights_moments_and_running_statistics_come_over_to_the_bit(tmp_path: Path, alone: None) -> None:
    workload = residual_workload()
    ops, shares = len(workload.graph.ops), workload.num_micro_batches
    cluster = small_cluster(4)
    old = chain_plan([shares - 1, 1], [ops // 2], workload=workload, cluster=cluster)
    train(old, TrainConfig(steps=3, checkpoint_every=3), tmp_path / "before")
    save_plan(old, tmp_path / "before" / "plan.json")
    new = chain_plan([shares], [], workload=workload, cluster=cluster)
    config = TrainConfig(steps=6, seed=1)
    chunks = build_chunks(new, 0, config)
    scale = SimpleNamespace(scale=None)
    executor = SimpleNamespace(plan=new, whole_chunks=chunks, wholes=(), update=scale, completed_steps=0)
    skipped: list[str] = []
    assert carry_over(executor, 0, tmp_path / "before", skipped) == (3, old.digest())
    assert (executor.completed_steps, skipped) == (3, [])
    saved = load_file(tmp_path / "before" / "model.safetensors")
    held = chunks[0].model.saved_tensors()
    assert held.keys() == saved.keys()
    assert chunks[0].model.running
    for name, tensor in saved.items():
        assert torch.equal(held[name], tensor), name
    assert chunks[0].optimizer.num_steps == 3
    moments = load_file(checkpoint_folder(tmp_path / "before", 3) / rank_file(2))
    size = moments["stage.1.mean"].numel()
    assert size
    assert torch.equal(chunks[0].optimizer.states["mean"][-size:], moments["stage.1.mean"])
