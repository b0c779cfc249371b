"""A page that watches the run of an elastic plan: loss, throughput and life, without what only routes have."""

import pytest

from hetplanner.elastic.coordinator.decisions import Committed
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.swarm.event_log import EventLog, parse_events
from hetplanner.ui.watch import RunWatch
from tests.support.plans.factories import swarm_plan

PLAN = swarm_plan([2, 3], [3])


@pytest.fixture
def run(tmp_path):
    """Id and folder of a run without processes."""
    run_id, directory = create_run_directory(PLAN, TrainConfig(steps=3), home=tmp_path)
    status = RunStatus(run=run_id, state="finished", created_unix_s=1.0, started_unix_s=2.0, ended_unix_s=9.0, ranks=1)
    write_status(directory.status_file, status)
    return run_id, directory


def test_a_watch_shows_loss_throughput_and_life(tmp_path, run):
    run_id, directory = run
    event_log = EventLog(directory.path, tokens_per_step=100)
    event_log.began(1, Version(0, 0), "127.0.0.1:1", None)
    for step in (1, 2, 3):
        event_log.committed(Committed(1, Stamp(1, step), Version(0, step), 500.0 / step))
    event_log.close()
    watch = RunWatch(tmp_path, run_id)
    watch.refresh()
    assert [loss for _, loss in watch.reader.losses()] == pytest.approx([5.0, 2.5, 5 / 3])
    assert watch.reader.tokens_per_s() > 0
    detail = watch.detail()
    assert detail.comparison.step_s.keys() == {"measured"}
    assert [span.phase for span in detail.life] == ["training"]


def test_a_commit_that_died_untold_is_told_by_the_next_coordinator(run):
    _, directory = run
    first = EventLog(directory.path, tokens_per_step=100)
    first.began(1, Version(0, 0), "127.0.0.1:1", None)
    first.committed(Committed(1, Stamp(1, 1), Version(0, 1), 400.0))
    first.close("training")
    with (directory.path / "events.jsonl").open("a") as file:
        file.write('{"kind": "comm')  # it was killed inside a line
    second = EventLog(directory.path, tokens_per_step=100)
    second.began(2, Version(0, 2), "127.0.0.1:1", Committed(1, Stamp(1, 9), Version(0, 2), 300.0))
    second.close()
    events = parse_events((directory.path / "events.jsonl").read_bytes())
    assert [(e["version"][1], e["loss"]) for e in events if e["kind"] == "commit"] == [(1, 4.0), (2, 3.0)]
    assert [e["boot"] for e in events if e["kind"] == "boot"] == [1, 2]
