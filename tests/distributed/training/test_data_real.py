"""Real ranks on every kind of data: equal to one process, and stopped with step and rank when the loss is no number."""

import re
from pathlib import Path

import numpy as np
import pytest

from hetplanner.capture.assemble import capture_workload
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from tests.support.models.captured_models import conv_net
from tests.support.models.programs import residual_workload
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.training.real_ranks import start_ranks, train
from tests.unit.data.test_data_kinds import make_dataset, make_tokens

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("make", [make_tokens, make_dataset])
def test_ranks_and_one_process_read_the_same_tokens(make, tmp_path: Path) -> None:
    config = TrainConfig(steps=8, data=str(make(tmp_path / "data")))
    workload = tiny_workload(layers=1, global_batch=8)
    ranks = train(chain_plan([3, 1], [2], workload=workload), config, tmp_path / "run")
    assert ranks.losses() == pytest.approx(train_reference(workload, config)[1], abs=1e-4)


def test_digits_are_learnt_by_a_captured_model_and_equal_one_process(tmp_path: Path) -> None:
    config = TrainConfig(steps=30, learning_rate=1e-2, warmup_steps=5)
    workload = capture_workload(conv_net, "conv_net", global_batch=16)
    ranks = train(chain_plan([4], [5], workload=workload), config, tmp_path / "run")
    losses = ranks.losses()
    assert losses == pytest.approx(train_reference(workload, config)[1], abs=1e-4)
    assert np.mean(losses[-3:]) < 0.5 * losses[0]


def test_a_loss_that_is_no_number_stops_an_image_run_with_step_and_rank(tmp_path: Path) -> None:
    # Decay of ten times the weight turns it into -9 of it every step, until it overflows.
    config = TrainConfig(steps=500, learning_rate=10.0, weight_decay=1.0, warmup_steps=0)
    plan = chain_plan([4], [2], workload=residual_workload(global_batch=16))
    ranks = start_ranks(plan, config, tmp_path / "run")
    assert all(ranks.wait())
    said = [line["text"] for line in ranks.all_lines("error")]
    assert any(
        re.fullmatch(r"rank 1: the loss of step \d+ is (nan|inf|-inf); lower the learning rate", t) for t in said
    )


def test_data_that_is_gone_when_the_ranks_start_is_said_by_those_that_read_it(tmp_path: Path) -> None:
    ranks = start_ranks(chain_plan([4], [2]), TrainConfig(data=str(tmp_path / "gone")), tmp_path / "run")
    assert all(ranks.wait())
    for rank in (0, 1):
        (line,) = ranks.lines(rank, "error")
        assert re.search("gone is neither a file nor a folder; workload test-gpt takes", line["text"])
