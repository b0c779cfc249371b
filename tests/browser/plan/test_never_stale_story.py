"""A hundred random changes: at rest the page shows what its models know, and a plan of other settings bears a mark."""

import json
import random

import pytest

from tests.support.pages.served_dashboard import Server
from tests.support.processes.patience import until

pytestmark = pytest.mark.browser

CHANGES = 100
SEED = 16
SAMPLES = ("laptop_8_cities", "lab_2_sites_4")
VALUES = {
    "stages": ("", "2", "4"),
    "replicas": ("", "2"),
    "global_batch": ("16", "64", "96"),
    "seq_len": ("32", "64"),
}


class TellingServer(Server):
    """Writes what the models know; see `report_state`."""

    setup = "tests/support/pages/report_state.py"


@pytest.fixture
def server(tmp_path):
    with TellingServer(tmp_path) as one:
        yield one


def test_a_hundred_random_changes_leave_no_number_without_a_mark(server, visit):
    one, rng = visit(server.url), random.Random(SEED)
    page = one.page

    def known() -> dict:
        return json.loads((server.home / "state.json").read_text())

    def forget(*names: str) -> None:
        """A model brings its own sizes; a shape that no longer fits becomes auto."""
        for name in names:
            asked.pop(name, None)

    def fill(name: str) -> None:
        asked[name] = rng.choice(VALUES[name])
        one.set(**{name: asked[name]})

    def model() -> None:
        asked["preset"] = rng.choice(["gpt2", "tiny-gpt"])
        one.choose("Model", asked["preset"])
        forget("global_batch", "seq_len", "stages", "replicas")

    def objective() -> None:
        asked["objective"] = rng.choice(["step-time", "dtfm"])
        page.locator("#setting-objective").select_option(asked["objective"])

    def sample() -> None:
        one.tab("1 Cluster")
        one.choose("Sample cluster", rng.choice(SAMPLES))
        one.tab("2 Plan")
        forget("stages", "replicas")

    def undo() -> None:
        one.tab("1 Cluster")
        button = page.get_by_role("button", name="Undo")
        if button.is_enabled():
            button.click()
            forget("stages", "replicas")
        one.tab("2 Plan")

    def shown() -> tuple[str, str]:
        """The step time's card and the plan's line, '' for one that is not in sight."""
        step = page.locator('[data-metric="Step time"]').filter(visible=True)
        line = page.get_by_text("Plan:", exact=True).filter(visible=True).locator("xpath=..")
        texts = [(part.all_inner_texts() or [""])[0] for part in (step, line)]
        return texts[0], " ".join(texts[1].split())

    def fields() -> dict[str, str]:
        return {name: page.locator(f"#setting-{name}").input_value() for name in VALUES}

    def agrees() -> bool:
        now = known()
        settings = {name: str(value or "") for name, value in now["settings"].items()}  # 0 is "auto": an empty field
        if now["state"] == "asking" or any(settings[name] != value for name, value in asked.items()):
            return False
        if fields() != {name: settings[name] for name in VALUES}:
            return False  # the form has yet to hear of what another change has changed
        step, line = shown()
        return step == now["step"] and " ".join(now["words"].split()) in line

    asked: dict[str, str] = {}
    one.choose("Sample cluster", SAMPLES[0])
    one.choose("Model", "gpt2")
    page.get_by_text("Model size and batch").click()
    one.set(stages="4", replicas="2", budget_s="1")
    one.search()
    changes = [*(lambda name=name: fill(name) for name in VALUES), model, objective, sample, sample, undo]
    states: list[str] = []
    for number in range(CHANGES):
        rng.choice(changes)()
        until(
            agrees,
            lambda number=number: (
                f"change {number}: asked {asked}, known {known()}, shown {shown()} {fields()}, at {page.url},"
                f" complaints {one.complaints}, server:\n{server.stacks()}"
            ),
        )
        now = known()
        assert now["fits"] or now["words"], now
        assert (now["state"] == "current") == (not now["words"]), now
        states.append(now["state"])
    assert states.count("carried") > 10, states
    assert states.count("outdated") > 10, states
