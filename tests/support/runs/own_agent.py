"""An agent of a test's own: a home of which nothing may be left at the end."""

import time

import pytest

from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from hetplanner.runs.home import AGENT_FILE
from tests.support.processes.patience import stretched
from tests.support.runs.fake_launcher import check_all_ended, processes_under

GONE_S = 5.0
"""After the agent has ended, its processes have ended within this time."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home whose agents and runs must be gone at the end."""
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    yield tmp_path
    if find_agent(tmp_path):
        AgentClient(tmp_path, start=False).shutdown(stop_runs=True)
    deadline = time.monotonic() + stretched(GONE_S)
    while processes_under(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    check_all_ended(tmp_path)


@pytest.fixture
def client(home):
    """The agent of this home."""
    return AgentClient(home)


@pytest.fixture
def no_agent_stays(tmp_path):
    """For tests that start one by the way: agents of homes in the test's folder are ended."""
    yield
    for file in tmp_path.glob(f"**/agent/{AGENT_FILE}"):
        AgentClient(file.parents[1], start=False).shutdown(stop_runs=True)
