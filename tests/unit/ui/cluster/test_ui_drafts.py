"""Drafts on disk: what is drawn outlives the server."""

import json
import logging
import os
import threading

import pytest

from hetplanner.ui.cluster.models import draft_files
from hetplanner.ui.cluster.models.draft_files import MOST_FILES, DraftFiles
from hetplanner.ui.cluster.models.drafts import Draft, DraftStore, Step
from hetplanner.ui.cluster.models.editor import Editor
from tests.support.plans.factories import small_cluster

CLUSTER = small_cluster(3)


@pytest.fixture
def files(tmp_path):
    return DraftFiles(tmp_path)


def edited(files: DraftFiles) -> Editor:
    """A cluster that was drawn, renamed, and of which a device was left out."""
    editor = Editor(DraftStore(files=files))
    editor.apply(CLUSTER, "drawn")
    editor.edit(lambda cluster: cluster.replace(name="mine"), "renamed")
    editor.exclude([CLUSTER.device_ids[1]], "left one out")
    return editor


def test_another_server_goes_on_with_the_newest_state(tmp_path, files):
    editor = edited(files)
    editor.edit(lambda cluster: cluster.replace(name="worse"), "renamed again")
    editor.undo()
    files.flush()
    later = Editor(DraftStore(files=DraftFiles(tmp_path)))
    assert later.open(editor.draft_id)
    assert (later.cluster, later.excluded) == (editor.cluster, editor.excluded)
    assert later.cluster.name == "mine"
    assert later.draft_id == editor.draft_id
    later.undo()
    assert later.cluster.name == "mine", "its history has gone"
    assert (tmp_path / "drafts").stat().st_mode & 0o777 == 0o700


def test_it_is_written_by_itself_and_once_for_many_edits(tmp_path, files, monkeypatch):
    written = []

    def note(path, text):
        if path.is_relative_to(tmp_path):  # not what other tests left to be written
            written.append(json.loads(text)["words"])

    monkeypatch.setattr(draft_files, "write_text", note)
    edited(files)
    files._timer.join(10)
    assert written == ["left one out"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"format": "hetplanner/draft@2"}',
        '{"format": "hetplanner/draft@1", "cluster": {"name": "x"}}',
        '{"format": "hetplanner/draft@1", "code": "import os"}',
    ],
)
def test_a_file_that_is_none_is_no_draft_and_the_log_says_why(tmp_path, files, caplog, text):
    (tmp_path / "drafts").mkdir()
    (tmp_path / "drafts" / "abcdefghijkl.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert files.load("abcdefghijkl") is None
    assert "draft not read: abcdefghijkl.json" in caplog.text


@pytest.mark.parametrize("draft_id", ["../plans/secret", "..", "a" * 200, "x\0yzabcdef", "", "ünicode-id"])
def test_an_address_cannot_name_another_file(tmp_path, files, draft_id):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "secret.json").write_text('{"format": "hetplanner/draft@1"}')
    assert files.load(draft_id) is None


def test_the_oldest_go_and_a_huge_one_is_not_written(tmp_path, files, monkeypatch):
    drafts = [Draft(Step(CLUSTER)) for _ in range(MOST_FILES + 1)]
    for age, draft in enumerate(drafts):
        files.note(draft)
        files.flush()
        os.utime(tmp_path / "drafts" / f"{draft.id}.json", (1000 + age, 1000 + age))
    files.note(drafts[-1])
    files.flush()
    assert files.load(drafts[0].id) is None
    assert files.load(drafts[1].id) is not None
    monkeypatch.setattr(draft_files, "MOST_WEIGHT", 1)
    files.note(drafts[1])
    files.flush()
    assert files.load(drafts[1].id) is None, "rather none than an old one"


def test_the_end_of_the_server_waits_for_what_is_being_written(tmp_path, files, monkeypatch):
    begun, go_on, real = threading.Event(), threading.Event(), draft_files.write_text

    def slow(path, text):
        begun.set()
        assert go_on.wait(10)
        real(path, text)

    monkeypatch.setattr(draft_files, "write_text", slow)
    editor = edited(files)
    timer = threading.Thread(target=files.flush)
    timer.start()
    assert begun.wait(10)
    threading.Timer(0.2, go_on.set).start()
    files.flush()
    assert (tmp_path / "drafts" / f"{editor.draft_id}.json").is_file()
    timer.join()


def test_a_folder_that_cannot_be_written_costs_no_edit(tmp_path, caplog):
    (tmp_path / "drafts").write_text("a file")
    files = DraftFiles(tmp_path)
    editor = edited(files)
    with caplog.at_level(logging.WARNING):
        files.flush()
    assert "not written" in caplog.text
    assert editor.cluster.name == "mine"
