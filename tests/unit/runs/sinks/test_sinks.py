"""Every sink holds what the run's telemetry says, each step once, and its failures are its own."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import InvalidInput, RunError
from hetplanner.plan.files.plan_files import rank_labels
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.run import open_run
from hetplanner.runs.sinks import registry
from hetplanner.runs.sinks.following import Followers
from hetplanner.runs.sinks.interface import METRICS
from hetplanner.runs.sinks.record import SinkRecord, read_record, words_of, write_record
from hetplanner.runs.sinks.registry import SINKS, check_sinks
from hetplanner.runs.sinks.sending import send
from hetplanner.runs.status import RunStatus, write_status
from tests.support.plans.factories import chain_plan, small_cluster, swarm_plan
from tests.support.processes.imported import imported
from tests.support.processes.patience import until
from tests.support.runs.sink_readers import READERS, read_mlflow, read_tensorboard

NAMES = sorted(SINKS)
LAST = 7


class StoredRun:
    """A run whose ranks' files and status a test writes."""

    def __init__(self, home: Path, elastic: bool = False, **config) -> None:
        plan = swarm_plan([2, 1], [4], cluster=small_cluster(3)) if elastic else chain_plan([1, 1], [4])
        self.id, self.directory = create_run_directory(plan, TrainConfig(warmup_steps=4, **config), home=home)
        self.path, self.ranks, self.began_s = self.directory.path, len(rank_labels(plan)), time.time() - 100.25
        self.steps = 0
        self.directory.prediction_file.write_text(json.dumps({"step_s": 0.375}))
        for rank in range(self.ranks):
            now = {"type": "phase", "name": "training", "time_s": self.began_s}
            self._write(rank, now, {"type": "origin", "unix_s": self.began_s})
        self.tell("running")

    def tell(self, state: str) -> None:
        over = {"ended_unix_s": time.time()} if state != "running" else {}
        me = {"pid": os.getpid(), "pid_created_unix_s": _created()}
        status = RunStatus(run=self.id, state=state, created_unix_s=self.began_s, ranks=self.ranks, **me, **over)
        write_status(self.directory.status_file, status)

    def step(self, count: int = 1) -> "StoredRun":
        for step in range(self.steps, self.steps + count):
            for rank in range(self.ranks):
                is_last = rank == self.ranks - 1
                self._write(
                    rank,
                    {
                        "type": "step",
                        "step": step,
                        "start_s": 0.4 * step,
                        "end_s": 0.4 * step + 0.4 + 0.01 * math.sin(step),
                        "loss_sum": 64 * (5 - math.sqrt(step)) if is_last else None,
                        "num_tokens": 64 if is_last else 0,
                        "boundary_bytes": 1000 + step,
                        "reduce_bytes": 10 * step,
                        "grad_norm": 1 / (step + 1),
                        "memory_bytes": 0 if self.ranks == 1 else 5_000_000 + step,
                    },
                )
                if is_last and step % 3 == 2:
                    correct = {"num_correct": step % 2} if step % 4 else {}
                    self._write(
                        rank, {"type": "validation", "step": step, "loss_sum": 6.4 * step, "num_tokens": 2} | correct
                    )
        self.steps += count
        return self

    def _write(self, rank: int, *records: dict) -> None:
        with self.directory.telemetry_file(rank).open("a") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))


def _created() -> float:
    import psutil

    return psutil.Process().create_time()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One database for all tests of this file: making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'all.db'}"


@pytest.fixture
def stored(tmp_path, monkeypatch, store):
    for name in ("WANDB_DIR", "WANDB_PROJECT", "HETPLANNER_PROMETHEUS_DIR", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.chdir(tmp_path)
    return StoredRun(tmp_path)


def held(stored, name):
    """What a sink holds."""
    more = {"uri": os.environ["MLFLOW_TRACKING_URI"]} if name == "mlflow" else {}
    return READERS[name](stored.path, stored.id, **more)


def told(stored):
    """What the run's telemetry says of its steps, as `runs report` and `runs export` read it."""
    run = open_run(stored.path).read_all()
    validation, found, sent = {one.step: one.to_data() for one in run.evaluations()}, {}, 0
    for s in run.steps():
        sent += s.boundary_bytes + s.reduce_bytes
        values = {
            "loss": s.loss,
            "validation_loss": validation.get(s.step, {}).get("loss"),
            "validation_perplexity": validation.get(s.step, {}).get("perplexity"),
            "validation_accuracy": validation.get(s.step, {}).get("accuracy"),
            "learning_rate": 1e-3 * min(1, (s.step + 1) / 4),
            "grad_norm": s.grad_norm,
            "step_seconds": s.step_s,
            "predicted_step_seconds": run.predicted_step_s(),
            "tokens_per_second": s.num_tokens / s.step_s if s.step_s else None,
            "memory_bytes": s.memory_bytes,
            "boundary_bytes": s.boundary_bytes,
            "reduce_bytes": s.reduce_bytes,
            "sent_bytes": sent,
        }
        known = {name: value for name, value in values.items() if value is not None}
        found[s.step] = stored.began_s + s.end_s, known
    return found


def check(stored, name, last=LAST):
    """The sink holds every step up to `last` once, as telemetry has it."""
    expected = {step: point for step, point in told(stored).items() if step <= last}
    if name == "prometheus":
        expected = {last: expected[last]}
    with contextlib.suppress(AssertionError):  # W&B's service may write the last rows after it has answered
        until(lambda: held(stored, name).keys() == expected.keys(), seconds=30.0 if name == "wandb" else 0.0)
    found = held(stored, name)
    assert found.keys() == expected.keys()
    for step, (time_s, values) in expected.items():
        assert found[step][0] == pytest.approx(time_s, abs=1e-3)
        assert found[step][1] == pytest.approx(values, rel=1e-6)  # TensorBoard's floats have 32 bits


@pytest.mark.parametrize("name", NAMES)
def test_a_sink_holds_what_telemetry_says_and_takes_nothing_twice(stored, name):
    stored.step(4)
    record = send(open_run(stored.path), name)
    assert record.step == 2, "the newest step waits for what belongs to it"
    check(stored, name, 2)
    stored.step(4)
    stored.tell("finished")
    for _ in range(2):
        record = send(open_run(stored.path), name)
        assert (record.step, record.error) == (LAST, "")
        assert record == read_record(stored.path, name)
        check(stored, name)
    assert all(set(values) <= METRICS.keys() for _, values in held(stored, name).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_sink_follows_a_run_over_failures_of_its_own(stored, name, monkeypatch):
    stored.step(2)
    waited, write, tries = [], SINKS[name].write, []

    def fails_once(sink, points):
        tries.append(len(points))
        if len(tries) == 2:
            raise OSError(28, "No space left on device")
        write(sink, points)

    def meanwhile(seconds):
        waited.append((seconds, read_record(stored.path, name).error))
        stored.step(2)
        if stored.steps == LAST + 1:
            stored.tell("finished")

    monkeypatch.setattr(SINKS[name], "write", fails_once)
    record = send(open_run(stored.path), name, follow=True, sleep=meanwhile)
    assert (record.step, record.error) == (LAST, "")
    assert any("No space left on device" in error for _, error in waited)
    check(stored, name)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "wandb"])  # its files may; its service drops them
def test_a_sender_that_was_killed_before_it_noted_what_it_sent_doubles_nothing(stored, name):
    stored.step(LAST + 1)
    stored.tell("finished")
    send(open_run(stored.path), name)
    write_record(stored.path, SinkRecord(sink=name, step=3))
    send(open_run(stored.path), name)
    check(stored, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_is_one_line_and_leaves_the_run_alone(stored, name, monkeypatch):
    stored.step(3)
    before = {path: path.read_bytes() for path in stored.path.iterdir() if path.is_file()}

    def fails(sink, points):
        raise ValueError("the server is gone\nmore\x1b[2J")

    monkeypatch.setattr(SINKS[name], "write", fails)
    result = CliRunner().invoke(app, ["runs", "send", stored.id, "--to", name])
    assert isinstance(result.exception, RunError)
    assert "ValueError: the server is gone" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert {path: path.read_bytes() for path in stored.path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_before_anything_starts(stored, name, monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    result = CliRunner().invoke(app, ["train", "no-plan.json", "--sink", name])
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).endswith(f"run: pip install 'hetplanner[{name}]'")


def test_an_unknown_sink_is_refused_with_the_names_of_those_there_are(stored):
    with pytest.raises(InvalidInput, match="must be one of mlflow, prometheus, tensorboard, wandb, got 'nowhere'"):
        check_sinks(["tensorboard", "nowhere"])


def test_sinks_by_name_import_no_library_of_theirs():
    heavy = ("torch", "wandb", "mlflow", "tensorboard", "prometheus_client")
    assert imported("import hetplanner.runs.sinks.sending", *heavy) == []


def test_two_senders_do_not_mix(stored, monkeypatch):
    stored.step(3)
    refusals = []

    def second(seconds):
        with pytest.raises(InvalidInput, match="another process sends it to tensorboard already") as refused:
            send(open_run(stored.path), "tensorboard")
        refusals.append(refused)
        stored.tell("finished")

    send(open_run(stored.path), "tensorboard", follow=True, sleep=second)
    assert len(refusals) == 1


def test_files_that_were_removed_are_written_again(stored):
    stored.step(LAST + 1)
    stored.tell("finished")
    send(open_run(stored.path), "tensorboard")
    for path in (stored.path / "sinks" / "tensorboard").iterdir():
        path.unlink()
    send(open_run(stored.path), "tensorboard")
    check(stored, "tensorboard")


def test_without_a_server_mlflow_has_a_database_in_the_runs_folder(stored, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    stored.step(3)
    stored.tell("failed")
    place = send(open_run(stored.path), "mlflow").place
    assert read_mlflow(stored.path, stored.id).keys() == {0, 1, 2}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(place)
    (run,) = client.search_runs([client.get_experiment_by_name("hetplanner").experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.params["learning_rate"] == "0.001"
    assert run.data.params.keys().isdisjoint({"data", "resume"}), "no path of this machine"


def test_passwords_of_addresses_are_not_told(stored, monkeypatch):
    assert words_of(OSError("http://me:secret@host:1/x is gone")) == "OSError: http://…@host:1/x is gone"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    stored.step(3)
    with pytest.raises(RunError) as refused:
        send(open_run(stored.path), "mlflow")
    assert "secret" not in str(refused.value)
    assert "secret" not in (stored.path / "sinks" / "mlflow.json").read_text()


def test_wandb_without_a_key_says_so(stored, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(stored.path))
    stored.step(3)
    code = "import sys; from hetplanner.cli import main; main()"
    command = [sys.executable, "-c", code, "runs", "send", stored.id, "--to", "wandb"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == RunError.exit_code
    assert "key" in done.stderr.splitlines()[-1].casefold()


def test_the_collectors_folder_gets_a_file_that_its_user_can_read(stored, monkeypatch, tmp_path):
    folder = tmp_path / "collector"
    monkeypatch.setenv("HETPLANNER_PROMETHEUS_DIR", str(folder))
    with pytest.raises(InvalidInput, match="HETPLANNER_PROMETHEUS_DIR must be the absolute path of a folder"):
        check_sinks(["prometheus"])
    folder.mkdir()
    stored.step(3)
    stored.tell("finished")
    umask = os.umask(0o077)
    try:
        send(open_run(stored.path), "prometheus")
    finally:
        os.umask(umask)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644
    assert 'hetplanner_run_over{model="' in file.read_text()


def test_a_swarm_has_the_same_metrics_but_memory(stored, tmp_path):
    swarm = StoredRun(tmp_path, elastic=True, emulate_links=True).step(3)
    swarm.tell("finished")
    send(open_run(swarm.path), "tensorboard")
    found = read_tensorboard(swarm.path, swarm.id)
    assert found.keys() == {0, 1, 2}
    values = found[2][1]
    assert {"loss", "learning_rate", "step_seconds", "predicted_step_seconds", "sent_bytes"} <= values.keys()
    assert "memory_bytes" not in values


def test_processes_follow_a_run_and_say_how_far_they_came(stored):
    stored.step(3)
    followers = Followers(open_run(stored.path), ["tensorboard", "prometheus"])
    stored.step(LAST - 2)
    stored.tell("finished")
    words = followers.wait(600)
    assert words == [f"{read_record(stored.path, name)}" for name in ("tensorboard", "prometheus")]
    assert words[0].startswith(f"tensorboard: steps up to {LAST} are in ")
    assert list(followers.problems()) == []
    check(stored, "tensorboard")
    check(stored, "prometheus")
