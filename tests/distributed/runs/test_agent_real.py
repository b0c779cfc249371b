"""The agent, the launcher and the real worker together: four ranks of tiny-gpt on emulated links."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hetplanner.launchers.capacity import estimated_rank_bytes
from hetplanner.launchers.local import LocalLauncher
from hetplanner.liveness.processes import processes_of_run
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.connection import find_agent
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.reading.reader import RunReader
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.processes.other_user import listening
from tests.support.processes.patience import HANG_S, stretched, until
from tests.support.runs.fake_launcher import rank_of

pytestmark = pytest.mark.distributed

FIRST_LOSS_S = 20.0
STOP_S = 5.0
FOREVER = TrainConfig(steps=100_000, emulate_links=True)


def tiny_plan(replicas: int = 2) -> Plan:
    """Two stages of tiny-gpt on links fast enough for short steps."""
    workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
    cluster = small_cluster(2 * replicas, bandwidth="200 Mbit/s", latency="2 ms")
    half = len(workload.graph.ops) // 2
    return chain_plan(shares=(4 // replicas,) * replicas, cuts=(half,), cluster=cluster, workload=workload)


def start_training(client):
    run = client.start(tiny_plan(), FOREVER)
    until(lambda: (run.poll() and run.losses()) or run.status().is_over, "no loss")
    assert not run.status().is_over, run.status()
    return run


def test_from_launch_to_first_loss_to_stop(client, record_property):
    began = time.monotonic()
    run = start_training(client)
    first_loss_s = time.monotonic() - began
    until(lambda: run.status().state == "running", "the agent does not see that it trains")
    assert list(run.phases())[:3] == ["importing", "connecting", "building"]
    prediction_s = (run.path / "prediction.json").stat().st_mtime
    assert prediction_s <= run.ranks[0].origin_unix_s + run.steps()[0].end_s

    processes = processes_of_run(run.path, run.status().pid)
    assert len(processes) >= 5  # the launcher and four ranks
    began = time.monotonic()
    status = client.stop(run.id)
    stop_s = time.monotonic() - began
    assert status.state == "stopped", status
    assert not any(process.is_running() for process in processes)
    assert processes_of_run(run.path) == []
    assert (run.path / "model.safetensors").exists()

    print(f"\nlaunch to first loss {first_loss_s:.1f} s, stop {stop_s:.2f} s")
    record_property("first_loss_s", first_loss_s)
    record_property("stop_s", stop_s)
    assert first_loss_s <= stretched(FIRST_LOSS_S)
    assert stop_s <= stretched(STOP_S)


def test_a_killed_rank_is_restarted_from_the_last_checkpoint_and_the_loss_is_the_right_one(client):
    config = TrainConfig(steps=40, checkpoint_every=5, max_restarts=1)
    undisturbed_run = client.start(tiny_plan(), config)
    undisturbed_run.wait(HANG_S)
    run = client.start(tiny_plan(), config)
    until(lambda: (run.poll() and len(run.steps()) > 12) or run.status().is_over, "no steps")
    rank_of(run, 2).kill()
    status = run.wait(HANG_S)
    assert (status.state, status.restarts) == ("finished", 1), status
    run.read_all()
    assert run.losses() == undisturbed_run.read_all().losses()
    assert run.resumed()[0] >= 10
    command = [sys.executable, "-m", "hetplanner.cli", "train", str(run.path / "plan.json"), "--resume", run.id]
    done = subprocess.run([*command, "--steps", "45", "--json"], stdout=subprocess.PIPE, text=True, timeout=HANG_S)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, summary["status"]) == (0, "finished"), done.stdout


def test_everything_listens_on_loopback_only(client):
    run = start_training(client)
    agent = psutil.Process(find_agent(client.home).pid)
    assert listening([agent]) == []
    sockets = listening(processes_of_run(run.path, run.status().pid))
    assert sockets  # the rendezvous at least
    assert {ip for ip, _ in sockets} <= {"127.0.0.1", "::1"}, sockets


def test_ranks_need_no_more_memory_than_the_capacity_check_reckons(client):
    run = start_training(client)
    reckoned = max(estimated_rank_bytes(run.plan))
    processes = processes_of_run(run.path, run.status().pid)
    # Libraries are in memory once, however many ranks use them: 300 MB of a torch with CUDA.
    used = sorted(process.memory_full_info().uss for process in processes)
    print(f"\nunshared bytes {[round(b / 1e6) for b in used]} MB, reckoned {reckoned / 1e6:.0f} MB a rank")
    assert used[-1] <= 1.25 * reckoned


def test_a_killed_worker_is_reported_with_its_rank_and_last_lines(client):
    run = start_training(client)
    rank_of(run, 2).send_signal(signal.SIGKILL)
    until(lambda: run.status().is_over, "the run goes on without a rank")
    status = run.status()
    assert status.state == "failed"
    assert status.failed_rank == 2
    assert status.message.startswith("rank 2 (d2) was killed by SIGKILL")
    assert status.last_lines
    assert processes_of_run(run.path) == []
    summary = run.summary()  # the directory stays readable
    assert summary["status"] == "failed"
    assert summary["steps"] >= 1


def test_a_worker_that_fails_by_itself_is_reported_with_its_words(client, tmp_path):
    # Decay of ten times the weight turns it into -9 of it every step, until it overflows.
    run = client.start(tiny_plan(), TrainConfig(steps=500, learning_rate=10.0, weight_decay=1.0, warmup_steps=0))
    status = run.wait(HANG_S)
    assert status.state == "failed"
    assert status.failed_rank is not None
    assert re.search(rf"rank {status.failed_rank}: the loss of step \d+ is (nan|inf)", status.message)
    assert "\n" not in status.message


def test_a_stop_while_torch_is_imported_leaves_nothing(client):
    run = client.start(tiny_plan(), FOREVER)
    until(lambda: run.status().message == "importing" or run.status().state != "starting", "no rank began")
    began = time.monotonic()
    assert client.stop(run.id).state == "stopped"
    assert time.monotonic() - began <= stretched(STOP_S)
    assert processes_of_run(run.path) == []


def test_two_launchers_with_node_ranks_are_one_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    plan, config = tiny_plan(), TrainConfig(steps=3)
    _, directory = create_run_directory(plan, config)
    request = LocalLauncher(nodes=2).request(plan, directory.path, config)
    logs = [(tmp_path / f"node-{node}.txt").open("wb") for node in range(2)]
    nodes = [
        subprocess.Popen(c.argv, env=os.environ | dict(c.env), stdout=log, stderr=subprocess.STDOUT)
        for c, log in zip(request.commands, logs, strict=True)
    ]
    try:
        codes = [node.wait(HANG_S) for node in nodes]
    finally:
        for node, log in zip(nodes, logs, strict=True):
            node.kill()
            node.wait()
            log.close()
    assert codes == [0, 0], [(tmp_path / f"node-{node}.txt").read_text()[-2000:] for node in range(2)]
    reader = RunReader(directory.path).read_all()
    assert [step for step, _ in reader.losses()] == [0, 1, 2]
    assert [telemetry.phase for telemetry in reader.ranks] == ["done"] * 4
    assert directory.model_file.exists()
