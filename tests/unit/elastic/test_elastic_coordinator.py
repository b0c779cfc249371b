"""The coordinator message by message: who joins how, who is refused, what waits for the disk, who may leave."""

from dataclasses import replace

import pytest

from hetplanner.elastic.coordinator.coordinator import Coordinator
from hetplanner.elastic.coordinator.decisions import (
    Booted,
    CheckpointLost,
    CheckpointSaved,
    Committed,
    Finished,
    Resumed,
    SetBack,
    decisions_of_a_restart,
    replay_decisions,
)
from hetplanner.elastic.coordinator.transaction import Phase
from hetplanner.elastic.protocol import messages
from hetplanner.elastic.protocol.coordinator_events import (
    PeerFailed,
    Persist,
    Persisted,
    PersistFailed,
    Received,
    Tick,
    TrainerFailed,
)
from hetplanner.elastic.protocol.identity import Entry, Holding, Member, Stamp, Token, Version
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation.simulation import SimulatedMove

SETTINGS = ElasticSettings(stages=2, micro_batches=2, settle_s=0.0, silence_s=100.0, restore_s=5.0, join_hold_s=3.0)
LAST = Stamp(1, 77)
ONE_STEP = (Booted(1), Committed(1, LAST, Version(0, 1)))


class Harness:
    """A coordinator, its disk, and all that it sent."""

    def __init__(self, decisions=(), settings=SETTINGS, propose=None, steps=None, places=None, **options):
        self.now_s = 0.0
        self.sent, self.disk, self.unwritten = [], list(decisions), []
        self.machine = Coordinator(settings, decisions, "v1", self.now_s, propose, steps, places, **options)
        self._note(self.machine.start())
        self.write()

    def _note(self, actions):
        self.sent += [action for action in actions if isinstance(action, messages.Send)]
        self.unwritten += [action.decision for action in actions if isinstance(action, Persist)]

    def handle(self, event):
        self._note(self.machine.handle(event, self.now_s))

    def tell(self, address, message):
        self.handle(Received(address, message))
        self.write()

    def write(self):
        while self.unwritten:
            decision = self.unwritten.pop(0)
            self.disk.append(decision)
            self.handle(Persisted(decision))

    def tick(self, after_s=0.1):
        self.now_s += after_s
        self.handle(Tick())
        self.write()

    def last(self, kind, address=None):
        found = [s.message for s in self.sent if isinstance(s.message, kind) and address in (None, s.address)]
        return found[-1] if found else None

    def hello(self, name, holding=None, process=1, fingerprint="v1", speed=1.0):
        self.tell(f"{name}:1", messages.Hello(name, process, fingerprint, speed, holding))
        return self.last(messages.AssignStage, f"{name}:1")

    def join(self, name, holding=None, speed=1.0):
        """A peer that serves, as the member it became."""
        order = self.hello(name, holding, speed=speed)
        self.tell(f"{name}:1", messages.Ready(order.member, order.version))
        return order.member

    def cover(self, trainer="t", tokens=None):
        """A trainer takes all that is to be had and reports every stage's first peer."""
        self.tell(f"{trainer}:1", messages.Ask(trainer, 8, frozenset(), None))
        grants = {s.message.lease: s.message for s in self.sent if isinstance(s.message, messages.Grant)}
        for lease, grant in grants.items():
            if not self.machine.journal.is_leased(lease):
                continue
            manifest = tuple(
                Entry(replicas[0].member, Token(grant.micro_batch, stage, lease.number))
                for stage, replicas in enumerate(self.machine.membership.view.stages)
                if grant.mask >> stage & 1
            )
            self.tell(f"{trainer}:1", messages.Done(trainer, lease, manifest))

    def answer(self, kind, count=None):
        """Every participant answers the phase it is in."""
        transaction = self.machine.transaction
        attempt = transaction.attempt
        for member in sorted(transaction.takes_part):
            version = transaction.version
            if kind is messages.Prepared:
                self.tell("x", messages.Prepared(member, attempt, version, ()))
            elif kind is messages.Reduced:
                self.tell("x", messages.Reduced(member, attempt, SETTINGS.micro_batches if count is None else count))
            else:
                self.tell("x", messages.Decided(member, attempt, version))

    def reduce(self):
        """A step up to its commit, which is not on the disk yet; the attempt."""
        self.cover()
        self.answer(messages.Prepared)
        attempt = self.machine.transaction.attempt
        for member in sorted(self.machine.transaction.takes_part):
            self.handle(Received("x", messages.Reduced(member, attempt, 2)))
        return attempt

    def step(self):
        self.cover()
        for kind in (messages.Prepared, messages.Reduced, messages.Decided):
            self.answer(kind)


@pytest.fixture
def swarm():
    """Two stages with two peers each, before the first step."""
    harness = Harness()
    for name in "abcd":
        harness.join(name)
    return harness


def test_nothing_is_answered_before_the_log_is_claimed():
    machine = Coordinator(SETTINGS, (), "v1", 0.0)
    assert machine.start() == [Persist(Booted(1))]
    assert machine.handle(Received("a:1", messages.Hello("a", 1, "v1", 1.0, None)), 0.0) == []
    machine.handle(Persisted(Booted(1)), 0.0)
    assert machine.handle(Received("a:1", messages.Hello("a", 1, "v1", 1.0, None)), 0.0)


def test_another_fingerprint_is_refused_with_both_values():
    harness = Harness()
    assert harness.hello("a", fingerprint="v2") is None
    assert "v2" in harness.last(messages.Refused).reason
    assert "v1" in harness.last(messages.Refused).reason


def test_a_live_id_is_refused_to_a_second_process_and_given_when_the_first_is_dead(swarm):
    swarm.tell("elsewhere:1", messages.Hello("a", 2, "v1", 1.0, None))
    assert "a:1" in swarm.last(messages.Refused, "elsewhere:1").reason
    assert swarm.machine.membership.get("a").process == 1
    swarm.machine._lose(swarm.machine.membership.get("a"), "silent", swarm.now_s)
    swarm.tell("elsewhere:1", messages.Hello("a", 2, "v1", 1.0, None))
    assert swarm.last(messages.AssignStage, "elsewhere:1").member.peer == "a"


def test_a_repeated_hello_gets_the_same_order():
    harness = Harness()
    assert harness.hello("a") == harness.hello("a")


def test_an_unknown_incarnation_is_asked_who_it_is(swarm):
    swarm.tell("a:1", messages.Ping(Member("a", Stamp(1, 10_000)), None))
    assert swarm.last(messages.UnknownPeer, "a:1") is not None


def test_joiners_go_to_the_neediest_stage():
    harness = Harness()
    assert [harness.hello(name, speed=s).stage for name, s in (("a", 1.0), ("b", 3.0), ("c", 1.0), ("d", 1.5))] == [
        0,
        1,
        0,
        0,
    ]


def test_speed_measured_while_serving_replaces_what_was_said_before_joining():
    harness = Harness()
    members = [harness.join(name, speed=speed) for name, speed in (("a", 9.0), ("b", 2.0))]
    for member, speed in zip(members, (1.0, None), strict=True):
        harness.tell(f"{member.peer}:1", messages.Ping(member, None, 0, speed))
    assert [harness.machine.membership.get(name).speed for name in "ab"] == [1.0, 2.0]
    assert harness.hello("c").stage == 0  # that of a, which turned out to be the slower one


def test_mates_that_cannot_reach_one_another_are_parted_and_others_are_only_told_of(swarm):
    first, second = swarm.machine.membership.view.stages
    (a, c), b = (replica.member for replica in first), second[0].member

    def say(by, of):
        swarm.tell(f"{by.peer}:1", messages.CannotReach(by, of))

    def live(*members):
        swarm.tick(0.4)
        for member in members:
            swarm.tell(f"{member.peer}:1", messages.Ping(member, None))

    say(a, b)
    say(a, c)
    for _ in range(4):
        live(a, b)
    say(a, b)
    say(a, c)
    swarm.tick()
    assert swarm.machine.cut_links.take_news() == [(a, b)]  # of c nothing has been heard: it may be dead
    assert swarm.machine.membership.find(c) is not None
    swarm.tell("c:1", messages.Ping(c, None))
    swarm.tick()
    assert swarm.machine.cut_links.take_news() == []  # it was perhaps stopped, and has had no time to be reached
    live(a, b, c)
    live(a, b, c)
    say(a, c)
    swarm.tick()
    assert swarm.machine.cut_links.take_news() == [(a, c)]
    assert swarm.machine.membership.find(c) is None  # the later of two who say so of one another
    assert swarm.machine.membership.find(a) is not None
    assert swarm.machine.failures == {"cut off": 1}
    swarm.sent.clear()
    assert swarm.hello("c") is None
    swarm.tick(2.5)
    again = swarm.hello("c")
    assert again.member.incarnation > c.incarnation


def test_who_most_of_its_stage_cannot_reach_goes_and_a_mended_link_is_forgotten():
    harness = Harness(settings=replace(SETTINGS, stages=1))
    a, b, c = (harness.join(name) for name in "abc")
    for _ in range(5):
        harness.tick(0.4)
        for member in (a, b, c):
            harness.tell(f"{member.peer}:1", messages.Ping(member, None))
        harness.tell("b:1", messages.CannotReach(b, a))
        harness.tell("a:1", messages.CannotReach(a, c))
    harness.tick()
    assert [replica.member for replica in harness.machine.membership.view.stages[0]] == [b, c]
    harness.tell("b:1", messages.CannotReach(b, c))
    harness.tick(4.0)
    harness.tell("b:1", messages.CannotReach(b, c))
    harness.tick()
    assert len(harness.machine.membership.view.stages[0]) == 2


def test_initial_weights_only_before_the_first_step():
    assert Harness().hello("a").source == messages.FromSeed()
    harness = Harness(ONE_STEP)
    assert harness.hello("a") is None
    harness.tick(1.0)
    assert harness.last(messages.AssignStage) is None
    holder = harness.join("b", Holding(0, Version(0, 1), None))
    assert harness.machine.membership.find(holder).stage == 0
    assert isinstance(harness.last(messages.AssignStage, "a:1").source, messages.FromPeer)


def test_a_joiner_of_a_lost_stage_takes_the_checkpoint_of_the_current_version():
    harness = Harness((*ONE_STEP, CheckpointSaved(1, 0, Version(0, 1))))
    assert harness.hello("a").source == messages.FromCheckpoint(Version(0, 1))


def test_who_holds_the_current_version_keeps_it():
    assert Harness(ONE_STEP).hello("a", Holding(1, Version(0, 1), None)).source == messages.AlreadyHeld()
    stale = Harness(ONE_STEP)
    assert stale.hello("a", Holding(1, Version(0, 0), None)) is None
    assert stale.hello("b", Holding(1, Version(5, 1), None)) is None


def test_who_only_missed_the_decision_is_told_it():
    harness = Harness(ONE_STEP)
    assert harness.hello("a", Holding(1, Version(0, 0), LAST)) is None
    assert harness.last(messages.Decide, "a:1") == messages.Decide(LAST, True, Version(0, 1))
    other = Harness(ONE_STEP)
    other.hello("a", Holding(1, Version(0, 0), Stamp(1, 78)))
    assert other.last(messages.Decide) is None


def test_a_lost_stage_sets_all_back_to_the_newest_common_checkpoint():
    saved = [CheckpointSaved(1, stage, Version(0, 1)) for stage in (0, 1)]
    harness = Harness((*ONE_STEP, *saved, Committed(1, Stamp(1, 78), Version(0, 2))))
    harness.join("a", Holding(0, Version(0, 2), None))
    harness.hello("b")
    harness.tick(1.0)
    harness.tick(SETTINGS.restore_s - 0.1)
    assert harness.disk[-1] == Booted(2)
    harness.tick(0.2)
    assert harness.disk[-1] == SetBack(2, Version(1, 1))
    for name, stage in (("a", 0), ("b", 1)):
        order = harness.last(messages.AssignStage, f"{name}:1")
        assert (order.stage, order.version) == (stage, Version(1, 1))
        assert order.source == messages.FromCheckpoint(Version(0, 1))


def test_without_a_checkpoint_a_lost_stage_sets_all_back_to_initial_weights_where_a_run_may_begin_anew():
    for may in (False, True):
        harness = Harness(ONE_STEP, may_begin_anew=may)
        harness.join("a", Holding(0, Version(0, 1), None))
        harness.hello("b")
        harness.tick(1.0)
        harness.tick(SETTINGS.restore_s + 0.1)
        assert harness.disk[-1] == (SetBack(2, Version(1, 0)) if may else Booted(2))
    for name, stage in (("a", 0), ("b", 1)):
        order = harness.last(messages.AssignStage, f"{name}:1")
        assert (order.stage, order.version, order.source) == (stage, Version(1, 0), messages.FromSeed())


def test_a_checkpoint_that_no_peer_of_its_stage_can_read_is_lost_and_the_one_before_is_taken():
    saved = [CheckpointSaved(1, stage, Version(0, step)) for step in (1, 2) for stage in (0, 1)]
    harness = Harness((*ONE_STEP, *saved[:2], Committed(1, Stamp(1, 78), Version(0, 2)), *saved[2:]))
    harness.join("a", Holding(0, Version(0, 2), None))
    orders = [harness.hello(name) for name in "bc"]
    assert [order.source for order in orders if order.stage == 1] == [messages.FromCheckpoint(Version(0, 2))]
    mates = [harness.hello(name) for name in "de"]
    tried = [order for order in (*orders, *mates) if order.source == messages.FromCheckpoint(Version(0, 2))]
    assert len(tried) >= 2
    for count, order in enumerate(tried, start=1):
        harness.tell(f"{order.member.peer}:1", messages.Ready(order.member, None))
        assert (CheckpointLost(2, 1, Version(0, 2)) in harness.disk) == (count == len(tried))
    harness.tick(1.0)
    harness.tick(SETTINGS.restore_s + 0.1)
    assert harness.disk[-1] == SetBack(2, Version(1, 1))
    order = harness.last(messages.AssignStage, f"{tried[0].member.peer}:1")
    assert order.source == messages.FromCheckpoint(Version(0, 1))
    assert replay_decisions(harness.disk).newest_checkpoint(2) == 1


def test_before_it_ends_a_coordinator_asks_each_stage_for_a_checkpoint_and_not_inside_a_round(swarm):
    assert swarm.machine.save() == []
    swarm.step()
    firsts = [replicas[0] for replicas in swarm.machine.membership.view.stages]
    assert swarm.machine.save() == [
        messages.Send(replica.address, messages.Save(replica.member, Version(0, 1))) for replica in firsts
    ]
    swarm.tell(firsts[0].address, messages.Saved(firsts[0].member, 0, Version(0, 1)))
    assert not swarm.machine.is_saved
    assert [send.address for send in swarm.machine.save()] == [firsts[1].address]
    swarm.tell(firsts[1].address, messages.Saved(firsts[1].member, 1, Version(0, 1)))
    assert swarm.machine.is_saved
    assert swarm.machine.save() == []
    inside = Harness(ONE_STEP, replace(SETTINGS, round_steps=2))
    inside.join("a", Holding(0, Version(0, 1), None))
    assert inside.machine.save() == []


def test_when_all_are_started_again_they_begin_with_the_newest_whole_checkpoint_of_all_stages():
    saved = [CheckpointSaved(1, stage, Version(0, step)) for step in (1, 2) for stage in (0, 1)]
    commits = [Committed(1, Stamp(1, 70 + step), Version(0, step)) for step in (1, 2, 3)]
    log = [Booted(1), *commits, *saved]

    def restart(is_whole):
        return decisions_of_a_restart(replay_decisions(log), 2, is_whole)

    assert restart(lambda stage, version: True) == [SetBack(1, Version(1, 2))]
    lost = CheckpointLost(1, 1, Version(0, 2))
    assert restart(lambda stage, version: (stage, version.step) != (1, 2)) == [lost, SetBack(1, Version(1, 1))]
    assert restart(lambda stage, version: False)[-1] == SetBack(1, Version(1, 0))
    assert decisions_of_a_restart(replay_decisions(()), 2, lambda *_: True) == []
    at_the_checkpoint = [Booted(1), *commits[:2], *saved]
    assert decisions_of_a_restart(replay_decisions(at_the_checkpoint), 2, lambda *_: True) == []


def test_a_resumed_swarm_begins_with_the_steps_and_checkpoints_of_another():
    began = [Resumed(0, Version(0, 7), "/runs/a"), *(CheckpointSaved(0, stage, Version(0, 7)) for stage in (0, 1))]
    harness = Harness(began, places={"a": 1})
    order = harness.hello("a")
    assert (order.stage, order.version, order.source) == (1, Version(0, 7), messages.FromCheckpoint(Version(0, 7)))
    assert harness.machine.ledger.resumed == (7, "/runs/a")


def test_a_checkpoint_is_not_lost_while_a_peer_is_on_its_way_that_may_have_it():
    began = [Resumed(0, Version(0, 7), "/runs/a"), *(CheckpointSaved(0, stage, Version(0, 7)) for stage in (0, 1))]
    lost = CheckpointLost(1, 0, Version(0, 7))
    for comes in (True, False):
        harness = Harness(began, places={"a": 1, "b": 0, "d": 0}, may_begin_anew=True)
        harness.join("a")
        order = harness.hello("b")
        harness.tell("b:1", messages.Ready(order.member, None))  # its host has no checkpoint of the stage
        assert lost not in harness.disk
        if comes:
            assert harness.hello("d").source == messages.FromCheckpoint(Version(0, 7))
            continue
        harness.tick(1.0)
        harness.tick(SETTINGS.restore_s + 0.1)
        assert harness.disk[-1] == SetBack(1, Version(1, 7)), (
            "once more from the same, then without the one that stays away"
        )
        order = harness.last(messages.AssignStage, "b:1")
        harness.tell("b:1", messages.Ready(order.member, None))
        assert lost in harness.disk


def test_a_run_is_finished_when_the_model_of_its_last_step_is_saved():
    ledger = replay_decisions([*ONE_STEP, Finished(1, Version(0, 1))])
    assert ledger.is_finished(1)
    assert not ledger.is_finished(2)
    ledger.take(Committed(1, Stamp(1, 78), Version(0, 2)))
    assert not ledger.is_finished(2)


def test_a_step_commits_only_when_written_down(swarm):
    swarm.cover()
    assert swarm.machine.transaction.phase is Phase.PREPARE
    swarm.answer(messages.Prepared)
    assert {len(s.message.group) for s in swarm.sent if isinstance(s.message, messages.Reduce)} == {2}
    attempt = swarm.machine.transaction.attempt
    members = sorted(swarm.machine.transaction.takes_part)
    for member in members[:-1]:
        swarm.tell("x", messages.Reduced(member, attempt, 2))
    swarm.handle(Received("x", messages.Reduced(members[-1], attempt, 2)))
    assert swarm.unwritten == [Committed(1, attempt, Version(0, 1))]
    assert swarm.last(messages.Decide) is None
    swarm.write()
    assert swarm.last(messages.Decide) == messages.Decide(attempt, True, Version(0, 1))
    swarm.answer(messages.Decided)
    assert swarm.machine.transaction.phase is Phase.RUN
    assert swarm.machine.version == Version(0, 1)


def test_the_norm_of_all_stages_is_decided_with_the_step_and_outlives_the_coordinator(swarm):
    swarm.cover()
    swarm.answer(messages.Prepared)
    transaction, stages = swarm.machine.transaction, swarm.machine.membership.view.stages
    attempt = transaction.attempt
    for stage, replicas in enumerate(stages):
        for replica in replicas:
            swarm.handle(Received("x", messages.Reduced(replica.member, attempt, 2, None, (9.0, 16.0)[stage])))
    assert swarm.unwritten == [Committed(1, attempt, Version(0, 1), None, 5.0)]
    again = Harness((Booted(1), *swarm.unwritten))
    swarm.write()
    assert swarm.last(messages.Decide) == messages.Decide(attempt, True, Version(0, 1), 5.0)
    again.hello("a", Holding(0, Version(0, 0), attempt))
    assert again.last(messages.Decide, "a:1") == messages.Decide(attempt, True, Version(0, 1), 5.0)
    assert replay_decisions([Booted(1), Committed(1, attempt, Version(0, 1))]).last_norm is None  # an older log


def test_a_full_disk_stops_the_commit_and_not_the_memory_of_it(swarm):
    swarm.reduce()
    decision = swarm.unwritten.pop()
    for _ in range(3):
        swarm.handle(PersistFailed(decision))
        assert swarm.unwritten == []  # Not tried again in a tight loop.
        swarm.now_s += 0.1
        swarm.handle(Tick())
        assert swarm.unwritten == [decision]
        assert swarm.machine.transaction.phase is Phase.PERSIST
        swarm.unwritten.clear()
    swarm.handle(Persisted(decision))
    assert swarm.machine.version == Version(0, 1)


def test_the_parts_of_a_step_are_told_with_the_work_that_each_peer_says(swarm):
    swarm.cover()
    a, b, c, d = (swarm.machine.membership.get(name).member for name in "abcd")
    replicas = [[replica.member for replica in replicas] for replicas in swarm.machine.membership.view.stages]
    (first, idle), (last, idle_too) = replicas
    attempt, version = swarm.machine.transaction.attempt, swarm.machine.transaction.version
    for member in (a, b, c, d):
        swarm.tell("x", messages.Prepared(member, attempt, version, (), 0.25 if member in (first, last) else 0.0))
    for kind in (messages.Reduced, messages.Decided):
        swarm.answer(kind)
    work, most = swarm.machine.work, SETTINGS.micro_batches
    assert swarm.machine.version == Version(0, 1)
    assert {peer: (s.stage, s.micro_batches, s.worked_s) for peer, s in work.shares.items()} == {
        first.peer: (0, most, 0.25),
        idle.peer: (0, 0, 0.0),
        last.peer: (1, most, 0.25),
        idle_too.peer: (1, 0, 0.0),
    }
    assert work.flow == {(first.peer, last.peer): most}


def test_a_micro_batch_that_was_done_again_in_part_went_no_way_that_counts(swarm):
    swarm.cover()
    first = swarm.machine.membership.view.stages[0][0].member
    tokens = swarm.machine.journal.tokens_by_member()[first]
    swarm.tell("x", messages.Prepared(first, swarm.machine.transaction.attempt, Version(0, 0), tokens[:1]))
    swarm.cover()
    swarm.tick()
    for kind in (messages.Prepared, messages.Reduced, messages.Decided):
        swarm.answer(kind)
    work, most = swarm.machine.work, SETTINGS.micro_batches
    assert swarm.machine.version == Version(0, 1)
    assert sum(share.micro_batches for share in work.shares.values()) == 2 * most
    assert sum(work.flow.values()) == most - 1


def test_who_left_and_who_was_lost_are_told_apart_at_the_event_they_go_at(swarm):
    leaver, lost = (swarm.machine.membership.view.stages[stage][1].member for stage in (0, 1))
    swarm.tell("x", messages.Leave(leaver))
    assert swarm.machine.departed == {}
    swarm.step()
    assert swarm.machine.departed == {leaver.peer: ""}
    swarm.handle(PeerFailed(lost, "connection lost"))
    assert swarm.machine.departed == {lost.peer: "connection lost"}
    swarm.tick()
    assert swarm.machine.departed == {}


def test_a_wrong_count_aborts_and_keeps_what_is_journaled(swarm):
    swarm.cover()
    swarm.answer(messages.Prepared)
    swarm.answer(messages.Reduced, count=1)
    assert swarm.last(messages.Decide).commit is False
    swarm.answer(messages.Decided)
    assert swarm.machine.transaction.phase is Phase.RUN
    assert swarm.machine.journal.is_complete
    swarm.tick()
    assert swarm.machine.transaction.phase is Phase.PREPARE


def test_a_missing_token_is_done_again_with_its_stage_only(swarm):
    swarm.cover()
    member, tokens = next(iter(swarm.machine.journal.tokens_by_member().items()))
    attempt = swarm.machine.transaction.attempt
    swarm.tell("x", messages.Prepared(member, attempt, Version(0, 0), tokens[:1]))
    assert swarm.machine.transaction.phase is Phase.RUN
    grant = swarm.last(messages.Grant)
    assert (grant.micro_batch, grant.mask) == (tokens[0].micro_batch, 1 << tokens[0].stage)


def test_a_death_in_the_middle_of_an_all_reduce_aborts_and_one_after_the_decision_does_not(swarm):
    swarm.cover()
    swarm.answer(messages.Prepared)
    swarm.machine._lose(swarm.machine.membership.get("c"), "silent", swarm.now_s)
    assert swarm.machine.transaction.phase is Phase.ABORT
    swarm.answer(messages.Decided)
    swarm.tick()
    swarm.cover()
    swarm.answer(messages.Prepared)
    swarm.answer(messages.Reduced)
    swarm.machine._lose(swarm.machine.membership.get("d"), "silent", swarm.now_s)
    assert swarm.machine.transaction.phase is Phase.COMMIT
    swarm.answer(messages.Decided)
    assert swarm.machine.version == Version(0, 1)


def test_a_commit_that_everybody_died_for_is_one_and_the_coordinator_goes_on(swarm):
    attempt = swarm.reduce()
    for record in swarm.machine.membership.all_records():
        swarm.machine._lose(record, "silent", swarm.now_s)
    swarm.write()
    assert swarm.machine.version == Version(0, 1)
    assert swarm.machine.transaction.phase is Phase.RUN
    swarm.hello("a", Holding(0, Version(0, 0), attempt))  # It holds the sum, and only has to be told.
    assert swarm.last(messages.Decide, "a:1") == messages.Decide(attempt, True, Version(0, 1))


def test_who_does_not_answer_prepare_is_dead_and_an_all_reduce_that_hangs_is_aborted(swarm):
    swarm.cover()
    swarm.tick(SETTINGS.resend_s + 0.1)
    assert len([s for s in swarm.sent if isinstance(s.message, messages.Prepare)]) == 8
    swarm.answer(messages.Prepared)
    swarm.tick(SETTINGS.reduce_s + 0.1)
    assert swarm.machine.transaction.phase is Phase.ABORT
    assert len(swarm.machine.membership.all_records()) == 4
    swarm.tick(SETTINGS.answer_s + 0.1)
    assert swarm.machine.membership.all_records() == []
    assert swarm.machine.failures == {"no answer": 4}
    assert swarm.machine.paused == [0, 1]


def test_a_leaver_stays_until_the_boundary_and_the_last_of_a_stage_until_it_is_replaced(swarm):
    a, c = swarm.machine.membership.get("a").member, swarm.machine.membership.get("c").member
    swarm.tell("a:1", messages.Leave(a))
    swarm.tell("c:1", messages.Leave(c))
    assert swarm.last(messages.Released) is None
    swarm.step()
    assert [s.message.member for s in swarm.sent if isinstance(s.message, messages.Released)] == [a]
    swarm.step()
    assert swarm.machine.membership.find(c) is not None
    order = swarm.hello("e")
    assert order.stage == 0
    swarm.tell("e:1", messages.Ready(order.member, swarm.machine.version))
    swarm.step()
    assert [s.message.member for s in swarm.sent if isinstance(s.message, messages.Released)] == [a, c]


def test_a_move_happens_at_the_boundary_and_never_takes_the_last_peer():
    moves = iter(
        [SimulatedMove("a", 1), SimulatedMove("c", 1), SimulatedMove("nobody", 0), SimulatedMove("b", 7), None]
    )
    asked = []

    def propose(peers, now_s):
        asked.append({p.peer: p.stage for p in peers})
        return next(moves)

    harness = Harness(propose=propose)
    for name in "abcd":
        harness.join(name)
    assert asked == []
    harness.step()
    order = harness.last(messages.AssignStage, "a:1")
    assert (order.stage, order.version) == (1, Version(0, 1))
    harness.tell("a:1", messages.Ready(order.member, order.version))
    for _ in range(3):
        harness.step()
    assert asked[0] == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert asked[-1] == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_a_late_joiner_holds_the_step_and_one_that_never_keeps_up_is_refused(swarm):
    order = swarm.hello("e")
    swarm.step()
    for fetches in range(2, 7):
        swarm.tell("e:1", messages.Ready(order.member, Version(0, 0)))
        order = swarm.last(messages.AssignStage, "e:1")
        assert isinstance(order.source, messages.FromPeer)
        swarm.cover()
        assert swarm.machine.transaction.phase is Phase.RUN  # Complete, and held open.
        swarm.tick(SETTINGS.join_hold_s * 2 ** (fetches - 2) + 0.1)
        assert swarm.machine.transaction.phase is Phase.PREPARE
        for kind in (messages.Prepared, messages.Reduced, messages.Decided):
            swarm.answer(kind)
    swarm.tell("e:1", messages.Ready(order.member, Version(0, 0)))
    assert "join_hold_s" in swarm.last(messages.Refused, "e:1").reason
    assert swarm.machine.membership.get("e") is None


def test_a_lost_source_sends_its_joiners_elsewhere(swarm):
    swarm.step()
    order = swarm.hello("e")
    source = order.source.replica.member
    swarm.machine._lose(swarm.machine.membership.find(source), "silent", swarm.now_s)
    swarm.tick()
    again = swarm.last(messages.AssignStage, "e:1")
    assert again.member.incarnation > order.member.incarnation
    assert again.source.replica.member != source


def test_a_dead_trainer_loses_its_leases_and_a_late_manifest_changes_nothing(swarm):
    swarm.tell("t:1", messages.Ask("t", 2, frozenset(), None))
    grant = swarm.last(messages.Grant, "t:1")
    assert swarm.machine.in_flight_bound == 2
    swarm.handle(TrainerFailed("t"))
    swarm.tell("u:1", messages.Ask("u", 2, frozenset(), None))
    granted = [s.message for s in swarm.sent if isinstance(s.message, messages.Grant) and s.address == "u:1"]
    assert {g.micro_batch for g in granted} == {0, 1}
    entry = Entry(swarm.machine.membership.get("a").member, Token(grant.micro_batch, 0, 5))
    swarm.tell("t:1", messages.Done("t", grant.lease, (entry,)))
    assert swarm.machine.journal.mask_of(grant.micro_batch) == 0b11


def test_who_gave_up_rests_until_it_asks_again_and_a_lost_grant_is_repeated(swarm):
    swarm.tell("t:1", messages.Ask("t", 1, frozenset(), None))
    grant = swarm.last(messages.Grant)
    swarm.tell("t:1", messages.NotDone("t", grant.lease))
    assert swarm.last(messages.Grant) == grant
    swarm.tell("t:1", messages.Ask("t", 1, frozenset(), None))
    second = swarm.last(messages.Grant)
    assert second.lease != grant.lease
    swarm.sent.clear()
    swarm.tell("t:1", messages.Ask("t", 1, frozenset({second.lease}), None))
    assert swarm.last(messages.Grant) is None
    swarm.tell("t:1", messages.Ask("t", 1, frozenset(), None))
    assert swarm.last(messages.Grant) == second


def test_peers_of_the_plan_go_where_it_says_until_a_step_is_committed():
    harness = Harness(places={"a": 1, "b": 1})
    assert [harness.hello(name).stage for name in ("a", "b")] == [1, 1]
    assert harness.hello("c").stage == 0
    later = Harness(ONE_STEP, places={"a": 1})
    assert later.hello("b", Holding(1, Version(0, 1), None)).stage == 1
    desk_stage = later.machine.membership.neediest_stage()
    later.hello("a")
    assert later.machine.membership.get("a").stage == desk_stage == 0


def test_after_the_last_step_nothing_is_granted():
    harness = Harness(ONE_STEP, steps=1)
    for name, stage in (("a", 0), ("b", 1)):
        harness.join(name, Holding(stage, Version(0, 1), None))
    harness.tell("t:1", messages.Ask("t", 2, frozenset(), None))
    assert harness.machine.is_done
    assert harness.last(messages.Grant) is None
    going_on = Harness(ONE_STEP)
    for name, stage in (("a", 0), ("b", 1)):
        going_on.join(name, Holding(stage, Version(0, 1), None))
    going_on.tell("t:1", messages.Ask("t", 2, frozenset(), None))
    assert going_on.last(messages.Grant) is not None
    going_on.machine.finish()
    assert going_on.machine.is_done


def _reduce_locally(harness, counts, samples):
    """Everybody answers with its own count; `samples` of a stage's members."""
    transaction, stages = harness.machine.transaction, harness.machine.membership.view.stages
    harness.answer(messages.Prepared)
    for stage, replicas in enumerate(stages):
        for replica, count, total in zip(replicas, counts, samples[stage], strict=True):
            loss_sum = 1.5 if stage == 1 else None
            harness.tell("x", messages.Reduced(replica.member, transaction.attempt, count, loss_sum, None, total))


def test_with_local_steps_members_count_together_and_average_the_same_at_the_end_of_a_round():
    harness = Harness(settings=replace(SETTINGS, round_steps=2))
    for name in "abcd":
        harness.join(name)
    inside = ((None, None),) * 2
    harness.cover()
    _reduce_locally(harness, (2, 1), inside)  # three of two
    assert harness.last(messages.Decide).commit is False
    harness.answer(messages.Decided)
    harness.tick()
    harness.cover()
    _reduce_locally(harness, (2, 0), inside)
    assert harness.disk[-1] == Committed(1, harness.machine.transaction.attempt, Version(0, 1), 3.0)
    harness.answer(messages.Decided)
    harness.tell("b:1", messages.Leave(harness.machine.membership.get("b").member))
    for wrong in (inside, ((4, 4), (4, 3)), ((4, 4), (1, 1)), ((5, 5), (4, 4))):
        harness.cover()
        _reduce_locally(harness, (1, 1), wrong)
        assert harness.last(messages.Decide).commit is False, wrong
        harness.answer(messages.Decided)
        harness.tick()
    harness.cover()
    _reduce_locally(harness, (1, 1), ((4, 4), (3, 3)))
    assert harness.machine.version == Version(0, 2)
    assert harness.machine.transaction.lost_samples == [0, 1]
    assert harness.last(messages.Released) is None
    harness.answer(messages.Decided)
    assert harness.last(messages.Released, "b:1") is not None


def test_inside_a_round_of_local_steps_nobody_leaves_or_moves():
    moves = []
    settings = replace(SETTINGS, round_steps=2)
    harness = Harness(settings=settings, propose=lambda peers, now_s: moves.append(len(peers)))
    for name in "abcd":
        harness.join(name)
    harness.tell("b:1", messages.Leave(harness.machine.membership.get("b").member))
    harness.cover()
    _reduce_locally(harness, (2, 0), ((None, None),) * 2)
    harness.answer(messages.Decided)
    assert harness.machine.version == Version(0, 1)
    assert moves == []
    assert harness.machine.membership.get("b") is not None
