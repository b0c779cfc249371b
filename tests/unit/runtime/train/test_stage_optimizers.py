"""Optimisers of a stage: the numbers of `torch.optim`, the memory that plans count, and what a checkpoint holds."""

import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import get_scheduler

from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.checkpoint.files import load_state, state_of
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.optimizers import StageOptimizer
from hetplanner.runtime.train.reference import torch_optimizers, train_reference
from hetplanner.workload.optimizers import LEAST_CODED, OPTIMIZERS, inner_ops
from hetplanner.workload.presets import preset
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.training.threaded_ranks import ThreadedRanks

CONFIG = TrainConfig(steps=30, learning_rate=3e-3, warmup_steps=5, lr_schedule="cosine")
FLOATS = tuple(name for name in OPTIMIZERS if name != "adamw8bit")


def gpt(optimizer: str, hidden: int = 64, **changes: object) -> Workload:
    tiny = tiny_workload(layers=2, global_batch=8)
    assert tiny.transformer is not None
    model = tiny.transformer.replace(hidden=hidden, ffn=2 * hidden, **changes)
    return tiny.replace(transformer=model, optimizer=optimizer)


def whole(workload: Workload) -> tuple[StageModel, StageOptimizer]:
    end = len(workload.graph.ops)
    model = StageModel(workload, 0, end, 0)
    return model, StageOptimizer(workload, 0, end, CONFIG, model.flat, model.flat_grad)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_torch_to_the_bit(name: str, momentum: float | None) -> None:
    workload, config = gpt(name, hidden=128), CONFIG.replace(momentum=momentum)
    theirs = StageModel(workload, 0, len(workload.graph.ops), 0)
    ours = StageModel(workload, 0, len(workload.graph.ops), 0)
    references = torch_optimizers(theirs, config)
    mine = StageOptimizer(workload, 0, len(workload.graph.ops), config, ours.flat, ours.flat_grad)
    for step in range(6):
        gradient = torch.randn(ours.flat.numel(), generator=torch.Generator().manual_seed(step))
        rate = config.learning_rate_at(step)
        theirs.flat_grad.copy_(gradient)
        for reference in references:
            for group in reference.param_groups:
                group["lr"] = rate
            reference.step()
        ours.flat_grad.copy_(gradient)
        mine.step(rate)
        for mine_w, theirs_w in zip(ours.parameters, theirs.parameters, strict=True):
            if name == "adamw8bit" and mine_w.numel() < LEAST_CODED:  # bitsandbytes divides in another order there
                assert torch.allclose(mine_w, theirs_w, rtol=1e-5, atol=1e-7), step
            else:
                assert torch.equal(mine_w, theirs_w), step


@pytest.mark.parametrize("name", FLOATS)
def test_two_stages_of_two_replicas_train_as_one_process_with_torch_optim(name: str) -> None:
    workload = gpt(name)
    ranks = ThreadedRanks(chain_plan([2, 2], [4], workload=workload), CONFIG)
    found = [ranks.run_step(step) for step in range(CONFIG.steps)]
    _, wanted = train_reference(workload, CONFIG)
    assert found == pytest.approx(wanted, rel=1e-4 if name == "muon" else 1e-5)  # Muon's products are in bfloat16
    assert wanted[-1] < wanted[0] - 0.1


def test_8_bit_states_learn_as_fast_as_those_of_adamw() -> None:
    """One rounding can change a code, and with it a weight, so runs that add up in unlike orders part."""
    workload = gpt("adamw8bit", hidden=128)
    _, found = train_reference(workload, CONFIG)
    _, wanted = train_reference(workload.replace(optimizer="adamw"), CONFIG)
    assert found[-1] == pytest.approx(wanted[-1], rel=0.05)
    ranks = ThreadedRanks(chain_plan([4], [], workload=workload), CONFIG)
    assert [ranks.run_step(step) for step in range(4)] == pytest.approx(found[:4], rel=1e-5)


def test_8_bit_states_without_their_package_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetplanner.plan.train.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"adamw8bit needs bitsandbytes on every host: pip install"):
        whole(gpt("adamw8bit"))


@pytest.mark.parametrize("name", FLOATS)
def test_a_checkpoint_brings_a_run_back_to_the_bit(name: str, tmp_path: Path) -> None:
    plan = chain_plan([2, 2], [4], workload=gpt(name))
    ranks = ThreadedRanks(plan, CONFIG)
    for step in range(3):
        ranks.run_step(step)
    for executor in ranks.executors:
        executor.completed_steps = 3
        tensors, numbers = state_of(executor)
        save_tensors(tensors, tmp_path / f"{executor.rank}", {key: repr(value) for key, value in numbers.items()})
    wanted = [ranks.run_step(step) for step in (3, 4)]
    again = ThreadedRanks(plan, CONFIG)
    for executor in again.executors:
        load_state(executor, tmp_path / f"{executor.rank}")
        assert executor.completed_steps == 3
    assert [again.run_step(step) for step in (3, 4)] == wanted
    assert all(torch.equal(*pair) for s in (0, 1) for pair in zip(again.weights(s), ranks.weights(s), strict=True))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_rates_are_those_of_transformers(schedule: str, warmup: int) -> None:
    steps = 40
    config = TrainConfig(
        steps=steps, learning_rate=0.3, lr_schedule=schedule, warmup_steps=warmup, lr_floor=0.0, lr_from_zero=True
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    ahead = config.replace(lr_from_zero=False)
    for step in range(steps):
        wanted = scheduler.get_last_lr()[0]
        assert config.learning_rate_at(step) == pytest.approx(wanted, rel=1e-12, abs=1e-15), step
        if step:
            assert ahead.learning_rate_at(step - 1) == pytest.approx(wanted, rel=1e-12, abs=1e-15), step
        optimizer.step()
        scheduler.step()


# -- memory -------------------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors, made inside, that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[weakref.ref, int]] = []
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.made.append((weakref.ref(tensor), tensor.untyped_storage().nbytes()))
        self.made = [(ref, size) for ref, size in self.made if ref() is not None]
        self.most = max(self.most, sum(size for _, size in self.made))
        return result


def tables(workload: Workload) -> CostTables:
    return CostTables(Problem(cluster=small_cluster(2), workload=workload))


def live_bytes(workload: Workload, first: int, end: int) -> int:
    """Of weights, gradients and states after a step: storages, each once."""
    model = StageModel(workload, first, end, 0)
    optimizer = StageOptimizer(workload, first, end, CONFIG, model.flat, model.flat_grad)
    model.flat_grad.normal_()
    optimizer.step(1e-3)
    found: dict[int, int] = {}
    for holder in (model, optimizer):
        for value in tree_leaves([list(vars(holder).values()), [vars_of(one) for one in optimizer._held]]):
            if isinstance(value, torch.Tensor):
                found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(found.values())


def vars_of(held: object) -> list[object]:
    return [getattr(held, name) for name in ("weight", "grad", "states")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plan_counts_the_bytes_that_are_alive(name: str) -> None:
    workload = gpt(name, hidden=256, vocab=1000)
    counted = tables(workload)
    edges = [0, 3, len(workload.graph.ops)]
    for first, end in pairwise(edges):
        live = live_bytes(workload, first, end)
        assert counted.stage_state_bytes(first, end) == pytest.approx(live, rel=0.01), (first, end)
    if name == "adamw":
        assert counted.stage_state_bytes(0, 3) == 16 * counted.stage_params(0, 3)


def test_adamw_needs_no_more_at_its_peak_than_three_copies_of_its_largest_weight() -> None:
    workload = gpt("adamw", hidden=256)
    model, optimizer = whole(workload)
    model.flat_grad.normal_()
    with LiveBytes() as seen:
        optimizer.step(1e-3)
    largest = max(weight.numel() for weight in model.parameters)
    assert 4 * largest <= seen.most <= 3 * 4 * largest + 4096


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_model_s_states_are_counted_to_the_byte(name: str) -> None:
    workload = preset("tiny-resnet", optimizer=name)
    _, optimizer = whole(workload)
    states = sum(tensor.nbytes for tensor in optimizer.states.values())
    counted = tables(workload)
    end = len(workload.graph.ops)
    assert counted.stage_state_bytes(0, end) - 8 * counted.stage_params(0, end) == pytest.approx(states, rel=1e-9)


def test_muon_is_for_the_matrices_between_embeddings_and_head() -> None:
    graph = gpt("muon").graph
    kinds = {graph.ops[i].kind for i in inner_ops(graph)}
    assert kinds == {"attention", "mlp", "norm", "loss"}
    untied = gpt("muon", tie_embeddings=False).graph
    assert inner_ops(untied) == inner_ops(graph)
    _, optimizer = whole(gpt("muon"))
    pieces = optimizer.layout.pieces
    assert "square" not in pieces["layer.0.attention.qkv.weight"]
    assert set(pieces["embedding.tokens.weight"]) == {"mean", "square"}
