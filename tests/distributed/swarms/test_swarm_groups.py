"""Swarms whose peers are groups of devices: they train as single devices do, and join and leave whole."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.train import TrainConfig
from hetplanner.runtime.train.reference import train_reference
from hetplanner.swarm.event_log import EVENTS_FILE, parse_events
from hetplanner.swarm.launch.rehearsal import Rehearsal
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.workload.presets import preset
from hetplanner.workload.tensor_degrees import Sharding
from tests.support.models.architectures import captured
from tests.support.plans.factories import small_cluster, swarm_plan
from tests.support.plans.grouped import in_groups
from tests.support.processes.patience import HANG_S, until
from tests.support.swarms.swarm_runs import check_end, events_of, losses_of, small_spec

pytestmark = pytest.mark.distributed

SPEED = 60.0
MORE_PEERS = 4
Groups = list[tuple[int, Sharding]]
MIXED: Groups = [(2, "tensor"), (1, "tensor"), (2, "zero3"), (2, "zero2")]


def start(spec: SwarmSpec, run_dir: Path, groups: Groups) -> Rehearsal:
    """A swarm with a peer for each group; to be closed."""
    rehearsal = Rehearsal(spec, run_dir)
    rehearsal.start_coordinator()
    rehearsal.start_trainer("trainer-0")
    for number, (degree, sharding) in enumerate(groups):
        rehearsal.start_peer(f"peer-{number}", SPEED, degree=degree, sharding=sharding)
    return rehearsal


def members_of(rehearsal: Rehearsal, peer: str) -> list[psutil.Process]:
    """The processes of a peer's other devices."""
    return psutil.Process(rehearsal.processes[peer].pid).children()


def serving(rehearsal: Rehearsal) -> dict[str, int]:
    """The stage that each peer serves now."""
    stages: dict[str, int] = {}
    for event in parse_events((rehearsal.run_dir / EVENTS_FILE).read_bytes()):
        if event["kind"] == "serving":
            stages[event["peer"]] = event["stage"]
        elif event["kind"] == "gone":
            stages.pop(event["peer"], None)
    return stages


CASES: dict[str, tuple[dict[str, object], Groups, float]] = {
    "dropout and recomputation": ({"steps": 30, "dropout": 0.1, "recompute": True, "stages": 2}, MIXED, 1e-5),
    "tied weights, clipped": ({"tied": True, "clip_norm": 0.5, "stages": 2}, MIXED, 1e-5),
    "delayed updates": ({"delayed": True, "stages": 2}, MIXED, 1e-5),
    "int8": ({"codec": "int8", "stages": 2}, MIXED, 1e-3),
    "local steps": (
        {"local_steps": 2, "outer": OuterOptimizer(), "stages": 2, "steps": 6},
        [(4, "tensor"), (2, "zero3")],
        1e-5,
    ),
}


def captured_spec(model_type: str) -> SwarmSpec:
    """A captured model in two stages, cut in the middle."""
    workload = captured(model_type).replace(global_batch=8)
    cuts = workload.boundaries
    changes = {"workload": workload, "first_ops": (0, cuts[len(cuts) // 2])}
    return small_spec(micro_batches=4, stages=2, steps=6).replace(**changes)


@pytest.mark.parametrize(
    ("model_type", "groups"),
    [("gpt2", MIXED), ("mixtral", [(2, "tensor"), (1, "tensor"), (1, "tensor")])],
)
def test_captured_models_train_in_swarms_of_devices_and_groups(model_type: str, groups: Groups, tmp_path: Path) -> None:
    with start(captured_spec(model_type), tmp_path / "run", groups) as rehearsal:
        rehearsal.wait(HANG_S)
    check_end(rehearsal, 1e-5)
    assert {e["peer"] for e in events_of(rehearsal.run_dir, "serving")} == rehearsal.peers


@pytest.mark.parametrize("name", CASES)
def test_groups_of_unlike_kinds_train_as_one_process_and_end_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    fields, groups, tolerance = CASES[name]
    with start(small_spec(**({"micro_batches": 4} | fields)), tmp_path / "run", groups) as rehearsal:
        rehearsal.wait(HANG_S)
    check_end(rehearsal, tolerance)
    assert {e["peer"] for e in events_of(rehearsal.run_dir, "serving")} == rehearsal.peers


def test_a_group_that_loses_a_device_leaves_whole_and_another_joins(tmp_path: Path) -> None:
    """One device is killed, one stops, a leader is killed, a group leaves when asked; groups of other kinds come."""
    spec = small_spec(steps=60, stages=2, micro_batches=4, lease_s=5.0)
    with start(spec, tmp_path / "run", [(2, "tensor"), (1, "tensor"), (2, "zero3"), (1, "tensor")]) as rehearsal:
        seen: list[psutil.Process] = []

        def until_steps(more: int) -> None:
            path = rehearsal.run_dir / "events.jsonl"
            wanted = (len(losses_of(rehearsal.run_dir)) if path.exists() else 0) + more
            until(lambda: path.exists() and len(losses_of(rehearsal.run_dir)) >= wanted)

        def not_alone(peer: str) -> None:
            """Joiners go where capacity is least, and that is measured; the last copy of a stage must not be killed."""
            until(lambda: peer in serving(rehearsal))
            for number in range(MORE_PEERS):
                stages = serving(rehearsal)
                if sum(stage == stages[peer] for stage in stages.values()) > 1:
                    return
                another = f"{peer}-with-{number}"
                rehearsal.start_peer(another, SPEED)
                until(lambda name=another: name in serving(rehearsal))
            raise AssertionError(f"none of {MORE_PEERS} peers has joined the stage of {peer}")

        def replaced(peer: str, process: psutil.Process, number: signal.Signals, by: str, sharding: Sharding) -> None:
            not_alone(peer)
            seen.extend(members_of(rehearsal, peer))
            os.kill(process.pid, number)
            until(lambda: rehearsal.processes[peer].exitcode is not None)
            rehearsal.start_peer(by, SPEED, degree=2, sharding=sharding)
            until(lambda: by in serving(rehearsal))

        until_steps(2)
        replaced("peer-0", members_of(rehearsal, "peer-0")[0], signal.SIGKILL, "peer-4", "zero2")
        assert "device 1 of this peer's group has ended with -9" in rehearsal.log_file("peer-0").read_text()
        replaced("peer-2", members_of(rehearsal, "peer-2")[0], signal.SIGSTOP, "peer-5", "tensor")
        assert "has not answered for 5 s" in rehearsal.log_file("peer-2").read_text()
        leader = psutil.Process(rehearsal.processes["peer-4"].pid)
        replaced("peer-4", leader, signal.SIGKILL, "peer-6", "zero3")
        leader = psutil.Process(rehearsal.processes["peer-5"].pid)
        replaced("peer-5", leader, signal.SIGINT, "peer-7", "tensor")
        assert rehearsal.processes["peer-5"].exitcode == 0
        rehearsal.wait(HANG_S)
    check_end(rehearsal, 1e-5)
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in seen))


def test_a_plan_with_groups_trains_under_the_agent_and_goes_on_with_single_devices(client, tmp_path: Path) -> None:
    workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
    cluster = small_cluster(3, bandwidth="200 Mbit/s", latency="2 ms")
    single = swarm_plan([2, 1], [workload.boundaries[2]], cluster=cluster, workload=workload)
    first = client.start(in_groups(single, [2, 1, 4]), TrainConfig(steps=6, checkpoint_every=3))
    assert first.wait(HANG_S).state == "finished", first.log(None)
    losses = losses_of(first.path)
    second = client.start(single, TrainConfig(steps=9, checkpoint_every=3, resume=str(first.path)))
    assert second.wait(HANG_S).state == "finished", second.log(None)
    losses += [e["loss"] for e in events_of(second.path, "commit")]
    _, wanted = train_reference(workload, TrainConfig(steps=9))
    assert losses == pytest.approx(wanted, rel=1e-5)
