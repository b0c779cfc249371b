"""The cost model with a profile: measured seconds go before rates, on the kinds that have them."""

import numpy as np
import pytest

from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.compute.sources import compute_sources
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.problem import Problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.profiles.model import LayerCost
from hetplanner.schema import checked
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.grouped import grouped_plan
from tests.support.plans.profiles import made_profile, profile_of

WORKLOAD = preset("tiny-gpt", global_batch=16, micro_batch=2)


def _mixed(devices: int = 4):
    """Half of the devices are GPUs."""
    cluster = small_cluster(devices)
    changed = [d.replace(kind="T4") if i % 2 else d for i, d in enumerate(cluster.devices)]
    return cluster.replace(devices=tuple(changed))


def _problem(profile=None, cluster=None) -> Problem:
    return Problem(cluster=cluster or _mixed(), workload=WORKLOAD, profile=profile)


def test_a_profiled_kind_takes_what_was_measured_and_others_what_they_took() -> None:
    plain, tables = CostTables(_problem()), CostTables(_problem(made_profile(WORKLOAD, "T4")))
    t4, cpu = tables.devices.class_D[1], tables.devices.class_D[0]
    edges = [0, 1, 3, 5, 7, 9, 11, 13, 16]  # embedding, six blocks, head
    assert np.diff(tables.forward_s_CO[t4, edges]) == pytest.approx([0.02] * 8)
    assert np.diff(tables.backward_s_CO[t4, edges]) == pytest.approx([0.04] * 8)
    inside = np.diff(tables.forward_s_CO[t4, [1, 2, 3]])
    assert inside.sum() == pytest.approx(0.02)
    assert (inside > 0).all()
    assert tables.forward_s_CO[cpu] == pytest.approx(plain.forward_s_CO[plain.devices.class_D[0]])
    weights = sum(op.trained for op in WORKLOAD.graph.ops)
    assert tables.devices.update_s_per_weight_D[1] == pytest.approx(0.008 / weights)


def test_kept_bytes_of_a_profile_are_the_memory_of_a_plan() -> None:
    plain = CostTables(_problem(made_profile(WORKLOAD, "T4")))
    tables = CostTables(_problem(made_profile(WORKLOAD, "T4", kept=8_000_000)))
    kept = 8_000_000 * (1 + 1)  # in proportion from micro-batches 1 and 4, which have the same: the line between
    assert tables.activation_bytes_O[-1] == pytest.approx(8 * kept / 2)
    assert plain.activation_bytes_O[-1] < tables.activation_bytes_O[-1]


def test_groups_keep_what_was_measured_of_their_members() -> None:
    plan = grouped_plan(2)
    problem = plan.problem
    of_one = profile_of(problem.workload, "T4", sizes=(2,))  # 2 MB of each layer
    shared = tuple(row.replace(degree=2, kept=1.5e6) for row in of_one.rows)
    unmeasured = tuple(row.replace(degree=2, kept=None) for row in of_one.rows)
    layers = len(of_one.layer_names)

    def kept(rows: tuple[LayerCost, ...]) -> float:
        return float(CostTables(problem.replace(profile=of_one.replace(rows=rows))).activation_bytes_O[-1])

    assert kept(of_one.rows) == pytest.approx(2e6 * layers)
    assert kept(of_one.rows + shared) == pytest.approx(3e6 * layers)
    assert kept(shared) == pytest.approx(3e6 * layers)
    assert kept(of_one.rows + unmeasured) == pytest.approx(CostTables(problem).activation_bytes_O[-1])
    single = problem.replace(profile=of_one.replace(rows=of_one.rows + shared), groups=None)
    assert CostTables(single).activation_bytes_O[-1] == pytest.approx(2e6 * layers)


def test_devices_of_the_same_numbers_are_told_apart_where_one_kind_is_profiled() -> None:
    cluster = small_cluster(2)
    twin = cluster.devices[1].replace(kind="my CPU", peak={"float32": 1.5e12}, efficiency=0.6, memory=64e9,
                                      memory_bandwidth=100e9, reserve=2.0**28, price_usd_per_hour=0.4)  # fmt: skip
    cluster = cluster.replace(devices=(cluster.devices[0], twin))
    assert len(set(CostTables(_problem(cluster=cluster)).devices.class_D)) == 1
    profile = made_profile(WORKLOAD, "my CPU")
    assert len(set(CostTables(_problem(profile, cluster)).devices.class_D)) == 2


def test_estimate_simulator_and_search_go_by_the_profile_and_files_keep_it(tmp_path) -> None:
    slow = made_profile(WORKLOAD, "T4", seconds={2: 0.5})
    cluster = _mixed()
    plan = chain_plan([8], [4, 8, 12], cluster=cluster, workload=WORKLOAD)
    slowed = plan.replace(problem=plan.problem.replace(profile=slow))
    assert estimate_plan(slowed).step_s > 5 * estimate_plan(plan).step_s
    assert summarise_plan(slowed).step_s == pytest.approx(estimate_plan(slowed).step_s, rel=0.2)
    save_plan(slowed, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == slowed
    found = make_planner("evolution").solve(_problem(slow), seed=0, budget=Budget(evaluations=300))
    assert {cluster.devices[cluster.device_index(d)].kind for d in found.plan.ranks} == {"CPU generic"}
    assert found.lower_bound <= found.value


@pytest.mark.parametrize("seconds", [3e-5, 1e-3, 1.0])
def test_the_bound_holds_with_a_profile_of_any_speed(seconds: float) -> None:
    problem = _problem(made_profile(WORKLOAD, "T4", seconds={2: seconds}, dtype="float32"))
    plan = chain_plan([8], [4, 8, 12], cluster=problem.cluster, workload=WORKLOAD)
    plan = plan.replace(problem=problem)
    model = CostModel.of(problem)
    assert 0 < bound_step(model.tables, model.links) <= estimate_plan(plan).step_s


def test_sources_name_profile_cluster_file_and_catalog() -> None:
    cluster = _mixed()
    own = cluster.devices[0].replace(efficiency=0.3)
    cluster = cluster.replace(devices=(own, *cluster.devices[1:]))
    said = [str(source) for source in compute_sources(_problem(made_profile(WORKLOAD, "T4"), cluster))]
    assert said == [
        "1 × CPU generic: cluster file",
        "2 × T4: profile (interpolated to micro-batch 2 from 1, 4)",
        "1 × CPU generic: catalog",
    ]


def test_impossible_seconds_are_refused_by_name() -> None:
    workload = preset("gpt2-large", dtype="float16")
    slow = made_profile(workload, "T4", seconds={1: 1.0})
    fast = slow.replace(rows=[row.replace(forward=1e-6, backward=2e-6) for row in slow.rows])
    with pytest.raises(InvalidInput, match=r"T4 at micro-batch 1 would reach .* TFLOP/s, its peak in float16 is 65"):
        checked(Problem, {"cluster": _mixed(), "workload": workload, "profile": fast}, "plan")


def test_a_profile_of_another_model_is_refused() -> None:
    other = preset("tiny-gpt", layers=3)
    data = {"cluster": _mixed(), "workload": other, "profile": made_profile(WORKLOAD)}
    with pytest.raises(InvalidInput, match=r"plan: profile 'made': is of .*profile this model"):
        checked(Problem, data, "plan")
