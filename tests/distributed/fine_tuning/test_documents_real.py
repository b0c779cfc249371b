"""Real ranks on packed documents with answers: losses and weights equal one process, whatever the plan."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime import session
from hetplanner.runtime.train.data import Batches, open_batches
from hetplanner.runtime.train.reference import train_reference
from tests.distributed.training.test_runtime_equality import gpt, llama, ragged_plan
from tests.support.models.captured_models import FACTORIES
from tests.support.models.packed_data import documents_folder, some_documents
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import start_ranks, train

pytestmark = pytest.mark.distributed

CAPTURED = "hf_gpt2"


def captured_plan() -> Plan:
    workload = capture_workload(FACTORIES[CAPTURED], CAPTURED, global_batch=16)
    return chain_plan([workload.num_micro_batches - 1, 1], [len(workload.graph.ops) // 2], workload=workload)


PLANS = {
    "1-3-2 ragged": lambda: (ragged_plan(gpt()), {}),
    "3x2 llama, clipped": lambda: (chain_plan([7, 1], [1, 8], workload=llama()), {"clip_norm": 0.5}),
    "2x2 interleaved, float16": lambda: (
        interleave(chain_plan([5, 3], [5], workload=gpt().replace(dtype="float16"))),
        {},
    ),
    "2x2 captured": lambda: (captured_plan(), {}),
}
TOLERANCE = {"2x2 interleaved, float16": 5e-3}


@pytest.mark.parametrize("name", PLANS)
def test_losses_on_documents_with_answers_equal_one_process(name: str, tmp_path: Path) -> None:
    plan, changes = PLANS[name]()
    data = documents_folder(tmp_path / "data", some_documents(300, longest=28), some_documents(20, seed=1))
    config = TrainConfig(steps=12, seed=3, learning_rate=3e-3, data=str(data), **changes)
    model, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path / "run")
    losses = ranks.losses()
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < TOLERANCE.get(name, 5e-5)
    if name not in TOLERANCE:
        saved, reference = load_file(tmp_path / "run" / "model.safetensors"), model.named_weights()
        assert all((saved[weight] - reference[weight]).abs().max() < 1e-3 for weight in reference)
    lines = [line for line in ranks.all_lines("step") if line["loss_sum"] is not None]
    assert all(0 < line["num_labels"] < line["num_tokens"] for line in lines)


def test_a_resumed_run_goes_on_with_the_very_next_sample(tmp_path: Path) -> None:
    data = documents_folder(tmp_path / "data", some_documents(300), some_documents(20, seed=1))
    plan = chain_plan([5, 3], [4], workload=gpt())
    config = TrainConfig(steps=8, seed=3, learning_rate=3e-3, data=str(data), checkpoint_every=4)
    whole = train(plan, config, tmp_path / "whole").losses()
    first = train(plan, config.replace(steps=4), tmp_path / "first").losses()
    rest = train(plan, config.replace(resume=str(tmp_path / "first")), tmp_path / "rest").losses()
    assert first + rest == whole


def test_a_middle_stage_without_the_documents_says_so_before_any_step(tmp_path: Path) -> None:
    data = documents_folder(tmp_path / "data", some_documents(300), some_documents(20, seed=1))
    plan = chain_plan([4], [2, 5])
    ranks = start_ranks(plan, TrainConfig(data=str(data)), tmp_path / "run", fault=without_documents)
    assert all(ranks.wait())
    (line,) = ranks.lines(1, "error")
    assert "is neither a file nor a folder" in line["text"]
    assert not ranks.all_lines("step")


def without_documents(rank: int) -> None:
    """Rank 1's host does not have the data."""

    def elsewhere(config: TrainConfig, workload: object) -> Batches:
        return open_batches(config.replace(data=f"{config.data}-gone"), workload)  # type: ignore[arg-type]

    if rank == 1:
        session.open_batches = elsewhere  # type: ignore[assignment]
