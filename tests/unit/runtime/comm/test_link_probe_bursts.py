"""How the ranks' link probe chooses the size of its bursts."""

import pytest

pytest.importorskip("torch")
from hetplanner.runtime.comm.link_probe import ENOUGH_S, FIRST_BYTES, MOST_BYTES, Burst, Flow, _Probe

SLOW, FAST = Flow(0, 1, "a", "b"), Flow(2, 3, "c", "d")


class Bursts(_Probe):
    """Gives seconds for each burst in place of sending it; a list that has ended repeats its last entry."""

    def __init__(self, seconds):
        self.seconds, self.sizes = seconds, []

    def bursts(self, flows, sizes, count):
        assert len(self.sizes) < 20, f"goes on for ever: {self.sizes}"
        self.sizes.append(sizes[0])
        return [self._burst(flow, sizes[0], count) for flow in flows]

    def _burst(self, flow, num_bytes, count):
        given = self.seconds[flow]
        return Burst(count, num_bytes, 0.0, given(num_bytes, len(self.sizes)))


def steady(rate):
    """Seconds at so many bytes per second."""
    return lambda num_bytes, _: 4 * num_bytes / rate


def test_a_disturbed_burst_that_was_long_enough_does_not_keep_the_size_of_the_next_ones():
    just_too_short = 4 * FIRST_BYTES / (0.9 * ENOUGH_S)

    def first_is_disturbed(num_bytes, number):
        return 2 * ENOUGH_S if number == 1 else steady(just_too_short)(num_bytes, number)

    probe = Bursts({SLOW: first_is_disturbed})
    (rate,) = probe.rates([SLOW])
    assert probe.sizes[:2] == [FIRST_BYTES, FIRST_BYTES]
    assert rate == pytest.approx(just_too_short)


def test_bursts_grow_for_a_fast_link_after_a_slow_one_is_known():
    probe = Bursts({SLOW: steady(1e5), FAST: steady(5e6)})
    assert probe.rates([SLOW, FAST]) == [pytest.approx(1e5), pytest.approx(5e6)]
    assert max(probe.sizes) < MOST_BYTES


def test_a_link_faster_than_the_longest_burst_is_believed_in_the_end():
    probe = Bursts({FAST: steady(1e12)})
    assert probe.rates([FAST]) == [pytest.approx(1e12)]
    assert probe.sizes[-1] == MOST_BYTES
