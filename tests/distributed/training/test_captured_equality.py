"""Captured models over real ranks equal one process: skips over stages, shared weights, statistics, recompute."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model

from hetplanner.capture.assemble import capture_workload
from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan, Route, Stage
from hetplanner.plan.problem import Problem
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.model.layout import running_buffers
from hetplanner.runtime.model.sample import generate
from hetplanner.runtime.model.sample import load_model as load_run
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.support.models import captured_models
from tests.support.models.captured_models import config_factory
from tests.support.models.programs import residual_workload, tied_workload
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS, FEW = 30, 10
LONG = ("gpt2 tied over 2x2, dropout", "residual ragged 1-3-2")
"""Of these plans losses are compared over `STEPS`, of the others over `FEW`."""


def gpt2(**changes: object) -> Workload:
    factory = config_factory(captured_models.GPT2 | changes, "gpt2", micro_batch=2, seq_len=16)
    return capture_workload(factory, "gpt2", global_batch=16)


def resnet() -> Workload:
    return capture_workload(captured_models.hf_resnet, "resnet", global_batch=32)


def op_index(workload: Workload, part: str) -> int:
    """Of the first op whose name ends so."""
    return next(i for i, op in enumerate(workload.graph.ops) if op.name.endswith(part))


def recomputed(plan: Plan) -> Plan:
    return plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))


def ragged(workload: Workload, cuts: tuple[int, int], cluster: Cluster | None = None) -> Plan:
    """1, 3 and 2 replicas; one replica of the last stage serves two routes."""
    cluster = cluster or small_cluster(6)
    ids = cluster.device_ids
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=(
            Stage(first_op=0, end_op=cuts[0], replicas=((ids[3],),), in_flight=5),
            Stage(first_op=cuts[0], end_op=cuts[1], replicas=((ids[0],), (ids[1],), (ids[5],)), in_flight=2),
            Stage(first_op=cuts[1], end_op=len(workload.graph.ops), replicas=((ids[2],), (ids[4],)), in_flight=1),
        ),
        routes=(
            Route(replicas=(0, 0, 0), micro_batches=4),
            Route(replicas=(0, 1, 1), micro_batches=3),
            Route(replicas=(0, 2, 1), micro_batches=1),
        ),
        ranks=ids,
    )


def inside_a_block() -> Plan:
    """Three stages, the one in the middle inside a residual block, so that the skip is relayed through it."""
    workload = resnet()
    first = op_index(workload, "layer.1.convolution")
    plan = chain_plan([8], [first, first + 1], workload=workload)
    crossing = workload.graph.crossing_ops
    assert len(crossing[first]) == len(crossing[first + 1]) == 2
    assert crossing[first][0] == crossing[first + 1][0], "the skip goes through the middle stage"
    return plan


PLANS = {
    "resnet inside a block": inside_a_block,
    "residual 3x1 relayed, recompute": lambda: recomputed(chain_plan([8], [2, 3], workload=residual_workload())),
    "residual 3x1 dropout": lambda: chain_plan([8], [2, 3], workload=residual_workload(dropout=0.3)),
    "residual dropout, recompute, gpipe": lambda: recomputed(
        chain_plan([5, 3], [2], workload=residual_workload(dropout=0.3), schedule="gpipe")
    ),
    "residual ragged 1-3-2": lambda: ragged(residual_workload(), (1, 3)),
    "gpt2 tied over 2x2, dropout": lambda: chain_plan([5, 3], [14], workload=gpt2()),
    "gpt2 tied over 3x1, recompute": lambda: recomputed(chain_plan([8], [7, 20], workload=gpt2())),
    "tied next to another weight, 2x3": lambda: chain_plan([5, 3], [1, 3], workload=tied_workload(global_batch=16)),
    "residual interleaved 2x2, two chunks": lambda: interleave(
        chain_plan([5, 3], [3], workload=residual_workload(dropout=0.3))
    ),
    "gpt2 ragged 1-3-2": lambda: ragged(gpt2(), (9, 21)),
}


@pytest.mark.parametrize("name", PLANS)
def test_losses_weights_and_statistics_equal_one_process(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    workload = plan.problem.workload
    config = TrainConfig(steps=STEPS if name in LONG else FEW, seed=3, learning_rate=3e-3)
    model, expected = train_reference(workload, config)
    losses = train(plan, config, tmp_path).losses()
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 5e-5
    assert min(losses) < losses[0] - 0.02, "the model learns"
    saved, reference = load_file(tmp_path / "model.safetensors"), model.saved_tensors()
    assert list(saved.keys() - reference.keys()) == list(reference.keys() - saved.keys()) == []
    running = {buffer.name: buffer for buffer in running_buffers(workload)}
    for tensor_name, tensor in reference.items():
        stage = plan.stages[plan.stage_of_op[running[tensor_name].op]] if tensor_name in running else None
        if tensor_name.endswith("num_batches_tracked"):
            assert int(saved[tensor_name]) == config.steps * workload.num_micro_batches, "summed over replicas"
        elif stage is None or len(stage.replicas) == 1:
            assert (saved[tensor_name] - tensor).abs().max() < 1e-3, tensor_name
        else:  # replicas have seen other micro-batches, and fewer of them
            assert torch.allclose(saved[tensor_name], tensor, rtol=0.3, atol=0.1), tensor_name


def test_a_saved_model_loads_into_the_users_module(tmp_path: Path) -> None:
    """Strictly, running statistics included; and it computes there what it computes here."""
    for name, workload, cuts, factory in (
        ("gpt2", gpt2(), [12], config_factory(captured_models.GPT2, "gpt2", micro_batch=2, seq_len=16)),
        ("resnet", resnet(), [9], captured_models.hf_resnet),
    ):
        run_dir = tmp_path / name
        plan = chain_plan([workload.num_micro_batches // 2] * 2, cuts, workload=workload)
        ranks = train(plan, TrainConfig(steps=3, seed=1), run_dir)
        module = factory()[0].inner.eval()
        assert load_model(module, run_dir / "model.safetensors") == (set(), [])
        program, model = workload.program, load_run(run_dir)
        generator = torch.Generator().manual_seed(0)
        inputs = (
            torch.randint(0, 256, program.inputs, generator=generator)
            if workload.reads_tokens
            else torch.randn(program.inputs, generator=generator)
        )
        labels = torch.randint(0, 10, program.labels, generator=generator)
        with torch.no_grad():
            logits = module(inputs).logits.flatten(0, -2)
            expected = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
            assert torch.allclose(model.forward(None, (inputs, labels)), expected, rtol=1e-5)
        info = json.loads((run_dir / "model.json").read_text())
        assert ("tokenizer" in info) == workload.reads_tokens
        (validation,) = {line["num_tokens"] for line in ranks.all_lines("validation")} or {0}
        assert validation > 0


def test_text_is_continued_by_captured_models_of_tokens_alone(tmp_path: Path) -> None:
    train(chain_plan([8], [12], workload=gpt2()), TrainConfig(steps=2, seed=1), tmp_path / "gpt2")
    model = load_run(tmp_path / "gpt2")
    text = generate(model, "def ", 20, temperature=0.8, seed=1)
    assert text.startswith("def ")
    assert text == generate(model, "def ", 20, temperature=0.8, seed=1)
    assert text != generate(model, "def ", 20, temperature=0.8, seed=2)
    train(chain_plan([8], [2], workload=residual_workload()), TrainConfig(steps=2), tmp_path / "images")
    with pytest.raises(InvalidInput, match=r"residual reads \[4, 1, 8, 8\] of float32, not text"):
        generate(load_run(tmp_path / "images"), "x")


def test_a_resumed_run_has_the_weights_and_statistics_of_an_uninterrupted_one(tmp_path: Path) -> None:
    plan = chain_plan([5, 3], [2], workload=residual_workload(dropout=0.3))
    train(plan, TrainConfig(steps=4, checkpoint_every=4), tmp_path / "half")
    train(plan, TrainConfig(steps=8, resume=str(tmp_path / "half")), tmp_path / "rest")
    train(plan, TrainConfig(steps=8), tmp_path / "whole")
    rest, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("rest", "whole"))
    assert rest.keys() == whole.keys()
    assert all(torch.equal(rest[name], tensor) for name, tensor in whole.items())
    assert int(rest["stem.norm.num_batches_tracked"]) == 8 * 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_captured_models_train_in_16_bits(dtype: str, tmp_path: Path) -> None:
    workload = residual_workload()
    _, expected = train_reference(workload, TrainConfig(steps=FEW, seed=3, learning_rate=3e-3))
    plan = chain_plan([8], [2, 3], workload=workload.replace(dtype=dtype))
    losses = train(plan, TrainConfig(steps=FEW, seed=3, learning_rate=3e-3), tmp_path).losses()
    assert losses != expected
    assert losses[-1] == pytest.approx(expected[-1], rel=0.02)
