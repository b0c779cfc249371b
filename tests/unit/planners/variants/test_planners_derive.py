"""Derived plans: what is asked for changes and nothing else, they are checked, and their files say what they are."""

import pytest

from hetplanner.cost.check import check_plan, memory_limits, peak_bytes
from hetplanner.cost.estimate import estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import plan_from_json, plan_to_data
from hetplanner.plan.model import Provenance
from hetplanner.planners.variants.depths import max_depths
from hetplanner.planners.variants.derive import (
    Derivation,
    changes_text,
    derive_plan,
    derived_from_data,
    derived_to_data,
)
from hetplanner.schema import checked
from hetplanner.ui.export.model import plan_text
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload


@pytest.fixture
def plan():
    made = chain_plan([8, 8], [3, 6], workload=tiny_workload(layers=6, global_batch=32))
    return made.replace(provenance=Provenance(planner="evolution", seed=3, lower_bound=0.01))


def derived(plan, **wanted):
    return derive_plan(plan, Derivation.of(wanted))


def test_nothing_asked_for_changes_nothing_but_the_estimate_and_the_provenance(plan):
    made = derived(plan)
    assert made.replace(estimate=None, provenance=plan.provenance) == plan
    assert made.estimate == estimate_plan(plan)
    assert made.provenance.planner == "derived"
    assert "(evolution): no change" in made.provenance.derived
    assert made.provenance.lower_bound == 0.01
    assert Derivation().is_empty


def test_another_schedule_keeps_devices_and_cut(plan):
    made = derived(plan, schedule="gpipe")
    assert (made.schedule, made.stages, made.routes) == ("gpipe", plan.stages, plan.routes)
    assert changes_text(plan, made) == ["schedule 1f1b → gpipe"]


def test_interleaving_gives_devices_several_stages_and_then_only_depths_and_codecs_change(plan):
    made = derived(plan, schedule="interleaved", messages={"name": "fp16"})
    assert made.is_interleaved
    assert len(made.stages) == 6
    assert {str(rule.codec) for rule in made.link_codecs} == {"fp16"}
    deeper = derived(made, in_flight=[12])
    assert {stage.in_flight for stage in deeper.stages} == {12}
    with pytest.raises(InvalidInput, match="schedule: devices of an interleaved plan"):
        derived(made, schedule="gpipe")
    with pytest.raises(InvalidInput, match=r"schedule: .*use fewer chunks"):
        derived(plan, schedule="interleaved", chunks=9)


def test_larger_micro_batches_keep_the_routes_shares(plan):
    uneven = chain_plan([12, 4], [3, 6])
    made = derived(uneven, micro_batch=4)
    assert [route.micro_batches for route in made.routes] == [6, 2]
    assert made.problem.workload.micro_batch == 4
    assert made.problem.workload.global_batch == uneven.problem.workload.global_batch
    assert derived(plan, micro_batch=4).provenance.lower_bound is None
    with pytest.raises(
        InvalidInput, match="micro_batch: must divide the global batch of 32, got 5; use one of 2, 4, 8"
    ):
        derived(plan, micro_batch=5)
    with pytest.raises(InvalidInput, match="leaves 1 micro-batches for 2 routes; use at most 16"):
        derived(plan, micro_batch=32)


def test_depths_are_one_number_or_one_a_stage(plan):
    assert [s.in_flight for s in derived(plan, in_flight=[5]).stages] == [5, 5, 5]
    assert [s.in_flight for s in derived(plan, in_flight=[3, 2, 2]).stages] == [3, 2, 2]
    with pytest.raises(InvalidInput, match="in_flight: must be one number, or one for each of the 3 stages, got 2"):
        derived(plan, in_flight=[3, 2])
    with pytest.raises(InvalidInput, match=r"in_flight\[0\]"):
        derived(plan, in_flight=[0])


def tight(plan):
    """The same plan on devices that hold it just so."""
    peak = max(peak_bytes(plan, CostTables(plan.problem)))
    cluster = plan.problem.cluster
    devices = tuple(d.replace(memory=peak * 1.001, reserve=0.0) for d in cluster.devices)
    return plan.replace(problem=plan.problem.replace(cluster=cluster.replace(devices=devices)))


def test_depths_that_no_longer_fit_become_shallower_unless_they_were_asked_for():
    plan = tight(chain_plan([32], [3, 6], in_flight=[8, 8, 8], cluster=small_cluster(3)))
    check_plan(plan)
    made = derived(plan, micro_batch=4)
    assert [s.in_flight for s in made.stages] == [min(8, n) for n in max_depths(made)]
    assert [s.in_flight for s in made.stages][-1] < 8
    needed = peak_bytes(made, CostTables(made.problem))
    assert all(n <= limit for n, limit in zip(needed, memory_limits(made, CostTables(made.problem)), strict=True))
    with pytest.raises(Infeasible, match="does not fit"):
        derived(plan, in_flight=[32])


def test_recomputation_and_codecs(plan):
    made = derived(plan, recompute=True, messages={"name": "topk", "ratio": 20.0}, reductions={"name": "int8"})
    assert all(stage.recompute for stage in made.stages)
    assert all(stage.reduce_codec.name == "int8" and stage.error_feedback for stage in made.stages)
    assert len(made.link_codecs) == 8
    assert {"topk", "int8"} <= set(made.problem.constraints.codecs)
    back = derived(made, messages={"name": "none"})
    assert back.link_codecs == ()
    assert "messages dense → topk:20" in made.provenance.derived
    with pytest.raises(InvalidInput, match=r"messages\.name"):
        derived(plan, messages={"name": "zip"})


def test_a_derived_plan_survives_pipe_and_file_and_old_files_are_read(plan):
    made = derived(plan, micro_batch=4, schedule="gpipe", messages={"name": "int8"})
    assert derived_from_data(derived_to_data(made), plan) == made
    assert plan_from_json(plan_text(made)) == made
    data = plan_to_data(plan)
    assert "derived" not in data["provenance"]
    assert checked(Provenance, data["provenance"], "plan").derived is None
