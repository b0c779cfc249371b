"""Rehearsing: locked without the token; then launched, watched, found again after reload and restart, stopped."""

import re

import pytest
from served_dashboard import TOKEN, Server

from hetplanner.runs.client import AgentClient, find_agent
from hetplanner.runs.processes import processes_of_run

pytestmark = pytest.mark.browser


@pytest.fixture
def own_server(tmp_path):
    """A server in a fresh home; its agent and runs end with the test."""
    one = Server(tmp_path / "home")
    one.home.mkdir()
    one.start()
    yield one
    one.stop()
    if find_agent(one.home) is not None:
        AgentClient(one.home, start=False).shutdown(stop_runs=True)


def type_token(page, label: str, text: str) -> None:
    field = page.get_by_label(label).filter(visible=True).first
    field.click()
    page.keyboard.type(text)


def test_a_rehearsal_from_click_to_stop(own_server, visit):
    one = visit(own_server.url)
    page = one.page
    one.tab("4 Run")
    page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
    one.sees("Launch the rehearsal?")
    one.sees("gpt3-xl on dtfm_5_worldwide, 8 × 8: the same sites and links, a tiny model")
    one.sees("torch.distributed.run")
    launch = page.get_by_role("button", name="Launch", exact=True)
    launch.click()
    one.sees("launch: type the launch token first")
    type_token(page, "Launch token (printed", "not-the-token")
    launch.click()
    one.sees("token: not the launch token of this server")
    assert find_agent(own_server.home) is None
    type_token(page, "Launch token (printed", TOKEN)
    launch.click()
    one.sees("REHEARSAL")
    one.sees(re.compile(r"step \d+ of 200"))
    one.sees(re.compile(r"predicted [\d.]+ m?s"))
    (status,) = AgentClient(own_server.home, start=False).runs()
    assert status.rehearsal
    folder = own_server.home / "runs" / status.run
    assert len(processes_of_run(folder)) >= 4

    page.wait_for_url(re.compile(f"run={status.run}"))
    page.reload()
    one.settle()
    one.sees(re.compile(r"step \d+ of 200"))
    one.leave()
    own_server.stop()
    own_server.start()
    again = visit(own_server.url)
    again.tab("4 Run")
    again.sees(status.run)
    again.sees(re.compile(r"step \d+ of 200"))
    assert AgentClient(own_server.home, start=False).status(status.run).state == "running"

    stop = again.page.get_by_role("button", name="Stop run")
    assert stop.is_disabled()
    type_token(again.page, "Launch token", TOKEN)
    again.page.get_by_role("button", name="Unlock").click()
    again.sees("Launching is unlocked.")
    stop.click()
    again.sees(re.compile("^stopped$"))
    assert AgentClient(own_server.home, start=False).status(status.run).state == "stopped"
    assert processes_of_run(folder) == []
