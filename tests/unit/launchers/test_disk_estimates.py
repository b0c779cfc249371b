"""What is said of a checkpoint and a model before the launch is what their tensors take, within 5 %."""

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.launchers.disk import disk_need
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.checkpoint.files import state_of
from hetplanner.runtime.checkpoint.save import _header, saved_bytes
from tests.support.models.programs import residual_workload
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.training.threaded_ranks import ThreadedRanks

CONFIG = TrainConfig(steps=2, checkpoint_every=1, warmup_steps=0)


def reduced_by(plan, codec):
    stages = tuple(stage.replace(reduce_codec=codec, error_feedback=True) for stage in plan.stages)
    return plan.replace(stages=stages)


def plans():
    gpt = chain_plan([2, 1], [4], workload=tiny_workload(global_batch=6))
    images = residual_workload()
    split = len(images.graph.ops) // 2
    share = images.num_micro_batches - images.num_micro_batches // 2, images.num_micro_batches // 2
    return {
        "gpt": gpt,
        "errors kept": reduced_by(gpt, Codec(name="int8")),
        "powersgd": reduced_by(gpt, Codec(name="powersgd", rank=2)),
        "local steps": gpt.replace(local_steps=4, outer=OuterOptimizer(learning_rate=0.7, momentum=0.9)),
        "captured": chain_plan(share, [split], workload=images),
    }


@pytest.mark.parametrize("name", plans())
def test_checkpoint_and_model_are_estimated_within_5_percent(name):
    plan = plans()[name]
    need, ranks = disk_need(plan, CONFIG), ThreadedRanks(plan, CONFIG)
    written = sum(tensor.nbytes for executor in ranks.executors for tensor in state_of(executor)[0].values())
    assert need.checkpoint == pytest.approx(written, rel=0.05)
    workload = plan.problem.workload
    model = saved_bytes(workload) + len(_header(workload))
    assert need.model == pytest.approx(model, rel=0.05, abs=1000), "of a tiny model most is its header"
