"""One plan, one number: wherever a page or a command states a quantity of a plan, it states the same number."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages.served_dashboard import REPOSITORY, SHOWN_JS

pytestmark = pytest.mark.browser

TIME = r"(\d[\d.,]* ?(?:ns|µs|ms|s|min|h)\b)"
SOME = r"[\d.]+ ?(?:ns|µs|ms|s)"
SHARE = r"(\d[\d.,]* ?%)"
COUNT = r"(\d[\d.,]*[kMG]?)"
USD = r"(\$[\d.]+)"
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
        rf"chosen: {TIME} a step",
    ],
    "simulated step": [rf"Step time \? {TIME} simulated", rf"step {TIME} simulated"],
    "simulated idle": [rf"Idle \? {SHARE} simulated", rf"idle {SHARE} of the devices' time"],
    "estimated idle": [rf"Idle \? {SHARE} of the devices' time, estimated"],
    "throughput": [rf"Throughput \? {COUNT} tokens/s predicted", rf"chosen: .* a step, {COUNT} tokens/s"],
    "price": [rf"predicted · {USD} per million tokens", rf"chosen: .* tokens/s, {USD} per million tokens"],
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


def command(*words: object, **variables: str) -> str:
    """What a command prints."""
    run = [sys.executable, "-m", "hetplanner.cli", *map(str, words)]
    env = os.environ | {"COLUMNS": "200"} | variables
    return subprocess.run(run, check=True, capture_output=True, text=True, env=env).stdout


def numbers_in(texts: dict[str, str], stated: dict[str, list[str]]) -> dict[str, list[tuple[str, str, str]]]:
    """By quantity: every number that is stated, where, and in which words."""
    return {
        quantity: [
            (number.replace(" ", ""), place, pattern)
            for place, text in texts.items()
            for pattern in patterns
            for number in re.findall(pattern, text)
        ]
        for quantity, patterns in stated.items()
    }


def assert_same(texts: dict[str, str], stated: dict[str, list[str]]) -> None:
    """Every quantity is stated, and by one number alone."""
    found = numbers_in(texts, stated)
    unlike = {quantity: rows for quantity, rows in found.items() if len({number for number, *_ in rows}) > 1}
    assert not unlike, unlike
    assert all(found.values()), f"not stated at all: {[name for name, rows in found.items() if not rows]}: {texts}"


def test_every_place_states_the_same_number(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.begin("laptop_8_cities", "gpt2", stages="4", replicas="2", budget_s="2")
    one.search()
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

    assert_same(texts, STATED)
    counts = numbers_in(texts, STATED)
    assert len(counts["estimated step"]) >= 7, (counts, texts)
    quantities = ("simulated step", "simulated idle", "lower bound", "digest")
    assert min(len(counts[name]) for name in quantities) >= 2, counts


def test_a_plan_of_the_front_has_the_same_numbers_once_it_is_taken(server_of_file, visit):
    one = visit(server_of_file.url)
    page = one.page
    one.tab("2 Plan")
    page.get_by_role("button", name="Find the front").click()
    one.sees(re.compile(r"Done: \d+ plans, none beaten in both"))
    page.get_by_role("button", name="Cheaper").click()
    text = page.get_by_text(re.compile(r"pipelines? on \d+ devices: ")).filter(visible=True).inner_text()
    page.get_by_role("button", name="Take this plan").click()
    one.sees(re.compile(r"tokens/s$"))
    one.settle()
    taken = {name: STATED[name] for name in ("estimated step", "throughput", "price")}
    texts = {"front": f"chosen: {text.partition('devices: ')[2]}", "plan": shown(page)}
    assert_same(texts, taken)
    assert min(map(len, numbers_in(texts, taken).values())) >= 2, texts


OF_A_RUN = {
    "measured step": [rf"Step time, measured {TIME}", rf"A step took {TIME},", rf"step {SOME} {SOME} {TIME} {SOME}"],
    "predicted step": [rf"measured {SOME} predicted {TIME}", rf"the predicted {TIME}", rf"step {SOME} {TIME} {SOME}"],
    "loss": [r"Loss ([\d.]+) step \d+ of", r"loss [\d.]+ → ([\d.]+),"],
}


def test_a_run_has_the_same_numbers_on_its_page_and_in_its_report(own_server, visit):
    plan = own_server.home / "plan.json"
    command("plan", REPOSITORY / "sample_clusters/laptop_8_cities.json", "tiny-gpt", "--stages", 2, "--replicas", 2,
            "--evaluations", 2000, "-o", plan)  # fmt: skip
    home = {"HETPLANNER_HOME": str(own_server.home)}
    command("train", plan, "--emulate-links", "--steps", 12, **home)
    texts = {"report": " ".join(command("runs", "report", "last", **home).split())}
    one = visit(own_server.url)
    one.tab("4 Run")
    one.sees("step 12 of 12")
    one.sees("The largest difference is")
    texts["Run"] = shown(one.page)
    assert_same(texts, OF_A_RUN)
    assert min(map(len, numbers_in(texts, OF_A_RUN).values())) >= 2, texts
