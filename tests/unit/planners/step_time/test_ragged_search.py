"""The search over stages with unlike numbers of replicas: its kernels are the closed form, and it finds such plans."""

import numpy as np
import pytest

from hetplanner.cluster.generators import mixed_gpus
from hetplanner.cost.check import check_plan
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import Infeasible
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.planners.step_time.ragged import RaggedSpecies
from hetplanner.planners.step_time.space import StepSpaces
from hetplanner.planners.step_time.species import StepSpecies
from hetplanner.simulator.simulation import simulate
from hetplanner.workload.presets import preset
from tests.unit.planners.baselines.test_swarm_planner import problem as one_site


def species(problem, stages, seed=0, recompute=False):
    model = CostModel.of(problem)
    return RaggedSpecies(model, stages, seed, recompute=recompute, space=StepSpaces(model).of(recompute=recompute))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-llama"])
def test_the_kernel_is_the_closed_form(seed, model):
    """Layouts as annealing leaves them, on hosts with shared NICs, tied weights and untied ones."""
    problem = Problem(
        cluster=mixed_gpus(seed, num_devices=11, num_sites=3),
        workload=preset(model),
        constraints=Constraints(reducers=("sharded-ps",)),
    )
    ragged = species(problem, 2 + seed % 3, seed)
    for candidate in ragged.screen():
        met = ragged.anneal(candidate, 60, 0.5)
        plan = ragged.plan(met)
        assert {len(rows) for rows in ragged.placement(met)} == {len(stage.replicas) for stage in plan.stages}
        # A finished plan may give up a thousandth of its step for less depth.
        assert plan.estimate.step_s == pytest.approx(met.value, rel=1.1e-3)
        deepest = plan.replace(stages=tuple(s.replace(in_flight=10**6) for s in plan.stages))
        assert estimate_plan(deepest).step_s == pytest.approx(met.value, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_moves_keep_every_stage_served_and_every_micro_batch_dealt(seed):
    problem = Problem(cluster=mixed_gpus(seed, num_devices=13, num_sites=3), workload=preset("tiny-gpt"))
    ragged = species(problem, 3, seed)
    candidate = ragged.screen()[0]
    for _ in range(30):
        candidate = ragged.anneal(candidate, 25, 1.0)
        place, first, load, cut = candidate.genes
        assert sorted(place) == list(range(13))
        assert (np.diff(first) >= 1).all()
        assert first[-1] <= 13
        assert (np.diff(cut) >= 1).all()
        for s in range(3):
            assert load[first[s] : first[s + 1]].sum() == problem.workload.num_micro_batches
            assert (load[first[s] : first[s + 1]] >= 1).all()


def test_the_search_finds_a_ragged_plan_where_every_equal_one_is_slower():
    """Five equal devices, of which the model needs three: doubling two of the stages beats any single pipeline."""
    task = one_site([1e9] * 5, memory=728e3)
    found = make_planner("evolution").solve(task, budget="60000 evaluations")
    check_plan(found.plan)
    assert sorted(len(stage.replicas) for stage in found.plan.stages) == [1, 2, 2]
    for stages in (3, 4):
        shape = task.replace(constraints=Constraints(stages=stages, replicas=1))
        equal = make_planner("exhaustive").solve(shape, budget=Budget())
        assert found.value < equal.value * 0.8
        assert simulate(found.plan).end_s < simulate(equal.plan).end_s * 0.8
    with pytest.raises(Infeasible):
        make_planner("exhaustive").solve(task.replace(constraints=Constraints(stages=2)), budget=Budget())


def test_ragged_layouts_go_on_from_equal_ones():
    """An equal layout is a ragged one of the same value, from which annealing gets further."""
    model = CostModel.of(one_site([1e9] * 5, memory=800e3))
    spaces = StepSpaces(model)
    equal = StepSpecies(model, (3, 1), 0, "structured", recompute=False, space=spaces.of(recompute=False))
    ragged = RaggedSpecies(model, 3, 0, recompute=False, space=spaces.of(recompute=False))
    best = equal.anneal(equal.random(), 2000, 0.02)
    same = ragged.of_equal(best)
    assert same.value == pytest.approx(best.value, rel=1e-12)
    assert ragged.anneal(same, 5000, 0.02).value < best.value * 0.7


def check_equal(plan):
    assert len({len(stage.replicas) for stage in plan.stages}) == 1


def test_a_given_number_of_replicas_allows_no_ragged_plan():
    task = one_site([1e9] * 5, memory=800e3, replicas=1)
    check_equal(make_planner("evolution").solve(task, budget="20000 evaluations").plan)
