"""A dead agent is reported and replaced while a run is left alone."""

import json
import os
import threading

from hetplanner.liveness.processes import created_unix_s
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.keeper import AgentKeeper
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.home import AGENT_FILE, agent_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.ui.shell.models.agent import LOOK_EVERY_S, AgentWatch, start_line
from tests.support.plans.factories import chain_plan


def test_only_a_live_run_without_an_agent_is_alarming_and_has_a_new_one_started(tmp_path, monkeypatch):
    now, problem = [0.0], [""]
    started = threading.Event()

    def start(keeper) -> bool:
        keeper.problem = problem[0]
        started.set()
        return False

    monkeypatch.setattr(AgentKeeper, "start", start)
    watch = AgentWatch(tmp_path, clock=lambda: now[0])

    def look() -> str:
        now[0] += LOOK_EVERY_S
        watch.beat()
        return watch.words

    assert look() == ""  # nothing runs
    run_id, directory = create_run_directory(chain_plan(shares=(1, 1), cuts=(4,)), TrainConfig(), home=tmp_path)
    assert look() == ""  # it has no status yet
    status = RunStatus(run=run_id, state="running", created_unix_s=1.0, ranks=2)
    write_status(directory.status_file, status)
    assert not started.is_set()
    assert run_id in look()
    assert "A new one is being started" in watch.words
    assert started.wait(20)
    problem[0] = "no space left"
    look()
    watch._starting.join(20)
    assert "does not start: no space left" in look()
    assert f"`HETPLANNER_HOME={tmp_path} hetplanner agent`" in watch.words

    agent = agent_directory(tmp_path) / AGENT_FILE
    agent.write_text(json.dumps({"pid": os.getpid(), "version": "0", "began_s": created_unix_s(os.getpid())}))
    assert look() == ""
    agent.write_text(json.dumps({"pid": os.getpid(), "version": "0", "began_s": 1.0}))  # its number was given again
    assert run_id in look()
    agent.write_text("[")
    assert run_id in look()
    write_status(directory.status_file, status.replace(state="finished"))
    watch.beat()
    assert run_id in watch.words  # not yet time
    assert look() == ""


def test_only_the_usual_home_needs_no_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("HETPLANNER_HOME", raising=False)
    assert start_line() == "hetplanner agent"
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "a home"))  # another terminal may not have it
    assert start_line() == f"HETPLANNER_HOME='{tmp_path}/a home' hetplanner agent"
    assert start_line(tmp_path) == f"HETPLANNER_HOME={tmp_path} hetplanner agent"
