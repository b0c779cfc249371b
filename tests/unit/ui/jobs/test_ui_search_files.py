"""Searches outlive their server: request, curve, replay and best plan are there again."""

import json
import shutil
from dataclasses import replace

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.ui.jobs.jobs import SearchRequest, SearchService
from hetplanner.ui.jobs.search_files import CUT_OFF, MOST_FILES, SearchFiles, read_search
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import small_cluster, tiny_workload
from tests.support.processes.patience import until
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN


def problem() -> Problem:
    constraints = Constraints(stages=2, replicas=2)
    return Problem(cluster=small_cluster(4), workload=tiny_workload(), constraints=constraints)


def searches(home):
    return sorted((home / "searches").glob("*.json"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A service with a search that has ended and is on disk, and its home."""
    home = tmp_path_factory.mktemp("home")
    service = SearchService(files=SearchFiles(home))
    service.start(SearchRequest(problem(), seed=3, budget_s=None, evaluations=800, title="tiny on four"))
    until(lambda: searches(home), "the search is written")
    yield service, home
    service.close()


@pytest.fixture
def service(searched):
    return searched[0]


@pytest.fixture
def ended(searched, tmp_path):
    """That search, on disk in a home of the test's own."""
    shutil.copytree(searched[1] / "searches", tmp_path / "searches")
    return searched[0].jobs[0]


def page_of(service, home) -> PlannerApp:
    return PlannerApp(LaunchGuard(TOKEN), service, SAMPLES, home)


def test_a_page_of_the_next_server_shows_a_search_as_it_was(ended, service, tmp_path):
    later = SearchService(files=SearchFiles(tmp_path))
    before, after = page_of(service, tmp_path), page_of(later, tmp_path)
    for page in (before, after):
        page.restore("plan", ended.id, "")
    assert (after.session.page, after.plan.state) == ("plan", "done")
    for name in (
        "plan",
        "points",
        "baselines",
        "moments",
        "tried",
        "ancestry",
        "value",
        "lower_bound",
        "seed",
        "progress_text",
    ):
        assert getattr(after.plan, name) == getattr(before.plan, name), name
    assert after.plan.points
    assert after.plan.moments
    assert after.plan.ancestry
    assert after.session.in_hand == before.session.in_hand


def test_the_next_server_lists_searches_and_goes_on_from_one(ended, tmp_path):
    later = SearchService(files=SearchFiles(tmp_path))
    later.restore()
    page = page_of(later, tmp_path)
    assert list(page.plan.recent().values()) == [ended.id]
    page.restore("plan", ended.id, "")
    assert page.plan.can_resume


def test_a_search_that_its_server_cut_off_keeps_its_best_plan(ended, tmp_path):
    files = SearchFiles(tmp_path)
    going = replace(ended, id="ffffffffffff", state="running")
    files.save(going)
    found = files.load(going.id)
    assert (found.state, found.message, found.plan) == ("stopped", CUT_OFF, ended.plan)


def test_only_searches_that_a_person_asked_for_are_kept_and_the_oldest_go_first(ended, tmp_path):
    files = SearchFiles(tmp_path)
    files.save(replace(ended, id="0" * 12, request=replace(ended.request, behind=True)))
    files.save(replace(ended, id="1" * 12, plan=None))
    assert [path.stem for path in searches(tmp_path)] == [ended.id]
    for number in range(MOST_FILES):
        files.save(replace(ended, id=f"{number:012x}"))
    assert len(searches(tmp_path)) == MOST_FILES
    assert files.load(ended.id) is None


def test_children_that_stand_before_their_parents_are_not_drawn(ended, tmp_path):
    (path,) = searches(tmp_path)
    data = json.loads(path.read_text())
    data["ancestry"][0]["parents"] = [len(data["ancestry"])]
    path.write_text(json.dumps(data))
    assert read_search(path).ancestry == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "hetplanner/search@2"}, "search@2"),
        ({"planner": "nobody"}, "nobody"),
        ({"settings": {"nothing": 1}}, "nothing"),
        ({"seed": -1}, "seed"),
        ({"records": [{"type": "event", "best": 1.0}]}, "records"),
        ({"plan": {}}, "required"),
        ({"ancestry": [{"way": "bought"}]}, "ancestry"),
    ],
)
def test_a_damaged_search_is_refused_in_a_line_and_passed_over(ended, tmp_path, change, said):
    (path,) = searches(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInput, match=said):
        read_search(path)
    later = SearchService(files=SearchFiles(tmp_path))
    later.restore()
    assert later.jobs == []


def test_an_id_from_an_address_is_no_path(ended, tmp_path):
    (path,) = searches(tmp_path)
    path.rename(tmp_path / "elsewhere.json")
    assert SearchFiles(tmp_path).load("../elsewhere") is None
