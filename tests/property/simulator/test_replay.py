"""A replayed step is what the event engine performs: span by span, term by term, byte by byte."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hetplanner.cost.check import peak_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.errors import InvalidInput
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.simulator import replay
from hetplanner.simulator.replay import LOADS, Replay, replay_step
from hetplanner.simulator.simulation import simulate
from hetplanner.simulator.terms import terms_of_ranks
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.random_plans import random_plan

plans = st.builds(random_plan, st.integers(0, 10_000), nics=st.booleans())


def rows(trace) -> list[tuple]:
    return sorted((s.rank, s.kind, s.stage, s.micro_batch, s.bytes, s.peer, s.role, s.start_s, s.end_s)
                  for s in trace.spans)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(plans)
def test_spans_and_terms_are_those_of_the_engine(plan):
    trace, found = simulate(plan), replay_step(plan)
    expected, got = rows(trace), rows(found.spans.to_trace(plan.ranks))
    assert [row[:7] for row in got] == [row[:7] for row in expected]
    np.testing.assert_allclose([r[7:] for r in got], [r[7:] for r in expected], rtol=1e-9, atol=1e-12)
    terms = [list(row.to_dict().values()) for row in terms_of_ranks(trace, plan, 0)]
    np.testing.assert_allclose(found.terms_s_NT, terms, rtol=1e-9, atol=1e-9)
    assert found.terms_s_NT.sum(axis=1) == pytest.approx(np.full(len(plan.ranks), found.step_s))


@settings(max_examples=40, deadline=None)
@given(plans)
def test_links_carry_what_is_sent(plan):
    found = replay_step(plan)
    sent: Counter = Counter()
    for span in simulate(plan).spans:
        if span.kind == "send":
            sent[span.rank, span.peer, span.role] += span.bytes
    for group in (group for group in reduction_groups(plan) if group.is_due(0)):
        for rank in group.ranks:
            for message in (m for part in group.rounds_of(rank) for m in part.sends if m.peer != rank):
                sent[rank, message.peer, "reduction"] += message.num_bytes
    links = zip(found.source_L.tolist(), found.target_L.tolist(), found.bytes_LR.tolist(), strict=True)
    carried = {(a, b, role): n for a, b, loads in links for role, n in zip(LOADS, loads, strict=True) if n}
    assert carried == pytest.approx({key: n for key, n in sent.items() if n})
    assert (found.busy_s_LR.sum(axis=1) <= found.step_s * (1 + 1e-9)).all()


@settings(max_examples=40, deadline=None)
@example(random_plan(1771, nics=False), False)
@given(plans, st.booleans())
def test_memory_stays_below_the_peak_that_plans_are_checked_for(plan, recompute):
    plan = plan.replace(stages=tuple(stage.replace(recompute=recompute) for stage in plan.stages))
    peaks = np.array(peak_bytes(plan, CostTables(plan.problem)))
    assert (replay_step(plan).memory_NB.max(axis=1) <= peaks * (1 + 1e-9)).all()


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_reaches_that_peak_where_the_depth_is_used(recompute):
    plan = chain_plan([8], [3, 6], cluster=small_cluster(3), schedule="gpipe")
    plan = plan.replace(stages=tuple(stage.replace(recompute=recompute) for stage in plan.stages))
    peaks = peak_bytes(plan, CostTables(plan.problem))
    memory_NB = replay_step(plan).memory_NB
    assert memory_NB.max(axis=1) == pytest.approx(peaks)
    assert (memory_NB[:, -1] < memory_NB.max(axis=1)).all()


def test_a_replay_survives_the_pipe():
    found = replay_step(random_plan(3))
    again = Replay.from_data(found.to_data())
    assert again.step_s == found.step_s
    assert again.spans.to_data() == found.spans.to_data()
    for name in ("terms_s_NT", "bytes_LR", "source_L", "memory_NB", "nic_out_s_H"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))


def test_a_step_of_too_many_parts_is_refused(monkeypatch):
    monkeypatch.setattr(replay, "MOST_EVENTS", 10)
    with pytest.raises(InvalidInput, match="larger micro-batches"):
        replay_step(chain_plan([8], [3]))
