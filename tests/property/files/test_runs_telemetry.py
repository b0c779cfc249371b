"""Whatever a rank's file holds, and however it grows, reading never fails and never counts twice."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reading.telemetry import RankTelemetry
from hetplanner.runs.reports.diagnosis import diagnose
from tests.support.runs.fake_ranks import step_record

WORDS = st.sampled_from(["phase", "profile", "origin", "span", "step", "links", "validation", "error", "x"])
HUGE = st.sampled_from([10**400, float("inf"), -(2**70)])
SCALARS = st.none() | st.booleans() | st.integers() | HUGE | st.floats() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))
FIELDS = st.sampled_from(
    [
        "name",
        "time_s",
        "rank",
        "unix_s",
        "step",
        "start_s",
        "end_s",
        "loss_sum",
        "num_tokens",
        "kind",
        "text",
        "links",
        "in_flight",
    ]
)
RECORDS = st.builds(lambda word, rest: {"type": word} | rest, WORDS, st.dictionaries(FIELDS, VALUES, max_size=6))
LINES = st.lists(RECORDS.map(lambda r: json.dumps(r).encode()) | st.binary(max_size=60), max_size=20)


@given(LINES)
def test_no_content_breaks_a_reader(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.jsonl"
        path.write_bytes(b"\n".join(lines))
        telemetry = RankTelemetry(0, path)
        while telemetry.poll(50):
            pass
        assert telemetry.corrupted <= sum(line.count(b"\n") + 1 for line in lines)
        spans, samples = telemetry.spans(10**9, 5)
        assert all(span.step >= 0 for span in spans)
        assert len(samples) <= 3 * len(spans)
        found = diagnose(RunDirectory(Path(folder)), ("a",), 1)
        assert "\x00" not in found.message


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 300))
def test_however_a_file_grows_every_step_is_read_once(pieces, share):
    text = b"".join(json.dumps(step_record(0, step, 1, float(step))).encode() + b"\n" for step in range(20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.jsonl"
        telemetry = RankTelemetry(0, path)
        written = 0
        for piece in [*pieces, len(text)]:
            with path.open("ab") as file:
                file.write(text[written : written + piece])
            written += piece
            telemetry.poll(share)
        while telemetry.poll(share):
            pass
        assert list(telemetry.steps) == list(range(20))
        assert telemetry.corrupted == 0
        assert telemetry.boundary_bytes == 20 * 100
