"""hetplanner train: what Ctrl-C does to the run."""

import os
import signal

import pytest

from hetplanner.cli.runs import train


class FakeRun:
    """A run that ends when it is stopped."""

    id = path = "run"

    def __init__(self):
        self.stopped = False

    def successor(self):
        return None

    def summary(self):
        return {}

    def status(self):
        return None

    def stop(self):
        self.stopped = True


@pytest.fixture
def shown(monkeypatch):
    """Nothing is shown; the runs that would be."""
    runs = []
    monkeypatch.setattr(train, "_show_until_over", lambda run, followers=None: runs.append(run))
    monkeypatch.setattr(train, "_print_summary", lambda run, summary: None)
    monkeypatch.setattr("hetplanner.runs.status.raise_if_lost", lambda name, status: None)
    return runs


def test_ctrl_c_while_the_place_of_a_run_is_printed_stops_it(shown, monkeypatch):
    run = FakeRun()
    monkeypatch.setattr(train, "_print_place", lambda run, as_json: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train.follow(lambda: run, as_json=False)
    assert run.stopped
    assert shown == [run]


def test_ctrl_c_while_the_agent_is_asked_ends_at_once(shown):
    with pytest.raises(KeyboardInterrupt):
        train.follow(lambda: os.kill(os.getpid(), signal.SIGINT), as_json=False)
    assert shown == []


def test_a_run_is_shown_to_its_end(shown):
    run = FakeRun()
    train.follow(lambda: run, as_json=False)
    assert shown == [run]
    assert not run.stopped
