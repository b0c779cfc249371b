"""What happened to a run, how its links were used, who was late, what the logs say; without any process."""

import json

import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.trace import Span
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.audit import audit_path, audit_records
from hetplanner.runs.reading.events import life_spans, run_events
from hetplanner.runs.reading.history import span_lines
from hetplanner.runs.reading.loads import link_loads, site_loads
from hetplanner.runs.reading.log_search import search_logs
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.telemetry import MAX_SPANS, RankTelemetry
from hetplanner.runs.reports.comparison import Comparer
from hetplanner.runs.reports.stragglers import stragglers
from hetplanner.runs.status import RunStatus, write_status
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.runs.fake_ranks import phase, step_record, write
from tests.unit.runs.reports.test_report import durations, untied, write_run


def a_run(folder, **changes):
    plan = chain_plan(shares=(1, 1), cuts=(4,), cluster=small_cluster(4, bandwidth="8 Mbit/s"))
    save_plan(plan, folder / "plan.json")
    save_config(TrainConfig(steps=5), folder / "run.json")
    status = RunStatus(**{"run": "r", "state": "running", "created_unix_s": 1000.0, "ranks": 4} | changes)
    write_status(folder / "status.json", status)
    return RunReader(folder), status


def audit(home, *records):
    with audit_path(home).open("a") as file:
        for record in records:
            file.write((record if isinstance(record, str) else json.dumps(record)) + "\n")


def test_a_life_is_told_in_order_and_what_all_ranks_say_is_said_once(tmp_path):
    run, status = a_run(tmp_path, state="failed", message="rank 2 died", ended_unix_s=1010.0, failed_rank=2)
    for rank in range(4):
        lines = [{"type": "phase", "name": name, "time_s": 1001.0 + i + rank / 10}
                 for i, name in enumerate(("importing", "building", "training"))]  # fmt: skip
        write(tmp_path, rank, *lines, {"type": "origin", "unix_s": 1004.0}, step_record(rank, 0, 4, 0.5))
        write(tmp_path, rank, {"type": "checkpoint", "step": 1, "bytes": 3})
    write(tmp_path, 2, {"type": "error", "text": "ValueError: <b>bad</b>", "traceback": "", "time_s": 1009.0})
    write(tmp_path, 3, {"type": "error", "text": "Connection closed", "traceback": ""})
    events = run_events(run.read_all(), status)
    assert [(e.kind, e.rank, e.text) for e in events] == [
        ("agent", None, "handed to the agent"),
        ("phase", None, "importing"),
        ("phase", None, "building"),
        ("phase", None, "training"),
        ("checkpoint", None, "checkpoint of step 1"),
        ("error", 3, "Connection closed"),
        ("error", 2, "ValueError: <b>bad</b>"),
        ("end", None, "failed: rank 2 died"),
    ]
    assert events[1].time_s == pytest.approx(1001.3), "when the last rank was there"
    assert events[4].time_s == pytest.approx(1004.5), "a checkpoint without a time is as old as the step before it"
    spans = {(s.rank, s.phase): (s.start_s, s.end_s, s.is_open) for s in life_spans(run, status, 2000.0)}
    assert spans[0, "training"] == (1003.0, 1010.0, False)
    assert spans[2, "training"] == (pytest.approx(1003.2), 1009.0, False)


def test_restarts_are_told_with_their_reason_and_earlier_lives_stay(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "run"
    folder.mkdir()
    run, status = a_run(folder)
    common = {"run": "r", "uid": 0, "directory": "d"}
    audit(
        home,
        {"time_s": 1000.0, "event": "submit"} | common,
        {"time_s": 1004.0, "event": "restart", "why": "rank 1 was killed"} | common,
        {"time_s": 1004.0, "event": "launch"} | common | {"run": "another"},
        "no json", "[]", json.dumps({"time_s": float("nan"), "event": "launch"} | common),
    )  # fmt: skip
    for rank in range(4):
        write(folder, rank, {"type": "phase", "name": "training", "time_s": 1001.0})
        write(folder, rank, {"type": "restart", "attempt": 1, "time_s": 1005.0})
        write(folder, rank, {"type": "phase", "name": "training", "time_s": 1006.0})
        write(folder, rank, {"type": "resumed", "step": 3, "source": "d", "skipped": []})
    events = run_events(run.read_all(), status, audit_records(home, run="r"))
    assert [e.text for e in events if e.kind != "resumed"] == [
        "handed to the agent", "training", "restarted, since rank 1 was killed", "training",
    ]  # fmt: skip
    assert [(s.start_s, s.end_s, s.is_open) for s in life_spans(run, status, 1010.0) if s.rank == 0] == [
        (1001.0, 1005.0, False),
        (1006.0, 1010.0, True),
    ]
    assert [r.run for r in audit_records(home, since_s=1003.0)] == ["r", "another"]


def links_line(peer, num_bytes, steps=2, late=0):
    row = {"peer": peer, "role": "activation", "sent": 0, "sent_bytes": 0, "taken": 4, "taken_bytes": num_bytes}
    return {"type": "links", "step": 1, "steps": steps, "links": [row | {"wait_s": 0.4, "late": late, "late_s": 0.1}]}


def test_loads_are_bytes_over_time_against_the_links_of_the_plan(tmp_path):
    run, _ = a_run(tmp_path)
    assert link_loads(run.read_all()) == []
    for rank in range(4):
        write(tmp_path, rank, *(step_record(rank, step, 4, step + 1.0) for step in range(3)))
    write(tmp_path, 2, links_line(0, 1_000_000, late=3))
    write(tmp_path, 3, links_line(1, 100_000), links_line(99, 5))
    full, small = link_loads(run.read_all())
    assert (full.source, full.target, full.source_device, full.target_device) == (0, 2, "d0", "d2")
    assert full.bytes_per_step == full.bytes_per_s == 500_000
    assert full.share == pytest.approx(0.5), "of 8 Mbit/s"
    assert (full.late, full.wait_s) == (3, pytest.approx(0.2))
    assert small.share == pytest.approx(0.025), "two lines count four steps"
    sites = site_loads(run, [full, small])
    assert [(s.source, s.target, s.busiest) for s in sites] == [
        ("site-0", "site-2", full), ("site-1", "site-3", small),
    ]  # fmt: skip


def test_the_rank_that_is_slower_than_the_others_is_the_straggler(tmp_path):
    plan = chain_plan(shares=(3,), cuts=(4,), cluster=small_cluster(2), workload=untied(6))
    slow = durations(plan, 1.0)
    slow.forward_s_C[1] *= 3
    slow.backward_s_C[1] *= 3
    run = write_run(tmp_path, plan, measured=slow, predicted=durations(plan))
    run.read_all()
    found = Comparer(run).compare(run.trace(5))
    (first, *_) = stragglers(found.ranks, found.links, found.step_s["measured"])
    assert first.rank == 1
    assert first.text.startswith("Rank 1 (d1) computes ")
    assert stragglers(found.ranks, found.links, None) == []


def test_a_machine_that_is_slow_as_a_whole_has_no_straggler(tmp_path):
    plan = chain_plan(shares=(3,), cuts=(4,), cluster=small_cluster(2), workload=untied(6))
    run = write_run(tmp_path, plan, measured=durations(plan, 2.0), predicted=durations(plan))
    run.read_all()
    found = Comparer(run).compare(run.trace(5))
    assert [s for s in stragglers(found.ranks, found.links, found.step_s["measured"]) if "computes" in s.text] == []
    assert found.terms["measured"].compute == pytest.approx(2 * found.terms["predicted"].compute)


def test_words_are_found_in_all_logs_with_their_lines(tmp_path):
    (tmp_path / "a").write_text("one\nERROR two\nthree\n")
    (tmp_path / "b").write_text("an error\n" * 1000)
    logs = [("0", tmp_path / "a"), ("1", tmp_path / "b"), ("2", tmp_path / "missing")]
    hits = search_logs(logs, "Error")
    assert (hits[0].source, hits[0].number, hits[0].line) == ("0", 2, "ERROR two")
    assert hits[-1].number == 1000
    assert len(hits) == 301
    assert search_logs(logs, "nowhere") == []


# -- scrolling back -------------------------------------------------------------------------------


def span_line(step, micro_batch=0):
    return {"type": "span"} | Span(0, "forward", step, micro_batch, float(step), step + 0.5, stage=0).to_dict()


def test_spans_far_back_are_found_in_the_file(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    with path.open("w") as file:
        for step in range(4000):
            for micro_batch in range(3):
                file.write(json.dumps(span_line(step, micro_batch)) + "\n")
            file.write(json.dumps({"type": "step", "step": step}) + "\n")
    for last in (0, 1, 7, 2000, 3999):
        lines = [json.loads(line) for line in span_lines(path, last, 2)]
        assert [(x["step"], x["micro_batch"]) for x in lines] == [
            (s, m) for s in (last - 1, last) if s >= 0 for m in range(3)
        ]
    assert span_lines(tmp_path / "none", 3, 2) == []


def test_a_reader_goes_back_beyond_what_it_keeps(tmp_path):
    run, _ = a_run(tmp_path)
    per_step = 20
    last = MAX_SPANS // per_step + 200
    for rank in range(4):
        with (tmp_path / f"rank-{rank}.jsonl").open("w") as file:
            for step in range(last + 1):
                for micro_batch in range(per_step if rank == 0 else 1):
                    file.write(json.dumps(span_line(step, micro_batch) | {"rank": rank}) + "\n")
                file.write(json.dumps(step_record(rank, step, 4, step + 0.9)) + "\n")
    run.read_all()
    assert {s.step for s in run.trace(3).spans} == {last - 2, last - 1, last}
    old = run.trace(3, until=50)
    assert {s.step for s in old.spans} == {48, 49, 50}
    assert sum(s.rank == 0 for s in old.spans) == 3 * per_step


def test_what_happens_is_bounded(tmp_path):
    telemetry = RankTelemetry(0, tmp_path / "rank-0.jsonl")
    with (tmp_path / "rank-0.jsonl").open("w") as file:
        for i in range(2000):
            file.write(json.dumps(phase("training") | {"time_s": i}) + "\n")
    while telemetry.poll(2**20):
        pass
    assert len(telemetry.happenings) == 500


def test_a_failed_checkpoint_and_lost_lines_are_told_and_end_no_phase(tmp_path):
    run, status = a_run(tmp_path, state="finished", ended_unix_s=1010.0)
    for rank in range(4):
        write(tmp_path, rank, {"type": "phase", "name": "training", "time_s": 1001.0})
        write(
            tmp_path, rank, {"type": "checkpoint", "step": 2, "error": "rank 1 could not: disk full", "time_s": 1005.0}
        )
    write(tmp_path, 1, {"type": "lost", "lines": 37, "time_s": 1006.0})
    told = [(e.kind, e.text) for e in run_events(run.read_all(), status) if e.kind == "degraded"]
    assert told == [
        ("degraded", "checkpoint of step 2: rank 1 could not: disk full"),
        ("degraded", "37 lines of rank 1's telemetry lost: the disk did not take them (1 of 4 ranks)"),
    ]
    assert run.lost_lines == run.summary()["lost_lines"] == 37
    assert run.corrupted_lines == 0
    spans = {(s.rank, s.phase): s.end_s for s in life_spans(run, status, 2000.0)}
    assert spans[1, "training"] == 1010.0
