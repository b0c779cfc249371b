"""Groups of devices train as one process does: losses, weights, checkpoints, and what they refuse."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hetplanner.errors import InvalidInput
from hetplanner.liveness.heartbeat import HEARTBEAT_VARIABLE, create_heartbeats, read_heartbeats
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig, check_runnable
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.fine_tuning import FineTuning
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.workload import Workload
from tests.support.models.model_folders import loaded, model_folder, plain_losses
from tests.support.plans.factories import chain_plan, small_cluster, small_gpt, tuned
from tests.support.plans.grouped import in_groups
from tests.support.processes.patience import until
from tests.support.training.real_ranks import Ranks, gone_on, start_ranks, train

pytestmark = pytest.mark.distributed

STEPS, FEW, FOREVER = 30, 8, 100_000
LONG = ("degree 2", "degree 4, recompute", "2 x 2 x 2, dropout", "unlike degrees by stage")
"""Of these plans losses are compared over `STEPS`, of the others over `FEW`."""


gpt = partial(small_gpt, global_batch=8, vocab=258, heads=4, ffn=66)


def llama() -> Workload:
    """With biases as Qwen2 has them."""
    return gpt(family="llama", kv_heads=2, tie_embeddings=False, qkv_bias=True)


def recomputed(plan: Plan) -> Plan:
    return plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))


PLANS = {
    "degree 2": lambda: in_groups(chain_plan([4], [], workload=gpt()), [2]),
    "degree 4, recompute": lambda: in_groups(recomputed(chain_plan([4], [], workload=gpt())), [4]),
    "2 x 2 x 2, dropout": lambda: in_groups(chain_plan([3, 1], [4], workload=gpt(dropout=0.1)), [2] * 4),
    "unlike degrees by stage": lambda: in_groups(chain_plan([4], [3, 8], workload=gpt()), [4, 1, 2]),
    "unlike degrees by replica, llama": lambda: in_groups(chain_plan([2, 2], [4], workload=llama()), [1, 2, 2, 1]),
    "cut before the loss, sgd": lambda: in_groups(chain_plan([4], [10], workload=gpt(optimizer="sgd")), [2, 2]),
    "frozen layers": lambda: in_groups(
        chain_plan([4], [4], workload=tuned(gpt(), FineTuning(frozen_layers=2))), [2, 2]
    ),
    "interleaved": lambda: in_groups(interleave(chain_plan([4, 4], [5], workload=gpt(global_batch=16))), [2, 1, 2, 1]),
}


@pytest.mark.parametrize("name", PLANS)
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    config = TrainConfig(steps=STEPS if name in LONG else FEW, seed=3, learning_rate=3e-3, clip_norm=1.0)
    model, expected = train_reference(plan.problem.workload, config)
    losses = train(plan, config, tmp_path).losses()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0], "the model learns"
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    assert saved.keys() == reference.keys()
    for weight, values in reference.items():
        assert (saved[weight] - values).abs().max() < 1e-3, weight


def test_what_groups_cannot_do_is_refused_with_what_works() -> None:
    muon = in_groups(chain_plan([4], [], workload=gpt(optimizer="muon")), [2])
    with pytest.raises(InvalidInput, match=r"^groups: muon needs whole matrices.*--optimizer adamw or sgd"):
        check_runnable(muon)
    local = in_groups(chain_plan([2, 2], [], workload=gpt()), [2, 1]).replace(local_steps=4)
    with pytest.raises(InvalidInput, match=r"^groups: .*the plan has 4 local steps; plan without --max-local-steps"):
        check_runnable(local)
    with pytest.raises(InvalidInput, match=r"30 tokens are no multiple of 4; use 2"):
        in_groups(chain_plan([4], [], workload=gpt().replace(seq_len=30)), [4])


def validation(ranks: Ranks) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "time_s"} for line in ranks.all_lines("validation")]


def test_lower_precision_and_evaluation_are_those_of_single_devices(tmp_path: Path) -> None:
    single = chain_plan([4], [4], workload=gpt(dropout=0.1).replace(dtype="bfloat16"))
    config = TrainConfig(steps=6, seed=3, learning_rate=3e-3, eval_every=3)
    runs = [train(plan, config, tmp_path / name) for name, plan in
            (("single", single), ("groups", in_groups(single, [2, 2])))]  # fmt: skip
    assert runs[1].losses() == pytest.approx(runs[0].losses(), rel=2e-3)
    for one, two in zip(*map(validation, runs), strict=True):
        assert two["loss_sum"] == pytest.approx(one["loss_sum"], rel=2e-3)
        assert two["num_correct"] == pytest.approx(one["num_correct"], rel=0.1)
        assert two["num_tokens"] == one["num_tokens"]


SINGLE = chain_plan([2, 2], [4], workload=gpt(dropout=0.1))
GROUPS = in_groups(SINGLE, [2, 1, 1, 2])
CHANGES = {"under the same plan": (GROUPS, GROUPS), "from devices": (SINGLE, GROUPS), "to devices": (GROUPS, SINGLE)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_goes_on(name: str, tmp_path: Path) -> None:
    before, after = CHANGES[name]
    straight, rest = gone_on(before, after, tmp_path)
    assert rest == (straight if before is after else pytest.approx(straight, rel=1e-5))


def test_groups_begin_with_the_weights_of_a_folder(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "source", "gpt2", changes={"vocab_size": 258})
    workload = workload_from_config(source, dtype="float32", micro_batch=2, global_batch=8, seq_len=16)
    config = TrainConfig(steps=3, init_from=str(source), learning_rate=1e-3)
    ranks = train(in_groups(chain_plan([4], [3], workload=workload), [2, 2]), config, tmp_path / "run")
    expected = plain_losses(loaded(source, "gpt2").train(), workload, config.replace(init_from=None))
    assert ranks.losses() == pytest.approx(expected, rel=1e-5)


def test_a_stop_inside_a_long_step_saves_the_model_as_of_the_last_step(tmp_path: Path) -> None:
    plan = in_groups(chain_plan([3000], [4], workload=gpt(global_batch=6000)), [2, 1])
    ranks = start_ranks(plan, TrainConfig(steps=FOREVER), tmp_path)
    ranks.wait_for_phase("training")
    (tmp_path / "stop").touch()
    assert ranks.wait(10) == [0, 0, 0], ranks.logs()
    initial = StageModel(plan.problem.workload, 0, len(plan.problem.workload.graph.ops), seed=0)
    assert torch.equal(load_model(tmp_path).flat, initial.flat)


def test_a_killed_member_ends_all_with_an_error_line(tmp_path: Path) -> None:
    ranks = start_ranks(in_groups(chain_plan([4], [4], workload=gpt()), [2, 2]), TrainConfig(steps=FOREVER), tmp_path)
    ranks.wait_for_step(1)
    os.kill(ranks.processes[3].pid, signal.SIGKILL)
    codes = ranks.wait(10)
    assert codes == [1, 1, 1, -signal.SIGKILL]
    assert all("lost a peer in step" in ranks.lines(rank, "error")[0]["text"] for rank in range(3))


def tells(rank: int, *, path: str) -> None:
    os.environ[HEARTBEAT_VARIABLE] = path


def test_a_member_tells_that_it_waits_for_its_leader(tmp_path: Path) -> None:
    cluster, path = small_cluster(2, latency="200 ms"), tmp_path / "heartbeats"
    create_heartbeats(path, 3)
    plan = in_groups(chain_plan([4], [4], workload=gpt(), cluster=cluster), [1, 2])
    ranks = start_ranks(
        plan, TrainConfig(steps=8, emulate_links=True), tmp_path / "run", fault=partial(tells, path=str(path))
    )
    ranks.wait_for_phase("training")
    until(lambda: read_heartbeats(path)[2].waits_for == 1 or not any(p.is_alive() for p in ranks.processes), ranks.logs)
    assert any(p.is_alive() for p in ranks.processes)
    assert ranks.wait() == [0, 0, 0]
