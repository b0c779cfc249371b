"""Who gets in, what a lost server looks like, and that names from files stay text on every page and plot."""

import re
from pathlib import Path

import holoviews as hv
import pytest
from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE
from playwright.sync_api import Browser, Page, expect

from hetplanner import plots
from hetplanner.cluster.formats.cluster_files import cluster_to_json
from hetplanner.cost.estimate import estimate_plan
from hetplanner.plots.report_page import report_page
from hetplanner.runs.run import open_run
from hetplanner.simulator.simulation import simulate
from tests.support.files.hostile import IMG, SCRIPT, SVG, hostile_cluster, hostile_plan, hostile_run
from tests.support.pages.served_dashboard import Dashboard, Server, Visit

pytestmark = pytest.mark.browser
PWNED = "window.pwned === undefined ? '' : String(window.pwned)"


@pytest.fixture
def dashboard(tmp_path):
    """`hetplanner dashboard` in a fresh home."""
    with Dashboard(tmp_path) as one:
        yield one


def test_the_link_opens_once_and_the_page_survives_its_server(dashboard, visit, browser):
    link = dashboard.link()
    one = visit(link)
    assert one.page.url == f"http://localhost:{dashboard.port}/planner"
    hidden = next(c for c in one.page.context.cookies() if c["name"] == f"hetplanner-{dashboard.port}")
    assert (hidden["httpOnly"], hidden["sameSite"]) == (True, "Strict")
    assert hidden["value"] not in one.page.content() + one.page.evaluate("document.cookie")
    one.tab("4 Run")
    one.sees("Launching is unlocked.")

    other = browser.new_context().new_page()
    assert other.goto(link).status == 403
    other.get_by_role("link", name="look and plan without it").click()
    other.get_by_role("button", name="Search", exact=True).wait_for()
    other.get_by_role("tab", name="4 Run").click()
    other.get_by_label("Launch token").filter(visible=True).first.wait_for()
    expect(other.get_by_text("Launching is unlocked.")).to_have_count(0)
    other.goto(f"http://localhost:{dashboard.port}/unlock")
    other.get_by_label("Launch token").fill("test-launch-token")
    other.get_by_role("button", name="Unlock").click()
    other.get_by_role("button", name="Search", exact=True).wait_for()
    other.context.close()

    one.tab("1 Cluster")
    one.page.get_by_label("Place", exact=True).fill("Paris")
    one.page.get_by_role("button", name="Add site").click()
    one.sees("72 devices")
    one.page.wait_for_url(re.compile("draft="))

    dashboard.stop()
    one.sees("The connection to the server is lost")
    dashboard.start()
    expect(one.page.get_by_text("The connection to the server is lost")).to_have_count(0, timeout=60_000)
    one.settle()
    one.sees("72 devices")  # what was drawn outlives the server
    assert "token" not in one.page.url
    lost = ("ERR_CONNECTION_REFUSED", "not connected so cannot send")  # of what the page sent meanwhile
    assert [text for text in one.complaints if not any(word in text for word in lost)] == []
    one.complaints.clear()
    said = (dashboard.home / "server.txt").read_text()
    assert said.count("token=") == 2  # one link for each start, and no line of a log


def hover(page: Page) -> int:
    """Moves over every figure that can be seen; returns how many tooltips were drawn."""
    boxes = """figures => figures.map(f => f.getBoundingClientRect()).map(b => [b.x, b.y, b.width, b.height])"""
    drawn = 0
    for x, y, width, height in page.locator(".bk-Canvas").filter(visible=True).evaluate_all(boxes):
        for down in (0.25, 0.4, 0.5, 0.75):
            for across, stops in ((0.1, 1), (0.5, 2), (0.9, 2)):
                page.mouse.move(x + across * width, y + down * height, steps=stops)
                drawn += page.locator(".bk-Tooltip").filter(visible=True).count()
    return drawn


def is_text(page: Page) -> None:
    """No hostile name became an element, whatever shadow tree it is in, nor ran."""
    assert page.evaluate(PWNED) == ""
    assert page.locator("img[src=x], svg[onload]").count() == 0


def hostile_plots() -> list:
    """Bokeh figures of the notebook plots that show names."""
    plan = hostile_plan()
    plan = plan.replace(estimate=estimate_plan(plan))
    trace = simulate(plan, steps=2)
    plots_of = (
        plots.cluster_map(plan.problem.cluster),
        plots.heatmap(plan.problem.cluster),
        plots.allocation(plan),
        plots.allocation_grid(plan),
        plots.cost({IMG: plan, SCRIPT: plan.estimate}),
        plots.memory(plan),
        plots.gantt(trace),
        plots.convergence([], {IMG: plan, SVG: plan}),
        plots.dag(plan.problem.workload),
    )
    return [plot if isinstance(plot, figure) else hv.render(plot, backend="bokeh") for plot in plots_of]


def look_at_plots_and_report(run_id: str, home: Path, folder: Path, browser: Browser) -> None:
    plot_page, report = folder / "plots.html", folder / "report.html"
    plot_page.write_text(file_html(hostile_plots(), INLINE, title=SCRIPT))
    report.write_text(report_page(open_run(run_id, home)))
    page = browser.new_context(viewport={"width": 1200, "height": 6000}).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in (plot_page, report):
        page.goto(path.as_uri())
        page.wait_for_function("Bokeh.documents.length && Bokeh.documents[0].is_idle")
        assert hover(page) > 0
        is_text(page)
    expect(page.get_by_text("rank 1 died: \"'><svg onload=").first).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.context.close()


def test_hostile_names_are_text_everywhere_and_a_foreign_host_gets_nothing(tmp_path, visit, browser):
    home = tmp_path / "home"
    home.mkdir()
    run_id = hostile_run(home)
    server = Server(home)
    server.start()
    try:
        one = visit(f"{server.url}?page=cluster&run={run_id}")
        page = one.page
        page.set_viewport_size({"width": 1600, "height": 4000})  # everything can be hovered
        give = one.upload("Import files")
        text = cluster_to_json(hostile_cluster()).encode()
        give.set_input_files({"name": "<img src=x onerror=window.pwned=1>.json", "mimeType": "x", "buffer": text})
        one.sees(re.compile(r"<img src=x.*: 4 devices"))
        hover(page)
        is_text(page)
        page.get_by_label("Model", exact=True).filter(visible=True).first.click()
        page.get_by_role("menuitem", name="tiny-gpt", exact=True).click()
        page.get_by_role("button", name="Search", exact=True).click()
        one.sees("Bottleneck:")
        for tab in page.get_by_role("tab", name=re.compile(r"^\d ")).all():
            tab.click()
            page.wait_for_function("Bokeh.documents[0].is_idle")
            hover(page)
            is_text(page)
        one.tab("Run")
        one.sees("rank 1 died: \"'><svg onload=")
        is_text(page)

        foreign = browser.new_context().new_page()
        foreign.goto(f"http://foreign.example:{server.port}/planner")
        foreign.get_by_text("This page answers to").wait_for(timeout=60_000)
        assert foreign.get_by_role("button").count() == 0
        assert "dtfm" not in foreign.content()
        foreign.context.close()
        one.leave()
    finally:
        server.stop()
    look_at_plots_and_report(run_id, home, tmp_path, browser)


def test_back_and_forward_move_the_page_and_the_theme_is_the_systems_until_one_is_chosen(server, browser):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    one = Visit(page).open(server.url)
    dark = "getComputedStyle(document.body).backgroundColor"
    page.wait_for_function(f"{dark} === 'rgb(20, 24, 29)'")
    names = ["2 Plan", "3 Simulate", "4 Run", "5 Export"]
    for name in names:
        one.tab(name)
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        page.wait_for_url(re.compile(f"page={name.split()[1].lower()}"))
    for name in [*names[-2::-1], "1 Cluster"]:
        page.go_back()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    for name in names[:2]:
        page.go_forward()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Toggle theme").click()
    page.wait_for_function(f"{dark} !== 'rgb(20, 24, 29)'")
    page.reload()
    one.settle()
    expect(page.get_by_role("tab", name="3 Simulate")).to_have_attribute("aria-selected", "true")
    page.wait_for_function(f"{dark} !== 'rgb(20, 24, 29)'")
    context.close()


def test_the_page_works_with_bokeh_and_panel_as_published(tmp_path, visit, monkeypatch):
    monkeypatch.setenv("HETPLANNER_PATCHES", "none")
    server = Server(tmp_path)
    server.start()
    one = visit(server.url)
    one.set(budget_s="1")
    one.search()
    shown = {"3 Simulate": "One step, simulated", "4 Run": "Loss", "5 Export": "Download", "2 Plan": "Convergence"}
    for page, words in shown.items():
        one.tab(page)
        one.sees(words)
    assert "style_updates" not in one.page.content()
    one.leave()
    server.stop()
