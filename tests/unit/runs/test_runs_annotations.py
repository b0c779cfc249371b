"""Names, notes and tags of runs, the list that is filtered by them, and runs as CSV."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.annotations import Annotations, matches, read_annotations, write_annotations
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.reading.recent import recent
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.units import short_seconds
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.runs.fake_ranks import step_record, write


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of three steps at 3.6 dollars an hour for all its devices; its id and folder."""
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    cluster = small_cluster(2)
    devices = tuple(device.replace(price_usd_per_hour=1.8) for device in cluster.devices)
    run_id, directory = create_run_directory(
        chain_plan([16], [5], cluster=cluster.replace(devices=devices)), TrainConfig(steps=3)
    )
    status = {"created_unix_s": 5.0, "started_unix_s": 7.0, "ended_unix_s": 9.0}
    write_status(directory.status_file, RunStatus(run=run_id, state="finished", ranks=2, **status))
    for rank in range(2):
        for step in range(3):
            write(directory.path, rank, step_record(rank, step, 2, 1.0 + step))
    return run_id, directory.path


def called(*arguments):
    done = CliRunner().invoke(app, ["runs", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_keeps_its_name_notes_and_tags_and_one_without_them_reads_as_before(run):
    run_id, folder = run
    assert read_annotations(folder) == Annotations()
    assert recent()[0].name == run_id
    called("label", run_id, "--name", "=1+1", "--notes", "two\nlines", "--tags", "a, b,a")
    assert read_annotations(folder) == Annotations(name="=1+1", notes="two\nlines", tags=("a", "b"))
    called("label", run_id, "--tags", "")
    assert json.loads(called("label", run_id, "--json"))["tags"] == []
    (found,) = recent()
    assert (found.name, found.state, found.started_unix_s, found.steps) == ("=1+1", "finished", 7.0, 3)
    assert not found.is_live


def test_the_list_shows_how_far_the_last_steps_are_from_the_prediction(run):
    run_id, folder = run
    (listed,) = json.loads(called("list", "--json"))
    took_s = listed["measured_step_s"]
    assert took_s > 0
    assert listed["predicted_step_s"] is None
    prediction = {"format": "hetplanner/prediction@1", "step_s": took_s / 1.25}
    (folder / "prediction.json").write_text(json.dumps(prediction))
    (row,) = [line for line in called("list").splitlines() if line.startswith(run_id)]
    assert f"{short_seconds(took_s)}, +25%" in row
    (folder / "rank-0.jsonl").write_text("")
    assert json.loads(called("list", "--json"))[0]["measured_step_s"] is None
    assert "%" not in called("list")


@pytest.mark.parametrize("wrong", [{"name": "a\nb"}, {"tags": ("a,b",)}, {"tags": ("",)}, {"notes": "x" * 4001}])
def test_what_is_no_name_note_or_tag_is_refused_and_nothing_changes(run, wrong):
    said = Annotations(name="first")
    write_annotations(run[1], said)
    with pytest.raises(InvalidInput):
        said.replace(**wrong)
    assert read_annotations(run[1]) == said


def test_the_list_is_filtered_by_words_tag_and_state(run):
    run_id, folder = run
    said = Annotations(name="Warm start", notes="lower rate", tags=("gpu",))
    write_annotations(folder, said)
    assert matches(said, run_id, "failed", "RATE warm", "gpu", "failed")
    for text, tag, state in (("cold", "", ""), ("", "cpu", ""), ("", "", "running")):
        assert not matches(said, run_id, "failed", text, tag, state)
    assert [r["run"] for r in json.loads(called("list", "--text", "warm", "--state", "finished", "--json"))] == [run_id]
    assert json.loads(called("list", "--tag", "cpu", "--json")) == []


def test_csv_holds_what_was_spent_and_no_cell_is_a_formula(run):
    run_id, folder = run
    write_annotations(folder, Annotations(name='=HYPERLINK("x")', tags=("@a", "b")))
    rows = list(csv.DictReader(io.StringIO(called("steps", run_id))))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    last = rows[-1]
    assert (last["name"], last["tags"]) == ('\'=HYPERLINK("x")', "'@a, b")
    assert [float(row["dollars"]) for row in rows] == pytest.approx([0.001, 0.002, 0.003])  # no egress has a price
    assert [float(row["bytes"]) for row in rows] == [220.0, 440.0, 660.0]
    assert float(last["tokens_per_s"]) == 64.0
