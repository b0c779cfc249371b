"""Wiring by speed, bans, newcomers; who is silent."""

from collections import Counter
from random import Random

import pytest

from hetplanner.elastic.coordinator.detection import FailureDetector
from hetplanner.elastic.peer.speeds import SpeedEstimate
from hetplanner.elastic.peer.wiring import Wiring
from hetplanner.elastic.protocol.identity import Member, Replica, Stamp
from hetplanner.elastic.protocol.settings import ElasticSettings
from hetplanner.errors import InvalidInput

SETTINGS = ElasticSettings(stages=2, micro_batches=4, wiring="round-robin")
SOONEST = ElasticSettings(stages=2, micro_batches=4)
SECONDS = {"slow": 1.0, "middle": 1 / 1.5, "fast": 1 / 3}


def replica(name, draining=False):
    return Replica(Member(name, Stamp(1, 1)), f"{name}:1", draining)


def make_wiring(*names, settings=SETTINGS):
    wiring = Wiring(settings, Random(0))
    wiring.see([replica(name) for name in names])
    return wiring


def draw(wiring, times, now_s=0.0):
    """Who is chosen how often, when every peer takes what it always takes."""
    counts = Counter()
    for _ in range(times):
        member = wiring.choose(now_s).member
        wiring.succeeded(member, SECONDS[member.peer])
        counts[member.peer] += 1
    return counts


def test_work_is_shared_by_speed():
    wiring = make_wiring(*SECONDS)
    draw(wiring, 20)
    counts = draw(wiring, 1100)
    assert counts == pytest.approx({"slow": 200, "middle": 300, "fast": 600}, abs=3)


def test_a_newcomer_is_tried_at_once_and_gets_no_more_than_its_share():
    wiring = make_wiring("slow", "middle")
    draw(wiring, 500)
    wiring.see([replica(name) for name in SECONDS])
    assert wiring.choose(0.0).member.peer == "fast"
    assert draw(wiring, 110)["fast"] == pytest.approx(60, abs=4)


def test_an_unmeasured_peer_counts_as_the_best_known():
    wiring = make_wiring("fast", "middle")
    assert wiring.seconds_of(replica("middle").member) == SETTINGS.unmeasured_s
    wiring.succeeded(replica("fast").member, 1 / 3)
    assert wiring.seconds_of(replica("middle").member) == pytest.approx(1 / 3)


def test_an_error_bans_for_a_while_and_nothing_is_caught_up():
    wiring = make_wiring(*SECONDS)
    draw(wiring, 20)
    wiring.failed(replica("fast").member, now_s=10.0)
    assert draw(wiring, 500, now_s=10.0 + SETTINGS.ban_s - 0.01)["fast"] == 0
    assert draw(wiring, 110, now_s=10.0 + SETTINGS.ban_s)["fast"] == pytest.approx(60, abs=4)


def test_a_new_view_ends_bans():
    wiring = make_wiring("slow")
    wiring.failed(replica("slow").member, now_s=0.0)
    assert wiring.choose(1.0) is None
    wiring.see([replica("slow")])
    assert wiring.choose(1.0).member.peer == "slow"


def test_the_tried_the_gone_and_the_draining():
    wiring = make_wiring("slow", "fast")
    assert wiring.choose(0.0, tried={replica("fast").member}).member.peer == "slow"
    assert wiring.choose(0.0, tried={replica("fast").member, replica("slow").member}) is None
    wiring.see([replica("slow"), replica("middle", draining=True)])
    assert {wiring.choose(0.0).member.peer for _ in range(20)} == {"slow"}
    assert wiring.choose(0.0, tried={replica("slow").member}).member.peer == "middle"


def measured(*names):
    """Wiring by the soonest that knows everybody's speed."""
    wiring = make_wiring(*names, settings=SOONEST)
    for _ in names:
        member = wiring.choose(0.0).member
        wiring.succeeded(member, SECONDS[member.peer])
        wiring.ended(member)
    return wiring


def test_what_is_under_way_is_shared_by_speed_and_the_last_go_to_the_fast():
    wiring = measured(*SECONDS)
    counts = Counter(wiring.choose(0.0).member.peer for _ in range(11))
    assert counts == pytest.approx({"slow": 2, "middle": 3, "fast": 6}, abs=1)
    alone = measured(*SECONDS)
    assert alone.choose(0.0).member.peer == "fast", "with nothing else under way nobody waits for the slow"


def test_what_has_ended_is_not_under_way():
    wiring = measured("slow", "fast")
    first = wiring.choose(0.0).member
    wiring.ended(first)
    assert wiring.choose(0.0).member == first == replica("fast").member
    assert [wiring.choose(0.0).member.peer for _ in range(2)] == ["fast", "slow"]


def test_a_peer_that_is_never_chosen_is_measured_again_in_a_while():
    wiring = measured("slow", "fast")
    chosen = Counter()
    for tenth in range(1, 450):
        member = wiring.choose(tenth / 10).member
        wiring.succeeded(member, SECONDS[member.peer])
        wiring.ended(member)
        chosen[member.peer] += 1
    assert chosen["slow"] == 2


def test_a_newcomer_is_tried_at_once_by_the_soonest_too():
    wiring = measured("slow", "fast")
    wiring.see([replica(name) for name in SECONDS])
    assert wiring.choose(0.0).member.peer == "middle"


def test_large_tasks_count_more():
    wiring = make_wiring("slow", "fast")
    first = wiring.choose(0.0, size=5.0).member
    others = [wiring.choose(0.0).member for _ in range(5)]
    assert first not in others


def test_the_speed_estimate_is_bias_corrected():
    speed = SpeedEstimate(alpha=0.1)
    assert speed.seconds is None
    speed.update(4.0)
    assert speed.seconds == pytest.approx(4.0)
    speed.update(2.0)
    assert speed.seconds == pytest.approx((0.9 * 4.0 + 2.0) / 1.9)


def test_silence_is_noticed_after_its_limit():
    detector = FailureDetector(1.5)
    detector.hear("a", 0.0)
    for step in range(1, 16):
        detector.hear("b", step * 0.1)
        assert detector.find_silent(step * 0.1) == []
    assert detector.find_silent(1.6) == ["a"]
    detector.forget("a")
    assert detector.find_silent(1.7) == []


def test_who_slept_itself_accuses_nobody():
    detector = FailureDetector(1.5)
    detector.hear("a", 0.0)
    detector.find_silent(0.1)
    assert detector.find_silent(9.0) == []
    assert [now for now in (9.5, 10.0, 10.4, 10.6) if detector.find_silent(now)] == [10.6]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stages": 0}, "stages: must be at least 1, not 0"),
        ({"silence_s": 0.1}, "must exceed ping_s"),
        ({"hop_share": 1.5}, "hop_share"),
        ({"lease_s": float("nan")}, "lease_s"),
    ],
)
def test_settings_outside_their_range_are_refused(change, says):
    with pytest.raises(InvalidInput, match=says):
        ElasticSettings(**({"stages": 2, "micro_batches": 4} | change))
