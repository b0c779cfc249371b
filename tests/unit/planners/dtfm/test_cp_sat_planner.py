"""The planner that proves, on published networks and on what it must refuse."""

import sys

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.dtfm import bound_dtfm, pair_costs
from hetplanner.errors import InvalidInput
from hetplanner.planners.dtfm.certificates import MOST_CLASSES, find_classes, prove_optimum
from hetplanner.planners.registry import make_planner
from tests.support.plans.published import SAMPLES, published_problem


def prove(task, **options):
    return make_planner("cp-sat").solve(task, **({"budget": "200 s"} | options))


@pytest.mark.parametrize(
    ("case", "optimum"),
    [
        ("dtfm_1_datacenter", 3.4397991),
        ("dtfm_2_spot", 31.6341598),
        ("dtfm_3_universities", 16.0868397),
        ("dtfm_4_regional", 34.8020410),
    ],
)
def test_published_networks_are_solved_with_proof(case, optimum):
    seen = []
    result = prove(published_problem(case), on_event=seen.append)
    assert result.value == pytest.approx(optimum, abs=1e-6)
    assert result.gap < 1e-6
    assert result.plan.provenance.lower_bound == result.lower_bound
    assert seen[-1].phase == "done"
    assert seen[-1].best == pytest.approx(result.value)


def test_the_proof_improves_a_poor_start():
    task = published_problem("dtfm_3_universities", 4, 4)
    planner = make_planner("cp-sat", {"chunks": 0})
    rough = planner.solve(task, budget="0 s")
    proved = planner.solve(task, budget="200 s")
    assert proved.value <= rough.value
    assert proved.gap < 1e-6


@pytest.mark.parametrize(
    ("case", "sizes", "optimum"),
    [("dtfm_2_spot", [4] * 8 + [32], 31.634160), ("dtfm_4_regional", [16] * 4, 34.802041)],
)
def test_without_a_warm_start_the_model_alone_finds_the_optimum(case, sizes, optimum):
    cluster = load_cluster(SAMPLES / f"{case}.json")
    costs = pair_costs(cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD, 8)
    classes = find_classes(*costs)
    assert sorted(classes.sizes) == sizes
    proof = prove_optimum(classes, (8, 8))
    assert proof.is_optimal
    assert proof.lower_bound_s == pytest.approx(optimum, abs=1e-6)
    assert bound_dtfm(*costs, 8, 8) == pytest.approx(optimum, abs=1e-6)


def test_a_proof_that_is_cut_short_still_gives_a_valid_bound_and_plan():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 40

    result = prove(published_problem("dtfm_5_worldwide"), should_stop=stop)
    assert result.cancelled
    assert result.value == pytest.approx(49.2183800, rel=0.2)
    assert result.lower_bound <= 49.2183801


def test_devices_that_are_all_unlike_are_refused_in_one_line():
    rng = np.random.default_rng(0)
    delay = rng.uniform(1, 2, (MOST_CLASSES + 8, MOST_CLASSES + 8))
    with pytest.raises(InvalidInput, match="classes of interchangeable") as refusal:
        find_classes(*pair_costs(delay, np.ones_like(delay), 4))
    assert "\n" not in str(refusal.value)


def test_without_ortools_the_extra_is_named(monkeypatch):
    for name in ("ortools", "ortools.sat", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=r"pip install 'hetplanner\[exact\]'") as refusal:
        prove(published_problem("dtfm_1_datacenter"))
    assert "\n" not in str(refusal.value)
