"""Checkpoints beside the steps: the bits of those between them; a kill, a stop or a preemption while one is written."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hetplanner.codecs.spec import Codec
from hetplanner.plan.files.checkpoints import checkpoint_folder, checkpoint_steps, rank_file
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.training.real_ranks import Ranks, start_ranks, train

pytestmark = pytest.mark.distributed

STEPS, EVERY = 8, 2
SLOW_S = 0.4
"""Many steps long."""
CONFIG = TrainConfig(steps=STEPS, checkpoint_every=EVERY, checkpoints_kept=4, clip_norm=1.0)
BESIDE = CONFIG.replace(checkpoints_async=True)


def plan():
    """2 x 2 ranks, whose reductions carry something from step to step."""
    found = chain_plan([3, 1], [4], workload=tiny_workload(global_batch=8))
    codec = Codec(name="topk", ratio=4.0)
    stages = tuple(stage.replace(reduce_codec=codec, error_feedback=True) for stage in found.stages)
    return found.replace(stages=stages)


def before_writing(rank: int, *, act: Callable[[int, int], None]) -> None:
    """A fault: calls `act` with rank and step before the rank writes its part of a checkpoint."""
    from hetplanner.runtime.checkpoint import files

    save = files.save_tensors

    def act_and_save(tensors, path, metadata):
        act(rank, int(metadata["step"]))
        save(tensors, path, metadata)

    files.save_tensors = act_and_save


def be_slow(rank: int, step: int) -> None:
    time.sleep(SLOW_S * (rank == 1))


def hang_later(rank: int, step: int) -> None:
    """Longer than a test waits."""
    time.sleep(600 if step > EVERY else 0)


def die_at_4(rank: int, step: int) -> None:
    if (rank, step) == (2, 4):
        os.kill(os.getpid(), signal.SIGKILL)


def second_attempt(rank: int) -> None:
    """As the agent starts a run again."""
    os.environ["HETPLANNER_ATTEMPT"] = "1"


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """A run that writes its checkpoints between the steps."""
    return train(plan(), CONFIG, tmp_path_factory.mktemp("between"))


def of_two_runs(one: Path, two: Path, step: int) -> list[tuple[dict, dict]]:
    """By rank, what a checkpoint holds in both runs."""
    folders = [checkpoint_folder(run_dir, step) for run_dir in (one, two)]
    return [tuple(load_file(folder / rank_file(rank)) for folder in folders) for rank in range(4)]


def test_they_hold_the_bits_of_those_between_the_steps_and_one_waits_for_the_other(
    between: Ranks, tmp_path: Path
) -> None:
    ranks = train(plan(), BESIDE, tmp_path, fault=partial(before_writing, act=be_slow))
    assert ranks.losses() == between.losses()
    assert checkpoint_steps(tmp_path) == checkpoint_steps(between.run_dir) == [8, 6, 4, 2]
    for step in checkpoint_steps(tmp_path):
        for mine, other in of_two_runs(tmp_path, between.run_dir, step):
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[name], other[name]) for name in mine)
    text = (tmp_path / "rank-0.jsonl").read_text()
    written = [text.index(f'"type": "checkpoint", "step": {step},') for step in (2, 4, 6, 8)]
    ended = [text.index(f'"type": "step", "step": {step},') for step in range(STEPS)]
    assert ended[3] < written[0] < ended[4], "the fourth step ended meanwhile, the checkpoint after it waited"
    assert ended[5] < written[1] < ended[6]


def test_a_kill_while_one_is_written_leaves_the_one_before(between: Ranks, tmp_path: Path) -> None:
    killed = start_ranks(plan(), BESIDE, tmp_path, fault=partial(before_writing, act=die_at_4))
    assert killed.wait()[2] == -signal.SIGKILL
    assert checkpoint_steps(tmp_path) == [2]
    (tmp_path / "stop.signalled").unlink(missing_ok=True)
    again = start_ranks(plan(), BESIDE, tmp_path, fault=second_attempt)
    assert again.wait() == [0] * 4, again.logs()
    assert again.lines(0, "resumed")[0]["step"] == 2
    assert again.losses()[2:] == between.losses()[2:]
    assert checkpoint_steps(tmp_path) == [8, 6, 4, 2]
    assert not list((tmp_path / "checkpoints").glob("*.part"))


def test_a_stop_gives_up_what_takes_long_and_saves_the_model(tmp_path: Path) -> None:
    ranks = start_ranks(plan(), BESIDE.replace(steps=4), tmp_path, fault=partial(before_writing, act=hang_later))
    ranks.wait_for_phase("saving")
    (tmp_path / "stop").touch()
    assert ranks.wait() == [0] * 4, ranks.logs()
    assert checkpoint_steps(tmp_path) == [2]
    assert (tmp_path / "model.safetensors").is_file()
    assert "is given up" in (tmp_path / "log-0.txt").read_text()


def test_a_preemption_waits_for_its_checkpoint(tmp_path: Path) -> None:
    ranks = start_ranks(plan(), BESIDE.replace(steps=100_000), tmp_path, fault=partial(before_writing, act=be_slow))
    ranks.wait_for_step(5)
    os.kill(ranks.processes[3].pid, signal.SIGTERM)
    assert ranks.wait() == [75] * 4, ranks.logs()
    assert checkpoint_steps(tmp_path)[0] == len(ranks.losses())
