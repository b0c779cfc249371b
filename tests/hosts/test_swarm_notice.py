"""A swarm over hosts, one of which its cloud takes away."""

import signal

import pytest

from hetplanner.errors import Preempted
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.reading.swarm_history import WAYS_TO_GO
from hetplanner.runtime.train.reference import train_reference
from tests.support.hosts import netns
from tests.support.hosts.host_bed import HostBed, HostSpec
from tests.support.hosts.launches.swarm_lab import SwarmLab
from tests.support.plans.factories import slow_swarm
from tests.support.processes.patience import HANG_S

pytestmark = pytest.mark.distributed

MICRO_BATCHES = 8


def test_a_peer_whose_machine_will_go_leaves_in_time_and_no_work_is_lost_or_done_twice():
    if not netns.CAN_MAKE:
        pytest.skip(netns.NEEDS_ROOT)
    plan = slow_swarm((2, 2), peaks=(2e9,), micro_batches=MICRO_BATCHES)
    config = TrainConfig(steps=100_000)
    with HostBed([HostSpec(name) for name in "abcde"]) as bed:
        lab = SwarmLab(bed, plan, config, speed=8.0)
        lab.commit(4)
        assert len(lab.history.now) == 4
        lab.give_notice("d0")
        assert lab.peers["d0"].wait(HANG_S) == Preempted.exit_code
        lab.commit(4)
        lab.coordinator.send_signal(signal.SIGINT)
        assert lab.coordinator.wait(HANG_S) == 0
        history = lab.history.read_all()
        assert "AWS will terminate this machine" in lab.words()
    went = {mark.peer: mark.kind for mark in history.marks if mark.kind in WAYS_TO_GO}
    assert went == {"d0": "left"}
    assert not history.failures
    for step in history.steps:
        for stage in (0, 1):
            assert sum(p.micro_batches for p in step.peers if p.stage == stage) == MICRO_BATCHES
    losses = [commit.loss for commit in history.commits]
    _, wanted = train_reference(plan.problem.workload, config.replace(steps=len(losses)))
    assert losses == pytest.approx(wanted, rel=1e-5)
