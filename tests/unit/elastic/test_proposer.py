"""From a coordinator's peers to a policy's moves."""

from dataclasses import dataclass

import pytest

from hetplanner.elastic.rebalancing.proposer import Proposer
from hetplanner.elastic.rebalancing.swarm_view import Move
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing


@dataclass(frozen=True)
class Peer:
    peer: str
    stage: int
    speed: float = 1.0
    serving: bool = True
    draining: bool = False


EVEN = [Peer("a", 0), Peer("b", 0), Peer("c", 1), Peer("d", 1)]
UNEVEN = [Peer("a", 0), Peer("b", 0), Peer("e", 0), Peer("c", 1)]


def test_ours_is_asked_at_every_change_and_every_period():
    ask = Proposer(Rebalancing(period=60.0), [1.0, 1.0], 10.0)
    assert ask(EVEN, 0.0) is None
    assert ask(UNEVEN, 1.0) == Move("a", 0, 1)
    assert ask(UNEVEN, 2.0) is None  # the coordinator could not carry it out: again after a period
    assert ask(UNEVEN, 61.0) == Move("a", 0, 1)
    assert ask([*UNEVEN[1:], Peer("a", 1, serving=False)], 62.0) is None


def test_the_paper_s_is_asked_every_period_only():
    queues = {"a": 1.0, "b": 2.0, "c": 9.0, "e": 3.0}
    ask = Proposer(Rebalancing(policy="queue", period=60.0), [1.0, 1.0], 10.0, queues.__getitem__)
    assert ask(UNEVEN, 0.0) == Move("a", 0, 1)
    assert ask([UNEVEN[1], *UNEVEN], 30.0) is None
    assert ask(UNEVEN, 60.0) == Move("a", 0, 1)


def test_speeds_are_turned_into_work_by_the_load_of_their_stage():
    """One micro-batch a second in a stage of load 2 is as fast as two in a stage of load 1."""
    view = Proposer(Rebalancing(), [2.0, 1.0], 0.0).view([Peer("a", 0, 1.0), Peer("b", 1, 2.0)])
    assert view.speed_P.tolist() == [2.0, 2.0]
    assert view.serving_S.tolist() == [1.0, 2.0]


def test_an_unmeasured_peer_counts_as_the_fastest():
    ask = Proposer(Rebalancing(), [1.0, 1.0], 0.0)
    assert ask.view([Peer("a", 0, 0.0), Peer("b", 1, 3.0)]).speed_P.tolist() == [3.0, 3.0]
    assert ask.view([Peer("a", 0, 0.0)]).speed_P.tolist() == [1.0]


def test_nobody_there_is_no_move_and_draining_peers_do_not_count():
    ask = Proposer(Rebalancing(), [1.0, 1.0], 0.0)
    assert ask([], 0.0) is None
    leaving = [*EVEN[:3], Peer("d", 1, draining=True)]
    assert ask(leaving, 1.0) is None  # without a, stage 0 would serve less than both stages do now
    assert ask([*leaving, Peer("e", 0)], 2.0) == Move("a", 0, 1)


def test_queue_lengths_are_asked_for_at_once():
    with pytest.raises(InvalidInput, match="queue lengths"):
        Proposer(Rebalancing(policy="queue"), [1.0], 0.0)
