"""Real ranks begin with the weights of a model folder, and fine-tune them as plain transformers does."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.data import open_batches
from hetplanner.workload.capturing import capture_config
from hetplanner.workload.huggingface import workload_from_config
from tests.distributed.real_ranks import start_ranks, train
from tests.factories import chain_plan
from tests.model_folders import loaded, model_folder

pytestmark = pytest.mark.distributed

STEPS = 8
SETTINGS = {"steps": STEPS, "learning_rate": 1e-3, "warmup_steps": 2, "checkpoint_every": 4}


@pytest.fixture(scope="module", params=["gpt2 by formula", "qwen2 captured"])
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Plan, Path]:
    """Architecture, the folder that 2 x 2 ranks began with, their plan, and their run."""
    kind = request.param.partition(" ")[0]
    folder = tmp_path_factory.mktemp("tuned")
    source = model_folder(folder / "source", kind, changes={"vocab_size": 256})
    sizes = {"micro_batch": 2, "global_batch": 8, "seq_len": 16}
    if "formula" in request.param:
        workload = workload_from_config(source, dtype="float32", **sizes)
    else:
        workload = capture_config(source, **sizes)
    plan = chain_plan([3, 1], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    train(plan, TrainConfig(init_from=str(source), **SETTINGS), folder / "run")
    return kind, source, plan, folder / "run"


def plain_losses(kind: str, source: Path, plan: Plan) -> list[float]:
    """The same samples in the same order by transformers and torch.optim, in one process."""
    workload, config = plan.problem.workload, TrainConfig(**SETTINGS)
    model, batches = loaded(source, kind).train(), open_batches(config, workload)
    groups = [
        {"params": [w for w in model.parameters() if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in model.parameters() if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas), []
    for step in range(STEPS):
        total = 0.0
        for m in range(workload.num_micro_batches):
            inputs, labels = batches.draw(step, m)
            logits = model(input_ids=inputs).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss / workload.tokens_per_step).backward()
            total += loss.item()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / workload.tokens_per_step)
    return losses


def losses_of(run_dir: Path) -> list[float]:
    from hetplanner.runs.run import Run

    return [loss for _, loss in Run(run_dir).read_all().losses()]


def test_fine_tuning_has_the_losses_of_plain_transformers(tuned: tuple[str, Path, Plan, Path]) -> None:
    kind, source, plan, run_dir = tuned
    expected = plain_losses(kind, source, plan)
    assert losses_of(run_dir) == pytest.approx(expected, rel=1e-5)


def test_what_is_resumed_takes_its_checkpoint_and_needs_no_folder(
    tuned: tuple[str, Path, Plan, Path], tmp_path: Path
) -> None:
    _, source, plan, run_dir = tuned
    more = TrainConfig(init_from=str(source / "gone"), resume=str(run_dir), **SETTINGS | {"steps": STEPS + 2})
    ranks = train(plan, more, tmp_path / "more")
    assert [line["step"] for line in ranks.all_lines("resumed")] == [STEPS] * 4
    assert not ranks.all_lines("weights")


def test_a_folder_that_does_not_fit_ends_all_ranks_before_any_step(
    tuned: tuple[str, Path, Plan, Path], tmp_path: Path
) -> None:
    kind, _, plan, _ = tuned
    other = model_folder(tmp_path / "other", kind)
    ranks = start_ranks(plan, TrainConfig(init_from=str(other), **SETTINGS), tmp_path / "run")
    assert ranks.wait() == [1] * 4
    for rank in range(4):
        assert "is another model than the plan's: vocab" in ranks.lines(rank, "error")[0]["text"]
        assert not ranks.lines(rank, "step")
