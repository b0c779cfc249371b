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
def due():
    """Calls that were put off: after how long, and what."""
    return []


@pytest.fixture
def collector(clock, due):
    made = Collector(clock, lambda delay_s, call: due.append((delay_s, call)))
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


def test_what_sessions_left_is_looked_for_once_even_if_nothing_happens_any_more(collector, clock, due):
    gone = dropped_ring()
    clock.now_s = ENDED_EVERY_S - 5.0
    collector.session_ended()
    collector.session_ended()
    [(delay_s, look)] = due
    clock.now_s += delay_s
    look()
    assert gone() is None
    collector.session_ended()
    assert len(due) == 2


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
