"""Groups of a host's devices: which there are, what they cost and hold, and the search over them."""

import json

import numpy as np
import pytest

from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.compute.groups import exchange_seconds, repeated_bytes
from hetplanner.cost.compute.sources import compute_sources
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import any_plan_from_data, load_plan, plan_to_data, save_plan
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.placement import rank_on_host, ranks_by_host
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.train import check_runnable
from hetplanner.planners.interface import Budget, SearchResult
from hetplanner.planners.registry import make_planner, planner_names
from hetplanner.planners.step_time.fronts import search_front
from hetplanner.plots.data.search.grid import grid_columns
from hetplanner.schema import checked
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import GPT, hosts
from tests.support.plans.profiles import made_profile

TWO = hosts(("T4", 4), ("T4", 4))
MIXED = hosts(("T4", 4), ("A100-40", 2), ("T4", 4), ("V100-16", 1))


def problem(cluster=TWO, groups=None, workload=GPT, **constraints) -> Problem:
    return Problem(cluster=cluster, workload=workload, groups=groups, constraints=Constraints(**constraints))


def group(*devices: str) -> WorkerGroup:
    return WorkerGroup(devices=devices)


def sizes(wanted: Problem, chosen) -> list[list[int]]:
    ways = Groupings(wanted)
    return [sorted(g.degree for g in ways.groups(degrees)) for degrees in chosen(ways)]


def test_hosts_of_a_make_are_divided_alike_and_others_as_they_can() -> None:
    free = problem(MIXED, tensor=(1, 2, 4))
    assert sizes(free, Groupings.alike) == [[], [2, 2, 2, 2, 2], [2, 4, 4]], "one degree, where a host has so many"
    everything = sizes(free, Groupings.all)
    assert sorted(everything) == sorted([[], [2, 2, 2, 2, 2], [2, 4, 4], [2], [2, 2, 2, 2], [4, 4]])
    assert len(everything) == Groupings(free).count
    near = sizes(free, lambda ways: ways.neighbours(ways.alike()[1]))
    assert near == [[2], [2, 4, 4], [2, 2, 2, 2]], "another degree for the larger make first"
    assert sizes(problem(MIXED, tensor=(4,)), Groupings.all) == [[4, 4]], "smaller hosts serve by their single devices"


def test_left_over_excluded_and_pinned_devices_serve_alone() -> None:
    cluster = hosts(("T4", 7))
    ways = Groupings(problem(cluster, tensor=(2,), excluded=("h0-0",), pinned={"h0-1": 0}))
    groups = ways.groups(ways.alike()[0])
    assert groups == (group("h0-2", "h0-3"), group("h0-4", "h0-5"))
    changed = problem(cluster, groups, excluded=("h0-0",))
    assert changed.usable_devices == ("h0-1", "h0-2", "h0-4", "h0-6")
    assert changed.degree_of("h0-2") == 2
    assert changed.degree_of("h0-6") == 1


def test_a_group_computes_and_holds_as_its_members_together_less_what_each_has() -> None:
    one, two = CostTables(problem()), CostTables(problem(groups=(group("h0-0", "h0-1"),)))
    alone = repeated_bytes(GPT, float(two._state_bytes_o.max()))
    assert two.devices.memory_bytes_D[0] == pytest.approx(2 * one.devices.memory_bytes_D[0] - alone)
    assert two.devices.price_usd_per_s_D[0] == pytest.approx(2 * one.devices.price_usd_per_s_D[0])
    assert two.devices.update_s_per_weight_D[0] == pytest.approx(one.devices.update_s_per_weight_D[0] / 2)
    row, other = two.devices.class_D[0], two.devices.class_D[2]
    assert two.forward_s_CO[other] == pytest.approx(one.forward_s_CO[one.devices.class_D[2]])
    # A ring of two passes half of a hidden state twice; attention and MLP do so once forward; backward they
    # gather again.
    state = 2 * 1024 * 768 * 2
    each = 2 * (state / 2 / 25e9 + 10e-6)
    block = np.diff(two.forward_s_CO[row, [1, 3]])[0]
    assert block == pytest.approx(np.diff(one.forward_s_CO[one.devices.class_D[0], [1, 3]])[0] / 2 + 2 * each)
    assert exchange_seconds(two.devices, 0, GPT, "backward")[1:3] == pytest.approx([1.5 * each, 1.5 * each])
    assert not exchange_seconds(two.devices, 2, GPT, "forward").any()


def test_a_slow_link_inside_the_host_is_felt_and_one_between_hosts_is_not_taken_for_it() -> None:
    groups = (group("h0-0", "h0-1", "h0-2", "h0-3"),)
    fast, slow = (CostTables(problem(hosts(("T4", 4), link=link), groups)) for link in ("200 Gbit/s", "1 Gbit/s"))
    assert slow.forward_s_CO[slow.devices.class_D[0], -1] > 2 * fast.forward_s_CO[fast.devices.class_D[0], -1]
    silent = TWO.replace(host_links=())
    by_catalog = CostTables(problem(silent, groups))
    assert by_catalog.devices.ring_s_per_byte_D[0] == pytest.approx(1 / 16e9)


def test_rows_of_a_profile_at_the_degree_go_before_those_of_one_device() -> None:
    profile = made_profile(GPT, "T4", seconds={2: 0.02})
    shared = profile.replace(
        rows=(*profile.rows, *(row.replace(degree=2, forward=0.013, backward=0.03) for row in profile.rows))
    )
    groups = (group("h0-0", "h0-1"), group("h1-0", "h1-1", "h1-2", "h1-3"))
    changed = problem(groups=groups).replace(profile=shared)
    assert [str(source) for source in compute_sources(changed)] == [
        "2 × T4 in groups of 2: profile (measured at micro-batch 2)",
        "2 × T4: profile (measured at micro-batch 2)",
        "4 × T4 in groups of 4: profile (measured at micro-batch 2, one device's divided)",
    ]
    tables = CostTables(changed)
    row = tables.devices.class_D[0]
    assert np.diff(tables.forward_s_CO[row, [1, 3]]) == pytest.approx(0.013)
    four = tables.devices.class_D[4]
    block = np.diff(tables.forward_s_CO[four, [1, 3]])
    assert block == pytest.approx(0.02 / 4 + exchange_seconds(tables.devices, 4, GPT, "forward")[1:3].sum())


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((("h0-0", "nobody"),), r"groups\[0\]: unknown device 'nobody'"),
        ((("h0-0", "h0-1"), ("h0-1", "h0-2")), r"groups\[1\]: device 'h0-1' is in two groups"),
        ((("h0-0", "h1-0"),), r"groups\[0\]: its devices are of the hosts h0, h1; a group is of one host"),
        ((("h0-0", "h0-1", "h0-2"),), "the degree must be 1, 2, 4 or 8, got 3"),
        ((("h1-3", "h1-0"),), r"groups\[0\]: device 'h1-3' is excluded"),
    ],
)
def test_groups_that_no_plan_can_have_are_named(groups, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked(
            Problem,
            {
                "cluster": TWO,
                "workload": GPT,
                "constraints": {"excluded": ("h1-3",)},
                "groups": [{"devices": devices} for devices in groups],
            },
            "plan",
        )


@pytest.mark.parametrize(
    ("workload", "tensor", "message"),
    [
        (GPT, (8,), r"degree 8: 12 heads are no multiple of 8; use 4 \(degrees that work: 1, 2, 4\)"),
        (
            preset("resnet101"),
            (2,),
            "is a captured model: 100% of its arithmetic is not divided, most of it in .conv1.; use degree 1",
        ),
        (preset("gpt2", adapters="8"), (2,), "adapters are not divided"),
        (preset("llama-8b", micro_batch=1), (8,), "no host has 8 usable devices of one kind"),
    ],
)
def test_degrees_that_do_not_work_are_named_with_those_that_do(workload, tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Groupings(problem(workload=workload, tensor=tensor)).alike()


def test_a_plan_says_which_allowed_degrees_were_not_searched() -> None:
    asked = problem(tensor=(1, 4, 8), sharding=("tensor", "zero3"), workload=preset("gpt2", micro_batch=2))
    plan = make_planner("evolution").solve(asked, seed=1, budget=Budget(evaluations=500)).plan
    assert plan.estimate is not None
    assert plan.estimate.notes[0] == (
        "not searched: groups of 4 by ZeRO 3: 2 samples of a micro-batch cannot be divided by 4; use 2, or"
        " micro-batches of a multiple of 4; groups of 8: no host has 8 usable devices of one kind"
    )
    assert Groupings(problem(tensor=(1, 2))).left_out_text == ""


def test_a_search_over_degrees_is_no_worse_than_any_degree_and_its_bound_holds() -> None:
    budget = Budget(evaluations=20_000)
    found = make_planner("evolution").solve(problem(MIXED, tensor=(1, 2, 4)), seed=1, budget=budget)
    again = make_planner("evolution").solve(problem(MIXED, tensor=(1, 2, 4)), seed=1, budget=budget)
    assert found.plan.replace(provenance=again.plan.provenance) == again.plan
    assert found.plan.provenance.evaluations == found.evaluations
    ways = Groupings(problem(MIXED, tensor=(1, 2, 4)))
    for degrees in ways.all():
        fixed = problem(MIXED, ways.groups(degrees))
        one = make_planner("megatron").solve(fixed, seed=1, budget=budget)
        assert found.value <= one.value
        model = CostModel.of(fixed)
        assert bound_step(model.tables, model.links) <= one.value
    assert found.lower_bound <= found.value
    assert [e.best for e in found.events] == sorted((e.best for e in found.events), reverse=True)
    assert found.events[-1].phase == "done"
    assert found.events[-1].best == pytest.approx(found.value)
    assert found.evaluations <= 1.2 * 20_000


def test_the_search_finds_the_optimum_over_all_groupings() -> None:
    workload = preset("gpt2", layers=4, global_batch=16, micro_batch=2, dtype="float16")
    free = problem(hosts(("T4", 2), ("T4", 2), between="100 Gbit/s"), workload=workload, tensor=(1, 2))
    best = make_planner("exhaustive").solve(free, budget=Budget(evaluations=10_000_000))
    found = make_planner("evolution").solve(free, seed=1, budget=Budget(evaluations=20_000))
    assert found.value == pytest.approx(best.value, rel=1e-6)
    assert found.lower_bound <= found.value


def test_plans_with_groups_are_estimated_simulated_and_kept(tmp_path) -> None:
    groups = tuple(group(f"h{h}-{k}", f"h{h}-{k + 1}") for h in range(2) for k in (0, 2))
    workload = GPT.replace(global_batch=16)
    plan = chain_plan([8], [9, 15, 21], cluster=TWO.subset(["h0-0", "h0-2", "h1-0", "h1-2"]), workload=workload)
    plan = plan.replace(problem=problem(groups=groups, workload=workload, tensor=(2,)))
    assert summarise_plan(plan).step_s == pytest.approx(estimate_plan(plan).step_s, rel=0.1)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "hetplanner/plan@3"
    assert set(grid_columns(plan)["line_2"]) == {"2 × T4"}
    check_runnable(plan)
    assert plan.processes == (*plan.ranks, "h0-1", "h0-3", "h1-1", "h1-3")
    assert plan.processes_of_rank == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert ranks_by_host(plan) == {"h0": (0, 1, 4, 5), "h1": (2, 3, 6, 7)}
    assert rank_on_host(plan, "h1", 2, 4) == 6


def test_plans_without_groups_keep_their_format() -> None:
    plan = chain_plan([8], [4])
    data = plan_to_data(plan)
    assert data["format"] == "hetplanner/plan@1"
    assert "groups" not in data["problem"]
    assert "tensor" not in data["problem"]["constraints"]
    assert any_plan_from_data(data) == plan


def test_a_layer_that_no_device_holds_is_planned_in_groups_and_advised() -> None:
    cluster = hosts(*[("V100-16", 8)] * 12)
    workload = preset("llama-70b", seq_len=2048, dtype="float16", global_batch=32)
    with pytest.raises(Infeasible, match=r"tensor parallelism inside hosts would help \(--tensor 1,8\)"):
        make_planner("megatron").solve(problem(cluster, workload=workload), budget=Budget(evaluations=1))
    found = make_planner("megatron").solve(
        problem(cluster, workload=workload, tensor=(1, 2, 4, 8)), budget=Budget(evaluations=1)
    )
    assert {g.degree for g in found.plan.problem.groups} == {8}


@pytest.mark.parametrize("name", [name for name in planner_names() if name not in ("gcma", "cp-sat")])
def test_every_planner_of_step_times_plans_in_groups(name: str) -> None:
    found = make_planner(name).solve(problem(TWO, tensor=(2,), stages=2, replicas=1), budget=Budget(evaluations=50))
    assert {g.degree for g in found.plan.problem.groups} == {2}
    assert set(found.plan.ranks) <= set(found.plan.problem.usable_devices)


def test_a_front_is_of_all_degrees() -> None:
    def found():
        events = []
        task = problem(TWO, workload=GPT.replace(global_batch=2), tensor=(1, 2, 4))
        front = search_front(task, budget=Budget(evaluations=3000), on_event=events.append)
        return front, events

    front, events = found()
    degrees = {max((g.degree for g in plan.problem.groups), default=1) for plan in front.plans}
    assert len(degrees) > 1, "the fastest and the cheapest have unlike degrees"
    points = [(plan.estimate.step_s, plan.estimate.usd_per_mtoken) for plan in front.plans]
    assert points == sorted(points)
    assert [usd for _, usd in points] == sorted((usd for _, usd in points), reverse=True)
    assert front.least_step_s <= points[0][0]
    assert front.least_usd_per_mtoken <= points[-1][1]
    assert [event.phase == "done" for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1].points == tuple(points)
    assert front.evaluations <= 3000 + 3 * 64
    again = found()[0]
    assert [plan.estimate for plan in again.plans] == [plan.estimate for plan in front.plans]


def test_what_knows_no_groups_says_so() -> None:
    dtfm = problem(tensor=(2,), stages=2, replicas=2).replace(objective="dtfm")
    for name in ("gcma", "evolution"):
        with pytest.raises(InvalidInput, match="objective dtfm knows no tensor parallelism"):
            make_planner(name).solve(dtfm)


@pytest.mark.parametrize("tensor", [(2,), (1, 2, 4)])
def test_a_swarm_of_groups_is_planned_and_degrees_that_are_free_are_no_worse_than_any(tensor) -> None:
    tiny = preset("tiny-gpt", global_batch=32, micro_batch=4)

    def planned(degrees) -> SearchResult:
        wanted = problem(MIXED, workload=tiny, tensor=degrees, stages=2)
        return make_planner("swarm", {"mode": "elastic"}).solve(wanted)

    found = planned(tensor)
    plan = found.elastic
    assert plan is not None
    assert any_plan_from_data(json.loads(json.dumps(plan_to_data(plan))), "swarm") == plan
    assert plan.estimate == found.plan.estimate
    assert plan.problem == found.plan.problem
    assert set(plan.peers) <= set(plan.problem.usable_devices)
    assert max(map(plan.problem.degree_of, plan.peers)) > 1 or len(tensor) > 1
    assert all(found.value <= planned((degree,)).value for degree in tensor)
