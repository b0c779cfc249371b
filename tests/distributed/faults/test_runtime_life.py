"""Life and death of a run: its launcher, stopping, a killed rank, sockets, bad input."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from hetplanner.errors import InvalidInput, Preempted
from hetplanner.launchers.interface import LAUNCH
from hetplanner.launchers.local import free_loopback_port
from hetplanner.launchers.torchrun import TORCHRUN
from hetplanner.plan.files.checkpoints import checkpoint_steps
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.sample import load_model
from tests.support.plans.factories import chain_plan, hosted, small_cluster
from tests.support.plans.grouped import in_groups
from tests.support.processes.patience import HANG_S, stretched, until
from tests.support.training.real_ranks import start_ranks, train

pytestmark = pytest.mark.distributed

FOREVER = 1_000_000


def slow_plan():
    """A step takes about two seconds of emulated waiting."""
    return chain_plan([2, 2], [4], cluster=small_cluster(4, latency="400 ms"))


def test_prediction_is_written_before_the_first_step_and_spans_follow_the_schedule(tmp_path: Path) -> None:
    plan = chain_plan([3, 1], [4], cluster=small_cluster(4, bandwidth="20 Mbit/s", latency="20 ms"))
    ranks = train(plan, TrainConfig(steps=6, emulate_links=True), tmp_path)
    prediction = json.loads((tmp_path / "prediction.json").read_text())
    assert prediction["format"] == "hetplanner/prediction@1"
    origin = ranks.lines(0, "origin")[0]["unix_s"]
    assert prediction["created_unix_s"] < origin + ranks.lines(0, "step")[0]["start_s"]
    assert prediction["step_s"] > 0.08, "four latencies at least"
    assert prediction["catalog_step_s"] > 0.08
    for rank in range(4):
        assert len(ranks.lines(rank, "profile")) == 1
        phases = [line["name"] for line in ranks.lines(rank, "phase")]
        assert phases == [
            "importing",
            "connecting",
            "building",
            "profiling",
            "predicting",
            "training",
            "saving",
            "done",
        ]
        kinds = {line["kind"] for line in ranks.lines(rank, "span")}
        assert kinds == {"forward", "backward", "send", "recv", "reduce", "step"}
    sends = [s for s in ranks.all_lines("span") if s["kind"] == "send"]
    assert all(s["end_s"] - s["start_s"] >= 0.0199 for s in sends), "no delivery is faster than the link"


def test_every_transfer_obeys_the_emulated_link_and_nic(tmp_path: Path) -> None:
    plan = chain_plan([4], [4], cluster=small_cluster(2, bandwidth="2 Mbit/s", latency="10 ms", nic="1 Mbit/s"))
    ranks = train(plan, TrainConfig(steps=2, emulate_links=True), tmp_path)
    spans = [s for s in ranks.lines(0, "span") if s["kind"] == "send"]
    wire_s = 2 * 32 * 32 * 4 / 125_000  # the NIC is the slowest part
    for before, after in itertools.pairwise(spans):
        assert after["start_s"] >= before["start_s"] + wire_s - 1e-4
        assert after["end_s"] - after["start_s"] == pytest.approx(wire_s + 0.01, abs=1e-4)
    received = {(s["step"], s["micro_batch"]): s for s in ranks.lines(1, "span") if s["kind"] == "recv"}
    for sent in spans:
        assert received[sent["step"], sent["micro_batch"]]["end_s"] >= sent["end_s"] - 1e-4


def test_stop_file_ends_all_ranks_after_the_same_step(tmp_path: Path) -> None:
    plan = slow_plan()
    ranks = start_ranks(plan, TrainConfig(steps=FOREVER, emulate_links=True), tmp_path)
    ranks.wait_for_step(0)
    (tmp_path / "stop").touch()
    asked = time.monotonic()
    assert ranks.wait(10) == [0, 0, 0, 0]
    assert time.monotonic() - asked < stretched(5.0)
    last = {max(line["step"] for line in ranks.lines(rank, "step")) for rank in range(4)}
    assert len(last) == 1
    info = json.loads((tmp_path / "model.json").read_text())
    assert info["steps_of_stages"] == [last.pop() + 1] * 2
    assert load_model(tmp_path).flat.isfinite().all()


def test_sigterm_of_a_rank_that_waits_inside_gloo_preempts_the_run_and_its_state_is_saved(tmp_path: Path) -> None:
    ranks = start_ranks(slow_plan(), TrainConfig(steps=FOREVER, emulate_links=True), tmp_path)
    ranks.wait_for_step(0)
    os.kill(ranks.processes[3].pid, signal.SIGTERM)
    assert ranks.wait(30) == [Preempted.exit_code] * 4
    assert (tmp_path / "model.safetensors").exists()
    last = max(line["step"] for line in ranks.lines(0, "step"))
    assert checkpoint_steps(tmp_path) == [last + 1]


def test_a_stop_inside_a_long_step_saves_the_model_as_of_the_last_step(tmp_path: Path) -> None:
    plan = chain_plan([1500, 1500], [4])  # many seconds of computing
    ranks = start_ranks(plan, TrainConfig(steps=FOREVER), tmp_path)
    ranks.wait_for_phase("training")
    time.sleep(0.5)
    (tmp_path / "stop").touch()
    asked = time.monotonic()
    assert ranks.wait(10) == [0, 0, 0, 0], ranks.logs()
    assert time.monotonic() - asked < stretched(5.0)
    assert [line["name"] for line in ranks.lines(2, "phase")][-1] == "done"
    assert json.loads((tmp_path / "model.json").read_text())["steps_of_stages"] == [0, 0]
    initial = StageModel(plan.problem.workload, 0, len(plan.problem.workload.graph.ops), seed=0)
    assert torch.equal(load_model(tmp_path).flat, initial.flat)
    assert not list(tmp_path.glob("model-stage-*"))


def test_a_rank_whose_peer_hangs_saves_its_stage_and_exits(tmp_path: Path) -> None:
    plan = chain_plan([4], [4], cluster=small_cluster(2))
    ranks = start_ranks(plan, TrainConfig(steps=FOREVER), tmp_path)
    ranks.wait_for_step(2)
    hung = ranks.processes[1]
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        (tmp_path / "stop").touch()
        ranks.processes[0].join(6)
        assert ranks.processes[0].exitcode == 0
        assert (tmp_path / "model-stage-0.safetensors").exists()
        with pytest.raises(InvalidInput, match="weights were not saved"):
            load_model(tmp_path)
    finally:
        os.kill(hung.pid, signal.SIGCONT)
    ranks.wait(10)


def test_a_killed_rank_ends_the_others_with_an_error_line(tmp_path: Path) -> None:
    ranks = start_ranks(chain_plan([4, 4], [4]), TrainConfig(steps=FOREVER), tmp_path)
    ranks.wait_for_step(1)
    os.kill(ranks.processes[2].pid, signal.SIGKILL)
    codes = ranks.wait(10)
    assert codes[2] == -signal.SIGKILL
    assert [codes[r] for r in (0, 1, 3)] == [1, 1, 1]
    for rank in (0, 1, 3):
        (error,) = ranks.lines(rank, "error")
        assert error["text"].startswith(f"rank {rank}: lost a peer in step ")
        assert "\n" not in error["text"]


def test_a_diverging_loss_is_reported_with_its_step_and_rank(tmp_path: Path) -> None:
    plan = chain_plan([4], [4], cluster=small_cluster(2))
    ranks = start_ranks(plan, TrainConfig(steps=500, learning_rate=10.0, weight_decay=1.0), tmp_path)
    assert ranks.wait(60) == [1, 1]
    (error,) = ranks.lines(1, "error")
    assert error["text"].startswith("rank 1: the loss of step ")


def test_wrong_number_of_ranks_is_refused(tmp_path: Path) -> None:
    plan = chain_plan([4], [4], cluster=small_cluster(2))
    ranks = start_ranks(plan, TrainConfig(steps=1), tmp_path / "ranks", num_ranks=3)
    assert ranks.wait(20) == [1, 1, 1]
    assert "plan: has 2 devices, but 3 processes were started" in ranks.lines(0, "error")[0]["text"]


def launched(
    plan: Path,
    out: Path,
    port: int,
    *more: str,
    steps: int,
    nodes: int = 1,
    node: int = 0,
    ranks: int = 4,
    cwd=None,
    host: str | None = None,
    starting: tuple[str, ...] = LAUNCH,
) -> subprocess.Popen:
    """What starts the ranks of a host: the launcher of ours, or torchrun, which takes the same line."""
    backend = "hetplanner-loopback" if host is None else "hetplanner"
    command = [sys.executable, *starting, f"--rdzv-backend={backend}", "--max-restarts=0", "--log-dir=/dev/null"]
    command += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--nnodes={nodes}", f"--nproc-per-node={ranks}"]
    command += [f"--rdzv-conf=rank={node}"] if nodes > 1 else []
    command += [
        "-m",
        "hetplanner.runtime.worker",
        str(plan),
        "--steps",
        str(steps),
        "--emulate-links",
        "-o",
        str(out),
        *more,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"HETPLANNER_HOST": host} if host else {})
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def listening(process: psutil.Process) -> set[str]:
    """Addresses that a process and its descendants listen on."""
    family = [process, *process.children(recursive=True)]
    return {c.laddr.ip for p in family for c in p.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}


def test_launcher_and_ranks_listen_on_loopback_only(tmp_path: Path) -> None:
    save_plan(chain_plan([2, 2], [4]), tmp_path / "plan.json")
    run_dir = tmp_path / "run"
    agent = launched(tmp_path / "plan.json", run_dir, free_loopback_port(), steps=FOREVER)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (run_dir / "prediction.json").exists():
            assert agent.poll() is None, agent.communicate()[0]
            time.sleep(0.1)
        addresses = listening(psutil.Process(agent.pid))
        assert addresses, "the store and gloo listen"
        assert all(a.startswith("127.") or a == "::1" for a in addresses), addresses
        (run_dir / "stop").touch()
        assert agent.wait(15) == 0, agent.communicate()[0]
    finally:
        agent.kill() if agent.poll() is None else None
        agent.communicate()
    assert json.loads((run_dir / "run.json").read_text())["steps"] == FOREVER
    assert load_model(run_dir).flat.isfinite().all()


def wait_for(agents: list[subprocess.Popen[str]]) -> None:
    """Until all have ended well."""
    try:
        outputs = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill() if agent.poll() is None else None
    assert [a.returncode for a in agents] == [0] * len(agents), outputs


def test_a_launcher_and_a_torchrun_make_one_run(tmp_path: Path) -> None:
    save_plan(chain_plan([2, 2], [4]), tmp_path / "plan.json")
    run_dir, port = tmp_path / "run", free_loopback_port()
    agents = [
        launched(tmp_path / "plan.json", run_dir, port, steps=3, nodes=2, node=n, ranks=2, starting=starting)
        for n, starting in enumerate((LAUNCH, TORCHRUN))
    ]
    wait_for(agents)
    steps = [
        sum('"type": "step"' in x for x in (run_dir / f"rank-{r}.jsonl").read_text().splitlines()) for r in range(4)
    ]
    assert steps == [3, 3, 3, 3]


@pytest.mark.parametrize("degrees", [(1, 1, 1, 1), (2, 1, 1, 2)], ids=["devices", "groups"])
def test_ranks_of_a_host_need_not_follow_one_another(degrees: tuple[int, ...], tmp_path: Path) -> None:
    """The plan's ranks 0 and 2 are on one host, 1 and 3 on another: torch's agent would number them 0, 1 and 2, 3."""
    cluster = hosted({"d0": "a", "d1": "b", "d2": "a", "d3": "b"})
    plan = in_groups(chain_plan([2, 2], [4], cluster=cluster), degrees)
    save_plan(plan, tmp_path / "plan.json")
    run_dir, port, each = tmp_path / "run", free_loopback_port(), len(plan.processes) // 2
    agents = [
        launched(tmp_path / "plan.json", run_dir, port, steps=3, nodes=2, node=n, ranks=each, host=host)
        for n, host in enumerate("ab")
    ]
    wait_for(agents)
    alone = start_ranks(plan, TrainConfig(steps=3), tmp_path / "alone")
    assert alone.wait(HANG_S) == [0] * len(plan.processes)
    for rank, ((stage, _),) in enumerate(plan.places_of_rank):
        lines = [json.loads(line) for line in (run_dir / f"rank-{rank}.jsonl").read_text().splitlines()]
        assert [line["stages"] for line in lines if line["type"] == "profile"] == [[stage]]
        losses = [line["loss_sum"] for line in lines if line["type"] == "step"]
        assert losses == [line["loss_sum"] for line in alone.lines(rank, "step")]


def test_a_launcher_on_a_host_that_the_plan_does_not_know_ends_in_one_line(tmp_path: Path) -> None:
    plan = chain_plan([2, 2], [4], cluster=hosted({"d0": "a", "d1": "a", "d2": "a", "d3": "b"}))
    save_plan(plan, tmp_path / "plan.json")
    unknown, too_few = "HETPLANNER_HOST: 'c' is no host of the plan (a, b)", "use --nproc-per-node=3"
    for host, ranks, message in (("c", 1, unknown), ("a", 2, too_few)):
        agent = launched(tmp_path / "plan.json", tmp_path / "run", 0, steps=1, ranks=ranks, host=host)
        output = agent.communicate(timeout=HANG_S)[0]
        assert agent.returncode != 0
        assert message in output
    assert not (tmp_path / "run").exists()


def test_ranks_that_wait_for_the_first_host_end_with_their_launcher_and_it_with_one_of_them(tmp_path: Path) -> None:
    save_plan(chain_plan([2, 2], [4]), tmp_path / "plan.json")
    port = free_loopback_port()  # at which no process listens
    for victim, signum in ((0, signal.SIGKILL), (1, signal.SIGTERM)):
        agent = launched(tmp_path / "plan.json", tmp_path / "run", port, steps=1, nodes=2, node=1, ranks=2)
        until(lambda agent=agent: len(psutil.Process(agent.pid).children()) == 2)
        family = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children()]
        family[victim].send_signal(signum)
        assert agent.wait(HANG_S) == -signum
        until(lambda family=family: not any(process.is_running() for process in family[1:]))
        agent.communicate()
    assert not (tmp_path / "run").exists()


def test_hosts_with_other_data_under_the_same_name_are_told_so(tmp_path: Path) -> None:
    save_plan(chain_plan([4], [2]), tmp_path / "plan.json")
    run_dir, port, agents = tmp_path / "run", free_loopback_port(), []
    for node, text in enumerate(("to be, or not to be. " * 200, "to be, and not to be. " * 200)):
        host = tmp_path / f"host-{node}"
        host.mkdir()
        (host / "text.txt").write_text(text)
        data = ("--data", "/proc/self/cwd/text.txt")  # the same path on either host
        agents.append(
            launched(tmp_path / "plan.json", run_dir, port, *data, steps=3, nodes=2, node=node, ranks=1, cwd=host)
        )
    try:
        outputs = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill() if agent.poll() is None else None
    assert all(agent.returncode for agent in agents), outputs
    assert "data: rank 1 has another one than rank 0; give every host the same file" in "".join(outputs)
    assert not any('"type": "step"' in path.read_text() for path in run_dir.glob("rank-*.jsonl"))
