"""Real swarms under scripted misfortune: the loss of every step is single-process training's, replicas end equal."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hetplanner.errors import InvalidInput
from hetplanner.runtime.model.sample import load_model
from hetplanner.runtime.train.reference import train_reference
from hetplanner.swarm.launch.faults import MATE, Fault, FaultInjector
from hetplanner.swarm.launch.network_proxy import NetworkProxy
from tests.support.plans.factories import small_cluster
from tests.support.processes.patience import HANG_S, stretched
from tests.support.swarms.swarm_runs import (
    check_end,
    events_of,
    losses_of,
    reference_losses,
    small_spec,
    start_swarm,
    train_delayed,
)

pytestmark = pytest.mark.distributed

EXACT = 1e-5
STORM = [
    Fault(1, "kill", 0.1),
    Fault(1, "join", 0.2, "joiner-0", speed=40.0),
    Fault(2, "stop", 0.1, lasts_s=2.5),
    Fault(3, "kill trainer", 0.1, lasts_s=0.5),
    Fault(4, "kill coordinator", 0.1, lasts_s=0.3),
    Fault(5, "leave", 0.1),
    Fault(6, "kill", 0.1),
]


def test_a_storm_leaves_the_loss_curve_and_the_replicas_alone(tmp_path):
    spec = small_spec(steps=8, micro_batches=12)
    with start_swarm(spec, tmp_path, peers=8, trainers=2) as rehearsal:
        storm = FaultInjector(rehearsal, STORM)
        storm.run(90)
    check_end(rehearsal, EXACT)
    assert {k: storm.happened[k] for k in ("kill", "join", "stop", "kill trainer", "kill coordinator", "leave")} == {
        "kill": 2, "join": 1, "stop": 1, "kill trainer": 1, "kill coordinator": 1, "leave": 1
    }  # fmt: skip
    assert [b["boot"] for b in events_of(tmp_path, "boot")] == [1, 2]
    assert all(not p.is_alive() for p in rehearsal.processes.values())


def test_delayed_updates_survive_deaths_joins_and_another_coordinator(tmp_path):
    spec = small_spec(steps=8, tied=True, delayed=True)
    faults = [
        Fault(2, "kill", 0.1),
        Fault(3, "join", 0.1, "joiner-0", speed=40.0),
        Fault(5, "kill coordinator", 0.1, lasts_s=0.3),
    ]
    with start_swarm(spec, tmp_path, peers=6) as rehearsal:
        storm = FaultInjector(rehearsal, faults)
        storm.run(240)
    assert {k: storm.happened[k] for k in ("kill", "join", "kill coordinator")} == {
        "kill": 1, "join": 1, "kill coordinator": 1
    }  # fmt: skip
    check_end(rehearsal, EXACT)
    wanted, _ = train_delayed(spec)
    saved = load_model(tmp_path).named_weights()
    for name, weight in wanted.items():
        assert (saved[name] - weight).abs().max() < 1e-4, name


def test_emulated_links_take_their_time_and_change_no_number(tmp_path):
    """Also those of a joiner, which downloads its state over one of them."""
    spec = small_spec(steps=4, stages=2)
    cluster = small_cluster(4, bandwidth="8 Mbit/s", latency="30 ms")
    with start_swarm(spec, tmp_path, peers=4, cluster=cluster) as rehearsal:
        storm = FaultInjector(rehearsal, [Fault(1, "kill", 0.1), Fault(1, "join", 0.2, "joiner", speed=40.0)])
        storm.run(90)
    check_end(rehearsal, EXACT)
    assert storm.happened["kill"] == storm.happened["join"] == 1
    reduce_s = [e["seconds"]["reduce"] for e in events_of(tmp_path, "closed")]
    first = 4 * 0.03  # numbers, then gradients: a ring of two has two rounds, each at least a latency
    assert reduce_s[0] >= first
    # A micro-batch goes forward and back over one link before the step can close.
    assert all(c["seconds"] >= 2 * 0.03 for c in events_of(tmp_path, "commit"))


def test_compressed_traffic_stays_near_the_undisturbed_curve_and_the_model_can_be_loaded(tmp_path):
    spec = small_spec(steps=4, codec="int8", recompute=True)
    with start_swarm(spec, tmp_path, peers=6) as rehearsal:
        FaultInjector(rehearsal, [Fault(1, "kill", 0.1)]).run(60)
    check_end(rehearsal, 5e-3)
    model, _ = train_reference(spec.workload, spec.train)
    saved = load_model(tmp_path).named_weights()
    for name, weight in model.named_weights().items():
        assert (saved[name] - weight).abs().max() < 0.02, name


def test_dropout_and_recompute_draw_what_one_process_draws_also_where_peers_refuse_more_than_they_hold(tmp_path):
    spec = small_spec(steps=3, stages=2, dropout=0.1, recompute=True, in_flight=1)
    with start_swarm(spec, tmp_path, peers=4) as rehearsal:
        FaultInjector(rehearsal, [Fault(1, "kill", 0.1)]).run(60)
    check_end(rehearsal, EXACT)


def test_weights_that_several_stages_hold_are_summed_over_all_of_them(tmp_path):
    spec = small_spec(steps=4, tied=True, shared_layers=3)
    shared = {"layer.0.attention": (0, 1, 2), "layer.0.mlp": (0, 1, 2)}
    assert spec.tied_stages == {"embedding": (0, 2)} | shared
    with start_swarm(spec, tmp_path, peers=6) as rehearsal:
        FaultInjector(rehearsal, [Fault(1, "kill", 0.1)]).run(60)
    check_end(rehearsal, EXACT)


@pytest.mark.parametrize("delayed", [False, True])
def test_clipping_by_the_norm_of_all_stages_is_that_of_one_process(tmp_path, delayed):
    spec = small_spec(steps=6, tied=True, shared_layers=3, clip_norm=0.3, delayed=delayed)
    with start_swarm(spec, tmp_path, peers=6) as rehearsal:
        FaultInjector(rehearsal, [Fault(1, "kill", 0.1), Fault(3, "kill coordinator", 0.1, lasts_s=0.3)]).run(240)
    check_end(rehearsal, EXACT)
    steps = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    norms = {line["step"]: line["grad_norm"] for line in steps if line["type"] == "step"}
    assert sorted(norms) == [0, 1, 2, 3, 4, 5]  # the one at which a coordinator died may be there twice
    assert min(norms.values()) > 0.3, "every step is clipped"


@pytest.mark.parametrize("delayed", [False, True])
def test_all_copies_of_a_stage_lost_go_back_to_the_checkpoint(tmp_path, delayed):
    spec = small_spec(steps=6, checkpoint_steps=2, restore_s=0.5, delayed=delayed)
    with start_swarm(spec, tmp_path, peers=3) as rehearsal:
        faults = [Fault(3, "kill", 0.1, peer="peer-1"), Fault(3, "join", 0.3, "joiner-0", speed=40.0)]
        FaultInjector(rehearsal, faults).run(60)
    (back,) = events_of(tmp_path, "set back")
    assert "step 2" in back["text"]
    (stage,) = {e["stage"] for e in events_of(tmp_path, "serving") if e["peer"] == "peer-1"}
    commit = next(c for c in events_of(tmp_path, "commit") if c["version"] == [0, 3])
    paused = next(e for e in events_of(tmp_path, "paused") if e["time_s"] > commit["time_s"])
    assert paused["stages"] == [stage]
    resumed = next(e for e in events_of(tmp_path, "resumed") if e["time_s"] > paused["time_s"])
    assert resumed["time_s"] < next(c for c in events_of(tmp_path, "commit") if c["version"][0] == 1)["time_s"]
    again = [c for c in events_of(tmp_path, "commit") if c["version"][0] == 1]
    wanted = reference_losses(spec)
    assert [c["version"][1] for c in again] == [3, 4, 5, 6]
    for commit in again:
        assert commit["loss"] == pytest.approx(wanted[commit["version"][1] - 1], rel=EXACT)


def test_certificates_are_enough_to_take_part(tmp_path):
    from hetplanner.swarm.wire.certificates import make_certificates

    make_certificates(tmp_path / "own")
    make_certificates(tmp_path / "other")
    spec = small_spec(steps=2, stages=2)
    with start_swarm(spec, tmp_path / "run", peers=0, certificates=tmp_path / "own") as rehearsal:
        rehearsal.certificates = None
        rehearsal.start_peer("plain")
        rehearsal.certificates = tmp_path / "other"
        rehearsal.start_peer("stranger")
        for name in ("plain", "stranger"):
            rehearsal.processes[name].join(60)
            assert rehearsal.processes[name].exitcode == InvalidInput.exit_code
        rehearsal.certificates = tmp_path / "own"
        for name in ("peer-0", "peer-1"):
            rehearsal.start_peer(name, 40.0)
        rehearsal.wait(60)
    said = {name: (tmp_path / "run" / f"log-of-{name}.txt").read_text() for name in ("plain", "stranger")}
    assert "asks for certificates; give --certificates" in said["plain"]
    assert "its certificate is not by the authority" in said["stranger"]
    # A slow peer with certificates may be refused once as well: that event names no host.
    refused = [e["text"] for e in events_of(tmp_path / "run", "refused") if "peer" in e]
    assert refused
    assert all(text.startswith("no certificate of this swarm: ") for text in refused)
    assert losses_of(tmp_path / "run") == pytest.approx(reference_losses(spec), rel=EXACT)
    assert {e["peer"] for e in events_of(tmp_path / "run", "serving")} == {"peer-0", "peer-1"}


def test_a_killed_rehearsal_leaves_no_process(tmp_path):
    script = Path(__file__).parents[2] / "support/swarms/swarm_rehearser.py"
    rehearser = subprocess.Popen([sys.executable, str(script), str(tmp_path)], start_new_session=True)
    try:
        deadline = time.monotonic() + HANG_S
        while not (tmp_path / "events.jsonl").exists() or not events_of(tmp_path, "commit"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (fork_server,) = [p for p in psutil.Process(rehearser.pid).children() if p.children()]
        fork_server.children()[-1].suspend()  # one that is stopped cannot even end itself
        family = psutil.Process(rehearser.pid).children(recursive=True)
        assert len(family) >= 5  # coordinator, trainer, two peers, fork server
    finally:
        rehearser.kill()
    _, left = psutil.wait_procs(family, timeout=stretched(10))
    assert left == []


def test_a_peer_cut_off_from_the_coordinator_comes_back_as_another_when_the_link_does(tmp_path):
    spec = small_spec(steps=12, stages=2)
    with start_swarm(spec, tmp_path, peers=4, speed=10.0, network_proxy=NetworkProxy()) as rehearsal:
        storm = FaultInjector(rehearsal, [Fault(2, "cut", 0.1, lasts_s=3.0)])
        storm.run(120)
    check_end(rehearsal, EXACT)
    (hit,) = storm.hits
    assert (hit.kind, storm.happened["cut"]) == ("cut", 1)
    lives = [tuple(e["incarnation"]) for e in events_of(tmp_path, "serving") if e["peer"] == hit.peer]
    assert len(lives) >= 2
    assert lives == sorted(set(lives))
    assert hit.peer in [e["peer"] for e in events_of(tmp_path, "gone") if e["time_s"] >= hit.time_s]


def test_two_mates_that_cannot_reach_one_another_do_not_hold_up_their_stage(tmp_path):
    """One of them goes and rests; left together they would fail every all-reduce."""
    spec = small_spec(steps=24, stages=2)
    with start_swarm(spec, tmp_path, peers=6, speed=10.0, network_proxy=NetworkProxy()) as rehearsal:
        storm = FaultInjector(rehearsal, [Fault(2, "cut", 0.1, other=MATE, lasts_s=6.0)])
        storm.run(120)
    check_end(rehearsal, EXACT)
    (hit,) = storm.hits
    ends = {hit.peer, hit.other}
    (cut,) = [e for e in events_of(tmp_path, "cut") if {e["peer"], e["by"]} == ends][:1]
    later = [e["peer"] for e in events_of(tmp_path, "gone") if e["time_s"] >= cut["time_s"]]
    assert later[0] in ends
    assert "cut off" in events_of(tmp_path, "failures")[-1]["counts"]
    lives = [e["incarnation"] for e in events_of(tmp_path, "serving") if e["peer"] == later[0]]
    assert len(lives) >= 2
