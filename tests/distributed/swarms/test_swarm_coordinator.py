"""The coordinator killed in the middle of every phase, and started again from its log."""

import errno
import os

import pytest

from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.plan.model import OuterOptimizer
from hetplanner.swarm.coordinator_process import CoordinatorProcess
from hetplanner.swarm.decision_file import DecisionFile
from hetplanner.swarm.launch.rehearsal import Rehearsal
from tests.support.swarms.swarm_runs import check_end, events_of, small_spec, start_swarm

pytestmark = pytest.mark.distributed

DIED = 9


def _die_entering(phase: Phase) -> None:
    tell = CoordinatorProcess._tell_of_phase

    def tell_and_die(self: CoordinatorProcess) -> None:
        tell(self)
        if self.machine.transaction.phase is phase:
            os._exit(DIED)

    CoordinatorProcess._tell_of_phase = tell_and_die


def die_in_prepare() -> None:
    _die_entering(Phase.PREPARE)


def die_in_reduce() -> None:
    _die_entering(Phase.REDUCE)


def die_in_persist() -> None:
    _die_entering(Phase.PERSIST)


def die_in_commit() -> None:
    _die_entering(Phase.COMMIT)


def die_with_an_untold_decision() -> None:
    append = DecisionFile.append

    def append_and_die(self: DecisionFile, decision: object) -> None:
        append(self, decision)
        if isinstance(decision, Committed):
            os._exit(DIED)

    DecisionFile.append = append_and_die


def no_room_for_a_while() -> None:
    """The disk takes no commit the first three times."""
    append, refused = DecisionFile.append, []

    def append_or_not(self: DecisionFile, decision: object) -> None:
        if isinstance(decision, Committed) and len(refused) < 3:
            refused.append(decision)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, decision)

    DecisionFile.append = append_or_not


def test_a_full_disk_stops_commits_and_loses_nothing(tmp_path):
    spec = small_spec(steps=3, stages=2)
    with Rehearsal(spec, tmp_path) as rehearsal:
        rehearsal.start_coordinator(no_room_for_a_while)
        rehearsal.start_trainer("trainer-0")
        for number in range(4):
            rehearsal.start_peer(f"peer-{number}", 40.0)
        rehearsal.wait(60)
    check_end(rehearsal, 1e-5)
    told = [event["text"] for event in events_of(tmp_path, "disk")]
    assert told[0] == "decision log: No space left on device; the swarm waits"
    assert told[1:] == ["written again"]


@pytest.mark.parametrize(
    ("peers", "options"),
    [(6, {}), (6, {"delayed": True, "clip_norm": 0.3}), (3, {"local_steps": 2, "outer": OuterOptimizer()})],
    ids=["prompt", "delayed and clipped", "local steps"],
)
def test_a_coordinator_killed_in_every_phase_goes_on_where_its_log_ends(tmp_path, peers, options):
    spec = small_spec(steps=4, settle_s=0.2, **options)
    plants = [die_in_prepare, die_in_reduce, die_in_persist, die_with_an_untold_decision, die_in_commit]
    with start_swarm(spec, tmp_path, peers=peers) as rehearsal:
        rehearsal.kill("coordinator")
        for plant in plants:
            rehearsal.start_coordinator(plant)
            rehearsal.processes["coordinator"].join(90)
            assert rehearsal.processes["coordinator"].exitcode == DIED, plant.__name__
        rehearsal.start_coordinator()
        rehearsal.wait(60)
    boots = [(b["boot"], b["version"][1]) for b in events_of(tmp_path, "boot")]
    # Two of the five died with a durable commit that nobody, or not everybody, had been told.
    assert [step for _, step in boots[-6:]] == [0, 0, 0, 0, 1, 2]
    check_end(rehearsal, 1e-5)
    # All are back; one whose download a death cut short has nothing to come back with, and may be sent elsewhere.
    replicas = [digest["replicas"] for digest in events_of(tmp_path, "digests")]
    assert (len(replicas), sum(replicas)) == (3, peers)
