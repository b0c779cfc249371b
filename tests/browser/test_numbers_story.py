"""One plan, one number: wherever a page or a command states a quantity of a plan, it states the same number."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from served_dashboard import SHOWN_JS

pytestmark = pytest.mark.browser

TIME = r"(\d[\d.,]* ?(?:µs|ms|s|min|h)\b)"
SHARE = r"(\d[\d.,]* ?%)"
BYTES = r"(\d[\d.,]* [kMGT]?B)\b"
STATED = {
    "estimated step": [
        rf"^Plan: .* Step time \? {TIME}",
        rf"simulated; estimated {TIME}",
        rf"Why this plan: It takes {TIME}",
        rf"Moment (?:\d+) of (?:\d+): {TIME}",
        rf"Best {TIME}",
        rf"% {TIME} The choice that gains",
        rf"\d × \d: {TIME}; auto",
        rf"simulated, {TIME} estimated",
    ],
    "simulated step": [rf"Step time \? {TIME} simulated", rf"step {TIME} simulated"],
    "simulated idle": [rf"Idle \? {SHARE} simulated", rf"idle {SHARE} of the devices' time"],
    "estimated idle": [rf"Idle \? {SHARE} of the devices' time, estimated"],
    "lower bound": [rf"no plan below {TIME}", rf"no plan is below {TIME}"],
    "reserved memory": [rf"Tightest memory \? {BYTES}"],
    "memory in use": [rf"Memory in use \? {BYTES}"],
    "a launcher's step": [rf"instead of the {TIME} of \d", rf"as a launcher places them {TIME}"],
    "digest": [r"replicas \(plan ([0-9a-f]{8})\)"],
}
"""Quantity -> what stands around its number, on a page or in a command's output."""


def shown(page) -> str:
    """What can be seen, without header and side bar."""
    text = " ".join(page.evaluate(SHOWN_JS).split())
    return text[text.index("5 Export") + len("5 Export") :].strip()


def command(*words: object) -> str:
    """What a command prints."""
    run = [sys.executable, "-m", "hetplanner.cli", *map(str, words)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    return done.stdout


def test_every_place_states_the_same_number(server, visit):
    one = visit(server.url)
    page = one.page
    for label, choice in (("Sample cluster", "laptop_8_cities"), ("Model", "gpt2")):
        page.get_by_label(label, exact=True).filter(visible=True).first.click()
        page.get_by_role("menuitem", name=choice, exact=True).click()
    one.sees("laptop_8_cities: ")
    for name, count in (("stages", "4"), ("replicas", "2")):
        page.locator(f"#setting-{name}").fill(count)
        page.keyboard.press("Tab")
    page.get_by_label("Budget (s)", exact=True).filter(visible=True).first.fill("2")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Search", exact=True).click()
    one.sees(re.compile(r"Done: [\d,]+ placements"))
    one.sees("The choice that gains most is made first")
    one.sees(re.compile(r"4 × 2: .*auto"))
    texts = {"Plan": shown(page)}
    one.tab("3 Simulate")
    one.sees(re.compile(r"busiest \d+ of \d+ links in use"))
    one.sees("at its simulated peak")
    texts["Simulate"] = shown(page)
    one.tab("5 Export")
    one.sees("gpt2 on laptop_8_cities, 4 stages")
    texts["Export"] = shown(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download plan.json").click()
    texts["command"] = " ".join(command("simulate", Path(download.value.path())).split())

    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for quantity, patterns in STATED.items():
        for place, text in texts.items():
            for pattern in patterns:
                for number in re.findall(pattern, text):
                    found[quantity][number.replace(" ", "")].append(f"{place}: {pattern}")
    unlike = {quantity: dict(numbers) for quantity, numbers in found.items() if len(numbers) > 1}
    assert not unlike, unlike
    counts = {quantity: sum(map(len, numbers.values())) for quantity, numbers in found.items()}
    assert set(counts) == set(STATED), f"not stated at all: {set(STATED) - set(counts)}"
    assert counts["estimated step"] >= 7, (counts, texts)
    assert min(counts[name] for name in ("simulated step", "simulated idle", "lower bound", "digest")) >= 2, counts
