"""Captures of configs are kept by a digest; what is damaged, or others may write, is captured anew."""

import json
import os
import threading
import time

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.reading import noting
from hetplanner.workload.capturing import capture as capturing
from hetplanner.workload.capturing import kept as kept_captures
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.capturing.kept import captures_folder, digest_of, keep_capture, kept_capture, packed
from hetplanner.workload.presets import preset
from tests.support.models.captured_models import RESNET


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_second_capture_of_a_config_starts_no_process(home, tmp_path, monkeypatch):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(RESNET))
    first, told = capture_config(config), []
    with monkeypatch.context() as without:
        without.setattr(capturing, "_captured", None)
        assert capture_config(config, on_kept=lambda: told.append("kept")) == first
        assert told == ["kept"]
        for other in ({"micro_batch": 2}, {"fresh": True}):
            with pytest.raises(InvalidInput, match="not callable"):  # it would start a process
                capture_config(config, **other)


def test_a_digest_is_of_all_that_decides(monkeypatch):
    request = {"config": {"model_type": "bert"}, "seq_len": 16}
    digest = digest_of(request)
    assert digest == digest_of(dict(reversed(request.items())))
    assert digest != digest_of(request | {"seq_len": 8})
    monkeypatch.setattr(kept_captures, "_version", lambda name: "0")
    assert digest != digest_of(request)


def test_a_damaged_file_is_told_in_a_line_and_not_taken(home):
    workload, told = preset("tiny-resnet"), []
    keep_capture("a", workload)
    path = captures_folder() / "a.json.gz"
    assert kept_capture("a") == workload
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (whole[:-20], bytes(flipped), b"", b"not gzip", packed(workload)[:12]):
        path.write_bytes(damaged)
        with noting(told.append):
            assert kept_capture("a") is None
    assert told
    assert all("the model is captured anew" in line and "\n" not in line for line in told)


def test_what_others_may_write_is_not_taken(home):
    keep_capture("a", preset("tiny-resnet"))
    captures_folder().chmod(0o777)
    assert kept_capture("a") is None
    keep_capture("b", preset("tiny-resnet"))
    assert not (captures_folder() / "b.json.gz").exists()


def test_a_folder_that_cannot_be_made_keeps_nothing(home):
    home.write_text("a file in its place")
    keep_capture("a", preset("tiny-resnet"))
    assert kept_capture("a") is None


def test_the_files_used_least_recently_make_room(home, monkeypatch):
    workload = preset("tiny-resnet")
    monkeypatch.setattr(kept_captures, "MAX_KEPT_BYTES", int(2.5 * len(packed(workload))))
    for age, name in enumerate("ab"):
        keep_capture(name, workload)
        os.utime(captures_folder() / f"{name}.json.gz", (age, age))
    assert kept_capture("a") is not None  # and used now
    draft = captures_folder() / ".killed.draft"
    draft.touch()
    os.utime(draft, (0, time.time() - 2 * kept_captures.DRAFT_AGE_S))
    keep_capture("c", workload)
    assert sorted(path.name for path in captures_folder().iterdir()) == ["a.json.gz", "c.json.gz"]


def test_writers_at_one_time_leave_one_whole_file(home):
    workload = preset("tiny-resnet")
    writers = [threading.Thread(target=keep_capture, args=("a", workload)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [path.name for path in captures_folder().iterdir()] == ["a.json.gz"]
    assert kept_capture("a") == workload
