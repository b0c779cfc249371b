"""A swarm's life as its coordinator tells it: read, drawn, and shown on the Run page; without any process."""

import json
from types import SimpleNamespace

import pytest

from hetplanner import plots
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.plots.data.swarms.swarm_life import MARKS, MAX_ROWS, MOST_COMMITS, shown_peers
from hetplanner.plots.live import SwarmLife
from hetplanner.plots.live.swarms.swarm_life import plain
from hetplanner.plots.theme import line_colour
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.reading import swarm_history
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.swarm_history import OF_THE_SWARM, SwarmHistory
from hetplanner.runs.reports.swarm_conditions import swarm_words
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.swarm.event_log import EVENTS_FILE, EventLog
from hetplanner.swarm.launch.restarts import PROCESSES_FILE
from hetplanner.ui import watch
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.hosts import Hosts
from hetplanner.ui.run.views.network import Network
from hetplanner.ui.run.views.swarm import NAMES, NO_SWARM, Swarm, stage_table, totals_text
from hetplanner.ui.shell.models.session import Session
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan

HOSTILE = "</script><img src=x onerror=alert(1)>"


def peer_event(time_s, kind, peer, stage):
    return {"time_s": time_s, "kind": kind, "peer": peer, "stage": stage, "incarnation": [1, 1]}


def commit(time_s, step, loss=5.5):
    return {"time_s": time_s, "kind": "commit", "version": [0, step], "loss": loss, "seconds": 0.5}


def write_events(folder, *events):
    with (folder / swarm_history.EVENTS_FILE).open("a") as file:
        file.writelines((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in events)


BOOT = {"time_s": 100.0, "kind": "boot", "boot": 1, "version": [0, 0], "address": "127.0.0.1:1"}
STORY = (
    BOOT,
    {"time_s": 100.1, "kind": "paused", "stages": [0, 1]},
    peer_event(101.0, "joining", "a", 0),
    peer_event(102.0, "serving", "a", 0),
    peer_event(102.0, "serving", "b", 1),
    {"time_s": 102.0, "kind": "resumed", "stages": []},
    peer_event(102.5, "serving", "c", 1),
    commit(103.0, 1),
    {"time_s": 104.0, "kind": "failures", "counts": {"silent": 1}},
    peer_event(104.0, "gone", "b", 1),
    {"time_s": 104.2, "kind": "not closed", "seconds": {"prepare": 0.1}},
    peer_event(105.0, "move", "a", 1),
    peer_event(106.0, "serving", "a", 1),
    commit(107.0, 2, None),
)


def test_stays_marks_and_commits_are_read_as_they_are_written(tmp_path):
    assert swarm_history.EVENTS_FILE == EVENTS_FILE
    history = SwarmHistory(tmp_path)
    assert not history.poll()
    write_events(tmp_path, *STORY[:2])
    assert history.poll()
    assert history.paused
    write_events(tmp_path, *STORY[2:])
    history.read_all()
    assert not history.paused
    assert [(p.start_s, p.end_s) for p in history.pauses] == [(100.1, 102.0)]
    assert [(s.peer, s.stage, s.state, s.start_s, s.end_s) for s in history.stays] == [
        ("a", 0, "joining", 101.0, 102.0),
        ("a", 0, "serving", 102.0, 105.0),
        ("b", 1, "serving", 102.0, 104.0),
        ("c", 1, "serving", 102.5, None),
        ("a", 1, "joining", 105.0, 106.0),
        ("a", 1, "serving", 106.0, None),
    ]
    assert [(m.kind, m.peer, m.text) for m in history.marks] == [
        ("join", "a", "comes to stage 0"),
        ("join", "b", "comes to stage 1"),
        ("join", "c", "comes to stage 1"),
        ("gone", "b", "gone: silent"),
        ("not closed", "", "an attempt to close the step was given up"),
        ("move", "a", "moves from stage 0 to stage 1"),
    ]
    assert [(c.step, c.loss, c.seconds) for c in history.commits] == [(1, 5.5, 0.5), (2, None, 0.5)]
    assert list(history.now) == ["c", "a"]
    text = totals_text(history)
    assert text == "steps committed: 2, peers joined: 3, gone: 1, moves: 1, attempts given up: 1."


def test_an_event_log_is_read_back(tmp_path):
    event_log = EventLog(tmp_path, 64)
    event_log.event("joining", peer="a", stage=1, incarnation=[1, 2])
    event_log.event("set back", text="all stages to step 3")
    event_log.close()
    history = SwarmHistory(tmp_path).read_all()
    assert (history.now["a"].stage, history.now["a"].state, history.damaged) == (1, "joining", 0)
    assert [m.text for m in history.marks] == ["comes to stage 1", "set back: all stages to step 3"]


def test_cut_links_and_lost_work_are_marks(tmp_path):
    event_log = EventLog(tmp_path, 64)
    event_log.event("cut", peer="b", by="a")
    event_log.event("local work lost", stage=1, micro_batches=3, of=16)
    event_log.event("cut", peer=7, by="a")
    event_log.close()
    history = SwarmHistory(tmp_path).read_all()
    assert [(m.kind, m.peer, m.text) for m in history.marks] == [
        ("cut", "b", "b: a cannot reach it"),
        ("work lost", "", "stage 1 averaged without 3 of 16 micro-batches of the round: their peers are lost"),
    ]
    assert history.damaged == 1
    assert totals_text(history) == "steps committed: 0, links cut: 1, rounds short of work: 1, damaged lines: 1."


def test_what_became_of_the_processes_is_told_too(tmp_path):
    assert swarm_history.PROCESSES_FILE == PROCESSES_FILE
    event_log = EventLog(tmp_path, 64)
    event_log.event("preempted", text="step 3")
    event_log.close()
    with (tmp_path / PROCESSES_FILE).open("a") as file:
        for kind, who in (("restarted", "coordinator"), ("ended", "d3")):
            words = {"time_s": 101.0, "kind": kind, "peer": who, "text": "was killed by SIGKILL"}
            file.write(json.dumps(words) + "\n")
    history = SwarmHistory(tmp_path)
    assert history.poll()
    assert not history.poll()
    assert [(m.kind, m.peer, m.text) for m in history.marks] == [
        ("preempted", "", "preempted: step 3"),
        ("restarted", "", "restarted: coordinator: was killed by SIGKILL"),
        ("not restarted", "", "ended: d3: was killed by SIGKILL"),
    ]
    said = "preempted: 1, processes started again: 1, processes lost for good: 1"
    assert all(words in totals_text(history) for words in said.split(", "))
    assert set(OF_THE_SWARM.values()) <= set(NAMES) & set(MARKS)


def test_what_a_swarm_goes_on_without_is_said_until_it_is_there_again(tmp_path):
    history = SwarmHistory(tmp_path)

    def words(now_s, *events, file=EVENTS_FILE):
        with (tmp_path / file).open("a") as lines:
            lines.writelines(json.dumps(event) + "\n" for event in events)
        history.poll()
        return swarm_words(history, now_s)

    assert words(100.0, BOOT) == ()
    paused = {"time_s": 101.0, "kind": "paused", "stages": [1]}
    assert words(102.0, paused) == ()  # somebody may be about to come
    (said,) = words(110.0)
    assert said.startswith("no peer serves stage 1: the swarm waits for a peer")
    assert words(111.0, {"time_s": 110.5, "kind": "resumed", "stages": []}) == ()
    ended = [{"time_s": 112.0, "kind": "ended", "peer": f"d{n}", "text": "was killed"} for n in range(6)]
    (said,) = words(113.0, *ended, file=PROCESSES_FILE)
    assert "not started again: d0, d1, d2, d3, …;" in said
    started = {"time_s": 120.0, "kind": "started", "peer": "launcher", "text": "started all"}
    assert words(121.0, started, file=PROCESSES_FILE) == ()
    assert history.damaged == 0
    words(122.0, *ended, file=PROCESSES_FILE)
    assert words(123.0, {"time_s": 123.0, "kind": "end", "version": [0, 2]}) == ()


def test_a_new_coordinator_is_told_anew_who_is_there_and_the_end_ends_all(tmp_path):
    write_events(tmp_path, *STORY, BOOT | {"time_s": 110.0, "boot": 2}, peer_event(111.0, "serving", "c", 1))
    history = SwarmHistory(tmp_path).read_all()
    assert [s.end_s for s in history.stays] == [102.0, 105.0, 104.0, 110.0, 106.0, 110.0, None]
    assert history.counts["restart"] == 1
    write_events(tmp_path, {"time_s": 112.0, "kind": "end", "version": [0, 2]})
    history.read_all()
    assert history.is_over
    assert not history.now


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"kind": "commit"}',
        '{"kind": "serving", "time_s": 1e999, "peer": "a", "stage": 0}',
        '{"kind": "serving", "time_s": 1, "peer": ["a"], "stage": 0}',
        '{"kind": "serving", "time_s": 1, "peer": "a", "stage": 99999}',
        '{"kind": "serving", "time_s": 1, "peer": "a", "stage": true}',
        '{"kind": "commit", "time_s": 1, "version": 3, "loss": 1, "seconds": 1}',
        '{"kind": "commit", "time_s": 1, "version": [0, 1], "loss": 1, "seconds": Infinity}',
        '{"kind": "failures", "time_s": 1, "counts": [1]}',
        '{"kind": "failures", "time_s": 1, "counts": {"silent": "many"}}',
        '{"kind": "commit", "time_s": 1, "version": [0, Infinity], "loss": 1, "seconds": 1}',
        '{"kind": "paused", "time_s": 1, "stages": []}',
        '{"kind": "disk", "time_s": 1}',
        "[" * 100_000,
    ],
)
def test_damaged_lines_are_counted_and_passed_over(tmp_path, line):
    write_events(tmp_path, BOOT, line, peer_event(101.0, "serving", "a", 0))
    history = SwarmHistory(tmp_path).read_all()
    assert history.damaged == 1
    assert list(history.now) == ["a"]
    assert history.first_s == 100.0
    assert "damaged lines: 1" in totals_text(history)


def test_the_figure_has_a_row_for_every_peer_in_the_colour_of_its_stage(tmp_path):
    write_events(tmp_path, *STORY)
    live = SwarmLife()
    assert live._note.text
    models = len(live.figure.references())
    live.update(SwarmHistory(tmp_path).read_all(), 110.0)
    serving, joining = live.serving_source.data, live.joining_source.data
    assert serving["peer"] == ["a", "b", "c", "a"]
    assert serving["y"] == [0.0, -1.0, -2.0, 0.0]
    assert serving["left"] == [2.0, 2.0, 2.5, 6.0]
    assert serving["right"] == [5.0, 4.0, 10.0, 10.0]
    assert serving["colour"] == [line_colour(0), *[line_colour(1)] * 3]
    assert serving["took"][2] == "7.5 s so far"
    assert joining["left"] == [1.0, 5.0]
    assert live.pause_source.data["right"] == [2.0]
    assert live.commit_source.data["text"] == ["step 1, loss 5.5000, 500 ms", "step 2, 500 ms"]
    shown = [item.label.value for item in live._kinds.values() if item.visible]
    assert shown == ["join", "move", "gone", "not closed"]
    assert live.mark_source.data["edge"][2:4] == ["#ffffff", MARKS["gone"][1]]
    assert live.mark_source.data["y"] == [0.0, -1.0, -2.0, -1.0, 1.0, 0.0]
    assert live.figure.yaxis[0].major_label_overrides == {1.0: "the swarm", 0.0: "a", -1.0: "b", -2.0: "c"}
    live.set_dark(True)
    assert live._commits.glyph.line_color == live.look.text
    assert len(live.figure.references()) == models, "data alone are replaced"
    live.update(None)
    assert live._note.text
    assert live.serving_source.data["peer"] == live.mark_source.data["peer"] == []


def test_thousands_of_events_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(swarm_history, "POLL_BYTES", 2**16)
    events = []
    for i in range(6000):
        events += [peer_event(100.0 + i, "serving", f"p{i}", i % 3), commit(100.2 + i, i + 1)]
        events += [peer_event(103.5 + i, "gone", f"p{i}", i % 3)] if i < 5990 else []
    write_events(tmp_path, BOOT, *events)
    history = SwarmHistory(tmp_path).read_all()
    assert len(history.stays) == swarm_history.MAX_STAYS
    assert history.counts == {"join": 6000, "gone": 5990}
    rows = shown_peers(history)
    assert rows == [f"p{i}" for i in range(6000 - MAX_ROWS, 6000)]
    live = SwarmLife()
    live.update(history)
    assert len(live.serving_source.data["y"]) == MAX_ROWS
    assert MOST_COMMITS / 2 < len(live.commit_source.data["x"]) <= MOST_COMMITS + 1
    assert len(live.figure.yaxis[0].ticker.ticks) <= 26


def test_every_kind_of_mark_has_a_look_and_a_name():
    assert set(MARKS) == set(NAMES)
    assert set(OF_THE_SWARM.values()) <= set(MARKS)


def test_a_name_on_an_axis_is_no_formula():
    assert plain(r"$$x$$ \(y\)") == "$ $x$ $ /(y/)"
    assert plain("host-3:gpu0") == "host-3:gpu0"


def test_a_notebook_draws_the_life_of_a_run_and_refuses_what_is_none(tmp_path):
    with pytest.raises(InvalidInput, match=r"holds no events of a swarm \(events.jsonl\)"):
        plots.swarm_life(tmp_path)
    write_events(tmp_path, BOOT, peer_event(101.0, "serving", HOSTILE, 0))
    for run in (RunReader(tmp_path), tmp_path, str(tmp_path)):
        page = plots.swarm_life(run)._repr_mimebundle_()["text/html"]
        assert HOSTILE not in page
        assert "onerror" in page  # as data


def model_of(tmp_path, plan, monkeypatch):
    for name in ("POLL_EVERY_S", "DETAIL_EVERY_S", "LIST_EVERY_S"):
        monkeypatch.setattr(watch, name, -1.0)
    run_id, directory = create_run_directory(plan, TrainConfig(steps=10), home=tmp_path)
    save_config(TrainConfig(steps=10), directory.config_file)
    write_status(directory.status_file, RunStatus(run=run_id, state="running", created_unix_s=99.0, ranks=1))
    monkeypatch.setattr("hetplanner.runs.run.agent_lives", lambda home: True)
    guard = SimpleNamespace(check=lambda text: False)
    return RunModel(Session(guard), None, tmp_path, agent=lambda: None), directory


def test_the_run_page_shows_a_swarm_and_lives_without_what_only_ranks_tell(tmp_path, monkeypatch):
    plan = swarm_plan([2, 1], [4], cluster=small_cluster(3))
    model, directory = model_of(tmp_path, plan, monkeypatch)
    write_events(directory.path, *STORY)
    model.beat()
    assert model.session.notices == []
    assert model.is_swarm
    section = Swarm(model, model.session, False)
    section.show()
    assert section.life.serving_source.data["peer"] == ["a", "b", "c", "a"]
    assert "steps committed: 2" in str(section.totals.view.object)
    assert "stage 0" in section.stages.object
    assert "no peer" in section.stages.object
    for kind, pane in ((Network, "links"), (Hosts, "table")):
        other = kind(model, model.session, False)
        other.show()
        assert "not told by the peers of a swarm" in getattr(other, pane).object
    write_events(directory.path, peer_event(108.0, "serving", f"{HOSTILE}", 0))
    model.beat()
    section.show()
    assert HOSTILE not in section.stages.object
    assert "&lt;img" in section.stages.object


def test_the_run_page_says_that_a_static_run_is_no_swarm(tmp_path, monkeypatch):
    model, _ = model_of(tmp_path, chain_plan(shares=(1, 1), cuts=(4,)), monkeypatch)
    model.beat()
    assert not model.is_swarm
    section = Swarm(model, model.session, False)
    section.show()
    assert NO_SWARM in str(section.totals.view.object)
    assert section.life.serving_source.data["peer"] == []


def test_a_stage_without_peers_stands_out_while_the_run_goes_on(tmp_path):
    save_plan(swarm_plan([1, 1], [4]), tmp_path / "plan.json")
    write_events(tmp_path, BOOT, peer_event(101.0, "serving", "a", 1))
    history = SwarmHistory(tmp_path).read_all()
    detail = SimpleNamespace(swarm=history, flow=history.flow(), expected={}, names={})
    row = next(part for part in stage_table(detail, 2, False).split("<tr") if "stage 0" in part)
    assert "font-weight:600" in row.split(">")[0]
    assert "no peer serves" in stage_table(detail, 2, True)
