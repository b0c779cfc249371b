import numpy as np
import pytest

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.model import TransferCost
from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.capacity import Capacity
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import batched_reduce_seconds, reduce_seconds, reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.plan.problem import Problem
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.workload.optimizers import OPTIMIZERS
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.plans.random_plans import random_plan


def tables(**workload):
    return CostTables(Problem(cluster=small_cluster(4), workload=tiny_workload(**workload)))


def test_compute_is_flops_over_achieved_rate_where_arithmetic_rules():
    costs = tables()
    op = next(i for i, op in enumerate(costs.problem.workload.graph.ops) if op.kind == "mlp")
    spec = resolve_device(costs.problem.cluster.devices[0])
    ops = costs.problem.workload.graph.ops
    arithmetic = 2 * ops[op].forward_flops / (spec.flops_per_s("float32") * spec.efficiency)
    seconds = costs.forward_s_CO[0, op + 1] - costs.forward_s_CO[0, op]
    assert seconds >= arithmetic * (1 - 1e-9)
    params, moved = ops[op].num_params * 4, 2 * (ops[op].activation_bytes + ops[op].output_bytes)
    assert seconds == pytest.approx(max(arithmetic, (params + moved) / spec.memory_bandwidth_bytes_per_s))


@pytest.mark.parametrize(("kind", "adds"), [("CPU generic", True), ("T4", False)])
def test_a_launch_comes_on_top_on_a_processor_and_meanwhile_on_a_gpu(kind, adds):
    plain = tables()
    devices = tuple(device.replace(kind=kind) for device in plain.problem.cluster.devices)
    cluster = plain.problem.cluster.replace(devices=devices)

    def seconds(transfer):
        costs = CostTables(plain.problem.replace(cluster=cluster.replace(transfer=transfer)))
        return np.diff(costs.forward_s_CO[0]), np.diff(costs.backward_s_CO[0])

    launch = float(seconds(None)[0].max()) / 2  # longer than some operators, shorter than others
    for passes, without, having in zip((1, 2), seconds(None), seconds(TransferCost(launch=launch)), strict=True):
        expected = without + passes * launch if adds else np.maximum(without, passes * launch)
        assert having == pytest.approx(np.where(without > 0, expected, 0.0))


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_where_operators_take_long_to_launch(seed):
    plan = random_plan(seed)
    said = plan.problem.cluster.transfer or TransferCost()
    cluster = plan.problem.cluster.replace(transfer=said.replace(launch=2e-3))
    plan = plan.replace(problem=plan.problem.replace(cluster=cluster))
    model = CostModel.of(plan.problem)
    assert 0 < bound_step(model.tables, model.links) <= estimate_plan(plan).step_s


def test_ranges_add_up_and_double_with_the_micro_batch():
    one, two = tables(micro_batch=1), tables(micro_batch=2)
    assert np.all(np.diff(one.forward_s_CO) >= 0)
    assert two.flops_O[-1] == pytest.approx(2 * one.flops_O[-1])
    assert two.boundary_bytes_O[5] == 2 * one.boundary_bytes_O[5]


def test_stages_are_cut_between_layers_only():
    costs = tables(layers=4)
    ops = costs.problem.workload.graph.ops
    assert len(costs.cuts) == 5  # before each layer and behind the last
    assert all(ops[k].layer != ops[k - 1].layer for k in costs.cuts)


def test_tied_weights_are_held_twice_but_only_across_stages():
    costs = tables(layers=2)
    whole = costs.stage_params(0, costs.num_ops)
    assert whole == costs.problem.workload.graph.num_params
    parts = costs.stage_params(0, 3) + costs.stage_params(3, costs.num_ops)
    assert parts == whole + 256 * 32


def test_memory_grows_with_depth_and_shrinks_with_recompute():
    costs = tables(layers=4)
    state = 16 * costs.stage_params(1, 5)
    one, four = (costs.stage_bytes(1, 5, depth, False) for depth in (1, 4))
    kept = float(costs.activation_bytes_O[5] - costs.activation_bytes_O[1])
    assert four - one == pytest.approx(3 * kept)
    assert one > state
    assert costs.stage_bytes(1, 5, 4, True) < four


def test_durations_follow_the_ranks():
    plan = chain_plan((5, 3), (3, 6))
    durations = durations_of(plan)
    costs = CostTables(plan.problem)
    for rank, stage in plan.chunks:
        first, end = plan.stages[stage].first_op, plan.stages[stage].end_op
        assert durations.forward_s_C[rank] == costs.forward_s_CO[0, end] - costs.forward_s_CO[0, first]
    deeper = plan.replace(stages=tuple(s.replace(recompute=True) for s in plan.stages))
    again = durations_of(deeper, costs)
    assert np.allclose(again.backward_s_C, durations.backward_s_C + durations.forward_s_C)
    assert not durations.encode_s_N.any()


def test_one_reduction_by_hand():
    plan = chain_plan((4, 4), ())
    links = LinkTable.of(plan.problem.cluster)
    reduced, tied = reduce_seconds(plan, durations_of(plan), links)
    shard = plan.problem.workload.graph.num_params / 2 * 4
    adding = durations_of(plan).reduce_s_N[0]
    assert reduced[0] == pytest.approx(2 * (0.010 + shard / (50e6 / 8)) + adding, rel=1e-6)
    assert tied == ()
    assert reduction_bytes(plan)[2].sum() == pytest.approx(4 * shard, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_of_link_tables_gives_what_each_table_gives(seed):
    plan = random_plan(seed, nics=seed % 2 == 0)
    plan = plan.replace(reducer=REDUCER_NAMES[seed % len(REDUCER_NAMES)])
    rng, links, durations = np.random.default_rng(seed), LinkTable.of(plan.problem.cluster), durations_of(plan)
    count = len(plan.problem.cluster.links)
    latency_RL, seconds_RL = rng.uniform(1e-4, 1e-1, (5, count)), rng.uniform(1e-9, 1e-6, (5, count))
    together, tied = batched_reduce_seconds(plan, durations, links.with_rules(latency_RL, seconds_RL))
    for row, rules in enumerate(zip(latency_RL, seconds_RL, strict=True)):
        alone, alone_tied = reduce_seconds(plan, durations, links.with_rules(*rules))
        assert np.array_equal(together[row], alone)
        assert [(float(seconds[row]), stages) for seconds, stages in tied] == list(alone_tied)


def test_a_nic_is_a_ceiling_and_is_shared():
    free = LinkTable.of(small_cluster(3, bandwidth="1 Gbit/s"))
    capped = LinkTable.of(small_cluster(3, bandwidth="1 Gbit/s", nic="100 Mbit/s"))
    assert not free.has_nics
    assert capped.seconds_per_byte_DD[0, 1] == pytest.approx(10 * free.seconds_per_byte_DD[0, 1])
    busy = capped.nic_seconds(np.array([0, 0]), np.array([1, 2]), np.array([1e6, 1e6]))
    assert busy == pytest.approx([2e6 / 12.5e6, 1e6 / 12.5e6, 1e6 / 12.5e6])


def test_bytes_are_charged_where_they_leave_a_site():
    cluster = small_cluster(2)
    priced = cluster.replace(sites=(cluster.sites[0].replace(egress_usd_per_gb=0.1), cluster.sites[1]))
    links = LinkTable.of(priced)
    assert links.egress_usd(np.array([0, 1]), np.array([1, 0]), np.array([2e9, 5e9])) == pytest.approx(0.2)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_memory_of_an_optimizer_is_the_same_for_single_stages_and_for_all_at_once(name, tied):
    workload = tiny_workload()
    workload = workload.replace(optimizer=name, transformer=workload.transformer.replace(tie_embeddings=tied))
    tables = CostTables(Problem(cluster=small_cluster(2), workload=workload))
    edges = Capacity(tables).edges_K
    state_KK, bytes_KK = tables.state_between(edges), Capacity(tables).stage_bytes_KK(recompute=False)
    for i, first in enumerate(edges):
        for j, end in enumerate(edges[i + 1 :], i + 1):
            assert state_KK[i, j] == pytest.approx(tables.stage_state_bytes(first, end), rel=1e-12)
            assert bytes_KK[i, j] == pytest.approx(tables.stage_bytes(first, end, 1, False), rel=1e-12)
    usual = CostTables(Problem(cluster=small_cluster(2), workload=workload.replace(optimizer="adamw")))
    assert (np.triu(state_KK) <= np.triu(usual.state_between(edges))).all()
    assert (state_KK[0, -1] < usual.state_between(edges)[0, -1]) == (name != "adamw")
