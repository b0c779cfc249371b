"""What a swarm's peers did in its last steps: told by the coordinator, summed up, drawn, and shown beside the plan."""

import json
from types import SimpleNamespace

import pytest

from hetplanner import plots
from hetplanner.cost.elastic.swarm_costs import group_names
from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.coordinator.step_work import step_work
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp, Token, Version, View
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plots.data.swarms.swarm_wiring import LEAST_PX, LINE_PX, MOST_PEERS, MOST_PX
from hetplanner.plots.live import SwarmLife, SwarmWiring
from hetplanner.plots.theme import line_colour
from hetplanner.runs.reading.swarm_flow import NO_FLOW, PeerWork, StepParts, flow_over
from hetplanner.runs.reading.swarm_history import EVENTS_FILE, KEPT_STEPS, SwarmHistory
from hetplanner.swarm.event_log import MAX_TOLD_PAIRS, MAX_TOLD_PEERS, EventLog
from hetplanner.ui.run.views.swarm import flow_text, peer_table
from tests.support.plans.factories import small_cluster, swarm_plan
from tests.support.plans.grouped import hosts

HOSTILE = "</script><img src=x onerror=alert(1)>"


def commit(step, peers, flow, time_s=0.0):
    told = {"peers": peers, "flow": flow} if peers is not None else {}
    return {"time_s": 100.0 + time_s, "kind": "commit", "version": [0, step], "loss": 5.0, "seconds": 0.5} | told


FIRST = commit(1, [["a", 0, 4, 2.0], ["b", 1, 3, 1.0], ["c", 1, 1, 1.0]], [[0, 1, 3], [0, 2, 1]])
SECOND = commit(2, [["b", 1, 4, 2.0], ["a", 0, 3, 1.0], ["d", 0, 1, 0.5], ["c", 1, 0, 0.0]], [[1, 0, 2], [2, 0, 1]])


def write_events(folder, *events):
    with (folder / EVENTS_FILE).open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def history_of(folder, *events):
    write_events(folder, *events)
    return SwarmHistory(folder).read_all()


def work_of(stages, flow, sent=()):
    """The parts of a step from (peer, micro-batches, seconds) by stage."""
    replicas = tuple(tuple(Replica(Member(p, Stamp(1, 1)), f"{p}:1", False) for p, _, _ in peers) for peers in stages)
    tokens = {
        Member(peer, Stamp(1, 1)): [Token(m, stage, m) for m in range(count)]
        for stage, peers in enumerate(stages)
        for peer, count, _ in peers
        if count
    }
    work = step_work(View(Stamp(1, 1), replicas), tokens, flow, dict(sent))
    for peer, _, seconds in (one for peers in stages for one in peers):
        work.worked(peer, seconds)
    return work


def test_a_commit_is_told_with_its_parts_and_read_back(tmp_path):
    event_log = EventLog(tmp_path, 64)
    stages = ([("a", 3, 1.5), ("idle", 0, 0.0)], [("b", 2, 0.5), ("c", 1, 0.25)])
    event_log.committed(
        Committed(1, Stamp(1, 1), Version(0, 1), 320.0), work_of(stages, {("a", "b"): 2, ("a", "c"): 1})
    )
    event_log.committed(Committed(1, Stamp(1, 2), Version(0, 2), 320.0))
    event_log.close()
    history = SwarmHistory(tmp_path).read_all()
    assert (history.damaged, len(history.commits), len(history.steps)) == (0, 2, 1)
    flow = history.flow()
    assert flow.peers == (PeerWork("a", 0, 3, 1.5), PeerWork("idle", 0, 0, 0.0), PeerWork("b", 1, 2, 0.5),
                          PeerWork("c", 1, 1, 0.25))  # fmt: skip
    assert [peer.speed for peer in flow.peers] == [2.0, None, 4.0, 4.0]
    assert flow.pairs == {(0, 2): 2, (0, 3): 1}
    assert flow.redone == {}


def test_what_is_told_of_a_step_of_thousands_of_peers_is_bounded(tmp_path):
    count = MAX_TOLD_PEERS
    stages = ([(f"a{i}", 1 + i % 7, 0.1) for i in range(count)], [(f"b{i}", 1 + i % 5, 0.1) for i in range(count)])
    pairs = {(f"a{i}", f"b{(i + k) % count}"): 1 + i % 7 for i in range(count) for k in range(20)}
    event_log = EventLog(tmp_path, 64)
    event_log.committed(Committed(1, Stamp(1, 1), Version(0, 1), 320.0), work_of(stages, pairs))
    event_log.close()
    event = json.loads((tmp_path / EVENTS_FILE).read_text())
    assert len(event["peers"]) == MAX_TOLD_PEERS
    assert 0 < len(event["flow"]) <= MAX_TOLD_PAIRS
    least = min(entry[2] for entry in event["peers"])
    assert sum(n > least for peers in stages for _, n, _ in peers) <= MAX_TOLD_PEERS
    assert len(SwarmHistory(tmp_path).read_all().steps) == 1


def test_the_last_steps_are_summed_up_by_peer_and_pair(tmp_path):
    history = history_of(tmp_path, FIRST, SECOND)
    flow = history.flow()
    assert (flow.first_step, flow.last_step, flow.num_steps, flow.seconds) == (1, 2, 2, 1.0)
    assert [(p.peer, p.stage, p.micro_batches, p.speed) for p in flow.peers] == [
        ("a", 0, 7, 7 / 3),
        ("d", 0, 1, 2.0),
        ("b", 1, 7, 7 / 3),
        ("c", 1, 1, 1.0),
    ]
    assert flow.pairs == {(0, 2): 5, (0, 3): 1, (1, 2): 1}
    assert flow.redone == {0: 1}
    assert "1 were done again in part" in flow_text(flow)
    assert [flow.share(i) for i in range(4)] == [7 / 8, 1 / 8, 7 / 8, 1 / 8]
    assert history.flow(1).first_step == 2
    assert history.flow(1).pairs == {(0, 2): 2, (1, 2): 1}
    with pytest.raises(InvalidInput, match="last: must be at least 1 step, got 0"):
        history.flow(0)


def test_a_peer_that_moved_is_there_once_for_each_stage():
    parts = [StepParts(1, 0.5, (PeerWork("a", 0, 2, 1.0), PeerWork("b", 1, 2, 1.0)), ((0, 1, 2),)),
             StepParts(2, 0.5, (PeerWork("b", 0, 2, 2.0), PeerWork("a", 1, 2, 4.0)), ((0, 1, 2),))]  # fmt: skip
    flow = flow_over(parts)
    assert [(p.peer, p.stage, p.speed) for p in flow.peers] == [
        ("a", 0, 2.0), ("b", 0, 1.0), ("a", 1, 0.5), ("b", 1, 2.0)
    ]  # fmt: skip
    assert flow.pairs == {(0, 3): 2, (1, 2): 2}


def test_files_of_an_older_coordinator_have_commits_without_a_flow(tmp_path):
    history = history_of(tmp_path, commit(1, None, None), commit(2, None, None))
    assert (len(history.commits), history.damaged) == (2, 0)
    assert history.flow() == NO_FLOW
    assert flow_text(history.flow()) == ""
    with pytest.raises(InvalidInput, match="tells of no step what its peers did"):
        plots.swarm_flow(tmp_path)


@pytest.mark.parametrize(
    ("peers", "flow"),
    [
        ([["a", 0, 1]], []),
        ([["a", 0, 1, -1.0]], []),
        ([["a", 0, 1, True]], []),
        ([["a", 0, 1.5, 1.0]], []),
        ([["a", 10**6, 1, 1.0]], []),
        ([[["a"], 0, 1, 1.0]], []),
        ([["a", 0, 1, 1.0]], [[0, 1, 1]]),
        ([["a", 0, 1, 1.0], ["b", 2, 1, 1.0]], [[0, 1, 1]]),
        ([["a", 0, 1, 1.0], ["b", 1, 1, 1.0]], [[0, 1, -1]]),
        ([["a", 0, 1, 1.0], ["b", 1, 1, 1.0]], [[0, 1, 10**12]]),
        ({"a": 1}, []),
        ([["a", 0, 1, 1.0]] * 5000, []),
        ("abc", []),
    ],
)
def test_parts_that_are_none_are_counted_as_damaged(tmp_path, peers, flow):
    history = history_of(tmp_path, commit(1, peers, flow))
    assert (history.damaged, len(history.steps)) == (1, 0)


def test_what_trainers_sent_is_told_read_back_and_summed_up(tmp_path):
    event_log = EventLog(tmp_path, 64)
    stages = ([("a", 3, 1.5), ("b", 1, 0.5)], [("c", 4, 0.5)])
    for step, sent in ((1, {("t0", "a"): 2, ("t1", "a"): 1, ("t0", "b"): 1}), (2, {("t1", "a"): 3, ("t1", "b"): 1})):
        work = work_of(stages, {("a", "c"): 3, ("b", "c"): 1}, sent)
        event_log.committed(Committed(1, Stamp(1, step), Version(0, step), 320.0), work)
    event_log.close()
    history = SwarmHistory(tmp_path).read_all()
    assert history.damaged == 0
    assert history.flow().sent == {("t0", 0): 2, ("t1", 0): 4, ("t0", 1): 1, ("t1", 1): 1}


@pytest.mark.parametrize("sent", [[["t", 1, 1]], [["t", 5, 1]], [["t", 0, -1]], [[7, 0, 1]], ["t"], {"t": 1}, [[]]])
def test_what_no_trainer_can_have_sent_is_counted_as_damaged(tmp_path, sent):
    event = commit(1, [["a", 0, 1, 1.0], ["b", 1, 1, 1.0]], [[0, 1, 1]]) | {"sent": sent}
    history = history_of(tmp_path, event)
    assert (history.damaged, len(history.steps)) == (1, 0)


def test_the_wiring_begins_at_the_trainers_where_they_are_told_of(tmp_path):
    flow = history_of(tmp_path, FIRST | {"sent": [["t0", 0, 3], [HOSTILE, 0, 1]]}).flow()
    live = SwarmWiring()
    live.update(flow, 2, {("a", 0), ("b", 1), ("c", 1)})
    nodes, lines = live.node_source.data, live.line_source.data
    assert list(zip(nodes["peer"], nodes["x"], nodes["y"], nodes["done"], strict=True))[3:] == [
        (HOSTILE, -1.0, 0.5, "1 sent, 25% of all"), ("t0", -1.0, -0.5, "3 sent, 75% of all")
    ]  # fmt: skip
    assert lines["pair"] == ["a → b", "t0 → a", "a → c", f"{HOSTILE} → a"]
    assert lines["share"] == ["75%", "100%", "25%", "100%"]
    assert live.figure.xaxis[0].major_label_overrides == {-1.0: "trainers", 0.0: "stage 0", 1.0: "stage 1"}
    assert live.figure.x_range.start == -1.5


def test_only_the_last_steps_are_kept(tmp_path):
    history = history_of(tmp_path, *(commit(i + 1, [["a", 0, 1, 1.0]], []) for i in range(KEPT_STEPS + 10)))
    assert len(history.steps) == KEPT_STEPS
    assert history.flow(10**6).first_step == 11


def test_the_wiring_is_drawn_with_areas_by_share_and_widths_by_micro_batches(tmp_path):
    flow = history_of(tmp_path, FIRST, SECOND).flow()
    live = SwarmWiring()
    assert live._note.text
    models = len(live.figure.references())
    live.update(flow, 3, {("a", 0), ("b", 1), ("c", 1)}, {"a": (3.0, 1.0, 1.0), "b": (3.0, 2.5, 1.0)})
    nodes, lines = live.node_source.data, live.line_source.data
    assert list(zip(nodes["peer"], nodes["x"], nodes["y"], strict=True)) == [
        ("a", 0.0, 0.5), ("d", 0.0, -0.5), ("b", 1.0, 0.5), ("c", 1.0, -0.5)
    ]  # fmt: skip
    assert nodes["size"][0] == pytest.approx((LEAST_PX**2 + 7 / 8 * (MOST_PX**2 - LEAST_PX**2)) ** 0.5)
    assert nodes["colour"] == [line_colour(0)] * 2 + [line_colour(1)] * 2
    assert [alpha < 1 for alpha in nodes["alpha"]] == [False, True, False, False]
    assert nodes["speed"] == ["2.33/s", "2/s", "2.33/s", "1/s"]
    assert nodes["expected"] == ["3/s", "–", "2.5/s", "–"]
    assert lines["pair"] == ["a → b", "d → b", "a → c"]
    assert lines["width"] == pytest.approx([LINE_PX, LINE_PX / 5, LINE_PX / 5])
    assert [(xs[0], xs[-1], ys[0], ys[-1]) for xs, ys in zip(lines["xs"], lines["ys"], strict=True)][2] == (
        0.0, 1.0, 0.5, -0.5
    )  # fmt: skip
    assert live.figure.xaxis[0].major_label_overrides == {0.0: "stage 0", 1.0: "stage 1", 2.0: "stage 2"}
    live.set_dark(True)
    assert live._labels.glyph.text_color == live.look.text
    assert len(live.figure.references()) == models, "data alone are replaced"
    live.update(None)
    assert live._note.text
    assert live.node_source.data["peer"] == live.line_source.data["pair"] == []


def test_of_a_stage_with_many_peers_the_busiest_are_drawn_without_names():
    peers = tuple(PeerWork(f"p{i}", 0, i, 1.0) for i in range(MOST_PEERS + 8))
    live = SwarmWiring()
    live.update(flow_over([StepParts(1, 0.5, peers, ())]), 1)
    assert live.node_source.data["peer"] == [f"p{i}" for i in range(8, MOST_PEERS + 8)]
    assert live.label_source.data["label"] == []


def test_a_notebook_draws_the_flow_of_a_run_with_the_speeds_its_plan_expects(tmp_path):
    write_events(tmp_path, commit(1, [[HOSTILE, 0, 2, 1.0], ["d1", 1, 2, 1.0]], [[0, 1, 2]]))
    save_plan(swarm_plan([1, 1], [4], cluster=small_cluster(2)), tmp_path / "plan.json")
    page = plots.swarm_flow(tmp_path, last=5)._repr_mimebundle_()["text/html"]
    assert HOSTILE not in page
    assert "onerror" in page  # as data
    assert "stage 1" in page


def test_the_table_of_peers_has_measured_speeds_beside_the_expected_and_who_wants_to_leave(tmp_path):
    replica = {"incarnation": [1, 1], "time_s": 99.0, "kind": "serving"}
    history = history_of(
        tmp_path, *(replica | {"peer": p, "stage": s} for p, s in (("a", 0), (HOSTILE, 1))), FIRST,
        {"time_s": 101.0, "kind": "draining", "peer": "a", "stage": 0},
    )  # fmt: skip
    detail = SimpleNamespace(swarm=history, flow=history.flow(), expected={"a": (2.5, 1.0)}, names={})
    table = peer_table(detail, False, emulated=True)
    assert HOSTILE not in table
    row = next(part for part in table.split("<tr") if ">a<" in part)
    for cell in ("stage 0", "serving, asked to leave", "2/s", "2.5/s", "100%", ">4<"):
        assert cell in row
    assert ">by the plan<" in table
    assert "not slowed" not in table
    assert "not slowed" in peer_table(detail, False, emulated=False)
    assert "no peer is left" in peer_table(detail, True, emulated=True)
    detail.names = {"a": "a(×2)"}
    assert ">a(×2)<" in peer_table(detail, False, emulated=True)


def test_peers_that_are_groups_are_named_as_plans_name_them(tmp_path):
    replica = {"incarnation": [1, 1], "time_s": 99.0, "kind": "serving"}
    history = history_of(tmp_path, *(replica | {"peer": p, "stage": s} for p, s in (("a", 0), ("b", 1))), FIRST)
    wiring, life, names = SwarmWiring(), SwarmLife(), {"a": "a(×2)"}
    wiring.update(history.flow(), 2, None, None, names)
    assert wiring.node_source.data["peer"][0] == "a(×2)"
    assert wiring.node_source.data["label"][0].startswith("a(×2) ")
    assert wiring.line_source.data["pair"][0] == "a(×2) → b"
    life.update(history, 100.0, names)
    assert set(life.figure.yaxis[0].major_label_overrides.values()) == {"the swarm", "a(×2)", "b"}


def test_a_plan_names_its_groups():
    plan = swarm_plan((2, 1), (3,), cluster=hosts(("T4", 2), ("T4", 1)))
    assert group_names(plan) == {}
    problem = plan.problem.replace(groups=(WorkerGroup(devices=("h0-0", "h0-1")),))
    stages = tuple(s.replace(peers=(p,)) for s, p in zip(plan.stages, ("h0-0", "h1-0"), strict=True))
    assert group_names(plan.replace(problem=problem, stages=stages)) == {"h0-0": "h0-0(×2)"}


@pytest.mark.parametrize(
    ("told", "kind", "text"),
    [
        ({"how": "left", "reason": ""}, "left", "left"),
        ({"how": "lost", "reason": "connection lost"}, "lost", "lost: connection lost"),
        ({"how": "cut off", "reason": "garbage"}, "cut off", "cut off: garbage"),
        ({}, "gone", "gone"),
        ({"how": "abducted"}, "gone", "gone"),
    ],
)
def test_a_death_and_a_leave_are_told_apart(tmp_path, told, kind, text):
    replica = {"time_s": 100.0, "kind": "serving", "peer": "a", "stage": 0, "incarnation": [1, 1]}
    wish = {"time_s": 100.5, "kind": "draining", "peer": "a", "stage": 0}
    write_events(tmp_path, replica, wish)
    history = SwarmHistory(tmp_path)
    history.read_all()
    assert history.draining == {"a"}
    write_events(tmp_path, {"time_s": 101.0, "kind": "gone", "peer": "a", "stage": 0} | told)
    history.read_all()
    assert (history.marks[-1].kind, history.marks[-1].text) == (kind, text)
    assert history.draining == set()
    assert not history.now
