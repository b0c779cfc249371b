"""A real run is followed by every sink after the terminal that started it is gone; all hold what its report says."""

import json
import os
import subprocess
import sys

import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.directory import find_run
from hetplanner.runs.reports.report import report_run
from hetplanner.runs.run import open_run
from hetplanner.runs.sinks.record import read_record
from hetplanner.runs.sinks.registry import SINKS
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.processes.patience import until
from tests.support.runs.sink_readers import READERS

pytestmark = pytest.mark.distributed

STEPS = 6


def hetplanner(*words: str) -> str:
    code = "from hetplanner.cli import main; main()"
    command = [sys.executable, "-c", code, *words, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout


def test_every_sink_of_a_real_run_holds_what_its_report_says(client, home, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "HETPLANNER_PROMETHEUS_DIR"):
        monkeypatch.delenv(name, raising=False)
    save_plan(chain_plan([2, 2], [4], cluster=small_cluster(4)), home / "plan.json")
    sinks = [word for name in sorted(SINKS) for word in ("--sink", name)]
    run_id = json.loads(hetplanner("train", str(home / "plan.json"), f"--steps={STEPS}", "--detach", *sinks))["id"]
    path = find_run(run_id, home)[1].path

    def records():
        return {name: read_record(path, name) for name in SINKS}

    until(lambda: all(record.step == STEPS - 1 for record in records().values()), records)
    run = open_run(run_id, home)
    summary, losses = run.summary(), dict(report_run(run, run_id).losses)
    assert len(losses) == STEPS
    assert not any(record.error for record in records().values())
    for name, read in READERS.items():
        found = wait_for(read, path, run_id, 1 if name == "prometheus" else STEPS)
        for step, (_, values) in found.items():
            assert values["loss"] == pytest.approx(losses[step], rel=1e-6), name
            assert values["predicted_step_seconds"] == pytest.approx(summary["predicted_step_s"], rel=1e-6)
            assert values["memory_bytes"] > 1e6
        assert found[STEPS - 1][1]["sent_bytes"] == pytest.approx(summary["bytes_boundary"] + summary["bytes_reduce"])
    before = records()
    again = hetplanner("runs", "send", run_id, *(word.replace("--sink", "--to") for word in sinks))
    assert [json.loads(line)["step"] for line in again.splitlines()] == [STEPS - 1] * len(SINKS)
    for name in SINKS:
        assert len(READERS[name](path, run_id)) == (1 if name == "prometheus" else STEPS)
    assert records() == before
    assert os.stat(path / "sinks").st_mode & 0o777 == 0o700


def wait_for(read, path, run_id, count):
    """What a sink holds once its process has written all of it: some write when they are closed."""

    def found():
        try:
            return read(path, run_id)
        except (OSError, AssertionError):
            return {}

    until(lambda: len(found()) == count)
    return read(path, run_id)
