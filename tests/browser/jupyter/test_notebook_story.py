"""In JupyterLab, offline: a search that is watched and stopped from its cell, a run, the dashboard in a frame."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hetplanner.ui.notebook.jupyter import HOME_VARIABLE
from tests.support.pages.jupyter_lab import TOKEN, Lab, cell_of, is_done, run_cell
from tests.support.pages.served_dashboard import PATIENCE_MS, REPOSITORY

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

CELLS = [
    f"""
import hetplanner as hp
cluster = hp.load_cluster({str(REPOSITORY / "sample_clusters" / "dtfm_5_worldwide.json")!r})
problem = hp.Problem(cluster=cluster, workload=hp.preset("gpt3-xl"), constraints=hp.Constraints(stages=8, replicas=8))
result = hp.search(problem, budget="100 s")
print("cancelled:", result.cancelled)
""",
    'run = hp.launch(hp.rehearse(problem), emulate_links=True, steps=500)\nprint("launched")',
    "print(run.wait(60).state)",
    "hp.plots.convergence(result)",
    # As in a kernel whose Jupyter server has no tile: see test_jupyter_story.
    f"import os\ndel os.environ[{HOME_VARIABLE!r}]\nhp.dashboard()",
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    one = Lab(tmp_path, CELLS)
    yield one
    one.stop()


def is_outside(url: str) -> bool:
    """Whether an address is neither data nor on this machine."""
    return not url.startswith(("data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:"))


def test_search_run_and_dashboard_in_jupyterlab_without_a_network(lab: Lab, browser: Browser) -> None:
    page = browser.new_context(viewport={"width": 1500, "height": 1300}).new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda r: requests.append(r.url))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(f"http://127.0.0.1:{lab.port}/lab/tree/story.ipynb?token={TOKEN}")
    cell_of(page, len(CELLS) - 1).wait_for(timeout=PATIENCE_MS)
    page.get_by_text("| Idle").wait_for(timeout=PATIENCE_MS)

    run_cell(page, 0)
    first = cell_of(page, 0)
    first.get_by_text("against random").wait_for(timeout=PATIENCE_MS)
    first.get_by_text("Bottleneck:").wait_for(timeout=PATIENCE_MS)
    assert first.locator("canvas").count() >= 2
    first.locator("button", has_text="Stop").click()
    first.get_by_text(re.compile(r"Stopped: [\d,]+ plans in")).wait_for(timeout=30_000)
    first.get_by_text("cancelled: True").wait_for()
    is_done(page, 0)
    expect(first.locator("button", has_text="Stop")).to_have_count(0)
    expect(first.locator("canvas").first).to_be_visible()  # what stays is drawn too

    run_cell(page, 1)
    second = cell_of(page, 1)
    second.get_by_text("launched").wait_for(timeout=PATIENCE_MS)
    is_done(page, 1)  # while the run goes on
    second.get_by_text(re.compile(r"step \d+ of 500")).wait_for(timeout=PATIENCE_MS)
    second.locator("button", has_text="Stop").click()
    second.get_by_text(re.compile(r"rehearsal of \d ranks · stopped")).wait_for(timeout=30_000)
    run_cell(page, 2)
    cell_of(page, 2).get_by_text("stopped", exact=True).wait_for(timeout=PATIENCE_MS)
    run_cell(page, 3)
    is_done(page, 3)
    cell_of(page, 3).locator("canvas").first.wait_for(timeout=PATIENCE_MS)

    run_cell(page, 4)
    frame = page.frame_locator("iframe[title=hetplanner]")
    frame.get_by_role("button", name="Search", exact=True).wait_for(timeout=PATIENCE_MS)
    frame.get_by_role("tab", name=re.compile("Run$")).click()
    frame.get_by_text("Launching is unlocked").filter(visible=True).first.wait_for(timeout=PATIENCE_MS)
    assert [url for url in requests if is_outside(url)] == []
    assert complaints == []
    page.context.close()
