"""Full collections look at new objects only, but for now and then."""

import gc
import weakref

import pytest

from hetplanner.ui.collector import ENDED_EVERY_S, EVERY_S, Collector


class Ring:
    """Garbage that only a collection frees."""

    def __init__(self):
        self.me = self


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(clock):
    made = Collector(clock)
    made.install()
    yield made
    gc.callbacks.remove(made._told)
    gc.unfreeze()


def dropped_ring():
    """A ring that lived through a full collection, and is garbage now."""
    ring = Ring()
    gc.collect()
    return weakref.ref(ring)


def test_what_a_session_left_is_found_a_while_after_the_last_look(collector, clock):
    gone = dropped_ring()
    collector.session_ended()
    gc.collect()
    assert gone() is not None
    clock.now_s = ENDED_EVERY_S
    gc.collect()
    assert gone() is None


def test_old_garbage_of_open_pages_is_found_in_the_end(collector, clock):
    gone = dropped_ring()
    clock.now_s = ENDED_EVERY_S
    gc.collect()
    assert gone() is not None
    clock.now_s = EVERY_S
    gc.collect()
    assert gone() is None


def test_new_garbage_is_found_at_once_and_a_second_install_changes_nothing(collector):
    collector.install()
    assert gc.callbacks.count(collector._told) == 1
    gone = weakref.ref(Ring())
    gc.collect()
    assert gone() is None
