"""Figures of a run as data, and the report as one HTML file that asks for nothing."""

import importlib
import logging
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.plots.data.maps.traffic import load_colour
from hetplanner.plots.live import ExpertLoads, Lifelines, RunMemory, RunTerms, TrafficMap
from hetplanner.plots.report_page import report_page
from hetplanner.plots.theme import PHASE_COLOURS, TERM_COLOURS
from hetplanner.runs.reading.events import LifeSpan, RunEvent
from hetplanner.runs.reading.loads import link_loads, site_loads
from hetplanner.runs.reports.comparison import Comparer
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from tests.support.runs.fake_ranks import step_record, write
from tests.unit.runs.reading.test_runs_life import a_run, links_line
from tests.unit.runs.reports.test_report import durations, plan, write_run  # noqa: F401 (plan is a fixture)

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_terms_stand_next_to_each_other_in_the_colour_of_their_term(plan, tmp_path):  # noqa: F811
    run = write_run(tmp_path, plan, measured=durations(plan, 2.0), predicted=durations(plan))
    run.read_all()
    live = RunTerms()
    assert live._note.text
    live.update(Comparer(run).compare(run.trace(5)))
    predicted, measured = live.predicted_source.data, live.measured_source.data
    assert live._note.text == ""
    assert predicted["term"] == ["compute", "transfer", "reduction", "waiting", "optimizer"]
    assert predicted["colour"] == measured["colour"] == list(TERM_COLOURS.values())
    assert measured["top"][0] == pytest.approx(2 * predicted["top"][0])
    assert measured["difference"][0].endswith("more than predicted")
    assert live.figure.y_range.end > max(measured["top"])
    live.set_dark(True)
    assert live._texts[0].glyph.text_color == live.look.text
    live.update(None)
    assert live.measured_source.data["top"] == []


def test_a_life_has_a_row_for_every_rank_and_one_for_the_run():
    live = Lifelines()
    spans = [LifeSpan(0, "importing", 10.0, 12.0, False), LifeSpan(1, "training", 12.0, 20.0, True)]
    events = [
        RunEvent(10.0, "agent", None, "started"),
        RunEvent(15.0, "checkpoint", None, "checkpoint of step 3"),
        RunEvent(20.0, "error", 1, HOSTILE),
        RunEvent(20.0, "error", 7, "of a rank that the plan does not have"),
    ]
    live.update(spans, events, ("d0", "d1"), 9.0)
    bars, marks = live.phase_source.data, live.mark_source.data
    assert (bars["y"], bars["left"], bars["right"]) == ([0.0, -1.0], [1.0, 3.0], [3.0, 11.0])
    assert bars["colour"] == [PHASE_COLOURS["importing"], PHASE_COLOURS["training"]]
    assert bars["took"] == ["2 s", "8 s so far"]
    assert (marks["x"], marks["y"], marks["marker"]) == ([6.0, 11.0], [0.75, -1.0], ["diamond", "x"])
    assert live.figure.yaxis[0].major_label_overrides == {0.75: "the run", 0.0: "0 · d0", -1.0: "1 · d1"}


def test_full_links_are_red_on_the_map_and_lie_above_others(tmp_path):
    run, _ = a_run(tmp_path)
    for rank in range(4):
        write(tmp_path, rank, *(step_record(rank, step, 4, step + 1.0) for step in range(3)))
    write(tmp_path, 2, links_line(0, 1_900_000))
    write(tmp_path, 3, links_line(1, 100_000))
    loads = site_loads(run.read_all(), link_loads(run))
    live = TrafficMap()
    live.show_loads(run.plan.problem.cluster, loads)
    data = live.load_source.data
    assert data["sites"] == ["site-1 → site-3", "site-0 → site-2"]
    assert data["colour"] == [load_colour(0.05), load_colour(0.95)] == ["#4477AA", "#CC3311"]
    assert data["share"] == ["5 %", "95 %"]
    assert data["width"][1] > data["width"][0]
    live.show_loads(None, [])
    assert live.load_source.data["sites"] == []


def test_experts_have_a_row_an_op_and_the_first_is_on_top():
    live = ExpertLoads()
    live.update({"layer 0": [30, 10], "layer 1": [5, 5, 10]})
    data = live.source.data
    assert np.array_equal(data["tokens"][0], np.array([[5, 5, 10], [30, 10, np.nan]]), equal_nan=True)
    assert np.allclose(data["image"][0], [[0.75, 0.75, 1.5], [1.5, 0.5, np.nan]], equal_nan=True)
    assert live.op_source.data["op"] == ["layer 1", "layer 0"]
    assert list(live.text_source.data["text"]) == ["75.0%", "25.0%", "25.0%", "25.0%", "50.0%"]
    assert live.figure.yaxis[0].major_label_overrides == {1.5: "layer 0", 0.5: "layer 1"}


def test_memory_is_a_line_a_rank_in_the_colour_of_its_stage(tmp_path):
    run, _ = a_run(tmp_path)
    for rank in range(4):
        for step in range(3):
            more = {"memory_bytes": (rank + 1) * 10**6, "device_bytes": 10**6 if rank == 3 else 0}
            write(tmp_path, rank, step_record(rank, step, 4, step + 1.0) | more)
    live = RunMemory()
    live.update(run.read_all())
    data = live.source.data
    assert data["ys"] == [[r] * 3 for r in (1, 2, 3, 4)]
    assert data["colour"][0] == data["colour"][1] != data["colour"][2]
    assert data["stage"] == ["0", "0", "1", "1"]
    assert live.device_source.data["rank"] == ["3 · d3"]


def hostile_run(folder, plan):  # noqa: F811
    cluster = plan.problem.cluster
    sites = tuple(site.replace(name=f"{HOSTILE}{i}") for i, site in enumerate(cluster.sites))
    names = {old.name: new.name for old, new in zip(cluster.sites, sites, strict=True)}
    hosts = tuple(host.replace(site=names[host.site]) for host in cluster.hosts)
    links = tuple(
        link.replace(from_site=names[link.from_site], to_site=names[link.to_site]) for link in cluster.site_links
    )
    problem = plan.problem.replace(
        cluster=cluster.replace(name=HOSTILE, sites=sites, hosts=hosts, site_links=links), rehearsal_of=HOSTILE
    )
    evil = plan.replace(problem=problem)
    write_run(folder, evil, measured=durations(evil, 2.0), predicted=durations(evil), state="failed")
    status = {"run": "r", "state": "failed", "created_unix_s": 0.0, "ranks": 2, "failed_rank": 1}
    write_status(folder / "status.json", RunStatus(**status, message=HOSTILE, last_lines=(HOSTILE, "'\"<b>bold</b>")))
    save_config(TrainConfig(steps=6, data=HOSTILE), folder / "run.json")
    write(folder, 0, {"type": "experts", "step": 1, "stage": 0, "op": HOSTILE, "tokens": [3, 1]})
    write(folder, 1, {"type": "validation", "step": 1, "loss_sum": 6.0, "num_tokens": 2, "num_correct": 1})
    write(folder, 1, {"type": "error", "text": HOSTILE, "traceback": "", "time_s": 5.0})
    return Run(folder, "r", folder / "home")


def test_the_report_is_one_file_without_a_request_and_escapes_what_others_wrote(plan, tmp_path, caplog):  # noqa: F811
    folder = tmp_path / "run"
    folder.mkdir()
    importlib.import_module("panel")  # registers scripts of its own, which the report must not link to
    with caplog.at_level(logging.WARNING):
        text = report_page(hostile_run(folder, plan))
    assert caplog.records == []
    assert "<img src=x" not in text
    assert "<b>bold" not in text
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)
    assert "default-src 'none'" in text
    for words in (
        "Where a step&#x27;s time goes",
        "Last words of rank 1",
        "accuracy 50.0%",
        "Tokens of each expert",
        "The largest difference is compute",
    ):
        assert words in text or words.replace("&#x27;", "'") in text


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_ended_early_has_a_page_too(plan, tmp_path, steps):  # noqa: F811
    run = write_run(tmp_path, plan, measured=durations(plan), predicted=None, state="failed", steps=steps)
    run.home = tmp_path / "home"
    assert "There is nothing to compare" in report_page(run)


def test_the_command_writes_the_page(plan, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    folder, page = tmp_path / "run", tmp_path / "report.html"
    folder.mkdir()
    write_run(folder, plan, measured=durations(plan), predicted=durations(plan))
    done = CliRunner().invoke(app, ["runs", "report", str(folder), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    refused = CliRunner().invoke(app, ["runs", "report", str(folder), "--html", str(tmp_path / "no" / "r.html")])
    assert isinstance(refused.exception, InvalidInput)
