"""Rehearsing: locked without the token; then launched, watched, found again after reload and restart, stopped, gone on
with from its checkpoint. And a run that fails: why, when, and what the rank said last; and a swarm that does not.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hetplanner.liveness.processes import created_unix_s, processes_of_run
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.agent.connection import find_agent
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.ui.export.model import plan_text
from tests.support.pages.served_dashboard import TOKEN
from tests.support.plans.factories import chain_plan, hosted, slow_swarm
from tests.support.runs.fake_launcher import SCRIPT

pytestmark = pytest.mark.browser


def stop_run(page):
    """Presses Stop, which asks once."""
    page.get_by_role("button", name="Stop run").click()
    page.get_by_role("button", name="Yes, stop it").click()


def type_token(page, label: str, text: str) -> None:
    field = page.get_by_label(label).filter(visible=True).first
    field.click()
    page.keyboard.type(text)


def fill(page, label: str, text: str) -> None:
    field = page.get_by_label(label)
    field.fill(text)
    field.press("Tab")


def section(page, name: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{name}")).filter(visible=True).first.click()


def test_a_rehearsal_from_click_to_stop_and_on_from_its_checkpoint(own_server, visit):
    one = visit(own_server.url)
    page = one.page
    one.tab("4 Run")
    page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
    one.sees("Launch the rehearsal?")
    one.sees("gpt3-xl on dtfm_5_worldwide: the same sites and links, a tiny model")
    one.sees("hetplanner.runtime.launch")
    fill(page, "Checkpoint every", "5")
    fill(page, "Warm-up steps", "-1")
    one.sees("must be from 0 to 1,000,000, got -1")
    launch = page.get_by_role("button", name="Launch", exact=True)
    fill(page, "Warm-up steps", "3")
    launch.click()
    one.sees("launch: type the launch token first")
    type_token(page, "Launch token (printed", "not-the-token")
    launch.click()
    page.get_by_role("dialog").get_by_text("token: not the launch token of this server").wait_for()
    assert find_agent(own_server.home) is None
    type_token(page, "Launch token (printed", TOKEN)
    launch.click()
    one.sees("REHEARSAL")
    one.sees(re.compile(r"step \d+ of 200"))
    one.sees(re.compile(r"predicted [\d.]+ m?s"))
    run_tab = page.get_by_role("tab", name="4 Run", exact=True)
    expect(run_tab).to_have_attribute("title", "training")
    (status,) = AgentClient(own_server.home, start=False).runs()
    assert status.rehearsal
    folder = own_server.home / "runs" / status.run
    assert len(processes_of_run(folder)) >= 4

    section(page, "Timeline")
    one.sees("Follows the newest steps.")
    page.get_by_role("button", name="Pause").click()
    one.sees(re.compile(r"Steps up to \d+ of \d+; Follow goes back"))
    section(page, "Network")
    one.sees("Links, mean over the run's steps")
    page.wait_for_url(re.compile(f"run={status.run}"))
    page.reload()
    one.settle()
    one.sees(re.compile(r"step \d+ of 200"))
    one.leave()
    own_server.stop()
    own_server.start()
    again = visit(own_server.url)
    again.tab("4 Run")
    again.sees(re.compile(status.run))
    again.sees(re.compile(r"step \d+ of 200"))
    assert AgentClient(own_server.home, start=False).status(status.run).state == "running"

    stop = again.page.get_by_role("button", name="Stop run")
    assert stop.is_disabled()
    type_token(again.page, "Launch token", TOKEN)
    again.page.get_by_role("button", name="Unlock").click()
    again.sees("Launching is unlocked.")
    stop.click()
    again.page.get_by_role("button", name="Keep it running").click()
    expect(stop).to_be_enabled()
    stop_run(again.page)
    again.sees(re.compile("^stopped$"))
    expect(again.page.get_by_role("tab", name="4 Run", exact=True)).not_to_have_attribute("title", "training")
    assert AgentClient(own_server.home, start=False).status(status.run).state == "stopped"
    assert processes_of_run(folder) == []

    with again.page.expect_download() as download:
        again.page.get_by_role("button", name="Report").click()
    report = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename == f"{status.run}.html"
    assert "Where a step's time goes, by term" in report
    section(again.page, "Text")
    again.page.get_by_role("button", name="Generate").click()
    expect(again.page.locator("[data-generated]")).to_contain_text("def main(", timeout=60_000)

    again.page.get_by_role("button", name=re.compile(r"Restart from step \d+")).click()
    again.sees("Go on from the checkpoint?")
    again.page.get_by_role("button", name="Launch", exact=True).click()
    again.sees(re.compile(r"training, resumed from step \d+"))
    assert len(AgentClient(own_server.home, start=False).runs()) == 2
    stop_run(again.page)
    again.sees(re.compile("^stopped$"))


def test_a_failed_rank_shows_its_last_words_and_a_swarm_goes_on_without_peers(own_server, visit):
    one = visit(own_server.url)
    one.tab("4 Run")
    one.sees("No run yet: press Rehearse here.")
    # An agent whose ranks are scripted: the second one fails of its own, the others lose it.
    environment = os.environ | {"HETPLANNER_HOME": str(own_server.home)}
    agent = subprocess.Popen([sys.executable, str(SCRIPT.with_name("fake_launcher.py")), "crash"], env=environment)
    try:
        while find_agent(own_server.home) is None:
            assert agent.poll() is None
            time.sleep(0.05)
        client = AgentClient(own_server.home, start=False)
        run = client.start(chain_plan([8, 8], [5]), TrainConfig(steps=5))
        one.sees(re.compile(r"rank 1 \(d1\) failed: ValueError: the data folder has 3 bytes of text"))
        one.sees("What happened")
        one.sees("rank 1: ValueError: the data folder has 3 bytes of text")
        log = one.page.locator("[data-log]")
        expect(log).to_contain_text("line of the worker")
        one.page.get_by_label("Search the logs").fill("READY")
        one.page.keyboard.press("Enter")
        expect(log).to_contain_text("4 lines hold")
        expect(log).to_contain_text("[3:2] ready")
        marks = one.page.evaluate(
            """() => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type == 'ColumnDataSource')
                 .map(m => m.data.marker ? [...m.data.marker] : []).flat()"""
        )
        assert "x" in marks
        assert run.id in one.page.url or one.page.wait_for_url(re.compile(f"run={run.id}")) is None
    finally:
        AgentClient(own_server.home, start=False).shutdown(stop_runs=True)
        agent.wait(30)

    # A swarm comes as a plan file, is looked at and launched; a broken file leaves it in hand.
    one.tab("5 Export")
    give = one.upload("Open a plan file")
    text = plan_text(slow_swarm())
    for content, words in (
        (text, "a swarm of 3 stages × 2–3 peers"),
        (text.replace('"soonest"', '"magic"'), "wiring.rule"),
    ):
        give.set_input_files({"name": "swarm.json", "mimeType": "application/json", "buffer": content.encode()})
        one.sees(words)
    one.sees("a swarm of 3 stages × 2–3 peers")
    one.tab("2 Plan")
    one.sees("Shown is a steady-state step of it")
    one.tab("4 Run")
    one.page.get_by_role("button", name="Launch the swarm…").click()
    one.sees("Launch the swarm?")
    one.sees("layer.1.attention … layer.2.mlp: d2, d3, d4")
    one.sees("hetplanner.swarm.launch.rehearse")
    steps = one.page.get_by_label("Steps", exact=True).filter(visible=True).first
    steps.fill("10000")
    steps.press("Tab")
    type_token(one.page, "Launch token (printed", TOKEN)
    one.page.get_by_role("button", name="Launch", exact=True).click()
    one.sees(re.compile("^Launched "))
    swarm = next(s for s in AgentClient(own_server.home, start=False).runs() if s.run != run.id)

    # One of its peers is made to leave and another is killed: the others go on.
    one.page.goto(f"{own_server.url}?run={swarm.run}")
    one.settle()
    one.tab("4 Run")
    section(one.page, "Swarm")
    one.sees(re.compile(r"Steps? \d+.*: a line for the micro-batches"))
    one.sees("Type the launch token above")
    type_token(one.page, "Launch token", TOKEN)
    one.page.get_by_role("button", name="Unlock").click()
    for peer, button, words in (("d2", "Let it leave", r"left: 1"), ("d3", "Kill it", r"lost: 1")):
        one.page.get_by_role("combobox", name="Peer").click()
        one.page.get_by_role("menuitem", name=peer, exact=True).click()
        one.page.get_by_role("button", name=button).click()
        one.sees(re.compile(words))
    with one.page.expect_download() as download:
        one.page.get_by_role("button", name="Report").click()
    assert "Who did what" in Path(download.value.path()).read_text(encoding="utf-8")
    stop_run(one.page)
    one.sees(re.compile("^stopped$"))


@pytest.fixture
def launcher():
    """A process that takes a launcher's place: the agent ends it as it ends a run's."""
    with subprocess.Popen(["sleep", "infinity"], start_new_session=True) as process:
        yield {"pid": process.pid, "pid_created_unix_s": created_unix_s(process.pid)}
        process.kill()


def test_a_launch_over_hosts_and_a_run_that_goes_on_without_one(own_server, visit, launcher):
    home = own_server.home
    (home / "lab.toml").write_text('format = "hetplanner/hosts@1"\n[slurm]\n')
    (home / "agent.toml").write_text(f'[hosts]\nlab = "{home / "lab.toml"}"\n')
    for name in ("lab.toml", "agent.toml"):
        (home / name).chmod(0o600)
    plan = chain_plan([8, 8], [5], cluster=hosted({"d0": "a", "d1": "b", "d2": "b", "d3": "c"}))
    first, second = (create_run_directory(plan, TrainConfig(steps=10), home=home)[1] for _ in range(2))

    def tell(folder, **changes):
        told = {"run": folder.path.name, "created_unix_s": time.time(), "ranks": 4}
        write_status(folder.status_file, RunStatus(**(told | changes)))

    tell(first, state="running", **launcher)
    one = visit(f"{own_server.url}?run={first.path.name}")
    one.tab("4 Run")
    one.sees(re.compile("^running$"))
    tell(second, state="running", **launcher)
    tell(first, state="preempted", successor=second.path.name, message="preempted: host a has not come back for 180 s")
    one.page.wait_for_url(re.compile(f"run={second.path.name}"))
    one.sees("It is shown now.")
    one.page.get_by_role("button", name=f"Goes on from {first.path.name}").click()
    one.sees(re.compile("^continued$"))
    one.page.get_by_role("button", name=f"Goes on as {second.path.name}").click()
    one.sees(re.compile("^running$"))

    one.tab("5 Export")
    content = plan_text(plan).encode()
    give = one.upload("Open a plan file")
    give.set_input_files({"name": "plan.json", "mimeType": "application/json", "buffer": content})
    one.sees("2 stages × 2 replicas")
    one.tab("4 Run")
    one.page.get_by_role("button", name="Launch the plan…").click()
    one.sees("Launch the plan?")
    dialog = one.page.get_by_role("dialog")
    lost = dialog.get_by_label("Go on without a lost host")
    expect(lost).to_have_count(0)
    dialog.get_by_label("Runs on").select_option("lab, over ssh")
    one.sees("3 hosts of lab, over ssh: a, b, c")
    lost.check()
    expect(dialog.get_by_label("Restarts")).to_have_value("1")
    one.sees("the run waits 180 s for it, then continues without it")
    fill(one.page, "Restarts", "0")
    expect(lost).not_to_be_checked()
    dialog.get_by_label("Runs on").select_option("lab, as a Slurm job")
    one.sees("Slurm is given this batch file:")
    expect(lost).to_have_count(0)
    tell(second, state="finished")
