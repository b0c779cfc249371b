"""Figures of a simulated step: what they draw of it, row by row."""

import numpy as np
import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.plots.data.steps import replays
from hetplanner.plots.data.steps.replays import (
    gantt_columns,
    joined_spans,
    link_rows,
    memory_lines,
    rank_labels,
    rows_of,
    share_columns,
)
from hetplanner.plots.live import LinkLoads, MemoryCurves, StageShares, StepGantt
from hetplanner.simulator.replay import replay_step
from hetplanner.simulator.spans import KINDS
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.plans.grouped import grouped_plan


@pytest.fixture(scope="module")
def plan():
    made = chain_plan([8, 8], [3, 6], workload=tiny_workload(layers=6, global_batch=32))
    return made.replace(estimate=estimate_plan(made))


@pytest.fixture(scope="module")
def replay(plan):
    return replay_step(plan)


def test_rows_go_stage_by_stage_or_along_one_pipeline(plan):
    every = rows_of(plan)
    assert every.ranks == (0, 1, 2, 3, 4, 5)
    assert every.labels[2] == "1 · d2"
    assert rows_of(plan, 1).ranks == (1, 3, 5)


@pytest.mark.parametrize(("degree", "pipeline", "lanes"), [(2, None, 8), (4, None, 8), (2, 1, 4), (1, None, 8)])
def test_a_group_has_a_lane_for_each_member_which_compute_at_the_same_time(degree, pipeline, lanes):
    plan = grouped_plan(degree)
    rows = rows_of(plan, pipeline)
    assert len(rows.ranks) == lanes
    assert rows.labels[:2] == (("0 · h0-2", "0 · h0-3") if pipeline else ("0 · h0-0", "0 · h0-1"))
    step = replay_step(plan)
    columns, joined = gantt_columns(step, plan, rows)
    assert not joined
    shown = set(rows.ranks)
    for kind, each in (("forward", degree), ("backward", degree), ("step", degree), ("send", 1), ("reduce", 1)):
        spans = step.spans.take((step.spans.kind_J == KINDS.index(kind)) & (step.spans.end_s_J > step.spans.start_s_J))
        assert len(columns[kind]["y"]) == each * sum(rank in shown for rank in spans.rank_J.tolist()), kind
    forward = sorted(zip(np.round(columns["forward"]["y"]).tolist(), columns["forward"]["left"], strict=True))
    by_row = {row: [left for y, left in forward if y == -row] for row in range(lanes)}
    assert all(by_row[first] == by_row[first + m] for first in range(0, lanes, degree) for m in range(degree))


def test_lanes_without_room_for_their_labels_are_one_row_a_group(monkeypatch):
    plan = grouped_plan(4)
    monkeypatch.setattr(replays, "MOST_LANES", 7)
    rows = rows_of(plan)
    assert rows.labels == ("0 · h0-0(×4)", "1 · h1-0(×4)")
    columns, _ = gantt_columns(replay_step(plan), plan, rows)
    assert len(columns["forward"]["y"]) == 2 * 16
    assert rank_labels(plan)[1] == "1 · h1-0(×4)"


def test_spans_are_joined_so_that_lanes_have_no_more_bars_than_can_be_drawn():
    plan = grouped_plan(4)
    columns, joined = gantt_columns(replay_step(plan), plan, rows_of(plan), max_spans=120)
    assert joined
    assert sum(len(c["y"]) for c in columns.values()) <= 120


def test_the_lanes_of_a_group_are_one_block():
    gantt = StepGantt()
    plan = grouped_plan(4)
    gantt.show(plan, replay_step(plan))
    assert gantt.idle_source.data["y"] == [-1.5, -5.5]
    assert gantt.idle_source.data["height"] == [3.86, 3.86]


def test_every_span_is_a_bar_in_its_ranks_row(plan, replay):
    columns, joined = gantt_columns(replay, plan, rows_of(plan, 1))
    assert not joined
    assert len(columns["forward"]["y"]) == 3 * 8
    assert set(np.round(columns["forward"]["y"]).tolist()) == {0.0, -1.0, -2.0}
    assert set(columns["forward"]["rank"]) == {1, 3, 5}
    assert set(columns["send"]["peer"]) <= {1, 3, 5}
    assert rank_labels(plan)[1] == "1 · d1"
    every, _ = gantt_columns(replay, plan, rows_of(plan))
    shown = (replay.spans.end_s_J > replay.spans.start_s_J).sum()
    assert sum(len(c["y"]) for c in every.values()) == shown


def test_a_window_shows_what_lies_in_it(plan, replay):
    middle = replay.step_s / 2
    columns, _ = gantt_columns(replay, plan, rows_of(plan), (middle, middle))
    for c in columns.values():
        assert (c["left"] <= middle).all()
        assert (c["right"] >= middle).all()


def test_too_many_spans_are_joined_with_their_neighbours_and_lose_no_bytes(replay):
    few = joined_spans(replay.spans, 60)
    assert len(few) <= 60
    assert few.bytes_J.sum() == replay.spans.bytes_J.sum()
    assert few.end_s == replay.spans.end_s
    for kind in range(len(KINDS)):
        one, all_of = (t.take(t.kind_J == kind) for t in (few, replay.spans))
        assert set(one.rank_J.tolist()) == set(all_of.rank_J.tolist())
    assert (few.micro_batch_J[few.end_s_J - few.start_s_J > replay.step_s / 2] == -1).all()


def test_shares_of_a_stage_add_up_to_the_step(plan, replay):
    columns = share_columns(replay, plan)
    for s in range(3):
        right = [r for r, y in zip(columns["right"], columns["y"], strict=True) if y == -s]
        assert right[-1] == pytest.approx(1.0)
    assert set(columns["term"]) == {"compute", "transfer", "reduction", "waiting", "optimizer"}


def test_the_busiest_links_come_first(plan, replay):
    rows = link_rows(replay, plan, most=4)
    assert len(rows.labels) == 4
    assert rows.num_links == len(replay.source_L) > 4
    assert rows.totals["total"] == sorted(rows.totals["total"], reverse=True)
    assert rows.totals["total"][0] == pytest.approx(replay.busy_s_LR.sum(axis=1).max() / replay.step_s)


def test_nics_with_a_limit_are_among_the_links():
    from tests.support.plans.factories import small_cluster

    plan = chain_plan([8], [3], cluster=small_cluster(2, nic="20 Mbit/s"))
    labels = link_rows(replay_step(plan), plan).labels
    assert {"host-0: NIC out", "host-1: NIC in"} <= set(labels)


def test_memory_is_a_line_a_stage_below_its_limit(plan, replay):
    lines = memory_lines(replay, plan)
    assert lines["label"] == ["stage 0", "stage 1", "stage 2"]
    assert all(0 < ys.max() <= 1 for ys in lines["ys"])
    assert all(len(x) == len(y) for x, y in zip(lines["xs"], lines["ys"], strict=True))
    assert memory_lines(replay, plan.replace(estimate=None))["xs"] == []


def test_the_gantt_draws_more_where_one_zooms_in(plan, replay):
    gantt = StepGantt(max_spans=160)
    gantt.show(plan, replay)
    assert gantt.joined
    assert not gantt.follow_zoom()
    before = len(gantt.sources["forward"].data["y"])
    gantt.figure.x_range.update(start=0.3 * replay.step_s, end=0.35 * replay.step_s)
    assert gantt.follow_zoom()
    assert not gantt.joined
    assert not gantt.follow_zoom()
    inside = gantt.sources["forward"].data
    assert all(number >= 0 for number in inside["micro_batch"])
    gantt.figure.x_range.update(start=0.0, end=replay.step_s)
    assert gantt.follow_zoom()
    assert len(gantt.sources["forward"].data["y"]) == before


def test_figures_follow_the_theme_and_can_be_emptied(plan, replay):
    for live in (StageShares(), LinkLoads(), MemoryCurves()):
        live.update(plan, replay)
        live.set_dark(True)
        assert live._note.text == ""
        live.update(None, None)
        assert live._note.text
    gantt = StepGantt(dark=True)
    assert "Search" in gantt._note.text
    gantt.show(plan, replay, 0)
    assert gantt._note.text == ""
    assert [item.label.value for item in gantt._legend.items][-1] == "idle"
