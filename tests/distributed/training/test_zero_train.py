"""ZeRO stage 1: the bits of a run with all states everywhere, the losses of one process, a part of the states."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hetplanner.codecs.spec import Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.checkpoints import checkpoint_folder, rank_file
from hetplanner.plan.model import OuterOptimizer, Plan
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.reference import train_reference
from tests.support.plans.factories import chain_plan, sharded, sites_cluster, small_cluster, small_gpt
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import gone_on, start_ranks, train

pytestmark = pytest.mark.distributed

STEPS, FEW, FOREVER = 30, 8, 100_000
LONG = ("2 replicas x 2 stages, dropout", "two sites", "unlike groups, llama")
"""Of these plans losses are compared over `STEPS`, of the others over `FEW`."""


def with_codec(plan: Plan, name: str) -> Plan:
    stages = (stage.replace(reduce_codec=Codec(name=name), error_feedback=True) for stage in plan.stages)
    return plan.replace(stages=tuple(stages))


PLANS = {
    "2 replicas x 2 stages, dropout": lambda: chain_plan([5, 3], [5], workload=small_gpt(dropout=0.1)),
    "3 replicas, sgd": lambda: chain_plan([3, 4, 1], [], workload=small_gpt(optimizer="sgd")),
    "ring": lambda: chain_plan([3, 4, 1], [4], workload=small_gpt()).replace(reducer="ring"),
    "one server": lambda: chain_plan([3, 4, 1], [4], workload=small_gpt()).replace(reducer="central-ps"),
    "two sites": lambda: chain_plan(
        [2, 4, 2], [], workload=small_gpt(), cluster=sites_cluster([2, 1])
    ).replace(reducer="hierarchical"),
    "three sites": lambda: chain_plan(
        [2, 2, 2, 2], [], workload=small_gpt(), cluster=sites_cluster([2, 1, 1])
    ).replace(reducer="hierarchical"),
    "interleaved": lambda: interleave(chain_plan([5, 3], [5], workload=small_gpt())),
    "a stage of one replica": lambda: chain_plan([8], [3, 8], workload=small_gpt()),
    "groups of two": lambda: in_groups(chain_plan([5, 3], [5], workload=small_gpt(ffn=66)), [2] * 4),
    "unlike groups, llama": lambda: in_groups(
        chain_plan([2, 3, 3], [], workload=small_gpt(family="llama", heads=4, kv_heads=2, vocab=258)), [1, 2, 2]
    ),
    "interleaved groups": lambda: in_groups(interleave(chain_plan([5, 3], [5], workload=small_gpt())), [2, 1, 2, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_it_trains_as_without_it_to_the_bit_and_as_one_process(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    steps = STEPS if name in LONG else FEW
    config = TrainConfig(steps=steps, seed=3, learning_rate=3e-3, checkpoint_every=steps)
    whole, parts = train(plan, config, tmp_path / "whole"), train(sharded(plan), config, tmp_path / "parts")
    _, expected = train_reference(plan.problem.workload, config)
    assert parts.losses() == whole.losses()
    assert parts.losses() == pytest.approx(expected, rel=1e-5)
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert all(torch.equal(one[weight], two[weight]) for weight in one.keys() | two.keys())
    kept, all_kept = states_kept(plan, tmp_path / "parts", steps), states_kept(plan, tmp_path / "whole", steps)
    assert sum(kept) < sum(all_kept)
    squares = [sum(line["grad_square"] for line in run.all_lines("step")) for run in (whole, parts)]
    assert squares[1] == pytest.approx(squares[0], rel=1e-4)


def states_kept(plan: Plan, run_dir: Path, steps: int) -> list[int]:
    """Elements of optimizer states in each rank's file."""
    found = []
    for rank in range(len(plan.ranks)):
        with safe_open(checkpoint_folder(run_dir, steps) / rank_file(rank), framework="pt") as file:
            names = [name for name in file.keys() if name.endswith((".mean", ".square"))]  # noqa: SIM118
            found.append(sum(file.get_tensor(name).numel() for name in names))
    return found


def test_each_replica_keeps_its_part_of_the_states(tmp_path: Path) -> None:
    plan = chain_plan([3, 3, 2], [], workload=small_gpt())
    train(sharded(plan), TrainConfig(steps=FEW, checkpoint_every=FEW), tmp_path)
    kept = states_kept(plan, tmp_path, FEW)
    assert sum(kept) == 2 * plan.problem.workload.graph.num_trained
    assert max(kept) - min(kept) <= 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_clipping_and_number_formats(dtype: str, tmp_path: Path) -> None:
    plan = chain_plan([5, 3], [5], workload=small_gpt().replace(dtype=dtype))
    config = TrainConfig(steps=8, seed=3, learning_rate=3e-3, clip_norm=0.5)
    whole, parts = train(plan, config, tmp_path / "whole"), train(sharded(plan), config, tmp_path / "parts")
    assert parts.losses() == pytest.approx(whole.losses(), rel=1e-5)
    norms = [[line["grad_norm"] for line in run.lines(0, "step")] for run in (whole, parts)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_gradients_are_compressed_and_weights_are_not(tmp_path: Path) -> None:
    plan = with_codec(chain_plan([5, 3], [5], workload=small_gpt()), "int8")
    config = TrainConfig(steps=FEW, seed=3, learning_rate=3e-3)
    allowed = plan.replace(problem=plan.problem.replace(
        constraints=plan.problem.constraints.replace(codecs=("none", "int8"))))  # fmt: skip
    ranks = train(sharded(allowed), config, tmp_path)
    _, expected = train_reference(plan.problem.workload, config)
    assert ranks.losses() == pytest.approx(expected, rel=2e-2)


SINGLE = chain_plan([2, 2], [4], workload=small_gpt(global_batch=8, dropout=0.1))
OTHER = chain_plan([2, 1, 1], [7], workload=small_gpt(global_batch=8, dropout=0.1))
GROUPED = in_groups(SINGLE, [2, 1, 2, 1])
CHANGES = {
    "under the same plan": (sharded(SINGLE), sharded(SINGLE)),
    "from whole states": (SINGLE, sharded(SINGLE)),
    "to whole states": (sharded(SINGLE), OTHER),
    "other stages and replicas": (sharded(OTHER), sharded(SINGLE)),
    "under the same groups": (sharded(GROUPED), sharded(GROUPED)),
    "to groups": (sharded(SINGLE), sharded(GROUPED)),
    "from groups": (sharded(GROUPED), sharded(OTHER)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_goes_on(name: str, tmp_path: Path) -> None:
    before, after = CHANGES[name]
    straight, rest = gone_on(before, after, tmp_path)
    same = before.processes == after.processes
    assert rest == (straight if same else pytest.approx(straight, rel=1e-5))


def test_without_a_rank_s_file_another_plan_does_not_go_on(tmp_path: Path) -> None:
    config = TrainConfig(steps=4, seed=3, checkpoint_every=4)
    train(sharded(SINGLE), config, tmp_path / "first")
    (checkpoint_folder(tmp_path / "first", 4) / rank_file(1)).unlink()
    ranks = start_ranks(OTHER, config.replace(steps=8, resume=str(tmp_path / "first")), tmp_path / "second")
    assert set(ranks.wait()) == {1}, ranks.logs()
    assert "no host has the optimizer states of rank 1 of the earlier plan" in ranks.logs()


def test_a_stop_inside_a_long_step_saves_weights_of_one_step(tmp_path: Path) -> None:
    """New weights come slowly over the network; the model that is saved has none of them."""
    cluster = small_cluster(2, bandwidth="1 Mbit/s", latency="1 ms")
    plan = sharded(chain_plan([4, 4], [], workload=small_gpt(), cluster=cluster))
    ranks = start_ranks(plan, TrainConfig(steps=FOREVER, emulate_links=True), tmp_path)
    ranks.wait_for_phase("training")
    (tmp_path / "stop").touch()
    assert ranks.wait() == [0, 0], ranks.logs()
    workload = plan.problem.workload
    config = TrainConfig(steps=FOREVER)
    steps = max((line["step"] + 1 for line in ranks.lines(0, "step")), default=0)
    saved = load_model(tmp_path).flat
    if steps == 0:
        assert torch.equal(saved, StageModel(workload, 0, len(workload.graph.ops), seed=0).flat)
    else:
        model, _ = train_reference(workload, config.replace(steps=steps))
        assert (saved - model.flat).abs().max() < 1e-4


def test_what_cannot_be_divided_is_refused_with_what_works() -> None:
    plan = sharded(chain_plan([4, 4], [4], workload=small_gpt()))
    with pytest.raises(InvalidInput, match=r"zero: muon needs whole matrices.*use optimizer adamw or sgd, or zero 0"):
        plan.problem.replace(workload=small_gpt(optimizer="muon"))
    with pytest.raises(InvalidInput, match=r"zero: replicas that take local steps"):
        plan.problem.constraints.replace(max_local_steps=4)
    with pytest.raises(InvalidInput, match=r"zero: with reducer central-ps one replica keeps all states"):
        plan.problem.constraints.replace(reducers=("central-ps",))
    with pytest.raises(InvalidInput, match=r"outer: replicas that step by themselves need all states"):
        plan.replace(outer=OuterOptimizer())
    with pytest.raises(InvalidInput, match=r"stages\[0\].reduce_codec: powersgd gives all replicas the same factors"):
        with_codec(plan, "powersgd")


def test_every_reducer_is_tried() -> None:
    used = {PLANS[name]().reducer for name in PLANS}
    assert used == set(REDUCER_NAMES)
