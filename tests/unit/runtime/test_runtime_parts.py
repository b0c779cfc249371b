"""Parts of a rank that need no other rank: telemetry, emulated links, stop watcher, rendezvous, worker's flags."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from hetplanner.errors import InvalidInput
from hetplanner.plan.action import Kind
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.files.train_files import save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.comm.emulation import LinkEmulator, create_clocks
from hetplanner.runtime.comm.receive_order import message_index, proofs_of_delivery
from hetplanner.runtime.comm.rendezvous import create_handler
from hetplanner.runtime.measure.telemetry import Telemetry, keeps_spans
from hetplanner.runtime.worker import parse_arguments, read_settings, run_directory
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.network import NetworkClock
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.processes.patience import HANG_S


def test_telemetry_writes_every_line_in_order(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "rank-2.jsonl", 2)
    telemetry.phase("training")
    telemetry.set_origin(100.0, 5.0)
    for m in range(500):
        telemetry.span("forward", 1, m, 100.5, 100.75, num_bytes=7, peer=3, stage=1, role="activation")
    telemetry.write("step", step=1, loss_sum=None)
    telemetry.close()
    lines = [json.loads(line) for line in (tmp_path / "rank-2.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["phase", "origin", *["span"] * 500, "step"]
    assert lines[2] == {
        "type": "span", "rank": 2, "kind": "forward", "step": 1, "micro_batch": 0, "start_s": 0.5, "end_s": 0.75,
        "bytes": 7, "peer": 3, "stage": 1, "role": "activation",
    }  # fmt: skip
    with pytest.raises(FileExistsError):
        Telemetry(tmp_path / "rank-2.jsonl", 2)


def test_telemetry_of_a_second_attempt_takes_the_place_of_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"type": "phase"}\n{"type": "st')
    Telemetry(path, 0, attempt=2).close()
    lines = path.read_text().splitlines()
    assert lines[0] == '{"type": "phase"}'
    assert json.loads(lines[1]).items() >= {"type": "restart", "attempt": 2}.items()


def test_spans_thin_out_in_a_long_run() -> None:
    kept = [step for step in range(60_000) if keeps_spans(step)]
    assert kept[:500] == list(range(500))
    assert kept[500:504] == [500, 501, 510, 511], "in pairs, so that where a step begins is known"
    assert len(kept) == 500 + 900 + 900 + 20
    assert kept[-2:] == [59_000, 59_001]


def test_the_learning_rate_warms_up() -> None:
    config = TrainConfig(learning_rate=0.5, warmup_steps=4)
    assert [config.learning_rate_at(t) for t in (0, 1, 3, 4, 900)] == [0.125, 0.25, 0.5, 0.5, 0.5]
    assert TrainConfig(learning_rate=0.5, warmup_steps=0).learning_rate_at(0) == 0.5


@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_learning_rate_falls_to_its_floor_at_the_last_step(schedule: str, middle: float) -> None:
    config = TrainConfig(steps=110, learning_rate=1.0, warmup_steps=10, lr_schedule=schedule, lr_floor=0.1)
    rates = [config.learning_rate_at(t) for t in range(120)]
    assert rates[:10] == pytest.approx([0.1 * (t + 1) for t in range(10)])
    assert rates[59] == pytest.approx(middle)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[109:] == pytest.approx([0.1 if schedule != "constant" else 1.0] * 11)
    quarter = {"linear": 0.775, "cosine": 0.1 + 0.45 * (1 + math.cos(math.pi / 4)), "constant": 1.0}
    assert rates[34] == pytest.approx(quarter[schedule])


def test_two_emulators_share_one_set_of_clocks_by_the_simulators_rule(tmp_path: Path) -> None:
    plan = chain_plan([2, 2], [4], cluster=small_cluster(4, bandwidth="1 Mbit/s", latency="10 ms", nic="2 Mbit/s"))
    create_clocks(plan.problem.cluster, plan.ranks, tmp_path)
    one, two = (LinkEmulator(plan.problem.cluster, plan.ranks, tmp_path) for _ in range(2))
    now_s = time.monotonic()
    found = [one.book(0, 1, 12_500, now_s), two.book(0, 2, 12_500, now_s), one.book(0, 1, 12_500, now_s)]
    rule = NetworkClock(plan.problem.cluster, plan.ranks)
    expected = [rule.reserve(now_s, 0, t, 12_500) for t in (1, 2, 1)]  # of rank 2: another link, the same NIC
    assert found == [pytest.approx(wanted) for wanted in expected]
    assert one.book(3, 2, 12_500)[0] >= now_s, "without a time it is now"


def test_a_held_message_is_let_go_when_draining_and_late_ones_are_counted(tmp_path: Path) -> None:
    plan = chain_plan([4], [4], cluster=small_cluster(2))
    create_clocks(plan.problem.cluster, plan.ranks, tmp_path)
    emulator = LinkEmulator(plan.problem.cluster, plan.ranks, tmp_path)
    now = time.monotonic()
    emulator.hold(now + 0.05, now)
    assert time.monotonic() >= now + 0.05
    assert emulator.take_lateness() == (0, 0.0)
    emulator.hold(now - 1.0, time.monotonic())  # was asked for after its stamp, and was there
    assert emulator.take_lateness()[0] == 0
    emulator.hold(now - 1.0, now - 2.0)
    late, late_s = emulator.take_lateness()
    assert late == 1
    assert late_s >= 1.0
    emulator.draining.set()
    began = time.monotonic()
    emulator.hold(began + 60.0, began)
    assert time.monotonic() - began < 30.0


WATCHED = """
import sys, time
from pathlib import Path
from hetplanner.runtime.watch import StopWatcher, block_signals
block_signals()
watcher = StopWatcher(Path(sys.argv[1]))
watcher.start()
print("ready", flush=True)
print("stopped" if watcher.requested.wait(20) else "timeout", flush=True)
"""


@pytest.mark.parametrize("how", ["file", "signal"])
def test_watcher_sees_the_stop_file_and_signals(tmp_path: Path, how: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", WATCHED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if how == "file":
        (tmp_path / "stop").touch()
    else:
        os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=HANG_S)[0] == "stopped\n"
    assert process.returncode == 0
    # The other ranks of this machine learn of the signal; the stop file belongs to whoever asks.
    assert (tmp_path / "stop.signalled").exists() == (how == "signal")


WATCHED_FOR_LONG = (
    WATCHED.replace("requested.wait(20)", "requested.wait(1.5)")
    + """
print(watcher.request.name, watcher.exit_code(), flush=True)
"""
)


def watch_for_long(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WATCHED_FOR_LONG, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_watcher_that_was_paused_takes_it_for_no_request(tmp_path: Path) -> None:
    """As a debugger does: the wait for a signal ends early, after its time."""
    process = watch_for_long(tmp_path)
    for _ in range(5):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.03)
    assert process.communicate(timeout=HANG_S)[0] == "timeout\nNONE 0\n"
    assert not (tmp_path / "stop.signalled").exists()


@pytest.mark.parametrize(("how", "words"), [("file", "STOP 0"), ("signal", "PREEMPT 75"), ("both", "STOP 0")])
def test_a_stop_is_its_users_wish_and_a_signal_alone_a_preemption(tmp_path: Path, how: str, words: str) -> None:
    process = watch_for_long(tmp_path)
    if how in ("file", "both"):
        (tmp_path / "stop").touch()
    if how in ("signal", "both"):
        os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=HANG_S)[0] == f"stopped\n{words}\n"


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_a_message_is_proven_delivered_only_after_it_was_taken(schedule: str) -> None:
    if schedule == "interleaved":
        plan = interleave(chain_plan([9, 3], [5]))
    else:
        plan = chain_plan([9, 3], [4, 8], schedule=schedule)
    actions = make_schedule(plan).actions
    place = {(a.kind, a.rank, a.peer, a.role, message_index(a, 12)): i for i, a in enumerate(actions)}
    for rank in range(len(plan.ranks)):
        proofs = proofs_of_delivery(make_schedule(plan), rank, 12)
        proven = [key for keys in proofs.values() for key in keys]
        assert len(proven) == len(set(proven))
        for (peer, topic, m), keys in proofs.items():
            sent = place[Kind.SEND, peer, rank, topic.name.lower(), m]
            for other, topic_taken, m_taken in keys:
                assert other == peer
                assert place[Kind.RECV, peer, rank, topic_taken.name.lower(), m_taken] < sent
    # With 1F1B the first stage learns of all activations but those of the last micro-batches it has in flight.
    first = [key for keys in proofs_of_delivery(make_schedule(plan), 0, 12).values() for key in keys]
    assert len(first) == (9 if schedule != "interleaved" else 27)


def parameters(endpoint: str, nodes: int = 1, backend: str = "hetplanner", **config: object) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "run", nodes, nodes, **config)


@pytest.mark.parametrize("backend", ["hetplanner", "hetplanner-loopback"])
def test_rendezvous_listens_on_its_address_only(backend: str) -> None:
    handler = create_handler(parameters("127.0.0.1:0", backend=backend))
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    info.store.set("key", "value")
    second = create_handler(parameters(f"127.0.0.1:{info.bootstrap_store_info.master_port}", 2, rank=1))
    assert second.next_rendezvous().store.get("key") == b"value"
    sockets = [c.laddr for c in psutil.Process().net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    mine = [a.ip for a in sockets if a.port == info.bootstrap_store_info.master_port]
    assert mine == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (parameters("192.168.0.1:29500", backend="hetplanner-loopback"), "serves 127.0.0.1 only.*--rdzv-backend=hetp"),
        (parameters("127.0.0.1:29500", 2), "must be this agent's node rank"),
        (parameters("127.0.0.1:29500", 2, rank=2), "must be this agent's node rank"),
        (parameters("127.0.0.1:0", 2, rank=0), "must share one port"),
    ],
)
def test_rendezvous_refuses_what_it_cannot_serve(given: RendezvousParameters, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        create_handler(given)


def test_the_run_directory_is_the_plans_folder_if_it_has_settings(tmp_path: Path) -> None:
    plan = tmp_path / "good.json"
    assert run_directory(parse_arguments([str(plan)])) == tmp_path / "good-run"
    assert run_directory(parse_arguments([str(plan), "-o", str(tmp_path / "x")])) == tmp_path / "x"
    (tmp_path / "run.json").write_text("{}")
    assert run_directory(parse_arguments([str(plan)])) == tmp_path
    assert run_directory(parse_arguments([str(plan), "-o", str(tmp_path / "x")])) == tmp_path / "x"


def test_settings_are_those_beside_the_plan_but_for_what_was_typed(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    save_plan(chain_plan([4], [4], cluster=small_cluster(2)), plan)
    assert read_settings(parse_arguments([str(plan), "--seed", "3"]))[1] == TrainConfig(seed=3)
    save_config(TrainConfig(steps=7, seed=1, clip_norm=2.0), tmp_path / "run.json")
    given = parse_arguments([str(plan), "--seed", "3", "-o", str(tmp_path / "x")])
    assert read_settings(given)[1] == TrainConfig(steps=7, seed=3, clip_norm=2.0)


def test_the_worker_outside_torchrun_ends_in_one_line(tmp_path: Path) -> None:
    save_plan(chain_plan([4], [4], cluster=small_cluster(2)), tmp_path / "plan.json")
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    command = [sys.executable, "-m", "hetplanner.runtime.worker", str(tmp_path / "plan.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "start the worker through torchrun" in done.stderr
