"""From which earlier runs a plan can go on, without torch: its own, or those of another plan for the same training."""

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.resumable import carried_steps, check_resumable, other_plan, why_not_carried_over
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.unit.runtime.checkpoint.test_checkpoints import write_checkpoint

WORKLOAD = tiny_workload(global_batch=8)
OLD = chain_plan([2, 2], [4], workload=WORKLOAD)
NEW = chain_plan([4], [2, 4], workload=WORKLOAD)


@pytest.fixture
def earlier(tmp_path):
    """A run of OLD with two checkpoints."""
    save_plan(OLD, tmp_path / "plan.json")
    for step in (10, 20):
        write_checkpoint(tmp_path, OLD, step, ranks=4)
    return tmp_path


def test_another_plan_for_the_same_training_goes_on(earlier):
    assert other_plan(earlier, NEW) == OLD
    assert other_plan(earlier, OLD) is None
    assert list(carried_steps(earlier, NEW)) == [20, 10]
    config = TrainConfig(steps=30, resume=str(earlier))
    check_resumable(NEW, config)
    check_resumable(NEW.replace(problem=NEW.problem.replace(workload=WORKLOAD.replace(dtype="bfloat16"))), config)
    with pytest.raises(InvalidInput, match="trains with adamw, the new plan with sgd; give both the same optimizer"):
        check_resumable(NEW.replace(problem=NEW.problem.replace(workload=WORKLOAD.replace(optimizer="sgd"))), config)
    with pytest.raises(InvalidInput, match="was begun with seed 0, got 3"):
        check_resumable(NEW, config.replace(seed=3))
    with pytest.raises(InvalidInput, match="has done 20 steps, so 20 leave nothing to do"):
        check_resumable(NEW, config.replace(steps=20))


def with_workload(**changes):
    return NEW.replace(problem=NEW.problem.replace(workload=WORKLOAD.replace(**changes)))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (chain_plan([4], [2], workload=tiny_workload(layers=2, global_batch=8)), "trains another model"),
        (chain_plan([8], [4], workload=tiny_workload(global_batch=16)), "has global_batch 8, the new plan 16"),
        (with_workload(seq_len=16), "has seq_len 32, the new plan 16"),
        (
            chain_plan([2, 2], [2], workload=WORKLOAD).replace(local_steps=2, outer=OuterOptimizer()),
            "takes local steps",
        ),
    ],
)
def test_another_training_is_refused_and_named(earlier, plan, words):
    assert words in why_not_carried_over(OLD, plan)
    with pytest.raises(InvalidInput, match=words):
        check_resumable(plan, TrainConfig(steps=30, resume=str(earlier)))


@pytest.mark.parametrize("content", [None, "{", '{"format": "hetplanner/plan@99"}'])
def test_without_a_readable_plan_beside_it_only_the_own_plan_goes_on(earlier, content):
    (earlier / "plan.json").unlink()
    if content is not None:
        (earlier / "plan.json").write_text(content)
    check_resumable(OLD, TrainConfig(steps=30, resume=str(earlier)))
    with pytest.raises(InvalidInput, match="is of another plan"):
        check_resumable(NEW, TrainConfig(steps=30, resume=str(earlier)))
