"""The report of a swarm's run: from what its folder holds, as data, as tables and as one HTML file."""

import json
import re

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.plots.live import StagePeers
from hetplanner.plots.report_page import report_page
from hetplanner.runs.reading.swarm_history import EVENTS_FILE, SwarmHistory
from hetplanner.runs.reports.report import report_run
from hetplanner.runs.reports.swarm_report import report_swarm
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.swarm.event_log import EventLog
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan

HOSTILE = "</script><img src=x onerror=alert(1)>"


def at(time_s, kind, **fields):
    return {"time_s": 100.0 + time_s, "kind": kind} | fields


def peer_event(time_s, kind, peer, stage, **fields):
    return at(time_s, kind, peer=peer, stage=stage, incarnation=[1, 1], **fields)


def commit(time_s, step, peers, flow):
    return at(time_s, "commit", version=[0, step], loss=5.0, seconds=1.0, peers=peers, flow=flow)


def story(bad):
    """Peer d0 moves, d1 serves to the end, d2 is lost, and one with a hostile name joins late."""
    return [
        at(0, "boot", boot=1, version=[0, 0], address="127.0.0.1:1"),
        *(peer_event(1, "serving", peer, stage) for peer, stage in (("d0", 0), ("d1", 0), ("d2", 1))),
        at(2, "closed", seconds={"prepare": 0.01, "reduce": 0.1, "commit": 0.02}),
        commit(2, 1, [["d0", 0, 1, 0.5], ["d1", 0, 3, 1.0], ["d2", 1, 4, 2.0]], [[0, 2, 1], [1, 2, 3]]),
        at(3, "failures", counts={"silent": 1}),
        peer_event(3, "gone", "d2", 1, how="lost", reason="silent"),
        at(3, "not closed", seconds={"prepare": 0.03}),
        peer_event(3, "move", "d0", 1),
        peer_event(4, "serving", "d0", 1),
        peer_event(5, "serving", bad, 1),
        commit(6, 2, [["d1", 0, 4, 1.0], ["d0", 1, 3, 1.5], [bad, 1, 1, 1.0]], [[0, 1, 2], [0, 2, 1]]),
        at(8, "end", version=[0, 2]),
    ]


def swarm_run(folder, events=(), steps=0, bad="d9", **config):
    folder.mkdir()
    plan = swarm_plan([2, 1], [4], cluster=small_cluster(3))
    save_plan(plan.replace(problem=plan.problem.replace(rehearsal_of=bad)), folder / "plan.json")
    save_config(TrainConfig(steps=5, **config), folder / "run.json")
    write_status(folder / "status.json", RunStatus(run="r", state="finished", created_unix_s=99.0, ranks=1))
    event_log = EventLog(folder, tokens_per_step=100)
    event_log.began(1, Version(0, 0), "127.0.0.1:1", None)
    for step in range(steps):
        event_log.committed(Committed(1, Stamp(1, step), Version(0, step + 1), 500.0 - step))
    event_log.close()
    (folder / EVENTS_FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    return Run(folder, "r", folder / "home")


def test_a_report_tells_who_did_what_and_how_everybody_ended(tmp_path):
    found = report_swarm(swarm_run(tmp_path / "run", story("d9"), steps=3, emulate_links=True))
    assert [(p.peer, p.stage, p.micro_batches, p.end, p.served_s) for p in found.peers] == [
        ("d0", 0, 1, "moved", 2.0),
        ("d1", 0, 7, "there", 7.0),
        ("d0", 1, 3, "there", 4.0),
        ("d2", 1, 4, "lost", 2.0),
        ("d9", 1, 1, "there", 3.0),
    ]
    assert [p.share for p in found.peers] == [1 / 8, 7 / 8, 3 / 8, 4 / 8, 1 / 8]
    assert [p.speed for p in found.peers] == [2.0, 3.5, 2.0, 2.0, 1.0]
    assert [p.expected is None for p in found.peers] == [False] * 4 + [True]
    assert (found.failures, found.redone, found.closed, found.given_up) == ({"silent": 1}, 1, 1, 1)
    closing = [(c.phase, c.times, c.median_s, c.most_s) for c in found.closing]
    assert closing == [("prepare", 2, 0.02, 0.03), ("reduce", 1, 0.1, 0.1), ("commit", 1, 0.02, 0.02)]
    assert (found.steps, found.planned_steps, found.losses[-1]) == (3, 5, (2, 4.98))
    assert found.step_s.keys() == found.tokens_per_s.keys() == {"steady_state", "measured"}
    assert re.search(r"steady-state step, .* takes .*; the median step took .* \([+-]\d", found.difference)
    data = json.loads(json.dumps(found.to_data(), allow_nan=False))
    assert data["peers"][0]["end"] == "moved"


def test_without_emulation_the_steady_state_step_predicts_nothing(tmp_path):
    found = report_swarm(swarm_run(tmp_path / "run", story("d9"), steps=3))
    assert "predicts nothing of this run" in found.difference


def test_reasons_are_counted_over_coordinators(tmp_path):
    boot = at(9, "boot", boot=2, version=[0, 2], address="127.0.0.1:1")
    again = [boot, at(10, "failures", counts={"silent": 2}), at(11, "failures", counts={"silent": 3, "garbage": 1})]
    run = swarm_run(tmp_path / "run", [*story("d9"), *again])
    assert report_swarm(run).failures == {"silent": 4, "garbage": 1}


def test_the_page_is_one_file_without_a_request_and_escapes_what_others_wrote(tmp_path):
    folder = tmp_path / "run"
    events = [*story(HOSTILE), at(9, "refused", text=HOSTILE, peer=HOSTILE)]
    run = swarm_run(folder, events, steps=3, bad=HOSTILE, data=HOSTILE)
    write_status(
        folder / "status.json",
        RunStatus(run="r", state="failed", message=HOSTILE, created_unix_s=0.0, ranks=1, last_lines=(HOSTILE,)),
    )
    page = report_page(run)
    assert "<img src=x" not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert "default-src 'none'" in page
    for words in (
        "Loss and throughput", "Joins, deaths, moves and commits", "Peers of every stage over time", "Who did what",
        "Who went, and what was done again", "Closing a step", "What happened", "Last words of the launcher",
        "2 + 1 peers at the start", "lost: silent", "What this report does not know",
    ):  # fmt: skip
        assert words in page, words
    assert page.count('<div class="card">') == 6


def test_what_a_folder_does_not_hold_is_said_instead_of_drawn_empty(tmp_path):
    page = report_page(swarm_run(tmp_path / "run"))
    assert '<div class="card">' not in page
    said = ("No step was committed", "The coordinator has reported no peer", "No peer has served", "No attempt to")
    for words in said:
        assert words in page
    assert "fewer than two steps were committed" in page
    old = [{k: v for k, v in e.items() if k not in ("peers", "flow")} for e in story("d9") if e["kind"] != "closed"]
    found = report_swarm(swarm_run(tmp_path / "old", old))
    assert found.redone is None
    assert {p.micro_batches for p in found.peers} == {None}
    assert any("older coordinator" in sentence for sentence in found.unknown)


def test_a_static_run_and_a_swarm_are_told_apart(tmp_path):
    run = swarm_run(tmp_path / "run", story("d9"))
    with pytest.raises(InvalidInput, match="run: is of an elastic plan; report_swarm gives its report"):
        report_run(run)
    save_plan(chain_plan(shares=(1, 1), cuts=(4,)), tmp_path / "run" / "plan.json")
    with pytest.raises(InvalidInput, match=r"run: is of a static plan; hetplanner\.report_run gives its report"):
        report_swarm(Run(tmp_path / "run"))


def test_the_command_prints_and_writes_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    folder, page = tmp_path / "run", tmp_path / "report.html"
    swarm_run(folder, story("[red]d9\x1b[2J"), steps=3)
    done = CliRunner().invoke(app, ["runs", "report", str(folder), "--html", str(page)])
    assert done.exit_code == 0, done.output
    for words in ("[red]d9\\x1b[2J", "moved", "reduce", "predicts nothing"):
        assert words in done.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    told = CliRunner().invoke(app, ["runs", "report", str(folder), "--json"])
    assert json.loads(told.output)["failures"] == {"silent": 1}
    refused = CliRunner().invoke(app, ["runs", "report", str(folder), "--trace", str(tmp_path / "t.json")])
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception).startswith("--trace: needs spans, and a swarm")


def test_stairs_count_the_peers_that_serve_each_stage(tmp_path):
    swarm_run(tmp_path / "run", story("d9"))
    history, live = SwarmHistory(tmp_path / "run").read_all(), StagePeers()
    assert live._note.text
    live.update(history, 2)
    assert live._note.text == ""
    xs, ys = live.source.data["xs"], live.source.data["ys"]
    assert list(zip(xs[0], ys[0], strict=True))[::2] == [(0, 0), (1, 1), (1, 2), (3, 1)]
    assert [round(y) for y in ys[1]] == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]
    assert xs[1][-1] == 8.0
    assert live.source.data["stage"] == ["stage 0", "stage 1"]
    live.update(None)
    assert live.source.data["xs"] == []
