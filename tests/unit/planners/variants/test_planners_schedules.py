from dataclasses import replace

import numpy as np
import pytest

from hetplanner.cost.closed_form import time_step
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel, estimate_plan, step_arrays
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.launchers.capacity import estimated_rank_bytes
from hetplanner.plan.action import Kind
from hetplanner.plan.files.plan_files import load_plan, save_plan
from hetplanner.planners.variants.schedules import interleave, reschedule
from hetplanner.plots.data.search.grid import grid_columns
from hetplanner.plots.data.search.memory import memory_columns
from hetplanner.plots.data.steps.spans import chosen_spans
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload

FAST = {"bandwidth": "1000 Gbit/s", "latency": "0 s"}


def deep_plan(stages=4, micro_batches=16, replicas=1, **cluster):
    """Equal stages of a 16-layer model."""
    cuts = [1 + 32 // stages * s for s in range(1, stages)]
    workload = tiny_workload(layers=16, global_batch=2 * micro_batches * replicas)
    links = FAST | cluster
    return chain_plan(
        [micro_batches] * replicas, cuts, cluster=small_cluster(stages * replicas, **links), workload=workload
    )


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 2, 8), (4, 2, 16), (4, 4, 16), (2, 3, 8)])
def test_the_bubble_shrinks_by_the_number_of_chunks(stages, chunks, micro_batches):
    """(S - 1) slots of one chunk each, as in Narayanan et al. 2021, on links that take no time."""
    plan = interleave(deep_plan(stages, micro_batches), chunks, in_flight=micro_batches)
    size = len(plan.chunks)
    even = replace(
        durations_of(plan),
        forward_s_C=np.full(size, 1.0 / chunks),
        backward_s_C=np.full(size, 2.0 / chunks),
        optimizer_s_N=np.zeros(stages),
    )
    best = micro_batches * 3 + (stages - 1) * 3 / chunks
    step_s = summarise_trace(simulate(plan, even, schedule=make_schedule(plan, even))).step_s
    assert step_s == pytest.approx(best, rel=1e-3)
    closed = time_step(step_arrays(plan, even, CostModel.of(plan.problem))).step_s
    assert closed == pytest.approx(best, rel=1e-3)


def test_every_device_serves_its_chunks_and_every_op_once():
    plan = interleave(deep_plan(replicas=2), 2)
    assert [len(places) for places in plan.places_of_rank] == [2] * 8
    assert [stage.replicas for stage in plan.stages[:4]] == [stage.replicas for stage in plan.stages[4:]]
    assert plan.chunks == tuple((rank, s) for rank in range(8) for s in (rank // 2, rank // 2 + 4))


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("latency", ["0 s", "50 ms"])
def test_any_depth_ends_and_is_kept(in_flight, latency):
    plan = interleave(deep_plan(micro_batches=7, latency=latency), 2, in_flight=in_flight)
    schedule = make_schedule(plan)
    for rank in range(4):
        held = dict.fromkeys(range(8), 0)
        for action in schedule.of_rank(rank):
            if action.kind in (Kind.FORWARD, Kind.BACKWARD):
                held[action.stage] += 1 if action.kind == Kind.FORWARD else -1
                assert held[action.stage] <= plan.held_S[action.stage]
        assert not any(held.values())
    done = [a for a in schedule.actions if a.kind == Kind.FORWARD]
    assert len({(a.micro_batch, a.stage) for a in done}) == len(done) == 7 * 8
    assert len(simulate(plan).spans) == len(schedule.actions)


def test_interleaving_shortens_a_step_on_fast_links():
    plan = deep_plan(micro_batches=8)
    assert summarise_trace(simulate(interleave(plan, 2))).step_s < 0.97 * summarise_trace(simulate(plan)).step_s


def test_memory_counts_all_chunks_of_a_device(tmp_path):
    plan = reschedule(deep_plan(), "interleaved")
    one = estimate_plan(deep_plan())
    assert plan.estimate is not None
    ratio = plan.estimate.devices[1].peak_bytes / one.devices[1].peak_bytes
    assert 0.8 < ratio < 3
    assert len(estimated_rank_bytes(plan)) == 4
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_what_does_not_fit_is_said_so():
    plan = deep_plan()
    small = tuple(d.replace(memory=300_000) for d in plan.problem.cluster.devices)
    cluster = plan.problem.cluster.replace(devices=small)
    with pytest.raises(Infeasible, match="does not fit"):
        reschedule(plan.replace(problem=plan.problem.replace(cluster=cluster)), "interleaved")


def test_other_schedules_keep_the_plan_and_take_a_depth():
    plan = deep_plan()
    flushed = reschedule(plan, "gpipe")
    assert flushed.held_S == (16,) * 4
    assert flushed.estimate is not None
    assert flushed.estimate.devices[0].peak_bytes > estimate_plan(plan).devices[0].peak_bytes
    assert [s.in_flight for s in reschedule(plan, "1f1b", in_flight=6).stages] == [6] * 4


def test_impossible_wishes_are_refused():
    with pytest.raises(InvalidInput, match="at least 2 chunks a device and 2 stages, got 2 and 1"):
        reschedule(chain_plan((4,), ()), "interleaved")
    with pytest.raises(InvalidInput, match="more than the 16 that the model can be cut into"):
        reschedule(deep_plan(), "interleaved", chunks=5)
    with pytest.raises(InvalidInput, match="interleaved already"):
        reschedule(reschedule(deep_plan(), "interleaved"), "gpipe")
    with pytest.raises(InvalidInput, match="in_flight: must be at least 1"):
        reschedule(deep_plan(), "1f1b", in_flight=0)


def test_a_device_may_serve_several_stages_only_when_interleaved():
    plan = interleave(deep_plan(), 2)
    with pytest.raises(ValueError, match="unless the schedule is interleaved"):
        plan.replace(schedule="1f1b")
    stages = list(plan.stages)
    stages[1] = stages[1].replace(replicas=stages[0].replicas)
    with pytest.raises(ValueError, match=r"routes\[0\]: stages 0 and 1 are both on 'd0'; join them"):
        plan.replace(stages=tuple(stages), ranks=("d0", "d1", "d2", "d3"))
    two = interleave(deep_plan(replicas=2), 2)
    stages = list(two.stages)
    stages[2] = stages[2].replace(replicas=(stages[2].replicas[0],) * 2)
    with pytest.raises(ValueError, match=r"stages\[2\]: device 'd4' serves two replicas of this stage"):
        two.replace(stages=tuple(stages))


def test_an_interleaved_plan_can_be_drawn():
    plan = reschedule(deep_plan(), "interleaved")
    assert len(grid_columns(plan)["device"]) == 8
    assert memory_columns(plan)["stage"] == ["0, 4", "1, 5", "2, 6", "3, 7"]
    trace = simulate(plan)
    assert len(chosen_spans(trace, None)[0]) == len(trace.spans)
