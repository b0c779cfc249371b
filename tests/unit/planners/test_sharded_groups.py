"""Groups that divide samples (ZeRO 2 and 3): what they cost and hold, how they are planned, written and refused."""

import json

import numpy as np
import pytest

from hetplanner.cost.compute.collectives import Collectives
from hetplanner.cost.compute.groups import exchange_seconds, repeated_bytes
from hetplanner.cost.compute.sharded import matrices_o, summing_bytes
from hetplanner.cost.compute.sources import compute_sources
from hetplanner.cost.memory_parts import memory_parts
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.plan.groupings import Division, Groupings
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.rehearsal import rehearsal_problem
from hetplanner.planners.interface import Budget
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.whatif import Changes, evaluate_changes
from hetplanner.profiles.model import CollectiveCost
from hetplanner.simulator.simulation import summarise_plan
from hetplanner.workload.presets import preset
from tests.support.plans.grouped import hosts
from tests.support.plans.profiles import made_profile

TWO = hosts(("T4", 4), ("T4", 4))
GPT = preset("gpt2", global_batch=32, micro_batch=4, dtype="float16")
H, VOCAB, POSITIONS, FFN = 768, 50257, 1024, 3072


def problem(cluster=TWO, groups=None, workload=GPT, **constraints) -> Problem:
    return Problem(cluster=cluster, workload=workload, groups=groups, constraints=Constraints(**constraints))


def group(*devices: str, sharding: str = "zero3") -> WorkerGroup:
    return WorkerGroup(devices=devices, sharding=sharding)


def exchanges(sharding: str, way: str, workload=GPT) -> np.ndarray:
    groups = (group("h0-0", "h0-1", "h0-2", "h0-3", sharding=sharding),)
    return exchange_seconds(CostTables(problem(groups=groups, workload=workload)).devices, 0, workload, way)


def passed(size: float, count: int) -> float:
    """Seconds in which four members gather so many bytes of 25 GB/s and 10 us, in so many pieces."""
    return 3 * (size / 4 / 25e9 + count * 10e-6)


def test_zero_3_gathers_each_matrix_forward_and_backward_and_adds_gradients_up() -> None:
    attention, mlp = 4 * H * H, 2 * H * FFN
    forward, backward = exchanges("zero3", "forward"), exchanges("zero3", "backward")
    assert forward[:3] == pytest.approx([
        passed(4 * H * (VOCAB + POSITIONS), 2), passed(2 * attention, 2), passed(2 * mlp, 2)
    ])  # fmt: skip
    assert backward[:3] == pytest.approx([
        passed(4 * H * (VOCAB + POSITIONS), 2),
        passed(2 * attention, 2) + passed(4 * attention, 2),
        passed(2 * mlp, 2) + passed(4 * mlp, 2),
    ])  # fmt: skip
    assert forward[-2:] == pytest.approx([passed(2 * H * VOCAB, 1), 0.0])


def test_zero_2_gathers_once_a_step() -> None:
    assert not exchanges("zero2", "forward").any()
    assert exchanges("zero2", "backward")[1] == pytest.approx(passed(4 * 4 * H * H, 2))
    alone = CostTables(problem()).devices.update_s_per_weight_D[0]
    group_of = {s: CostTables(problem(groups=(group("h0-0", "h0-1", sharding=s),))) for s in ("zero2", "zero3")}
    update = {name: tables.devices.update_s_per_weight_D[0] for name, tables in group_of.items()}
    assert update["zero3"] == pytest.approx(alone / 2)
    gathered = (update["zero2"] - update["zero3"]) * sum(op.trained for op in GPT.graph.ops)
    sizes = np.array([4.0 if op.kind == "embedding" else 2.0 for op in GPT.graph.ops])
    elements_o, count_o, _ = matrices_o(GPT)
    assert gathered == pytest.approx((elements_o * sizes).sum() / 2 / 25e9 + count_o.sum() * 10e-6)


def test_frozen_weights_are_gathered_and_have_no_gradients_to_add_up() -> None:
    frozen = preset("gpt2", global_batch=32, micro_batch=4, dtype="float16", freeze_layers=2)
    first = frozen.graph.first_trained
    assert (exchanges("zero3", "forward", frozen)[:first] > 0)[[0, 1, 2]].all()
    assert not exchanges("zero3", "backward", frozen)[:first].any()
    adapters = preset("gpt2", global_batch=32, micro_batch=4, dtype="float16", adapters="8")
    assert exchanges("zero3", "backward", adapters)[2] == pytest.approx(exchanges("zero3", "forward", adapters)[2])


def test_matrices_are_all_weights_but_norms_and_biases() -> None:
    for workload in (GPT, preset("llama-8b"), preset("gpt2", boundary_layers="bottleneck:4:6")):
        shape = workload.transformer
        rest = sum(op.num_params for op in workload.graph.ops) - matrices_o(workload)[0].sum()
        assert 0 < rest <= 14 * shape.hidden * (shape.layers + 2)


def test_a_member_has_its_share_of_weights_and_gathers_the_largest() -> None:
    end = len(GPT.graph.ops)
    one = CostTables(problem())
    three, two = (CostTables(problem(groups=(group("h0-0", "h0-1", sharding=s),))) for s in ("zero3", "zero2"))
    assert three.stage_state_bytes(0, end) == one.stage_state_bytes(0, end)
    whole = H * (VOCAB + POSITIONS) * 4 + 12 * (4 * H * H + 2 * H * FFN) * 2 + H * VOCAB * 2
    assert two.stage_state_bytes(0, end) - one.stage_state_bytes(0, end) == pytest.approx(2 * whole, rel=1e-3)
    assert summing_bytes(2) * 4 * H * H < three.working_bytes(3, 4) < one.working_bytes(3, 4) + 20 * 4 * H * H
    alone = repeated_bytes(GPT, float(one._state_bytes_o.max()), "zero3")
    each = one.devices.memory_bytes_D[0] - alone
    assert three.devices.memory_bytes_D[0] == pytest.approx(2 * each + alone)


def test_a_profile_of_one_device_serves_with_fewer_samples() -> None:
    profile = made_profile(GPT, "T4", seconds={1: 0.03, 4: 0.06})
    changed = problem(groups=(group("h0-0", "h0-1", "h0-2", "h0-3"),)).replace(profile=profile)
    tables = CostTables(changed)
    layer = np.diff(tables.forward_s_CO[tables.devices.class_D[0], [1, 3]])[0]
    assert layer == pytest.approx(0.03 + exchange_seconds(tables.devices, 0, GPT, "forward")[1:3].sum())
    assert str(compute_sources(changed)[0]) == (
        "4 × T4 in groups of 4 (ZeRO 3): profile (measured at micro-batch 1)"
    )  # fmt: skip


def test_measured_collectives_go_before_the_ring() -> None:
    kinds = {"kind": "T4", "degree": 4}
    rows = [
        CollectiveCost(**kinds, collective=name, size=size, seconds=seconds)
        for name, scale in (("all-gather", 1.0), ("reduce-scatter", 2.0), ("all-reduce", 3.0))
        for size, seconds in ((1e6, scale * 1e-3), (3e6, scale * 2e-3))
    ]
    profile = made_profile(GPT, "T4", seconds={1: 0.03, 4: 0.06}, collectives=tuple(rows))
    attention = 4 * H * H  # two matrices of unlike size count as two of the mean
    for sharding, hidden in (("zero3", None), ("tensor", 4 * 1024 * H * 2)):
        groups = (group("h0-0", "h0-1", "h0-2", "h0-3", sharding=sharding),)
        tables = CostTables(problem(groups=groups).replace(profile=profile))
        forward, backward = (
            exchange_seconds(tables.devices, 0, GPT, way, profile)[1] for way in ("forward", "backward")
        )
        gather, scatter = ((lambda size, s=s: s * (1e-3 + (size - 1e6) / 2e6 * 1e-3)) for s in (1.0, 2.0))
        if hidden:
            assert forward == pytest.approx(gather(hidden) + scatter(hidden))
            assert backward == pytest.approx(2 * gather(hidden) + scatter(hidden))
        else:
            assert forward == pytest.approx(2 * gather(attention))
            assert backward == pytest.approx(2 * gather(attention) + 2 * scatter(2 * attention))
        layer = np.diff(tables.forward_s_CO[tables.devices.class_D[0], [1, 2]])[0]
        assert layer > forward
    small = Collectives(2, 1e-9, 1e-6, {"all-gather": ((4096.0, 1e-4),)})
    assert (small.all_gather(10.0), small.all_gather(8192.0)) == pytest.approx((1e-4, 2e-4))
    assert small.reduce_scatter(1000.0) == pytest.approx(500e-9 + 1e-6)


def test_all_shardings_are_searched_and_the_plan_file_says_which() -> None:
    free = problem(tensor=(1, 2), sharding=("tensor", "zero3"))
    ways = Groupings(free)
    assert ways.options == ((Division(1, "tensor"), Division(2, "tensor"), Division(2, "zero3")),)
    assert [{g.sharding for g in ways.groups(way)} for way in ways.alike()] == [set(), {"tensor"}, {"zero3"}]
    budget = Budget(evaluations=20_000)
    found = make_planner("evolution").solve(free, seed=1, budget=budget)
    for way in ways.all():
        fixed = problem(groups=ways.groups(way))
        assert found.value <= 1.02 * make_planner("evolution").solve(fixed, seed=1, budget=budget).value
    assert found.lower_bound <= found.value


def test_a_plan_is_simulated_kept_and_changed(tmp_path) -> None:
    fixed = problem(tensor=(2,), sharding=("zero3",), stages=2, replicas=2)
    plan = make_planner("evolution").solve(fixed, seed=1, budget=Budget(evaluations=2000)).plan
    assert summarise_plan(plan).step_s == pytest.approx(plan.estimate.step_s, rel=0.1)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "hetplanner/plan@5"
    assert all(parts.total > 0 for parts in memory_parts(plan))
    four = evaluate_changes(plan, Changes.of([{"do": "degree", "degree": 4}])).plan
    assert {(g.degree, g.sharding) for g in four.problem.groups} == {(4, "zero3")}
    one = evaluate_changes(plan, Changes.of([{"do": "degree", "degree": 1}])).plan
    assert not one.problem.groups
    both = plan.problem.constraints.replace(sharding=("tensor", "zero3"))
    open_plan = plan.replace(problem=plan.problem.replace(constraints=both))
    again = evaluate_changes(open_plan, Changes.of([{"do": "degree", "degree": 4}])).plan
    assert again.problem.groups == four.problem.groups
    rehearsed = rehearsal_problem(plan.problem, preset("tiny-gpt"), stages=2, replicas=1)
    assert (rehearsed.groups, rehearsed.constraints.sharding) == (None, ("tensor",))


@pytest.mark.parametrize(
    ("workload", "tensor", "message"),
    [
        (GPT, (8,), r"degree 8 by ZeRO 3: 4 samples of a micro-batch cannot be divided by 8; use 4, or micro-"),
        (
            preset("resnet101"),
            (2,),
            "samples are not divided: batch_norm.* takes statistics over all samples; use degree 1",
        ),
    ],
)
def test_degrees_that_do_not_work_are_named(workload, tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Groupings(problem(workload=workload, tensor=tensor, sharding=("zero3",))).alike()


def test_sharding_without_groups_is_refused_and_a_group_that_cannot_divide_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"sharding: zero3 is for groups of devices.* such as tensor 1,2,4"):
        Problem(cluster=TWO, workload=GPT).replace(constraints={"sharding": ("zero3",)})
    with pytest.raises(InvalidInput, match=r"groups\[0\]: ZeRO 2 over 2 devices: 1 sample of a micro-batch cannot"):
        problem().replace(
            workload=GPT.replace(micro_batch=1), groups=(group("h0-0", "h0-1", sharding="zero2"),)
        )  # fmt: skip


def test_advice_passes_by_what_groups_cannot_divide() -> None:
    wide = GPT.transformer.replace(hidden=16384, heads=128, ffn=65536, layers=40)
    groups = tuple(group(f"h0-{k}", f"h0-{k + 1}") for k in (0, 2))
    task = problem(groups=groups, workload=GPT.replace(transformer=wide), tensor=(2,), sharding=("zero3",))
    with pytest.raises(Infeasible, match="would help"):
        make_planner("megatron").solve(task, budget=Budget(evaluations=1))


def test_zero_3_is_advised_where_layers_cannot_be_divided() -> None:
    wide = GPT.transformer.replace(hidden=16384, heads=128, ffn=65536, layers=4)
    workload = preset("gpt2", adapters="8", micro_batch=8, global_batch=8).replace(transformer=wide)
    with pytest.raises(Infeasible, match=r"ZeRO 3 inside hosts would help \(--tensor 1,\d --sharding zero3\)"):
        make_planner("megatron").solve(problem(hosts(*[("T4", 8)] * 3), workload=workload))
