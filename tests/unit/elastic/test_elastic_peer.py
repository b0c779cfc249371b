"""Peers and trainers message by message: what they refuse, keep, drop and try again."""

from random import Random

import pytest

from hetplanner.elastic.peer.peer import Peer
from hetplanner.elastic.peer.trainer import Trainer
from hetplanner.elastic.protocol import messages, peer_events
from hetplanner.elastic.protocol.coordinator_events import Received, Tick
from hetplanner.elastic.protocol.identity import Entry, Holding, Member, Replica, Stamp, Token, Version, View
from hetplanner.elastic.protocol.settings import ElasticSettings

SETTINGS = ElasticSettings(stages=2, micro_batches=2, checkpoint_steps=2)
V0, V1 = Version(0, 0), Version(0, 1)
ATTEMPT = Stamp(1, 50)


def replica(name, number=1):
    return Replica(Member(name, Stamp(1, number)), f"{name}:1", False)


def view(*second, number=20):
    return View(Stamp(1, number), ((replica("me", 9),), tuple(replica(name) for name in second)))


class Bench:
    """A peer as incarnation 9 of a stage, at V0."""

    def __init__(self, stage=0):
        self.peer = Peer("me", 7, "v1", 2.0, "c:1", SETTINGS, Random(0))
        self.member = Member("me", Stamp(1, 9))
        self.now_s = 0.0
        self.receive("c:1", view("x", "y"))
        self.receive("c:1", messages.AssignStage(self.member, stage, V0, messages.FromSeed()))
        self.ready = self.do(peer_events.StateLoaded(self.member, V0))

    def do(self, event):
        return self.peer.handle(event, self.now_s)

    def receive(self, address, message):
        return self.do(Received(address, message))

    def work(self, call=1, mask=0b11, version=V0, stage=0, budget_s=10.0, micro_batch=0):
        return self.receive("t:1", messages.Work(call, stage, micro_batch, version, mask, budget_s))

    def contribute(self, call=1, mask=0b11):
        """A whole call; the entry it left here, if any."""
        self.work(call, mask)
        (sent,) = self.do(peer_events.ForwardDone(("t:1", call)))
        self.receive(sent.address, messages.Worked(sent.work.call, (), 0.0))
        (reply,) = self.do(peer_events.BackwardDone(("t:1", call)))
        return reply.worked.manifest

    def prepare(self, tokens, attempt=ATTEMPT, version=V0):
        return told(self.receive("c:1", messages.Prepare(self.member, attempt, version, tokens)), messages.Prepared)

    def fold(self, tokens):
        self.prepare(tokens)
        self.receive("c:1", messages.Reduce(self.member, ATTEMPT, (replica("me", 9),)))
        return self.do(peer_events.FoldDone(ATTEMPT, 2))


def told(actions, kind):
    return [a.message for a in actions if isinstance(a, messages.Send) and isinstance(a.message, kind)]


def kinds(actions):
    return [type(action) for action in actions]


def test_a_call_goes_down_the_chain_and_back_and_leaves_a_contribution():
    bench = Bench()
    assert bench.work() == [peer_events.RunForward(("t:1", 1))]
    bench.now_s = 2.0
    (sent,) = bench.do(peer_events.ForwardDone(("t:1", 1)))
    assert sent.work.stage == 1
    assert sent.work.budget_s == pytest.approx(SETTINGS.hop_share * 8.0)  # Of what is left, so budgets shrink.
    bench.now_s = 5.0
    theirs = Entry(replica("x").member, Token(0, 1, 3))
    (back,) = bench.receive(sent.address, messages.Worked(sent.work.call, (theirs,), 0.5))
    assert isinstance(back, peer_events.RunBackward)
    (reply,) = bench.do(peer_events.BackwardDone(("t:1", 1)))
    assert reply == peer_events.Reply("t:1", reply.worked, ("t:1", 1))
    assert reply.worked.manifest == (theirs, Entry(bench.member, back.token))
    assert reply.worked.waited_s == pytest.approx(3.0)
    assert bench.prepare((back.token,))[0].missing == ()


def test_stages_outside_the_mask_keep_nothing():
    assert Bench().contribute(mask=0b10) == ()


def test_work_of_another_version_or_stage_is_stale_and_doubled_work_is_done_once():
    bench = Bench()
    assert told(bench.work(1, version=V1), messages.WorkFailed)[0].kind == "stale"
    assert told(bench.work(2, stage=1), messages.WorkFailed)[0].kind == "stale"
    bench.work(3)
    assert bench.work(3) == []


def test_a_failed_callee_is_replaced_and_when_nobody_is_left_the_caller_is_told():
    bench = Bench()
    bench.work()
    (first,) = bench.do(peer_events.ForwardDone(("t:1", 1)))
    (second,) = bench.do(peer_events.CallLost(first.work.call))
    assert {first.address, second.address} == {"x:1", "y:1"}
    lost = peer_events.CallLost(second.work.call)
    assert told(bench.do(lost), messages.WorkFailed) == [messages.WorkFailed(1, "deadline")]
    bench.work(2)  # Both are banned.
    assert told(bench.do(peer_events.ForwardDone(("t:1", 2))), messages.WorkFailed)


def test_a_deadline_does_not_ban_and_a_stale_answer_ends_the_call():
    bench = Bench()
    bench.work(budget_s=1.0)
    (first,) = bench.do(peer_events.ForwardDone(("t:1", 1)))
    bench.now_s = 0.75
    cancel, second = bench.do(Tick())[:2]
    assert cancel == peer_events.CancelWork(first.address, first.work.call)
    assert second.address != first.address
    (failed,) = told(bench.receive("x:1", messages.WorkFailed(second.work.call, "stale")), messages.WorkFailed)
    assert failed.kind == "stale"
    bench.work(2)
    (third,) = bench.do(peer_events.ForwardDone(("t:1", 2)))
    (fourth,) = bench.do(peer_events.CallLost(third.work.call))
    assert {third.address, fourth.address} == {"x:1", "y:1"}


def test_a_view_without_the_callee_ends_the_call_at_once_and_an_old_view_is_ignored():
    bench = Bench()
    bench.work()
    (first,) = bench.do(peer_events.ForwardDone(("t:1", 1)))
    other = {"x:1": "y", "y:1": "x"}[first.address]
    (again,) = bench.receive("c:1", view(other, number=21))
    assert again.address == f"{other}:1"
    assert bench.receive("c:1", view("x", "y", number=20)) == []


def test_gradients_that_are_not_finite_are_no_contribution():
    bench = Bench(stage=1)
    bench.receive("t:1", messages.Work(1, 1, 0, V0, 0b11, 9.0))
    (back,) = bench.do(peer_events.ForwardDone(("t:1", 1)))
    (answer,) = bench.do(peer_events.BackwardDone(("t:1", 1), is_finite=False))
    assert answer == messages.Send("t:1", messages.WorkFailed(1, "error"))
    assert bench.prepare((back.token,))[0].missing == (back.token,)


def test_a_peer_says_its_stages_norm_again_when_asked_again_and_steps_by_that_of_all():
    bench = Bench()
    bench.prepare(())
    reduce = messages.Reduce(bench.member, ATTEMPT, (replica("me", 9),))
    bench.receive("c:1", reduce)
    answer = messages.Reduced(bench.member, ATTEMPT, 2, 1.5, 0.25)
    assert told(bench.do(peer_events.FoldDone(ATTEMPT, 2, 1.5, 0.25)), messages.Reduced) == [answer]
    assert told(bench.receive("c:1", reduce), messages.Reduced) == [answer]
    actions = bench.receive("c:1", messages.Decide(ATTEMPT, True, V1, 3.0))
    assert actions[-1] == peer_events.ApplyUpdate(ATTEMPT, V1, 3.0)


def test_only_listed_tokens_are_folded_and_a_commit_drops_all():
    bench = Bench()
    (mine,), (orphan,) = bench.contribute(1), bench.contribute(2)
    assert bench.prepare((mine.token,))[0].missing == ()
    (fold,) = bench.receive("c:1", messages.Reduce(bench.member, ATTEMPT, (replica("me", 9),)))
    assert fold == peer_events.FoldAndReduce(ATTEMPT, (mine.token,), (replica("me", 9),))
    assert told(bench.do(peer_events.FoldDone(ATTEMPT, 2)), messages.Reduced)[0].count == 2
    bench.work(3)
    actions = bench.receive("c:1", messages.Decide(ATTEMPT, True, V1))
    assert told(actions, messages.WorkFailed) == [messages.WorkFailed(3, "stale")]
    assert kinds(actions)[-2:] == [peer_events.DropContributions, peer_events.ApplyUpdate]
    assert bench.receive("c:1", messages.Decide(ATTEMPT, True, V1)) == []  # It is at it.
    (decided,) = told(bench.do(peer_events.UpdateApplied(ATTEMPT)), messages.Decided)
    assert decided == messages.Decided(bench.member, ATTEMPT, V1)
    assert told(bench.receive("c:1", messages.Decide(ATTEMPT, True, V1)), messages.Decided)
    assert bench.prepare((orphan.token,), Stamp(1, 51), V1)[0].missing == (orphan.token,)


def test_an_abort_keeps_contributions_and_drops_the_sum():
    bench = Bench()
    (mine,) = bench.contribute()
    bench.fold((mine.token,))
    actions = bench.receive("c:1", messages.Decide(ATTEMPT, False, V0))
    assert actions[0] == peer_events.DropSum(ATTEMPT)
    assert told(actions, messages.Decided) == [messages.Decided(bench.member, ATTEMPT, V0)]
    assert bench.receive("c:1", messages.Decide(ATTEMPT, True, V1)) == []  # Too late: it has no sum.
    assert bench.prepare((mine.token,), Stamp(1, 51))[0].missing == ()


def test_reduce_without_the_matching_prepare_fails():
    bench = Bench()
    answer = bench.receive("c:1", messages.Reduce(bench.member, ATTEMPT, (replica("me", 9),)))
    assert told(answer, messages.Reduced)[0].count is None
    bench.prepare((), version=V1)  # It is not at V1.
    answer = bench.receive("c:1", messages.Reduce(bench.member, ATTEMPT, (replica("me", 9),)))
    assert told(answer, messages.Reduced)[0].count is None
    bench.prepare((), Stamp(1, 60))
    assert bench.prepare((), Stamp(1, 55)) == []  # An earlier attempt that comes late.


def test_in_doubt_it_says_so_to_a_new_coordinator_and_waits():
    bench = Bench()
    (mine,) = bench.contribute()
    bench.fold((mine.token,))
    (hello,) = told(bench.receive("c:1", messages.UnknownPeer(2)), messages.Hello)
    assert hello.holding == Holding(0, V0, ATTEMPT)
    assert bench.receive("c:1", messages.UnknownPeer(1)) == []
    assert peer_events.ApplyUpdate in kinds(bench.receive("c:1", messages.Decide(ATTEMPT, True, V1)))


def test_a_new_incarnation_drops_everything_and_an_old_order_is_ignored():
    bench = Bench()
    (mine,) = bench.contribute()
    bench.fold((mine.token,))
    assert bench.receive("c:1", messages.AssignStage(Member("me", Stamp(1, 8)), 1, V0, messages.FromSeed())) == []
    again = Member("me", Stamp(2, 1))
    actions = bench.receive("c:1", messages.AssignStage(again, 0, V0, messages.AlreadyHeld()))
    assert {peer_events.DropSum, peer_events.DropContributions} <= set(kinds(actions))
    assert told(actions, messages.Ready) == [messages.Ready(again, V0)]
    bench.member = again
    assert bench.prepare((mine.token,), Stamp(2, 2))[0].missing == (mine.token,)
    assert bench.receive("c:1", messages.AssignStage(Member("me", Stamp(1, 99)), 1, V0, messages.FromSeed())) == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (messages.FromPeer(replica("x")), peer_events.FetchState),
        (messages.FromCheckpoint(V0), peer_events.LoadCheckpoint),
        (messages.FromSeed(), peer_events.InitState),
    ],
)
def test_state_comes_from_where_the_order_says_and_late_state_of_an_old_order_is_ignored(source, kind):
    bench = Bench()
    first, second = Member("me", Stamp(1, 30)), Member("me", Stamp(1, 31))
    bench.receive("c:1", messages.AssignStage(first, 1, V1, messages.FromPeer(replica("y"))))
    assert kind in kinds(bench.receive("c:1", messages.AssignStage(second, 1, V1, source)))
    assert bench.do(peer_events.StateLoaded(first, V1)) == []
    assert told(bench.do(peer_events.StateLoaded(second, V1)), messages.Ready) == [messages.Ready(second, V1)]
    assert bench.peer.stage == 1


def test_kept_state_of_another_stage_is_none():
    bench = Bench()
    other = Member("me", Stamp(1, 30))
    answer = bench.receive("c:1", messages.AssignStage(other, 1, V0, messages.AlreadyHeld()))
    assert told(answer, messages.Ready) == [messages.Ready(other, None)]


def test_the_first_replica_of_a_stage_writes_the_checkpoint_when_it_is_due():
    bench = Bench()
    for step in (1, 2):
        attempt, version = Stamp(1, 50 + step), Version(0, step)
        bench.prepare((), attempt, Version(0, step - 1))
        bench.receive("c:1", messages.Reduce(bench.member, attempt, ()))
        bench.do(peer_events.FoldDone(attempt, 2))
        bench.receive("c:1", messages.Decide(attempt, True, version))
        saves = [a for a in bench.do(peer_events.UpdateApplied(attempt)) if isinstance(a, peer_events.SaveCheckpoint)]
        assert saves == ([peer_events.SaveCheckpoint(0, version)] if step == 2 else [])


def test_a_peer_saves_when_it_is_asked_and_is_at_the_version():
    bench = Bench()
    (save,) = bench.receive("c:1", messages.Save(bench.member, bench.peer.version))
    assert save == peer_events.SaveCheckpoint(0, bench.peer.version)
    assert bench.receive("c:1", messages.Save(bench.member, Version(0, 9))) == []
    assert bench.receive("c:1", messages.Save(Member("me", Stamp(0, 1)), bench.peer.version)) == []


@pytest.mark.parametrize("version", [V0, None])
def test_ready_is_repeated_until_the_peer_is_in_the_view(version):
    bench = Bench()
    member = Member("me", Stamp(1, 30))
    bench.receive("c:1", messages.AssignStage(member, 0, V0, messages.FromPeer(replica("x"))))
    bench.do(peer_events.StateLoaded(member, version))
    bench.now_s = 1.0
    assert told(bench.do(Tick()), messages.Ready) == [messages.Ready(member, version)]
    bench.receive("c:1", View(Stamp(1, 31), ((replica("me", 30),), ())))
    bench.now_s = 2.0
    assert told(bench.do(Tick()), messages.Ready) == []


def test_its_own_speed_is_measured_without_waiting_and_told():
    bench = Bench()
    bench.work(1)
    bench.now_s = 5.0
    (sent,) = bench.do(peer_events.ForwardDone(("t:1", 1), 0.1))
    bench.now_s = 6.0
    bench.receive(sent.address, messages.Worked(sent.work.call, (), 0.0))
    bench.do(peer_events.BackwardDone(("t:1", 1), seconds=0.3))
    (ping,) = told(bench.do(Tick()), messages.Ping)
    assert ping.speed == pytest.approx(2.5)
    bench.receive("c:1", messages.UnknownPeer(2))
    (hello,) = told(bench.receive("c:1", messages.UnknownPeer(2)), messages.Hello)
    assert hello.speed == pytest.approx(2.5)
    bench.receive("c:1", messages.AssignStage(Member("me", Stamp(2, 10)), 1, V0, messages.FromSeed()))
    bench.now_s = 7.0
    (ping,) = told(bench.do(Tick()), messages.Ping)
    assert ping.speed is None  # another stage takes another time


def test_who_cannot_be_reached_is_told_by_name_and_mates_are_watched():
    bench = Bench()
    assert bench.peer.stage_peers == ()
    (report,) = told(bench.do(peer_events.Unreachable("x:1")), messages.CannotReach)
    assert report == messages.CannotReach(bench.member, replica("x").member)
    assert bench.do(peer_events.Unreachable("nobody:1")) == []
    bench.receive("c:1", View(Stamp(1, 21), ((replica("me", 9), replica("mate")), ())))
    assert bench.peer.stage_peers == ("mate:1",)


def test_signs_of_life_and_a_graceful_end():
    bench = Bench()
    bench.now_s = 1.0
    assert told(bench.do(Tick()), messages.Ping) == [messages.Ping(bench.member, Stamp(1, 20))]
    assert bench.do(Tick()) == []
    bench.do(peer_events.LeaveAsked())
    bench.now_s = 2.0
    assert told(bench.do(Tick()), messages.Leave) == [messages.Leave(bench.member)]
    bench.receive("c:1", messages.Released(bench.member))
    assert bench.peer.has_left
    bench.now_s = 9.0
    assert bench.do(Tick()) == []


@pytest.fixture
def trainer():
    machine = Trainer("t", "c:1", SETTINGS, 2, Random(0))
    machine.handle(Received("c:1", View(Stamp(1, 2), ((replica("x"), replica("y")), ()))), 0.0)
    return machine


def grant(number=1, boot=1):
    return messages.Grant(Stamp(boot, number), 0, V0, 0b11)


def test_a_trainer_reports_until_it_is_heard_and_works_on_a_lease_once(trainer):
    (sent,) = trainer.handle(Received("c:1", grant()), 0.0)
    assert isinstance(sent, peer_events.SendWork)
    assert trainer.handle(Received("c:1", grant()), 0.0) == []
    entry = Entry(replica("x").member, Token(0, 0, 1))
    (done,) = trainer.handle(Received(sent.address, messages.Worked(sent.work.call, (entry,), 0.0)), 1.0)
    assert done.message == messages.Done("t", Stamp(1, 1), (entry,))
    assert trainer.handle(Received(sent.address, messages.Worked(sent.work.call, (entry,), 0.0)), 1.0) == []
    again, ask = trainer.handle(Tick(), 2.0)
    assert again == done
    assert ask.message == messages.Ask("t", 2, frozenset({Stamp(1, 1)}), Stamp(1, 2))
    trainer.handle(Received("c:1", messages.Settled(Stamp(1, 1))), 2.1)
    assert told(trainer.handle(Tick(), 3.0), messages.Done) == []


def test_a_trainer_gives_up_when_nobody_is_left(trainer):
    (first,) = trainer.handle(Received("c:1", grant()), 0.0)
    (second,) = trainer.handle(peer_events.CallLost(first.work.call), 0.1)
    (report,) = trainer.handle(peer_events.CallLost(second.work.call), 0.2)
    assert report.message == messages.NotDone("t", Stamp(1, 1))
    assert told(trainer.handle(Received("c:1", grant(2)), 0.3), messages.NotDone)


def test_a_new_coordinator_ends_what_an_old_one_leased(trainer):
    (sent,) = trainer.handle(Received("c:1", grant()), 0.0)
    actions = trainer.handle(Received("c:1", View(Stamp(2, 1), ((replica("x"),), ()))), 0.5)
    assert actions == [peer_events.CancelWork(sent.address, sent.work.call)]
    assert told(trainer.handle(Tick(), 1.0), messages.Ask) == [messages.Ask("t", 2, frozenset(), Stamp(2, 1))]
