"""The pages by the rules of axe-core: names, roles, contrast, in both themes, with a current plan."""

from importlib.resources import files

import pytest

pytestmark = pytest.mark.browser

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
WIDTHS = {"light": 1280, "dark": 1920}
NOT_OURS = {
    # Tabulator puts the element that scrolls its rows between the grid and these.
    ("aria-required-children", "tabulator"),
    # Bokeh gives a slider's handle no name.
    ("aria-input-field-name", "noUi-handle"),
}
"""Rules that a published widget breaks by itself: rule, and a class of the element."""


# Rules of less weight take a third of the time, and nothing is said of what they find.
WEIGHTY_JS = """axe._audit.rules.filter(r => r.enabled && !["minor", "moderate"].includes(r.impact)).map(r => r.id)"""
RULES = {"light": WEIGHTY_JS, "dark": '["color-contrast"]'}
"""The second theme changes colours alone."""


def violations(page, theme: str) -> list[str]:
    """What is serious or critical and is not excused: rule, element, what is wrong."""
    run_js = f'axe.run(document, {{resultTypes: ["violations"], runOnly: {RULES[theme]}}})'
    found = page.evaluate(run_js)["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
        if not any(one["id"] == rule and name in node["html"] for rule, name in NOT_OURS)
    ]


def lasting_violations(page, theme: str) -> list[str]:
    """What is still wrong a second later: a button that is enabled changes its colours in a quarter of a second."""
    if not violations(page, theme):
        return []
    page.wait_for_timeout(1000)
    return violations(page, theme)


def test_no_page_breaks_a_serious_rule(server, visit):
    one = visit(server.url)
    page = one.begin("laptop_8_cities", "tiny-gpt", stages="2", replicas="4", budget_s="1")
    one.search()
    one.sees("The choice that gains most is made first")
    page.evaluate(AXE)
    broken: dict[str, list[str]] = {}
    for theme, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 1000})
        for tab, shown in (
            ("1 Cluster", "Links, row to column"),
            ("2 Plan", "Why this plan"),
            ("3 Simulate", "at its simulated peak"),
            ("4 Run", "No run yet"),
            ("5 Export", "tiny-gpt on laptop_8_cities, 2 stages"),
        ):
            one.tab(tab)
            one.sees(shown)
            broken |= {f"{theme}, {tab}": found for found in [lasting_violations(page, theme)] if found}
        one.tab("4 Run")
        page.get_by_role("button", name="Rehearse here").filter(visible=True).click()
        one.sees("Launch the rehearsal?")
        broken |= {f"{theme}, dialog": found for found in [lasting_violations(page, theme)] if found}
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").wait_for(state="hidden")
        if theme == "light":
            page.get_by_role("button", name="Toggle theme").click()
            page.wait_for_function("Bokeh.documents[0].roots().some(({data}) => data?.dark_theme)")
            page.wait_for_timeout(2000)  # colours fade
    assert not broken, "\n".join(f"{where}:\n  " + "\n  ".join(found) for where, found in broken.items())
