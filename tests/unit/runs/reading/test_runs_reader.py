import json
import math

import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.trace import Span
from hetplanner.plan.traffic import LinkTraffic
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.tail import MAX_LINE_BYTES, LineTail, last_lines, text_from
from hetplanner.runs.reading.telemetry import RankTelemetry
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus, write_status
from tests.support.plans.factories import chain_plan
from tests.support.processes.imported import imported
from tests.support.runs.fake_ranks import phase, step_record, write

NUM_RANKS = 4


@pytest.fixture
def run_dir(tmp_path):
    save_plan(chain_plan(shares=(1, 1), cuts=(4,)), tmp_path / "plan.json")
    save_config(TrainConfig(steps=5), tmp_path / "run.json")
    write_status(tmp_path / "status.json", RunStatus(run="r", state="running", created_unix_s=0.0, ranks=NUM_RANKS))
    return tmp_path


def write_step(run_dir, step, end_s, ranks=range(NUM_RANKS)):
    for rank in ranks:
        write(run_dir, rank, step_record(rank, step, NUM_RANKS, end_s))


def write_span(run_dir, rank, step, start_s, end_s):
    span = Span(rank, "forward", step, 0, start_s, end_s, stage=0)
    write(run_dir, rank, {"type": "span", **span.to_dict()})


# -- lines of a growing file ----------------------------------------------------------------------


def test_a_partial_last_line_waits_for_its_end(tmp_path):
    path = tmp_path / "f"
    tail = LineTail(path)
    assert list(tail.lines(100)) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines(100)) == [b"one"]
    assert tail.is_behind
    path.write_bytes(b"one\ntwo\n\nthree\n")
    assert list(tail.lines(100)) == [b"two", b"three"]
    assert not tail.is_behind


def test_a_poll_reads_no_more_than_its_share(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789\n" * 100)
    tail = LineTail(path)
    assert len(list(tail.lines(120))) == 10
    rest = 0
    while got := len(list(tail.lines(120))):
        rest += got
    assert rest == 90


def test_a_line_longer_than_the_share_is_read_whole(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 500 + b"\nshort\n")
    tail = LineTail(path)
    lines = list(tail.lines(10))
    assert [len(line) for line in lines] == [500, 5]


def test_an_endless_line_is_dropped_and_counted(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"good\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\nafter\n")
    tail = LineTail(path)
    lines = []
    while tail.is_behind:
        lines += tail.lines(MAX_LINE_BYTES)
    assert lines == [b"good", b"after"]
    assert tail.long_lines == 1


def test_of_a_huge_file_only_the_end_is_read(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"".join(b"%08d\n" % i for i in range(1000)))
    tail = LineTail(path, max_backlog_bytes=95)
    assert list(tail.lines(1000)) == [b"%08d" % i for i in range(990, 1000)]
    assert tail.skipped_bytes == 9000 - 95
    assert tail.long_lines == 0


def test_a_file_that_shrank_is_read_from_the_start(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\n")
    tail = LineTail(path)
    list(tail.lines(100))
    path.write_bytes(b"new\n")
    assert list(tail.lines(100)) == [b"new"]


def test_logs_are_read_by_cursor_and_never_cut_a_character(tmp_path):
    path = tmp_path / "log"
    assert text_from(path, 0) == ("", 0)
    path.write_text("aé×\n🙂 end")
    cursor, text = 0, ""
    for _ in range(20):
        part, cursor = text_from(path, cursor, 5)
        text += part
    assert text == "aé×\n🙂 end"
    assert cursor == path.stat().st_size
    assert text_from(path, -1, 4) == (" end", cursor)
    path.write_bytes(b"ok \xff\xfe bad\n")
    assert text_from(path, 0)[0] == "ok �� bad\n"


def test_last_lines_are_short_and_not_blank(tmp_path):
    path = tmp_path / "log"
    path.write_text("a\n\nb\n" + "c" * 1000 + "\n")
    assert last_lines(path, 2) == ["b", "c" * 400]
    assert last_lines(tmp_path / "none", 2) == []


# -- telemetry of all ranks -----------------------------------------------------------------------


def test_loss_is_the_sum_over_ranks_by_tokens(run_dir):
    first = step_record(2, 0, NUM_RANKS, 1.0) | {"loss_sum": 90.0, "num_tokens": 30}
    second = step_record(3, 0, NUM_RANKS, 1.0) | {"loss_sum": 10.0, "num_tokens": 10}
    write(run_dir, 2, first)
    write(run_dir, 3, second)
    write_step(run_dir, 0, 1.0, ranks=(0, 1))
    reader = RunReader(run_dir)
    assert reader.poll()
    assert reader.losses() == [(0, 2.5)]
    assert reader.steps()[0].num_tokens == 40  # stages that compute no loss report tokens, too: not counted twice
    assert not reader.poll()


def test_a_step_counts_when_every_rank_has_reported_it(run_dir):
    reader = RunReader(run_dir)
    write_step(run_dir, 0, 1.0)
    write_step(run_dir, 1, 2.0, ranks=(0, 1, 3))
    reader.poll()
    assert [s.step for s in reader.steps()] == [0]
    write_step(run_dir, 1, 2.0, ranks=(2,))
    write_step(run_dir, 2, 2.5)
    reader.poll()
    assert [s.step for s in reader.steps(after=0)] == [1, 2]
    assert reader.steps(after=2) == []


def test_step_time_is_the_median_without_step_0(run_dir):
    for step, end_s in enumerate([9.0, 10.0, 12.0, 12.5]):
        write_step(run_dir, step, end_s)
    reader = RunReader(run_dir).read_all()
    assert reader.step_times_s() == [1.0, 2.0, 0.5]
    assert reader.measured_step_s() == 1.0
    assert reader.tokens_per_s() == pytest.approx(3 * 128 / 3.5)


def test_totals_and_summary(run_dir):
    for step in range(3):
        write_step(run_dir, step, 1.0 + step)
    (run_dir / "prediction.json").write_text(
        json.dumps({"format": "hetplanner/prediction@1", "step_s": 1.1, "catalog_step_s": 0.2})
    )
    summary = RunReader(run_dir).summary()
    assert summary["status"] == "running"
    assert summary["steps"] == 3
    assert summary["final_loss"] == pytest.approx(4.98)
    assert (summary["measured_step_s"], summary["predicted_step_s"]) == (1.0, 1.1)
    assert (summary["bytes_boundary"], summary["bytes_reduce"]) == (1200, 120)
    assert summary["late"] == 12
    assert summary["late_s"] == pytest.approx(0.012)
    assert summary["catalog_step_s"] == 0.2


def test_steps_whose_lines_were_cut_were_done_all_the_same(run_dir):
    for step in (0, 1, 4, 5):
        write_step(run_dir, step, 1.0 + step)
    assert RunReader(run_dir).summary()["steps"] == 6


def test_an_empty_run_has_an_empty_summary(run_dir):
    summary = RunReader(run_dir).summary()
    assert summary["steps"] == 0
    assert summary["final_loss"] is summary["measured_step_s"] is summary["predicted_step_s"] is None


def test_validation_is_joined_over_ranks(run_dir):
    for rank, tokens in ((2, 10), (3, 30)):
        write(run_dir, rank, {"type": "validation", "step": 4, "loss_sum": 2.0 * tokens, "num_tokens": tokens})
    assert RunReader(run_dir).read_all().validation_losses() == [(4, 2.0)]
    (found,) = RunReader(run_dir).read_all().evaluations()
    assert found.perplexity == pytest.approx(math.exp(2.0))
    assert found.accuracy is None, "telemetry of an earlier version does not tell"


def test_phases_of_starting(run_dir):
    reader = RunReader(run_dir)
    assert reader.phase() is None
    for rank in range(NUM_RANKS):
        write(run_dir, rank, phase("importing"))
    write(run_dir, 0, phase("connecting"), phase("building"))
    reader.poll()
    assert reader.phase() == "importing"
    assert list(reader.phases()) == ["importing", "connecting", "building"]
    assert set(reader.phases()["connecting"]) == {0}


def test_damaged_lines_are_counted_and_passed_over(run_dir):
    bad = [
        "not json",
        "[]",
        '{"type": "surprise"}',
        '{"type": "step", "step": -1}',
        '{"type": "phase", "name": "exploding", "time_s": 1}',
        '{"type": ["step"]}',
        "[" * 100_000,
        json.dumps(step_record(0, 0, NUM_RANKS, 1.0) | {"boundary_bytes": "many"}),
        '{"type": "span", "rank": "x"}',
    ]
    (run_dir / "rank-0.jsonl").write_text("\n".join(bad) + "\n\xff\n")
    write_step(run_dir, 0, 1.0)
    reader = RunReader(run_dir).read_all()
    assert len(reader.losses()) == 1
    assert reader.corrupted_lines == len(bad) - 1 + 1  # the span is only looked at when a trace is asked for
    assert reader.trace().spans == ()


def test_a_step_reported_twice_counts_once(run_dir):
    write_step(run_dir, 0, 1.0)
    write_step(run_dir, 0, 2.0)
    reader = RunReader(run_dir).read_all()
    assert [s.end_s for s in reader.steps()] == [1.0]
    assert reader.bytes_boundary == 400
    assert reader.corrupted_lines == 4


def test_a_step_whose_line_was_damaged_leaves_the_curve(run_dir):
    for step in range(3):
        write_step(run_dir, step, 1.0 + step, ranks=(0, 1, 2) if step == 1 else range(NUM_RANKS))
    assert [s.step for s in RunReader(run_dir).read_all().steps()] == [0, 2]


def test_the_trace_holds_the_last_steps(run_dir):
    for step in range(6):
        for rank in range(NUM_RANKS):
            write_span(run_dir, rank, step, float(step), step + 0.5)
        write_step(run_dir, step, step + 0.9)
    write_span(run_dir, 0, 6, 6.0, 6.5)  # of a step that is not over
    trace = Run(run_dir).trace(last_steps=2)
    assert {span.step for span in trace.spans} == {4, 5}
    assert len(trace.spans) == 2 * NUM_RANKS
    assert trace.origin == "measured"
    assert trace.rank_labels == ("d0", "d1", "d2", "d3")
    assert trace.spans[0] == Span(0, "forward", 4, 0, 4.0, 4.5, stage=0)


def test_the_trace_of_a_long_run_holds_the_last_steps_that_left_spans(run_dir):
    for step in (5000, 5001, 5100, 5101, 5102):
        for rank in range(NUM_RANKS):
            if step != 5102:
                write_span(run_dir, rank, step, float(step), step + 0.5)
        write_step(run_dir, step, step + 0.9)
    assert {span.step for span in Run(run_dir).trace(last_steps=2).spans} == {5100, 5101}
    assert {span.step for span in Run(run_dir).trace(last_steps=3).spans} == {5001, 5100, 5101}


def test_queue_depths_and_memory_come_with_the_trace(run_dir):
    depth = {"in_flight": 2, "posted": 3, "held": 1}
    for rank in range(NUM_RANKS):
        span = Span(rank, "forward", 0, 0, 0.0, 0.5, stage=0).to_dict()
        write(run_dir, rank, {"type": "span"} | span | (depth if rank == 1 else {}))
        more = {"grad_square": 4.0, "in_flight": rank, "held": 7 - rank, "device_bytes": 10**6 * (rank == 3)}
        write(run_dir, rank, step_record(rank, 0, NUM_RANKS, 1.0) | more | {"grad_norm": None})
    run = Run(run_dir)
    samples = run.trace().samples
    assert {(s.name, s.value, s.time_s) for s in samples if s.rank == 1} == {
        ("micro-batches in flight", 2.0, 0.5), ("receives posted", 3.0, 0.5), ("messages held", 1.0, 0.5),
        ("memory (MB)", 1000 / 1e6, 1.0),
    }  # fmt: skip
    assert [s.value for s in samples if s.name == "accelerator memory (MB)"] == [1.0]
    counters = [e for e in run.trace().to_perfetto()["traceEvents"] if e["ph"] == "C"]
    assert {"name": "messages held", "pid": 1, "ts": 0.5e6, "args": {"value": 1.0}}.items() <= counters[2].items()
    (step,) = run.steps()
    assert (step.grad_norm, step.in_flight, step.held, step.device_bytes) == (4.0, 3, 7, 10**6)


def test_links_add_up_over_their_lines(run_dir):
    row = {"peer": 1, "role": "activation", "sent": 2, "sent_bytes": 100, "taken": 0, "taken_bytes": 0,
           "wait_s": 0.25, "late": 1, "late_s": 0.5}  # fmt: skip
    write(run_dir, 0, {"type": "links", "step": 3, "steps": 4, "links": [row]})
    write(run_dir, 0, {"type": "links", "step": 7, "steps": 4, "links": [row, row | {"peer": 2}]})
    write(run_dir, 0, {"type": "links", "step": 8, "steps": 1, "links": [row | {"wait_s": float("nan")}]})
    first, second, *_ = RunReader(run_dir).read_all().ranks
    assert first.links[1, "activation"] == LinkTraffic(4, 200, 0, 0, 0.5, 2, 1.0)
    assert first.links[2, "activation"].sent_bytes == 100
    assert (first.links_steps, first.corrupted) == (8, 1)
    assert (second.links, second.links_steps) == ({}, 0)


def test_memory_of_a_long_run_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("hetplanner.runs.reading.telemetry.MAX_STEPS", 50)
    for step in range(80):
        write(tmp_path, 0, step_record(0, step, 1, float(step)))
    telemetry = RankTelemetry(0, tmp_path / "rank-0.jsonl")
    telemetry.poll(10**6)
    assert list(telemetry.steps) == list(range(30, 80))
    assert telemetry.boundary_bytes == 80 * 100


def test_memory_is_known_of_the_whole_of_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hetplanner.runs.reading.telemetry.MAX_STEPS", 50)
    monkeypatch.setattr("hetplanner.runs.reading.telemetry.MAX_MEMORY_POINTS", 20)
    for step in range(80):
        write(tmp_path, 0, step_record(0, step, 1, float(step)) | {"memory_bytes": 1000 + step})
    telemetry = RankTelemetry(0, tmp_path / "rank-0.jsonl")
    telemetry.poll(10**6)
    assert [(step, held) for step, held, _ in telemetry.memory] == [(s, 1000 + s) for s in range(0, 80, 4)]


def test_no_step_is_lost_between_ranks_whose_files_differ_in_size(run_dir, monkeypatch):
    monkeypatch.setattr("hetplanner.runs.reading.telemetry.MAX_STEPS", 300)
    monkeypatch.setattr("hetplanner.runs.reading.reader.MAX_AHEAD", 20)
    monkeypatch.setattr("hetplanner.runs.reading.reader.MAX_SHARE", 30_000)
    ranks = range(len(RunReader(run_dir).ranks))
    for rank in ranks:
        steps = [step_record(rank, step, 1, float(step)) for step in range(2000)]
        long = {"type": "phase", "phase": "training", "time_s": 1.0, "words": "x" * 400}
        write(run_dir, rank, *(line for one in steps for line in ([one, long] if rank == 1 else [one])))
    reader = RunReader(run_dir)
    while reader.poll():
        assert max(len(t.steps) for t in reader.ranks) <= 300
    assert [s.step for s in reader.steps()] == list(range(2000))
    assert all(t.peak_bytes > 0 for t in reader.ranks)
    assert reader.ranks[0].boundary_bytes == 2000 * 100


def test_a_rank_that_ended_early_does_not_hold_up_the_others(run_dir, monkeypatch):
    monkeypatch.setattr("hetplanner.runs.reading.reader.MAX_AHEAD", 5)
    write(run_dir, 0, *(step_record(0, step, 1, float(step)) for step in range(100)))
    write(run_dir, 1, *(step_record(1, step, 1, float(step)) for step in range(3)))
    reader = RunReader(run_dir).read_all()
    assert len(reader.ranks[0].steps) == 100


def test_profile_and_error_are_kept(run_dir):
    write(run_dir, 1, {"type": "profile", "rank": 1, "stage": 0, "forward_s": 0.1})
    write(run_dir, 1, {"type": "error", "text": "first", "traceback": "t"}, {"type": "error", "text": "second"})
    reader = RunReader(run_dir).read_all()
    assert reader.profiles()[1] == {"rank": 1, "stage": 0, "forward_s": 0.1}
    assert reader.ranks[1].error.text == "first"
    assert reader.ranks[0].error is None


def test_logs_by_rank_and_of_the_launcher(run_dir):
    (run_dir / "log-1.txt").write_text("hello\n")
    (run_dir / "launcher.txt").write_text("$ torchrun\n")
    reader = RunReader(run_dir)
    assert reader.log(1) == ("hello\n", 6)
    assert reader.log(1, cursor=6) == ("", 6)
    assert reader.log(None)[0] == "$ torchrun\n"
    assert reader.log(0) == ("", 0)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"step_s": "fast"}'])
def test_a_damaged_prediction_is_none(run_dir, text):
    (run_dir / "prediction.json").write_text(text)
    assert RunReader(run_dir).predicted_step_s() is None


def test_reading_imports_no_torch():
    assert imported("import hetplanner.runs.run, hetplanner.runs.agent.service", "torch") == []
