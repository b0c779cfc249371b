import itertools

import numpy as np
import pytest

from hetplanner.plan.durations import Durations
from hetplanner.simulator.network import NetworkClock
from hetplanner.simulator.simulation import simulate, summarise_trace
from tests.support.plans.factories import chain_plan, small_cluster

FAST = {"bandwidth": "1000 Gbit/s", "latency": "0 s"}


def durations(n, forward=1.0, backward=2.0, optimizer=0.5, cores=None, **extra):
    full = {"encode_s_N": 0.0, "decode_s_N": 0.0, "reduce_s_N": 0.0} | extra
    arrays = {name: np.full(n, value) for name, value in full.items()}
    if cores is not None:
        arrays["cores_N"] = np.full(n, cores / n)
    return Durations(np.full(n, forward), np.full(n, backward), np.full(n, optimizer), **arrays)


def test_one_rank_computes_everything_in_sequence():
    plan = chain_plan((4,), (), cluster=small_cluster(1))
    assert summarise_trace(simulate(plan, durations(1))).step_s == pytest.approx(4 * 3 + 0.5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_free_links_give_the_textbook_pipeline(schedule):
    plan = chain_plan((6,), (3, 6), schedule=schedule, cluster=small_cluster(3, **FAST))
    # (S − 1 + M) slots of forward + backward; the tied reduction moves 32 kB over free links
    assert summarise_trace(simulate(plan, durations(3))).step_s == pytest.approx((2 + 6) * 3 + 0.5, rel=1e-3)


def test_latency_adds_one_round_trip_a_hop_to_one_micro_batch():
    plan = chain_plan((1,), (5,), cluster=small_cluster(2, bandwidth="1000 Gbit/s", latency="100 ms"))
    # forward hop, backward hop, and the two exchanges of the tied embedding
    assert summarise_trace(simulate(plan, durations(2))).step_s == pytest.approx(6 + 0.5 + 4 * 0.1, rel=1e-3)


def test_two_ranks_share_one_core():
    plan = chain_plan((4, 4), (), cluster=small_cluster(2, **FAST))
    alone = summarise_trace(simulate(plan, durations(2))).step_s
    shared = summarise_trace(simulate(plan, durations(2, cores=1.0))).step_s
    assert shared == pytest.approx(2 * alone, rel=1e-3)


def test_only_ranks_of_one_machine_share_its_cores():
    plan = chain_plan((4, 4), (), cluster=small_cluster(2, **FAST))
    alone = summarise_trace(simulate(plan, durations(2))).step_s
    apart = durations(2, cores_N=np.array([1.0, 1.0]), machine_N=np.array([0.0, 1.0]))
    assert summarise_trace(simulate(plan, apart)).step_s == alone
    # Something else takes half of one machine's processor.
    disturbed = durations(2, cores_N=np.array([1.0, 0.5]), machine_N=np.array([0.0, 1.0]))
    assert summarise_trace(simulate(plan, disturbed)).step_s == pytest.approx(2 * alone, rel=1e-3)


def test_durations_of_older_files_have_one_number_of_cores():
    data = durations(4).to_data() | {"cores": 2.0}
    assert Durations.from_data(data).machines() == [([0, 1, 2, 3], 2.0)]
    assert Durations.from_data(data | {"cores": None}).machines() == []


def test_encode_and_decode_occupy_the_rank():
    plan = chain_plan((1,), (5,), cluster=small_cluster(2, **FAST))
    slow = simulate(plan, durations(2, encode_s_N=0.25, decode_s_N=0.5))
    assert summarise_trace(slow).step_s == pytest.approx(6.5 + 2 * 0.75, rel=1e-3)


def test_steps_follow_one_another_and_the_last_is_reported():
    plan = chain_plan((4,), (5,), cluster=small_cluster(2))
    trace = simulate(plan, durations(2), steps=3)
    assert {s.step for s in trace.spans} == {0, 1, 2}
    one = summarise_trace(trace.of_step(0)).step_s
    assert summarise_trace(trace).step_s <= one + 1e-9


def test_summary_terms_add_up():
    summary = summarise_trace(simulate(chain_plan((5, 3), (3, 6)), durations(6, cores=2.0), steps=2))
    assert sum(summary.terms.values()) == pytest.approx(summary.step_s, rel=1e-6)
    assert 0 < summary.bubble < 1


def test_simulation_is_deterministic():
    plan = chain_plan((5, 3), (3, 6))
    assert simulate(plan, durations(6)) == simulate(plan, durations(6))


def test_network_clock_is_busy_per_link_and_per_nic():
    plan = chain_plan((4, 4), (5,), cluster=small_cluster(4, bandwidth="8 Mbit/s", latency="10 ms", nic="16 Mbit/s"))
    clock = NetworkClock(plan.problem.cluster, plan.ranks)
    assert clock.reserve(0.0, 0, 2, 1_000_000) == (0.0, pytest.approx(1.01))
    # another link of the same host shares its NIC: half a second each at 16 Mbit/s, which its own link outlasts
    assert clock.reserve(0.0, 0, 3, 1_000_000)[1] == pytest.approx(1.01)
    # the same link serves one after the other
    assert clock.reserve(0.0, 0, 2, 1_000_000) == (pytest.approx(1.0), pytest.approx(2.01))
    # host 2 takes in half a second each: the third message into it is through at 1.5 s
    assert clock.reserve(0.0, 1, 2, 1_000_000)[1] == pytest.approx(1.51)


def test_an_exchange_among_three_keeps_every_nic_busy():
    plan = chain_plan((4, 4, 4), (), cluster=small_cluster(3, bandwidth="1 Gbit/s", latency="0 s", nic="8 Mbit/s"))
    clock = NetworkClock(plan.problem.cluster, plan.ranks)
    arrivals = [clock.reserve(0.0, a, b, 1_000_000)[1] for a in range(3) for b in range(3) if a != b]
    assert max(arrivals) == pytest.approx(2.0)  # two messages out of and into every NIC, whatever the order


def test_spans_of_a_rank_do_not_overlap_except_transfers():
    trace = simulate(chain_plan((5, 3), (3, 6)), durations(6, cores=2.0))
    for rank in range(6):
        spans = sorted(
            (s.start_s, s.end_s) for s in trace.spans if s.rank == rank and s.kind != "send" and s.end_s > s.start_s
        )
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


def test_perfetto_export_has_every_span():
    trace = simulate(chain_plan((4,), (5,)), durations(2))
    events = trace.to_perfetto()["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(trace.spans)
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
