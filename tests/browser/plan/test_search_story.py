"""Asking for something else than the defaults: constraints, a planner's own setting; searching, stopping, going on."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser


def open_group(page: Page, title: str) -> None:
    page.locator("summary").filter(has_text=title).click()


def field_of(page: Page, label: str) -> Locator:
    return page.get_by_label(label, exact=True).filter(visible=True)


def fill(page: Page, label: str, text: str) -> None:
    field = field_of(page, label)
    field.fill(text)
    field.press("Tab")


def curves(page: Page) -> list[int]:
    """Lengths of the search's own curve and of the earlier ones."""
    return page.evaluate(
        """() => [...Bokeh.documents[0]._all_models.values()]
             .filter(m => m.type == 'ColumnDataSource' && m.data.best && !m.tags.length)
             .map(m => [m.data.median ? 0 : 1, m.data.best.length]).sort((a, b) => a[0] - b[0]).map(pair => pair[1])"""
    )


def replayed(page: Page, moment: int | None) -> list:
    """Devices in the grid, and the terms' ends, at a moment of the replay (-1: the last)."""
    return page.evaluate(
        """(moment) => {
             const models = [...Bokeh.documents[0]._all_models.values()]
             const slider = models.find(m => m.name == 'replay')
             if (moment !== null) slider.value = moment < 0 ? slider.end : moment
             const sources = models.filter(m => m.type == 'ColumnDataSource')
             const frames = n => new Promise(done => n ? requestAnimationFrame(() => frames(n - 1).then(done)) : done())
             const read = () => [sources.find(m => m.data.replica && m.data.text_dark).data,
                                 sources.find(m => m.data.term && m.data.middle).data]
             return frames(3).then(read).then(([cells, bars]) =>
               [cells.stage.map((s, i) => `${s} ${cells.replica[i]} ${cells.device[i]}`).sort(), bars.right])
           }""",
        moment,
    )


def test_constraints_and_settings_are_searched_stopped_and_gone_on_from(server, visit):
    one = visit(server.url)
    page = one.begin("laptop_8_cities", "tiny-gpt")

    # Constraints: a device is left out, so the shape follows; a wrong one is explained where it stands.
    open_group(page, "Devices")
    fill(page, "Excluded", "tokyo, nowhere")
    one.sees("unknown device 'nowhere'")
    page.get_by_role("button", name="Search", exact=True).click()
    one.sees("Excluded: unknown device 'nowhere'")
    fill(page, "Excluded", "tokyo, seoul")
    one.sees("6 of 8")
    fill(page, "Excluded", "")
    one.sees("all 8")
    # So small a problem would be solved before it can be stopped, were its shape not that of all devices.
    fill(page, "Stages", "4")
    fill(page, "Replicas", "2")
    open_group(page, "Compression")
    field_of(page, "int8").check()
    open_group(page, "Model options")
    expect(field_of(page, "Narrowed")).to_be_disabled()
    field_of(page, "Boundary layers").select_option("bottleneck")
    fill(page, "Layers that share", "2")
    one.sees("bottleneck to 1/4, 2 share")

    # Another planner has other settings; the first one's come back with it.
    field_of(page, "Planner").select_option("random")
    open_group(page, "Settings of random")
    one.sees("placements tried at most")
    field_of(page, "Planner").select_option("evolution")
    open_group(page, "Settings of evolution")
    fill(page, "Population", "1000")
    one.sees("must be from 2 to 256, got 1000")
    fill(page, "Population", "20")
    one.sees("population 20")

    fill(page, "Budget (s)", "50")
    page.get_by_role("button", name="Search", exact=True).click()
    one.sees(re.compile(r"placements in [\d.]+ s, \d+ s left"))
    page.get_by_role("button", name="Stop", exact=True).click()
    one.sees(re.compile(r"Stopped: [\d,]+ placements"))
    one.sees("no plan is below")
    assert curves(page)[1] == 0
    one.sees(re.compile(r"Moment (\d+) of \1: "))
    found = replayed(page, None)
    assert replayed(page, 0) != found
    assert replayed(page, -1) == found, "the figures are as the server made them"
    resume = page.get_by_role("button", name="Resume", exact=True)
    expect(resume).to_be_enabled()
    fill(page, "Budget (s)", "1")
    resume.click()
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    own, earlier = curves(page)
    assert own > 0
    assert earlier > 0

    page.reload()
    one.settle()
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    expect(page.locator(".form input[value=int8]")).to_be_checked()
    expect(page.locator("[data-name='planner.population']")).to_have_value("20")
    assert curves(page)[1] == earlier
    expect(page.locator("[data-name='boundary_layers']")).to_have_value("bottleneck")
    one.tab("5 Export")
    one.sees("--boundary-layers bottleneck:4 --shared-layers 2 --stages 4 --replicas 2 --codecs none,int8")


def test_the_report_holds_a_film_that_plays_without_a_server(server, visit, tmp_path):
    one = visit(server.url)
    page = one.page
    one.choose("Sample cluster", "laptop_8_cities")
    one.sees("laptop_8_cities: 8 devices")
    one.set(stages="4", replicas="2", budget_s="1")
    one.search()
    one.tab("5 Export")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download report", exact=True).click()
    report = tmp_path / "report.html"
    download.value.save_as(report)

    film = page.context.new_page()
    requests, complaints = [], []
    film.on("request", lambda r: requests.append(r.url))
    film.on("console", lambda m: complaints.append(m.text))
    film.on("pageerror", lambda e: complaints.append(str(e)))
    film.goto(report.as_uri())
    slider, play = film.get_by_label("Moment of the search"), film.get_by_role("button")
    last = int(slider.get_attribute("max"))
    assert last > 0
    shown = film.locator(".film")
    expect(shown).to_have_attribute("data-moment", str(last))
    end = film.locator(".cells").inner_html(), film.locator(".film-words").inner_text()
    # Every moment that playing shows, in order.
    film.evaluate(
        """() => {
             window.seen = []
             const film = document.querySelector(".film")
             const look = new MutationObserver(() => seen.push(+film.dataset.moment))
             look.observe(film, {attributeFilter: ["data-moment"]})
           }"""
    )
    play.click()
    expect(play).to_have_text("Play")
    expect(shown).to_have_attribute("data-moment", str(last))
    seen = film.evaluate("seen")
    assert seen == list(range(last + 1))
    assert (film.locator(".cells").inner_html(), film.locator(".film-words").inner_text()) == end
    slider.fill("0")
    expect(shown).to_have_attribute("data-moment", "0")
    expect(film.locator(".film-words")).to_contain_text(f"Moment 1 of {last + 1}: ")
    assert film.locator(".moved").count() == 0
    assert film.locator(".film-words").inner_text() != end[1]
    assert requests == [report.as_uri()]
    assert complaints == []
