"""What follows from an order to a peer of a swarm: the last peer of a stage does not leave it."""

import json

import pytest

from hetplanner.runs.reading.peer_orders import REMEDY, what_follows
from hetplanner.runs.reading.swarm_history import EVENTS_FILE, SwarmHistory


@pytest.fixture
def history(tmp_path):
    """Stage 0 is served by a and b, stage 1 by c while d still joins; f is the one of stage 2 that stays, e leaves."""
    states = [("serving", "a", 0), ("serving", "b", 0), ("serving", "c", 1), ("joining", "d", 1)]
    states += [("serving", "e", 2), ("serving", "f", 2), ("draining", "e", 2)]
    events = ({"time_s": 1.0 + i, "kind": k, "peer": p, "stage": s} for i, (k, p, s) in enumerate(states))
    (tmp_path / EVENTS_FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    return SwarmHistory(tmp_path).read_all()


@pytest.mark.parametrize(
    ("act", "peer", "words"),
    [
        ("drain", "a", "a leaves between two steps"),
        ("drain", "c", f"c serves on: stage 1 has no other peer; it leaves once one serves there: {REMEDY}"),
        ("drain", "d", "d leaves between two steps"),
        ("drain", "f", f"f serves on: stage 2 has no other peer; it leaves once one serves there: {REMEDY}"),
        ("kill", "a", "a is killed"),
        ("kill", "c", f"c is killed; stage 1 has no other peer, so the swarm waits: {REMEDY}"),
        ("kill", "f", "f is killed"),
        ("rejoin", "g", "g comes back"),
    ],
)
def test_an_answer_tells_what_a_peer_really_does(history, act, peer, words):
    assert what_follows(act, peer, history) == words
