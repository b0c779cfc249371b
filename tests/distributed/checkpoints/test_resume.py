"""Checkpoints of real runs: resumed in the middle equals uninterrupted; damaged ones are skipped; a killed rank."""

import itertools
import json
import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hetplanner.codecs.spec import Codec
from hetplanner.plan.files.checkpoints import checkpoint_folder, checkpoint_steps, rank_file
from hetplanner.plan.model import LinkCodec, OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from hetplanner.runtime.model.sample import load_model
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.training.real_ranks import start_ranks, train
from tests.support.training.threaded_ranks import ThreadedRanks

pytestmark = pytest.mark.distributed

STEPS = 12


def dropout_plan(**changes):
    """2 x 2 ranks of a GPT with dropout and tied embeddings."""
    config = tiny_workload().transformer.replace(dropout=0.2)
    workload = tiny_workload(global_batch=8).replace(transformer=config)
    return chain_plan([3, 1], [4], workload=workload).replace(**changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with checkpoints after steps 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("whole")
    train(dropout_plan(), TrainConfig(steps=STEPS, checkpoint_every=4, checkpoints_kept=3, clip_norm=1.0), folder)
    return folder


def losses(folder: Path) -> list[tuple[int, float]]:
    return Run(folder).read_all().losses()


def only_until(source: Path, target: Path, step: int) -> Path:
    """A run directory with the checkpoints of another one up to a step."""
    (target / "checkpoints").mkdir(parents=True)
    for found in checkpoint_steps(source):
        if found <= step:
            folder = checkpoint_folder(target, found)
            folder.mkdir()
            for path in checkpoint_folder(source, found).iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
    return target


def test_resumed_in_the_middle_equals_the_uninterrupted_run_to_the_bit(whole: Path, tmp_path: Path) -> None:
    half = only_until(whole, tmp_path / "half", 4)
    config = TrainConfig(steps=STEPS, clip_norm=1.0, resume=str(half))
    train(dropout_plan(), config, tmp_path / "rest")
    expected, found = losses(whole), losses(tmp_path / "rest")
    assert found == expected[4:]
    assert torch.equal(load_model(tmp_path / "rest").flat, load_model(whole).flat)
    run = Run(tmp_path / "rest").read_all()
    assert run.resumed() == (4, str(half), ())
    assert run.steps()[0].step_s is None


def test_checkpoints_hold_what_a_rank_carries_and_the_oldest_go(whole: Path) -> None:
    assert checkpoint_steps(whole) == [12, 8, 4]
    tensors = load_file(checkpoint_folder(whole, 8) / rank_file(3))
    assert set(tensors) == {"stage.1.weights", "stage.1.mean", "stage.1.square"}
    manifest = json.loads((checkpoint_folder(whole, 8) / "manifest.json").read_text())
    assert manifest["format"] == "hetplanner/checkpoint@1"
    assert [r["file"] for r in manifest["ranks"]] == [rank_file(r) for r in range(4)]
    written = [t.checkpoint_step for t in Run(whole).read_all().ranks]
    assert written == [STEPS] * 4


def test_a_truncated_checkpoint_is_skipped_for_the_previous_one_and_said(whole: Path, tmp_path: Path) -> None:
    half = only_until(whole, tmp_path / "half", 8)
    torn = checkpoint_folder(half, 8) / rank_file(2)
    torn.write_bytes(torn.read_bytes()[:-100])
    train(dropout_plan(), TrainConfig(steps=STEPS, clip_norm=1.0, resume=str(half)), tmp_path / "rest")
    step, source, skipped = Run(tmp_path / "rest").read_all().resumed()
    assert (step, source) == (4, str(half))
    assert len(skipped) == 1
    assert "step-00000008/rank-2.safetensors: is truncated" in skipped[0]
    assert losses(tmp_path / "rest") == losses(whole)[4:]


def test_error_feedback_is_part_of_the_state(tmp_path: Path) -> None:
    plan = dropout_plan()
    stages = tuple(s.replace(reduce_codec=Codec(name="topk", ratio=4.0), error_feedback=True) for s in plan.stages)
    plan = plan.replace(stages=stages)
    train(plan, TrainConfig(steps=6, checkpoint_every=3), tmp_path / "whole")
    half = only_until(tmp_path / "whole", tmp_path / "half", 3)
    train(plan, TrainConfig(steps=6, resume=str(half)), tmp_path / "rest")
    assert any(n.startswith("reduction.") for n in load_file(checkpoint_folder(half, 3) / rank_file(0)))
    assert losses(tmp_path / "rest") == losses(tmp_path / "whole")[3:]


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_checkpoint_between_two_synchronisations_of_local_steps(tmp_path: Path, fragments: int) -> None:
    plan = dropout_plan(local_steps=3, outer=OuterOptimizer(), fragments=fragments)
    train(plan, TrainConfig(steps=8, checkpoint_every=4), tmp_path / "whole")
    half = only_until(tmp_path / "whole", tmp_path / "half", 4)
    train(plan, TrainConfig(steps=8, resume=str(half)), tmp_path / "rest")
    names = set(load_file(checkpoint_folder(half, 4) / rank_file(0)))
    assert any(".anchor." in name for name in names)
    assert any(".velocity." in name for name in names)
    assert losses(tmp_path / "rest") == losses(tmp_path / "whole")[4:]


def die_in_step(rank: int, *, victim: int, step: int, folder: str) -> None:
    """The scripted kill: one rank kills itself as it begins a step, once."""
    from hetplanner.runtime.train import executor

    run_step, fired = executor.Executor.run_step, Path(folder) / "fired"

    def run_or_die(self: executor.Executor, now: int) -> executor.StepStats:
        if rank == victim and now == step:
            with fired.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return run_step(self, now)

    executor.Executor.run_step = run_or_die


def second_attempt(rank: int) -> None:
    """As the agent starts a run again."""
    os.environ["HETPLANNER_ATTEMPT"] = "1"


def test_a_run_whose_rank_was_killed_goes_on_in_its_own_directory(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = TrainConfig(steps=STEPS, checkpoint_every=4, clip_norm=1.0)
    kill = partial(die_in_step, victim=2, step=9, folder=str(tmp_path))
    codes = start_ranks(dropout_plan(), config, run_dir, fault=kill).wait(90)
    assert codes[2] == -signal.SIGKILL
    (run_dir / "stop.signalled").unlink(missing_ok=True)
    again = start_ranks(dropout_plan(), config, run_dir, fault=second_attempt)
    assert again.wait(90) == [0] * 4, again.logs()
    assert (tmp_path / "fired").read_text() == "x"
    run = Run(run_dir).read_all()
    assert run.losses() == losses(whole)
    assert [s.step for s in run.steps()] == list(range(STEPS))
    assert run.restarts == 1
    assert run.resumed() == (8, str(run_dir), ())
    assert run.corrupted_lines == 0
    ends = [s.end_s for s in run.steps()]
    assert all(a < b for a, b in itertools.pairwise(ends)), "one clock over both attempts"
    assert [s.step for s in run.steps() if s.step_s is None] == [0, 9]
    assert torch.equal(load_model(run_dir).flat, load_model(whole).flat)


def test_memories_of_samples_start_empty_on_all_ranks(tmp_path: Path) -> None:
    """Three stages, of which the middle one reads no data; the same in threads, where memories are emptied by hand."""
    text = tmp_path / "short.txt"
    text.write_bytes(bytes(i * i % 97 for i in range(1000)))
    plan = chain_plan([4], [2, 4], workload=tiny_workload(layers=2, global_batch=8))
    codec = Codec(name="int4", delta=True)
    rules = [LinkCodec(from_device=a, to_device=b, role="activation", codec=codec) for a, b in pairwise(plan.ranks)]
    plan, settings = plan.replace(link_codecs=tuple(rules)), {"steps": 10, "data": str(text), "learning_rate": 3e-3}
    train(plan, TrainConfig(checkpoint_every=5, **settings), tmp_path / "whole")
    half = only_until(tmp_path / "whole", tmp_path / "half", 5)
    train(plan, TrainConfig(resume=str(half), **settings), tmp_path / "rest")
    threads, expected = ThreadedRanks(plan, TrainConfig(**settings)), []
    for step in range(10):
        if step == 5:
            for memory in [m for executor in threads.executors for m in executor.memories.values()]:
                assert memory.row_NE.any()
                memory.row_NE.zero_()
        expected.append(threads.run_step(step))
    whole, rest = ([loss for _, loss in losses(tmp_path / name)] for name in ("whole", "rest"))
    assert whole[:5] == pytest.approx(expected[:5], rel=1e-5)
    assert rest == pytest.approx(expected[5:], rel=1e-5)
    assert rest != pytest.approx(whole[5:], rel=1e-5)


@pytest.mark.parametrize("name", ["adafactor", "adamw8bit"])
def test_other_optimizers_go_on_under_the_same_plan_to_the_bit_and_under_another(name: str, tmp_path: Path) -> None:
    plan = chain_plan([2, 2], [4], workload=tiny_workload(global_batch=8).replace(optimizer=name))
    train(plan, TrainConfig(steps=6, checkpoint_every=3, checkpoints_kept=2), tmp_path / "whole")
    half = only_until(tmp_path / "whole", tmp_path / "half", 3)
    (half / "plan.json").write_bytes((tmp_path / "whole" / "plan.json").read_bytes())
    config, wanted = TrainConfig(steps=6, resume=str(half)), losses(tmp_path / "whole")[3:]
    train(plan, config, tmp_path / "same")
    assert losses(tmp_path / "same") == wanted
    other = chain_plan([4], [2, 4], workload=plan.problem.workload)
    train(other, config, tmp_path / "other")
    assert [loss for _, loss in losses(tmp_path / "other")] == pytest.approx([loss for _, loss in wanted], rel=1e-4)
