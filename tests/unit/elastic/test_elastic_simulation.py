"""The whole swarm in simulation: undisturbed, with many faults, with the coordinator killed; faults are seen."""

from dataclasses import replace

import pytest

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.cut_links import STALE_S
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation import hosts as simulated_hosts
from hetplanner.elastic.simulation.simulation import NEVER, NO_FAULTS, Faults, Simulation
from tests.support.swarms.elastic_ablations import ABLATIONS

SETTINGS = ElasticSettings(stages=3, micro_batches=6, checkpoint_steps=2)


class Assassin(Simulation):
    """Kills the coordinator every third time it enters a phase (PERSIST: or when the commit is durable and untold)."""

    def __init__(self, phase, faults=NO_FAULTS):
        self._phase, self._entered = phase, 0
        super().__init__(SETTINGS, faults, seed=1, peers=9)

    def ends_coordinator(self, phase):
        self._entered += phase is self._phase
        return phase is self._phase and self._entered % 3 == 0


def test_an_undisturbed_swarm_trains_and_nothing_is_done_twice():
    world = Simulation(SETTINGS, NO_FAULTS, seed=0, peers=6)
    world.run(30)
    assert world.checks.commits == 30
    assert world.checks.violations == []
    assert (
        world.checks.peer_steps == 6 * 30
    )  # Nobody joined late, was lost or stepped twice (30 - 1 steps and a start).


@pytest.mark.parametrize("phase", list(Phase))
def test_a_coordinator_killed_in_any_phase_goes_on_where_its_log_ends(phase):
    faults = replace(NO_FAULTS, reduce=0.2) if phase is Phase.ABORT else NO_FAULTS
    world = Assassin(phase, faults)
    world.run(25)
    assert world.checks.commits == 25
    assert world.checks.violations == []
    assert sum(count for name, count in world.happened.items() if name.startswith("coordinator")) >= 3


def test_a_storm_of_everything_breaks_no_invariant():
    world = Simulation(SETTINGS, Faults(), seed=3, peers=9)
    world.run(150)
    assert not world.stuck
    assert world.checks.commits == 150
    assert world.checks.violations == []
    for kind in ("kill", "hang", "cut", "link", "twin", "leave", "trainer", "late", "lost", "reduce", "refused"):
        assert world.happened[kind] > 0, kind


LINKS = replace(NO_FAULTS, link_s=2.0, hang_s=4.0)


def test_cut_links_cost_no_contribution_and_mates_that_cannot_reach_one_another_are_parted(monkeypatch):
    """Nobody goes because of a link that works: who was stopped for a while is reached again."""
    outcasts = []

    class Watched(Coordinator):
        def _lose(self, record, reason, now_s):
            if reason == "cut off":
                mates = [r.address for r in self.membership.all_records() if r.stage == record.stage]
                recently = world.now_s - STALE_S
                outcasts.append(any(world.links.are_parted(record.address, mate, recently) for mate in mates))
            super()._lose(record, reason, now_s)

    monkeypatch.setattr(simulated_hosts, "Coordinator", Watched)
    for seed in range(3):
        world = Simulation(SETTINGS, LINKS, seed, peers=9)
        world.run(60)
        assert world.checks.commits == 60
        assert world.checks.violations == []
    assert len(outcasts) >= 3
    assert all(outcasts)


def test_two_peers_of_a_stage_whose_link_stays_cut_do_not_hold_up_the_others():
    world = Simulation(SETTINGS, NO_FAULTS, seed=0, peers=6)
    world.run(3)
    one, two = (host for host in world._living() if host.machine.stage == 1)
    world.links.cut(one.address, two.address, NEVER)
    began_s = world.now_s
    world.run(20)
    assert world.checks.commits == 20
    assert world.checks.violations == []
    assert world.now_s - began_s < 60


def test_a_swarm_that_loses_half_of_its_peers_goes_on_and_fills_up_again():
    world = Simulation(SETTINGS, NO_FAULTS, seed=2, peers=9)
    world.run(5)
    for _ in range(4):
        world._kill_peer()
    world.run(15)
    assert world.checks.violations == []
    assert len({host.machine.stage for host in world._living()}) == 3
    world.run(40)
    assert len(world._living()) == 9
    assert {host.machine.version.step for host in world._living()} <= {39, 40}  # All serve, some have yet to step.


def test_state_that_nobody_holds_any_more_and_no_checkpoint_has_pauses_the_run():
    world = Simulation(replace(SETTINGS, checkpoint_steps=0), NO_FAULTS, seed=0, peers=3)
    world.run(3)
    for host in world._living():
        if host.machine.stage == 1:
            world._end(host)
    world.run(10)
    assert world.lost
    assert not world.stuck
    assert world.checks.commits <= 4
    assert world.checks.violations == []


EXPECTED = {
    "fold whatever finished": {"I1", "I2", "I3", "I4"},
    "no incarnations, no count": {"I1", "I3", "I4"},
    "fresh weights for a lost stage": {"I3"},
    "tell before the decision is durable": {"I5"},
}
SEEDS = 12
LATE = Faults(kill_s=8.0, leave_s=NEVER, twin_s=NEVER, late=0.05, doubled=0.05, phase_kill=0.03)


def test_the_same_storm_without_wrong_behaviour_is_clean():
    for seed in range(4):
        world = Simulation(SETTINGS, LATE, seed, peers=5)
        world.run(40)
        assert world.checks.violations == []


@pytest.mark.parametrize("name", ABLATIONS)
def test_wrong_behaviour_is_seen(name):
    for seed in range(SEEDS):
        world = Simulation(SETTINGS, LATE, seed, peers=5, **ABLATIONS[name])
        world.run(40)
        seen = {line[:2] for line in world.checks.violations}
        if seen >= EXPECTED[name]:
            return
    pytest.fail(f"not seen in {SEEDS} seeds")


@pytest.mark.parametrize("checkpoint_steps", [0, 2])
def test_when_all_processes_die_and_checkpoints_are_damaged_the_swarm_goes_on_from_what_is_left(checkpoint_steps):
    settings = replace(SETTINGS, checkpoint_steps=checkpoint_steps)
    faults = Faults(everybody_s=25.0 if checkpoint_steps else 60.0, damage=0.2)
    times = 0
    for seed in range(1, 4):
        world = Simulation(settings, faults, seed, peers=9, prepare_coordinator=_may_begin_anew)
        world.run(50)
        assert world.checks.commits == 50
        assert world.checks.violations == []
        times += world.happened["everybody"]
    assert times >= 5


def _may_begin_anew(coordinator):
    coordinator._may_begin_anew = True
