"""Every file that ever broke a reader, as it was or in small, with what is said of it now."""

import json
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.uploads import cluster_from_uploads
from hetplanner.elastic.coordinator.decisions import decode_decisions
from hetplanner.errors import HetplannerError, InvalidInput, RunError
from hetplanner.plan.files.train_files import resume_chain
from hetplanner.reading import reader, reading
from hetplanner.runs.agent.allowed_paths import read_allowed_paths
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.reports.report import report_run
from hetplanner.runs.run import Run, agent_lives
from hetplanner.swarm.launch.requests import orders_so_far
from hetplanner.workload.files import workload_from_data, workload_to_data
from hetplanner.workload.presets import preset
from tests.support.files.readers import READERS

DIGITS = "9" * 5000


def files_of(name: str, folder: Path) -> Path:
    """The valid files of a reader of the fuzz, in a folder."""
    found = next(each for each in READERS if each.name == name)
    for file, content in found.files().items():
        (folder / file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
        (folder / file).chmod(0o600)
    return folder


# -- a run's telemetry ----------------------------------------------------------------------------


def span(**changed):
    fields = {
        "type": "span", "rank": 0, "kind": "send", "step": 1, "micro_batch": 0, "start_s": 0.1, "end_s": 0.2,
        "bytes": 5, "peer": 1, "stage": 0, "role": "activation",
    }  # fmt: skip
    return fields | changed


@pytest.mark.parametrize(
    "line",
    [
        span(rank=99),
        span(rank=-1),
        span(rank=1),  # in the file of rank 0
        span(peer=99),
        span(peer=-7),
        span(start_s=1e300),
        span(end_s=-1e300),
        span(start_s=0.3),  # behind its end
        span(bytes=10**30),
        span(kind=["send"]),
        span(role={"a": 1}),
        span(micro_batch=0.5),
        {"type": "links", "steps": 3, "links": [{"peer": 99, "role": "activation", "taken": 3}]},
        {"type": "links", "steps": 3, "links": [{"peer": 1, "role": "activation", "taken": 1, "wait_s": 1e300}]},
        {"type": "origin", "unix_s": 1e300},
    ],
    ids=str,
)
def test_a_report_passes_over_lines_of_ranks_and_times_that_there_are_not(tmp_path, line):
    """IndexError in simulator/terms.py and runs/comparison.py, ValidationError in the calibration."""
    folder = files_of("static run", tmp_path)
    before = report_run(Run(folder)).to_data()
    telemetry = folder / "rank-0.jsonl"
    telemetry.write_text(telemetry.read_text() + json.dumps(line) + "\n")
    report = report_run(Run(folder)).to_data()
    assert [row["measured"] for row in report["ranks"]] == [row["measured"] for row in before["ranks"]]


@pytest.mark.parametrize(
    "change",
    [
        {"terms": {"clip": "x"}},
        {"terms": [1]},
        {"step_s": "x"},
        {"durations": {"forward_s_C": [1e300] * 4}},
        {"durations": 5},
    ],
    ids=str,
)
def test_a_report_does_without_what_is_damaged_in_the_prediction(tmp_path, change):
    folder = files_of("static run", tmp_path)
    data = json.loads((folder / "prediction.json").read_text())
    (folder / "prediction.json").write_text(json.dumps(data | change))
    assert report_run(Run(folder)).steps == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cores", 0.0),
        ("cores", -1.0),
        ("cores_N", [0.0] * 4),
        ("overlap", 7.0),
        ("message_s", -1.0),
    ],
)
def test_durations_that_no_machine_has_predict_nothing(tmp_path, field, value):
    folder = files_of("static run", tmp_path)
    data = json.loads((folder / "prediction.json").read_text())
    data["durations"][field] = value
    (folder / "prediction.json").write_text(json.dumps(data))
    assert "predicted" not in report_run(Run(folder)).terms


# -- tables ---------------------------------------------------------------------------------------

HEADERS = ["'''", "(" * 3000, "\x00", "0777", "{'descr': '<f8', 'shape': (2L, 2L), 'fortran_order': False, }", "1 +"]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_headers_of_npy_files(header):
    """tokenize.TokenError, SyntaxError; a header of Python 2 gave a warning of numpy's beside the refusal."""
    text = header.encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with pytest.raises(InvalidInput, match=r"^bandwidth\.npy: "):
        cluster_from_uploads({"bandwidth.npy": content, "latency.csv": b",a\na,\n"})


def test_a_device_given_twice():
    """ValidationError, and on the page an error without words."""
    tables = {"bandwidth.csv": b",a,b\na,,1\nb,1,\n", "latency.csv": b",a,b\na,,5\nb,5,\n"}
    with pytest.raises(InvalidInput, match=r"devices\.csv: devices: device 'a' is there 2 times; keep one row of it"):
        cluster_from_uploads(tables | {"devices.csv": b"id,kind,site\na,T4,X\nb,T4,X\na,T4,X\n"})


def test_a_column_of_control_characters():
    """The message was no line."""
    files = {"site_overrides.csv": b"per,f\xef\xbb\xbfrom,to,bandwidth,\x00\n"} | {
        name: content
        for name, content in next(r for r in READERS if r.name == "uploaded site tables").files().items()
        if name != "overrides.csv"
    }
    with pytest.raises(InvalidInput) as caught:
        cluster_from_uploads(files)
    assert str(caught.value).isprintable()


# -- numbers of too many digits, deep nesting -----------------------------------------------------


def test_numbers_of_too_many_digits(tmp_path):
    """ValueError of Python's own, from TOML and from JSON."""
    (tmp_path / "agent.toml").write_text(f"[data]\nx = {DIGITS}\n")
    (tmp_path / "agent.toml").chmod(0o600)
    with pytest.raises(InvalidInput, match=r"agent\.toml: holds a number of too many digits"):
        read_allowed_paths(tmp_path)
    with pytest.raises(InvalidInput, match=r"c\.json: a whole number has 5000 digits, at most 40 are read; correct it"):
        cluster_from_uploads({"c.json": f'{{"format": "hetplanner/cluster@1", "name": {DIGITS}}}'.encode()})


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, DIGITS, '{"pid": 1e999, "began_s": 1}', '{"pid": [1]}', "7", '{"peer": "a", "attempt": 1e999}'],
    ids=range(6),
)
def test_lines_of_logs_that_are_passed_over(tmp_path, text):
    """RecursionError, OverflowError and AttributeError where ValueError was expected."""
    folder = files_of("audit log", tmp_path)
    (folder / "agent/agent.json").write_text(text)
    assert agent_lives(folder) is False
    known = len(audit_records(folder))
    with (folder / "agent/launches.jsonl").open("a") as file:
        file.write(text + "\n")
    assert len(audit_records(folder)) == known
    (folder / "asked.jsonl").write_text(text + "\n")
    assert orders_so_far(folder) == []


def test_a_chain_of_runs_ends_where_a_path_is_none(tmp_path):
    """UnicodeEncodeError of a lone surrogate."""
    (tmp_path / "run.json").write_text('{"format": "hetplanner/run@1", "resume": "\\ud800"}')
    assert resume_chain(str(tmp_path)) == [tmp_path]


def test_decisions_with_a_right_checksum_that_are_none():
    """KeyError and TypeError."""
    import zlib

    for text in (b'{"kind": "Unheard"}', b"[]", b'{"kind": "Committed", "boot": 1}', b"\xff"):
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        with pytest.raises(RunError, match="decision log: line 1: damaged"):
            decode_decisions(line)


def test_a_header_of_a_tensor_file_is_not_repeated_whole(tmp_path):
    """The library's message held 70,000 characters of the file."""
    from hetplanner.runtime.model.sample import load_model

    folder = files_of("saved model", tmp_path)
    header = json.dumps({"__metadata__": "x" * 70_000}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InvalidInput) as caught:
        load_model(folder)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("offsets", [(0, 2, 4, 10**9), (0, 10**9, 4, 6), (0, 4, 2, 6), (-5, 2, 4, 6)], ids=str)
def test_offsets_of_a_saved_data_set(offsets):
    """SIGBUS and SIGSEGV: Arrow read behind the mapped file; the second row is null, so its length says nothing."""
    import pyarrow as pa

    from hetplanner.data.saved_datasets import _lengths

    mapped = np.array((0, 2, 4, 6), dtype=np.int32)
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(mapped), pa.py_buffer(b"stones")]
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, buffers)})
    assert _lengths(table, "set").tolist() == [2, 0, 2]
    mapped[:] = offsets  # Arrow looks at them when it makes an array, and not when it maps a file
    with pytest.raises(InvalidInput, match=r"^data: set is damaged \(.*; save it again with dataset\.save_to_disk$"):
        _lengths(table, "set")


def test_a_model_that_claims_to_be_huge_takes_no_memory(tmp_path, monkeypatch):
    """12 GB were taken, and filled, before the shapes were compared."""
    from hetplanner.runtime.model import sample

    folder = files_of("saved model", tmp_path)
    info = json.loads((folder / "model.json").read_text())
    info["workload"]["transformer"]["hidden"] = 32_000
    (folder / "model.json").write_text(json.dumps(info))
    monkeypatch.setattr(sample, "StageModel", None)
    with pytest.raises(InvalidInput, match=r"does not fit the model in model\.json"):
        sample.load_model(folder)


def test_a_bare_nan_among_the_arguments_of_a_call_is_refused():
    data = workload_to_data(preset("tiny-resnet"))
    node = next(n for n in data["program"]["nodes"] if any(isinstance(a, float) for a in n["args"]))
    node["args"] = [float("nan") if isinstance(a, float) else a for a in node["args"]]
    with pytest.raises(InvalidInput, match=r"^x\.json: .*numbers must be finite; write \{'float': 'nan'\}"):
        workload_from_data(data, "x.json")


def test_an_object_among_the_arguments_of_a_call_that_holds_no_name_is_refused():
    data = workload_to_data(preset("tiny-resnet"))
    data["program"]["nodes"][3]["args"][0] = {"float": float("inf")}
    with pytest.raises(InvalidInput, match=r"^x\.json: .*an object in the arguments must hold a name, as a string"):
        workload_from_data(data, "x.json")


# -- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        IndexError("x"),
        KeyError("x"),
        RecursionError(),
        MemoryError(),
        OverflowError("x"),
        UnicodeError("x"),
        OSError(5, "I/O"),
    ],
    ids=repr,
)
def test_whatever_a_reader_raises_becomes_a_line_with_the_files_name_and_keeps_its_cause(error):
    @reader("plan file", at="path")
    def read(path):
        raise error

    with pytest.raises(InvalidInput, match=r"^p\.json: .*; ") as caught:
        read(Path("folder/p.json"))
    assert caught.value.__cause__ is error
    with pytest.raises(InvalidInput, match=r"^q\.json: "), reading("q.json", "plan file"):
        raise error


@pytest.mark.parametrize("error", [InvalidInput("x"), RunError("x"), ImportError("x"), NameError("x")], ids=repr)
def test_what_is_said_already_and_what_no_file_can_cause_passes(error):
    with pytest.raises(type(error), match=r"^x$"), reading("q.json", "plan file"):
        raise error


def test_every_error_of_ours_is_one_line():
    assert str(InvalidInput("a\nb\x1b[31m")) == "a\\nb\\x1b[31m"
    assert issubclass(InvalidInput, HetplannerError)
