"""Who of a swarm's processes is started again, when, and what is said of it; without any process."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetplanner.errors import Preempted, RunError
from hetplanner.swarm.launch.restarts import (
    LEFT_ALONE_S,
    MOST_SHORT_LIVES,
    PROCESSES_FILE,
    SHORT_LIFE_S,
    Keeper,
    last_words,
)


class Processes:
    """Stands for a rehearsal: processes that end when they are told to."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.peers, self.trainers = {"d0", "d1"}, {"trainer-0"}
        self.processes = {name: SimpleNamespace(exitcode=None) for name in ("coordinator", "trainer-0", "d0", "d1")}
        self.started, self.killed = [], []

    def start_again(self, name):
        assert self.processes[name].exitcode is not None
        self.processes[name] = SimpleNamespace(exitcode=None)
        self.started.append(name)

    def kill(self, name):
        self.killed.append(name)
        self.processes[name].exitcode = -9

    def log_file(self, name):
        return self.run_dir / f"{name}.txt"


class Scene:
    """A keeper with a clock that is moved by hand."""

    def __init__(self, run_dir, limit=3):
        self.now_s, self.hung = 0.0, {}
        self.swarm = Processes(run_dir)
        self.keeper = Keeper(self.swarm, limit, lambda: self.hung, lambda: self.now_s)
        self.keeper.look()

    def ends(self, name, code, after_s=SHORT_LIFE_S + 1):
        self.now_s += after_s
        self.swarm.processes[name].exitcode = code
        self.keeper.look()

    @property
    def told(self):
        lines = (self.swarm.run_dir / PROCESSES_FILE).read_text().splitlines()
        events = [(event["kind"], event["peer"], event["text"]) for event in map(json.loads, lines)]
        assert events[0] == ("started", "launcher", "started coordinator, trainer-0, d0, d1")
        return events[1:]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_whoever_dies_is_started_again_and_it_is_said_how_it_ended(scene):
    (scene.swarm.run_dir / "d1.txt").write_text("one\nlast words\n\n")
    for name, code in (("coordinator", -9), ("trainer-0", -11), ("d0", 75), ("d1", 4)):
        scene.ends(name, code)
    assert scene.swarm.started == ["coordinator", "trainer-0", "d0", "d1"]
    again = "; started again (1 of 3)"
    assert scene.told == [
        ("restarted", "coordinator", f"was killed by SIGKILL{again}"),
        ("restarted", "trainer-0", f"was killed by SIGSEGV{again}"),
        ("restarted", "d0", f"was told to end by SIGTERM{again}"),
        ("restarted", "d1", f"ended with exit code 4 (last words){again}"),
    ]


def test_who_was_asked_to_go_or_has_left_stays_away(scene):
    scene.keeper.expect_end("d0")
    scene.ends("d0", -9)
    scene.ends("d1", 0)
    scene.now_s += LEFT_ALONE_S - 1
    scene.keeper.look()
    assert scene.swarm.started == []
    scene.now_s += 2
    with pytest.raises(RunError, match=r"no peer is left, and the swarm cannot go on without one$"):
        scene.keeper.look()


def test_who_was_asked_to_go_comes_back_when_that_is_asked_and_it_has_ended(scene):
    scene.keeper.expect_end("d0")
    scene.keeper.bring_back("d0")
    scene.keeper.look()
    assert scene.swarm.started == [], "it is still there"
    scene.ends("d0", 0)
    scene.keeper.look()
    assert scene.swarm.started == ["d0"]
    assert scene.told[-1] == ("restarted", "d0", "started again, as it was asked")
    scene.ends("d0", -9)
    assert scene.swarm.started == ["d0", "d0"], "it is kept as before"


def test_a_peer_beyond_its_restarts_is_lost_and_the_others_go_on(tmp_path):
    scene = Scene(tmp_path, limit=1)
    for _ in range(2):
        scene.ends("d0", -9)
    scene.ends("d1", -9)
    assert scene.swarm.started == ["d0", "d1"]
    text = "was killed by SIGKILL; it has been started again 1 of at most 1 times (max_restarts)"
    assert scene.told[1] == ("ended", "d0", text)
    assert scene.keeper.restarts == {"d0": 1, "d1": 1}


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (-9, RunError, "coordinator: was killed by SIGKILL; it has been started again 0 of at most 0 times"),
        (-15, Preempted, "coordinator: was killed by SIGTERM"),
        (75, Preempted, "coordinator: was told to end by SIGTERM"),
    ],
)
def test_a_coordinator_that_may_not_be_started_again_ends_the_run(tmp_path, code, error, words):
    with pytest.raises(error, match=words) as found:
        Scene(tmp_path, limit=0).ends("coordinator", code)
    assert type(found.value) is error


def test_without_a_trainer_the_run_ends_and_says_who_was_the_last(tmp_path):
    scene = Scene(tmp_path, limit=0)
    scene.ends("trainer-0", -9)
    scene.now_s += LEFT_ALONE_S + 1
    with pytest.raises(RunError, match=r"no trainer is left.*: trainer-0 was killed by SIGKILL"):
        scene.keeper.look()


def test_who_ends_again_and_again_is_started_later_and_later_and_then_no_more(tmp_path):
    scene = Scene(tmp_path, limit=1000)
    scene.ends("d0", 4)
    starts = []
    while scene.told[-1][0] == "restarted":
        if len(scene.swarm.started) > len(starts):
            starts.append(scene.now_s)
            scene.swarm.processes["d0"].exitcode = 4
        scene.now_s += 0.25
        scene.keeper.look()
    waits = [two - one for one, two in pairwise(starts)]
    assert waits[0] <= 0.5
    assert waits == sorted(waits)
    assert 15 <= waits[-1] <= 16
    assert len(starts) == MOST_SHORT_LIVES + 1
    assert "lived less than 10 s" in scene.told[-1][2]


def test_who_lives_and_does_nothing_is_killed_and_started_again(scene):
    scene.hung["trainer-0"] = "has been stopped for 2.1 s"
    scene.now_s = SHORT_LIFE_S + 1
    scene.keeper.look()
    assert scene.swarm.started == ["trainer-0"]
    assert scene.swarm.killed == ["trainer-0"]
    assert scene.told == [("restarted", "trainer-0", "has been stopped for 2.1 s; started again (1 of 3)")]


def test_a_full_disk_keeps_nobody_from_being_started_again(scene, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hetplanner.swarm.launch.restarts.append_line", full)
    scene.ends("d0", -9)
    assert scene.swarm.started == ["d0"]


def test_last_words_are_the_last_line_that_says_something(tmp_path):
    assert last_words(tmp_path / "none") == ""
    (tmp_path / "log").write_bytes(b"x" * 20_000 + b"\nwords \xff\n \n")
    assert last_words(tmp_path / "log") == "words �"
