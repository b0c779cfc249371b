"""Real ranks begin with the weights of a model folder, fine-tune them as transformers does, and give them back."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.plan.files.checkpoints import checkpoint_folder, rank_file
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.exporting import export_model
from hetplanner.runs.run import Run
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.data import open_batches
from hetplanner.swarm.spec import read_spec
from hetplanner.weights.adapters import common_digest, initial_weights
from hetplanner.weights.check import check_weights
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.huggingface import workload_from_config
from tests.support.models.model_folders import loaded, model_folder, plain_losses
from tests.support.plans.factories import chain_plan, swarm_plan
from tests.support.plans.grouped import in_groups
from tests.support.training.real_ranks import start_ranks, train

pytestmark = pytest.mark.distributed

STEPS = 8
SIZES = {"micro_batch": 2, "global_batch": 8, "seq_len": 16}
SETTINGS = {"steps": STEPS, "learning_rate": 1e-3, "warmup_steps": 2, "checkpoint_every": 4}


@pytest.fixture(scope="module", params=["gpt2 by formula", "mixtral captured"])
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Plan, Path]:
    """Architecture, the folder that 2 x 2 ranks began with, their plan, and their run."""
    kind = request.param.partition(" ")[0]
    folder = tmp_path_factory.mktemp("tuned")
    source = model_folder(folder / "source", kind, changes={"vocab_size": 256})
    if "formula" in request.param:
        workload = workload_from_config(source, dtype="float32", **SIZES)
    else:
        workload = capture_config(source, **SIZES)
    plan = chain_plan([3, 1], [workload.boundaries[len(workload.boundaries) // 2]], workload=workload)
    train(plan, TrainConfig(init_from=str(source), **SETTINGS), folder / "run")
    return kind, source, plan, folder / "run"


def expected_losses(kind: str, source: Path, plan: AnyPlan) -> list[float]:
    return plain_losses(loaded(source, kind).train(), plan.problem.workload, TrainConfig(**SETTINGS))


def losses_of(run_dir: Path) -> list[float]:
    return [loss for _, loss in Run(run_dir).read_all().losses()]


def test_fine_tuning_has_the_losses_of_plain_transformers(tuned: tuple[str, Path, Plan, Path]) -> None:
    kind, source, plan, run_dir = tuned
    expected = expected_losses(kind, source, plan)
    assert losses_of(run_dir) == pytest.approx(expected, rel=1e-5)


def test_a_swarm_fine_tunes_as_plain_transformers_does(client: AgentClient, tmp_path: Path) -> None:
    source = model_folder(tmp_path / "source", "gpt2", changes={"vocab_size": 256})
    workload = workload_from_config(source, dtype="float32", **SIZES)
    plan = swarm_plan([2, 1], [workload.boundaries[1]], workload=workload)
    run = client.start(in_groups(plan, [2, 1, 2]), TrainConfig(init_from=str(source), **SETTINGS))
    assert run.wait(120).state == "finished", run.log(None)
    assert losses_of(run.path) == pytest.approx(expected_losses("gpt2", source, plan), rel=1e-5)
    swarm = read_spec((run.path / "swarm.json").read_bytes())
    assert swarm.init_digest == common_digest(initial_weights(str(source), None, workload))
    assert export_model(Run(run.path), tmp_path / "end") == export_model(Run(run.path), tmp_path / "last", STEPS)
    end, last = loaded(tmp_path / "end", "gpt2").state_dict(), loaded(tmp_path / "last", "gpt2").state_dict()
    assert all(torch.equal(end[name], last[name]) for name in end)


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


def called(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["runs", "export", *arguments])
    return result.exit_code, result.output + str(result.exception or "")


def test_what_is_exported_loads_with_from_pretrained_and_gives_the_same_logits(
    tuned: tuple[str, Path, Plan, Path], tmp_path: Path
) -> None:
    kind, source, plan, run_dir = tuned
    code, text = called(str(run_dir), str(tmp_path / "out"))
    assert code == 0, text
    model = loaded(tmp_path / "out", kind)
    ours = load_model(run_dir)
    inputs, labels, _ = open_batches(TrainConfig(), plan.problem.workload).draw(0, 0)
    with torch.no_grad():
        logits = model(input_ids=inputs).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        assert torch.equal(ours.forward(None, (inputs, labels)), loss), "the same logits to the bit"
        assert not torch.equal(logits, loaded(source, kind)(input_ids=inputs).logits), "it has learnt"
    assert check_weights(str(tmp_path / "out"), plan.problem.workload)
    card = (tmp_path / "out/README.md").read_text()
    assert f"Trained for {STEPS} steps" in card
    assert plan.digest() in card
    assert str(tmp_path) not in card, "a card is for others"
    assert f"- {plan.problem.workload.optimizer}, learning rate" in card
    assert f"| {STEPS} | {losses_of(run_dir)[-1]:.4f} |" in card
    assert re.search(rf"Loss on held-out data after {STEPS} steps: \d\.\d+ \(perplexity .*, accuracy \d+\.\d%\)", card)
    assert (tmp_path / "out/generation_config.json").is_file()


def test_any_checkpoint_is_exported_and_the_last_is_the_model(
    tuned: tuple[str, Path, Plan, Path], tmp_path: Path
) -> None:
    kind, _, _, run_dir = tuned
    run = Run(run_dir)
    assert export_model(run, tmp_path / "end", shard_bytes=30_000) == STEPS
    shards = list((tmp_path / "end").glob("model-*.safetensors"))
    assert len(shards) > 2
    assert max(path.stat().st_size for path in shards) < 60_000
    for step in (4, STEPS):
        assert export_model(run, tmp_path / str(step), step) == step
    end, half = loaded(tmp_path / "end", kind).state_dict(), loaded(tmp_path / "4", kind).state_dict()
    last = loaded(tmp_path / str(STEPS), kind).state_dict()
    assert all(torch.equal(end[name], last[name]) for name in end)
    assert not all(torch.equal(end[name], half[name]) for name in end)
    losses = [line for line in (tmp_path / "4/README.md").read_text().splitlines() if line.startswith("| 4 |")]
    assert losses, "the card of a checkpoint ends at its step"


def test_an_export_is_refused_in_one_line_and_leaves_nothing(
    tuned: tuple[str, Path, Plan, Path], tmp_path: Path
) -> None:
    _, _, _, run_dir = tuned
    (tmp_path / "full").mkdir()
    (tmp_path / "full/kept.txt").write_text("mine")
    code, text = called(str(run_dir), str(tmp_path / "full"))
    assert code != 0
    assert "full: exists and is not an empty folder; give a new one" in text
    assert (tmp_path / "full/kept.txt").read_text() == "mine"
    code, text = called(str(run_dir), str(tmp_path / "new"), "--step", "5")
    assert code != 0
    assert "no checkpoint of step 5; it has 8, 4" in text
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    os.truncate(copy / "model.safetensors", 5000)
    code, text = called(str(copy), str(tmp_path / "new"))
    assert code != 0
    assert "model.safetensors" in text
    part = checkpoint_folder(copy, 4) / rank_file(0)
    os.truncate(part, part.stat().st_size - 1)
    code, text = called(str(copy), str(tmp_path / "new"), "--step", "4")
    assert code != 0
    assert rank_file(0) in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "full"]
