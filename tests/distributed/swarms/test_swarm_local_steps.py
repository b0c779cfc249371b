"""Real swarms whose peers take local steps: against one process that is told who did what, and under deaths."""

import asyncio
import signal

import pytest
import torch

from hetplanner.plan.model import OuterOptimizer
from hetplanner.runtime.model.sample import load_model
from hetplanner.swarm.launch.faults import Fault, FaultInjector
from tests.support.processes.own_loop import finish
from tests.support.swarms.local_swarm import log_work, lone_paths, paths_of, train_local, work_of
from tests.support.swarms.swarm_runs import events_of, losses_of, small_spec, start_swarm

pytestmark = pytest.mark.distributed

DILOCO = OuterOptimizer()
PATIENT = {"silence_s": 20.0, "answer_s": 30.0}
"""Nobody is taken for dead on a loaded machine: local work would be lost, and what is done twice has two paths."""


async def _events(run_dir, kind, count):
    for _ in range(4800):
        if (run_dir / "events.jsonl").exists() and len(events_of(run_dir, kind)) >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not {count} times {kind} in time")


def check_replicas(rehearsal):
    digests = events_of(rehearsal.run_dir, "digests")
    assert len(digests) == rehearsal.spec.num_stages
    assert all(d["different"] == 1 and d["replicas"] >= 1 for d in digests), digests


def test_local_steps_are_those_of_one_process_that_is_told_who_did_what(tmp_path):
    spec = small_spec(steps=6, local_steps=3, outer=DILOCO, **PATIENT)
    peers = [f"peer-{n}" for n in range(6)]
    with start_swarm(spec, tmp_path, peers=6, trainers=0, plant=log_work) as rehearsal:
        finish(_events(tmp_path, "serving", 6))
        rehearsal.start_trainer("trainer-0")
        rehearsal.wait(240)
    check_replicas(rehearsal)
    assert events_of(tmp_path, "local work lost") == []
    stages, losses = train_local(spec, paths_of(tmp_path, peers, spec))
    assert losses_of(tmp_path) == pytest.approx(losses, rel=1e-5)
    # No stage shares a weight, so that the whole model has them one after the other.
    assert (load_model(tmp_path).flat - torch.cat(stages)).abs().max() < 1e-4


def test_a_death_takes_its_local_work_along_and_a_leave_waits_for_the_end_of_the_round(tmp_path):
    spec = small_spec(steps=9, stages=2, local_steps=3, outer=DILOCO, checkpoint_steps=3, **PATIENT)
    faults = [
        Fault(2, "kill", 0.3, peer="peer-1"),  # when it has stepped, and long before the third step is done
        Fault(2, "join", 0.4, "joiner", speed=5.0),
        Fault(4, "leave", 0.0, peer="peer-0"),
        Fault(7, "kill coordinator", 0.0, lasts_s=0.3),
    ]
    with start_swarm(spec, tmp_path, peers=6, speed=5.0, plant=log_work) as rehearsal:
        storm = FaultInjector(rehearsal, faults)
        storm.run(240)
    check_replicas(rehearsal)
    assert {k: storm.happened[k] for k in ("kill", "join", "leave", "kill coordinator")} == {
        "kill": 1, "join": 1, "leave": 1, "kill coordinator": 1
    }  # fmt: skip
    losses = losses_of(tmp_path)
    assert len(losses) == 9
    assert losses[-1] < losses[0]
    did = work_of(tmp_path, "peer-1")
    stage, learned = did[-1][1], sum(len(micro_batches) for _, _, micro_batches in did)
    assert did[-1][0] == 1
    (lost,) = events_of(tmp_path, "local work lost")
    assert (lost["stage"], lost["micro_batches"], lost["of"]) == (stage, learned, 24)
    assert learned > 0
    events = [e for e in storm.events if e["kind"] == "commit" or (e["kind"] == "gone" and e["peer"] == "peer-0")]
    before_it_left = [e["version"][1] for e in events[: [e["kind"] for e in events].index("gone")]]
    assert before_it_left[-1] == 6


def test_a_run_that_is_stopped_inside_a_round_saves_what_the_last_outer_step_left(tmp_path):
    spec = small_spec(steps=300, stages=2, local_steps=3, outer=DILOCO, **PATIENT)
    with start_swarm(spec, tmp_path, peers=2, speed=10.0) as rehearsal:
        finish(_events(tmp_path, "commit", 4))
        rehearsal.signal("coordinator", signal.SIGINT)
        rehearsal.wait(120)
    done = len(losses_of(tmp_path))
    rounds = done - done % 3
    assert 3 <= rounds < done
    stages, losses = train_local(spec, lone_paths(spec)[:done])
    assert losses_of(tmp_path) == pytest.approx(losses, rel=1e-5)
    assert (load_model(tmp_path).flat - torch.cat(stages)).abs().max() < 1e-4


def test_all_copies_of_a_stage_lost_inside_a_round_go_back_to_the_last_outer_step(tmp_path):
    spec = small_spec(steps=6, stages=2, local_steps=2, outer=DILOCO, checkpoint_steps=2, restore_s=0.5, **PATIENT)
    with start_swarm(spec, tmp_path, peers=3, speed=10.0) as rehearsal:
        finish(_events(tmp_path, "serving", 3))
        replicas = {e["peer"]: e["stage"] for e in events_of(tmp_path, "serving")}
        (lone,) = (peer for peer, stage in replicas.items() if list(replicas.values()).count(stage) == 1)
        faults = [Fault(3, "kill", 0.0, peer=lone), Fault(3, "join", 0.3, "joiner-0", speed=10.0)]
        FaultInjector(rehearsal, faults).run(240)
    (back,) = events_of(tmp_path, "set back")
    assert "step 2" in back["text"]
    assert [c["version"][1] for c in events_of(tmp_path, "commit")][-4:] == [3, 4, 5, 6]
    check_replicas(rehearsal)
