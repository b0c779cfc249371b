"""Whatever comes in whatever order: journal, transaction, decision log, wiring, and the whole swarm keep their laws."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.elastic.coordinator.decisions import (
    Booted,
    CheckpointSaved,
    Committed,
    SetBack,
    cut_torn_line,
    decode_decisions,
    encode_decision,
    replay_decisions,
)
from hetplanner.elastic.coordinator.journal import Journal
from hetplanner.elastic.coordinator.transaction import Phase, StepTransaction, Verdict
from hetplanner.elastic.peer.wiring import Wiring
from hetplanner.elastic.protocol.identity import Entry, Member, Replica, Stamp, Token, Version, View
from hetplanner.elastic.protocol.messages import Decide, Reduced
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.elastic.simulation.simulation import Faults, Simulation
from hetplanner.errors import RunError

STAGES, MICRO_BATCHES = 2, 3
small = st.integers(0, 5)
stamps = st.builds(Stamp, st.integers(1, 3), small)
versions = st.builds(Version, st.integers(0, 2), small)
boots = st.integers(1, 3)
decisions = st.one_of(
    st.builds(Booted, boots),
    st.builds(Committed, boots, stamps, versions),
    st.builds(SetBack, boots, versions),
    st.builds(CheckpointSaved, boots, st.integers(0, 1), versions),
)


@given(st.lists(decisions, max_size=8), st.data())
def test_a_log_cut_anywhere_is_a_shorter_log(written, data):
    lines = b"".join(encode_decision(decision) for decision in written)
    assert decode_decisions(lines) == written
    torn = lines[: data.draw(st.integers(0, len(lines)))]
    read = decode_decisions(torn)
    assert read == written[: len(read)]
    assert decode_decisions(cut_torn_line(torn) + encode_decision(Booted(9))) == [*read, Booted(9)]


@given(st.lists(decisions, min_size=1, max_size=5), st.data())
def test_a_damaged_line_is_found(written, data):
    lines = bytearray(b"".join(encode_decision(decision) for decision in written))
    where = data.draw(st.integers(0, len(lines) - 2))
    lines[where] = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (lines[where], ord("\n"))))
    if lines.count(b"\n") == len(written):
        with pytest.raises(RunError, match=r"line \d+: damaged"):
            decode_decisions(bytes(lines))


@given(st.lists(decisions, max_size=20))
def test_the_ledger_takes_one_step_at_a_time_and_nothing_from_a_replaced_coordinator(written):
    boot, before = 0, replay_decisions([])
    for count in range(1, len(written) + 1):
        after, decision = replay_decisions(written[:count]), written[count - 1]
        boot = max(boot, decision.boot) if isinstance(decision, Booted) else boot
        if decision.boot < boot:
            assert after == before
        if after.version != before.version:
            is_commit = after.version == Version(decision.version.lineage, before.version.step + 1)
            assert is_commit or after.version.lineage == before.version.lineage + 1
        assert replay_decisions([*written[:count], decision]).version.step <= after.version.step + (
            not isinstance(decision, Committed)
        )
        before = after


class JournalModel:
    """Journal operations in any order, by numbers drawn; peers 0 and 1 serve stages 0 and 1, and may die and return."""

    def __init__(self):
        self.incarnation = [1, 1]
        self.now_s, self.number, self.leases = 0.0, 0, []
        self.journal = Journal(STAGES, MICRO_BATCHES, 5.0, lambda member, stage: member == self.member(stage))

    def member(self, stage, age=0):
        return Member(str(stage), Stamp(1, self.incarnation[stage] - age))

    def do(self, kind, value):
        journal = self.journal
        if kind == "grant":
            self.number += 1
            lease = journal.grant(f"t{value % 2}", Stamp(1, self.number), self.now_s)
            self.leases += [lease] if lease is not None else []
        elif kind in ("done", "old", "foreign") and self.leases:
            lease = self.leases[value % len(self.leases)]
            self.number += 1
            manifest = [
                Entry(self.member(s, kind == "old"), Token(lease.micro_batch, s, self.number)) for s in range(STAGES)
            ]
            journal.settle("nobody" if kind == "foreign" else lease.trainer, lease.stamp, manifest)
        elif kind == "die":
            journal.drop_member(self.member(value % 2))
            self.incarnation[value % 2] += 1
        elif kind == "missing":
            tokens = [t for held in journal.tokens_by_member().values() for t in held]
            journal.drop_tokens(tokens[: value % 3])
        elif kind == "trainer":
            journal.drop_trainer(f"t{value % 2}")
        elif kind == "wait":
            self.now_s += value
            journal.expire_leases(self.now_s)


KINDS = ("grant", "grant", "done", "done", "old", "foreign", "die", "missing", "trainer", "wait")


@given(st.lists(st.tuples(st.sampled_from(KINDS), small), max_size=60))
def test_the_journal_counts_each_contribution_of_the_living_once(operations):
    model = JournalModel()
    for kind, value in operations:
        model.do(kind, value)
        held = model.journal.tokens_by_member()
        tokens = [token for tokens in held.values() for token in tokens]
        assert len({(t.micro_batch, t.stage) for t in tokens}) == len(tokens)
        assert all(member == model.member(t.stage) for member, tokens in held.items() for t in tokens)
        running = [lease for lease in model.leases if model.journal.is_leased(lease.stamp)]
        assert len({lease.micro_batch for lease in running}) == len(running)
        assert model.journal.is_complete == (not running and len(tokens) == STAGES * MICRO_BATCHES)
        for micro_batch in range(MICRO_BATCHES):
            open_stages = set(range(STAGES)) - {t.stage for t in tokens if t.micro_batch == micro_batch}
            assert model.journal.mask_of(micro_batch) == sum(1 << s for s in open_stages)


@given(
    st.lists(st.tuples(st.sampled_from(("prepared", "reduced", "decided", "lost", "old")), small, small), max_size=40)
)
def test_a_transaction_decides_only_when_all_hold_all_and_all_counted_all(answers):
    replicas = [Replica(Member(str(i), Stamp(1, i)), f"{i}:1", False) for i in range(4)]
    settings_ = ElasticSettings(stages=STAGES, micro_batches=MICRO_BATCHES)
    machine, attempt = StepTransaction(settings_), Stamp(1, 9)
    machine.begin(attempt, Version(0, 0), View(Stamp(1, 0), (tuple(replicas[:2]), tuple(replicas[2:]))), {}, 0.0)
    good, lost, counted = set(), set(), {}
    for kind, who, value in answers:
        member, phase = replicas[who % 4].member, machine.phase
        stamp = Stamp(1, 8) if kind == "old" else attempt
        sends, verdict = [], Verdict.NOTHING
        if kind == "prepared":
            verdict, sends = machine.prepared(member, stamp, value > 0, 0.0)
            good |= {member} if value > 0 else set()
        elif kind in ("reduced", "old"):
            count = MICRO_BATCHES if value > 0 else value - 1
            verdict, sends = machine.reduced(Reduced(member, stamp, count), 0.0)
            if phase is Phase.REDUCE and kind == "reduced":
                counted.setdefault(member, count)
        elif kind == "decided":
            verdict = machine.decided(member, stamp, Version(0, 0))
        else:
            verdict, sends = machine.member_lost(member, 0.0)
            lost.add(member)
        assert not any(isinstance(send.message, Decide) and send.message.commit for send in sends)
        if verdict is Verdict.DECIDED:
            assert not lost
            assert good == set(counted) == {replica.member for replica in replicas}
            assert set(counted.values()) == {MICRO_BATCHES}
            commits = machine.persisted(Version(0, 1), 0.0)
            assert [send.message for send in commits] == [Decide(attempt, True, Version(0, 1))] * 4
            return


@given(st.lists(st.tuples(st.sampled_from(("choose", "fail", "success", "view", "wait")), small), max_size=60))
def test_wiring_never_chooses_the_banned_or_gone(operations):
    settings_ = ElasticSettings(stages=STAGES, micro_batches=MICRO_BATCHES)
    wiring, now_s, replicas, banned = Wiring(settings_, Random(0)), 0.0, [], {}
    for kind, value in operations:
        member = Member(str(value), Stamp(1, 1))
        if kind == "choose":
            replica = wiring.choose(now_s, tried={member})
            free = [s for s in replicas if s.member != member and banned.get(s.member, 0.0) <= now_s]
            assert (replica in free) if free else replica is None
        elif kind == "fail":
            wiring.failed(member, now_s)
            if any(s.member == member for s in replicas):
                banned[member] = now_s + settings_.ban_s
        elif kind == "success":
            wiring.succeeded(member, 0.1 * value)
        elif kind == "view":
            replicas = [Replica(Member(str(i), Stamp(1, 1)), f"{i}:1", False) for i in range(value)]
            wiring.see(replicas)
            banned.clear()
        else:
            now_s += value


STORM = Faults(
    kill_s=4.0, hang_s=6.0, cut_s=8.0, link_s=5.0, lost=0.01, late=0.02, doubled=0.05, reduce=0.05, phase_kill=0.03
)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_no_storm_breaks_an_invariant_and_after_it_training_goes_on(seed, stages, micro_batches, trainers, replicas):
    swarm = ElasticSettings(stages=stages, micro_batches=micro_batches, checkpoint_steps=1)
    world = Simulation(swarm, STORM, seed, stages * replicas, trainers)
    world.run(15)  # Some storms let too few live at once for a step.
    if not world.lost:
        world.end_faults()
        world.run(world.checks.commits + 5)
        assert not world.stuck
    assert world.checks.violations == []
