"""An elastic plan run as any other: by the agent, read from its folder, stopped within 5 s with nothing left."""

import json
import subprocess
import sys
import time

import pytest

from hetplanner.cost.elastic.swarm_costs import expected_speeds
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plan.elastic.settings import WiringSettings
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.plots.report_page import report_page
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.reading.swarm_history import WAYS_TO_GO, SwarmHistory
from hetplanner.runs.reports.swarm_report import report_swarm
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.presets import preset
from tests.support.plans.factories import slow_swarm, small_cluster, swarm_plan
from tests.support.processes.patience import HANG_S, stretched
from tests.support.swarms.swarm_runs import events_of, losses_of

pytestmark = pytest.mark.distributed
STOPS = 3


def tiny_swarm(peers=(2, 2)):
    """Two stages of tiny-gpt, whose embedding is tied across them."""
    workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
    cuts = [workload.boundaries[2]]
    cluster = small_cluster(sum(peers), bandwidth="200 Mbit/s", latency="2 ms")
    plan = swarm_plan(list(peers), cuts, cluster=cluster, workload=workload)
    return plan.replace(wiring=WiringSettings(trainers=1, slots=4))


def test_an_elastic_plan_trains_under_the_agent_as_one_process_does(client, tmp_path):
    plan, config = tiny_swarm(), TrainConfig(steps=12)
    run = client.start(plan, config)
    assert run.wait(90).state == "finished", run.log(None)
    run.read_all()
    _, wanted = train_reference(plan.problem.workload, config)
    assert [loss for _, loss in run.losses()] == pytest.approx(wanted, rel=1e-5)
    assert run.tokens_per_s() > 0
    assert run.bytes_boundary > 0
    assert run.bytes_reduce > 0
    assert {e["peer"] for e in events_of(run.path, "serving")} == set(plan.peers)
    assert load_model(run.path).workload.transformer == plan.problem.workload.transformer


def test_a_stop_saves_the_model_and_leaves_nothing(client):
    """A stop ends within seconds whatever is saved by then; a machine that is too busy for that gets another try."""
    for _ in range(STOPS):
        run = client.start(tiny_swarm(), TrainConfig(steps=100_000))
        deadline = time.monotonic() + HANG_S
        while not run.losses() and time.monotonic() < deadline:
            time.sleep(0.05)
            run.poll()
        began_s = time.monotonic()
        status = run.stop()
        assert time.monotonic() - began_s < stretched(10)
        if status.message == "stopped":
            break
    assert status.message == "stopped"
    assert run.directory.model_file.exists()


def test_peers_of_a_rehearsal_leave_or_are_killed_and_the_curve_stays_what_one_process_gives(client, tmp_path):
    plan = slow_swarm((2, 2), peaks=(2e9,), micro_batches=8).replace(rebalancing=Rebalancing(policy="none"))
    config = TrainConfig(steps=100_000, emulate_links=True)
    run = client.start(plan, config)
    history = SwarmHistory(run.path)

    def until(condition):
        deadline = time.monotonic() + HANG_S
        while not (history.poll() and condition()):
            assert time.monotonic() < deadline, run.log(None)
            assert not run.status().is_over, run.log(None)
            time.sleep(0.05)

    with pytest.raises(InvalidInput, match=r"must be one of the run's 4 \(.*\), got 'd9'"):
        client.ask_peer(run.id, "d9", "kill")
    until(lambda: history.commits and len(history.now) == 4)
    client.ask_peer(run.id, "d0", "drain")
    with pytest.raises(InvalidInput, match="peer d0: has been asked to leave already"):
        AgentClient(tmp_path, start=False).ask_peer(run.id, "d0", "drain")
    until(lambda: "left" in history.counts)
    command = [sys.executable, "-m", "hetplanner.cli", "runs", "kill", run.id, "d3", "--json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == {"id": run.id, "peer": "d3", "asked": "kill", "follows": "d3 is killed"}
    until(lambda: "lost" in history.counts)
    for peer, act, words in (("d3", "kill", "killed already"), ("d0", "kill", "is not in the swarm now")):
        with pytest.raises(InvalidInput, match=words):
            client.ask_peer(run.id, peer, act)
    alone = [("d1", 8), ("d2", 8)]
    until(lambda: any([(p.peer, p.micro_batches) for p in step.peers] == alone for step in history.steps))
    until(lambda: any(step.pairs == ((0, 1, 8),) and len(step.peers) == 2 for step in history.steps))
    went = {mark.peer: mark.kind for mark in history.marks if mark.kind in WAYS_TO_GO}
    assert (went["d0"], went["d3"]) == ("left", "lost")
    assert not {"d0", "d3"} & set(history.now)
    assert all(sum(count for _, _, count in step.sent) == 8 for step in history.steps)
    assert {trainer for trainer, _, _ in history.steps[-1].sent} == {"trainer-0"}
    assert all(sum(p.micro_batches for p in step.peers if p.stage == s) == 8 for step in history.steps for s in (0, 1))
    for peer in history.flow(1).peers:  # it waits out at least what is emulated
        assert 0 < peer.speed <= 1.05 * expected_speeds(plan)[peer.peer][peer.stage]
    run.stop()
    with pytest.raises(InvalidInput, match="is stopped; only peers of a running swarm"):
        client.ask_peer(run.id, "d1", "drain")
    losses = losses_of(run.path)
    _, wanted = train_reference(plan.problem.workload, config.replace(steps=len(losses)))
    assert losses == pytest.approx(wanted, rel=1e-5)
    asked = [(r.event, r.text) for r in audit_records(tmp_path, run=run.id) if r.event in ("drain", "kill")]
    assert asked == [("drain", "asked to leave: peer d0"), ("kill", "killed: peer d3")]
    found, page = report_swarm(run), report_page(run)
    ends = [("d0", 0, "left"), ("d1", 0, "there"), ("d2", 1, "there"), ("d3", 1, "lost")]
    assert [(p.peer, p.stage, p.end) for p in found.peers] == ends
    assert sum(p.micro_batches for p in found.peers if p.stage == 0) == 8 * len(losses)
    assert {c.phase for c in found.closing} >= {"prepare", "reduce", "persist", "commit"}
    assert "steady-state step" in found.difference
    for words in ("Peers of every stage over time", "Who did what", "killed: peer d3", "asked to leave: peer d0"):
        assert words in page


def test_the_command_line_makes_certificates_and_joins_a_run(tmp_path):
    from hetplanner.swarm.launch.rehearsal import Rehearsal
    from hetplanner.swarm.spec import spec_of

    hetplanner = [sys.executable, "-m", "hetplanner.cli"]
    folder = str(tmp_path / "certificates")
    subprocess.run([*hetplanner, "peer", "certificates", folder], check=True, capture_output=True)
    save_plan(tiny_swarm(), tmp_path / "plan.json")
    spec = spec_of(tiny_swarm((1, 1)), TrainConfig(steps=2))
    with Rehearsal(spec, tmp_path / "run", tmp_path / "certificates") as rehearsal:
        rehearsal.start_coordinator()
        rehearsal.start_trainer("trainer-0")
        rehearsal.start_peer("first", 8.0)
        joined = subprocess.Popen(
            [*hetplanner, "peer", "join", rehearsal.address, "--name", "by-hand", "--certificates", folder],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            rehearsal.wait(90)
            assert joined.wait(10) == 0
        finally:
            joined.kill()
    assert {e["peer"] for e in events_of(tmp_path / "run", "serving")} == {"first", "by-hand"}
