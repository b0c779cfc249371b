"""The start page's list of what to go back to: clusters, searches, kept plans and runs of a home."""

import os
import time
from dataclasses import replace

import pytest

from hetplanner.plan.problem import Problem
from hetplanner.runs.annotations import Annotations, write_annotations
from hetplanner.runs.plan_store import PlanStore
from hetplanner.ui.cluster.models.draft_files import DraftFiles
from hetplanner.ui.cluster.models.drafts import Draft, DraftStore, Step
from hetplanner.ui.jobs.jobs import SearchRequest, SearchService
from hetplanner.ui.jobs.search_files import SearchFiles
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.recent import LOOK_EVERY_S, RecentModel, when_text
from hetplanner.ui.shell.models.recent_files import DAMAGED, KINDS, MOST, RecentFiles
from hetplanner.ui.shell.views.recent import RecentLists, recent_card
from hetplanner.ui.widgets.cards import html_pane, is_shown, show_if
from tests.support.files.hostile import IMG, hostile_cluster
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.processes.patience import until
from tests.unit.ui.jobs.test_ui_search_files import ended, searched, service  # noqa: F401
from tests.unit.ui.plan.test_ui_explain import estimated
from tests.unit.ui.run.test_ui_run import grow, make_run
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService

CLUSTER = small_cluster(3)


def page_of(home, searches=None) -> PlannerApp:
    drafts = DraftStore(files=DraftFiles(home))
    return PlannerApp(LaunchGuard(TOKEN), searches or FakeService(), SAMPLES, home, drafts=drafts)


def looked(app: PlannerApp) -> dict:
    """What its start page lists once it has looked."""

    def there() -> bool:
        app.recent.beat(in_sight=True)
        return app.recent.entries is not None

    until(there)
    return app.recent.entries


def draw(home, cluster, words="drawn", excluded=(), age_s=0.0) -> str:
    """A draft of a server before."""
    files, draft = DraftFiles(home), Draft(Step(cluster, tuple(excluded), words))
    files.note(draft)
    files.flush()
    age(home / "drafts" / f"{draft.id}.json", age_s)
    return draft.id


def age(path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def rows(app: PlannerApp, kind: str) -> list[dict]:
    return next(c["rows"] for c in app.recent.columns() if c["kind"] == kind)


def test_a_new_home_shows_no_list_and_looking_makes_no_folder(tmp_path):
    home = tmp_path / "home"
    app = page_of(home)
    assert app.recent.room == 0
    assert not is_shown(recent_card(app))
    assert looked(app) == dict.fromkeys(KINDS, ())
    assert not home.exists()


def test_everything_of_a_server_before_is_listed_and_opens(ended, tmp_path):  # noqa: F811
    plan = estimated(chain_plan([8, 8], [5], cluster=small_cluster(4)))
    PlanStore(tmp_path).keep(plan, "the good one")
    draft = draw(tmp_path, CLUSTER, excluded=[CLUSTER.device_ids[1]])
    run = make_run(tmp_path, plan, "finished")
    grow(tmp_path / "runs" / run, range(7))
    later = SearchService(files=SearchFiles(tmp_path))
    app = page_of(tmp_path, later)
    assert app.recent.room == 1
    found = looked(app)
    assert {kind: [e.key for e in found[kind]] for kind in KINDS} == {
        "clusters": [draft],
        "searches": [ended.id],
        "plans": ["the good one"],
        "runs": [run],
    }
    words = {kind: found[kind][0].words for kind in KINDS}
    assert words["clusters"] == "3 devices, 1 excluded"
    assert words["searches"].startswith("2 × 2, ")
    assert words["plans"].startswith("step ")
    assert words["runs"] == "finished, 7 steps"
    assert found["searches"][0].title == "tiny on four"

    app.open_recent("clusters", draft)
    assert app.cluster.cluster == CLUSTER
    assert (app.session.page, app.cluster.editor.draft_id) == ("cluster", draft)
    app.open_recent("searches", ended.id)
    assert (app.session.page, app.plan.job_id) == ("plan", ended.id)
    app.session.page = "cluster"
    app.open_recent("plans", "the good one")
    assert (app.session.page, app.explain.shown) == ("plan", "the good one")
    assert app.session.in_hand == plan
    app.open_recent("runs", run)
    assert (app.session.page, app.run.selected) == ("run", run)


def test_damaged_files_are_told_by_name_and_hide_no_others(tmp_path):
    plan = chain_plan([8, 8], [5], cluster=small_cluster(4))
    drawn, run = draw(tmp_path, CLUSTER), make_run(tmp_path, plan, "failed")
    PlanStore(tmp_path).keep(plan, "whole")
    (tmp_path / "searches").mkdir()
    spoilt = ("drafts/damaged-one.json", "searches/0123456789ab.json", "plans/spoilt.json", f"runs/{run}/status.json")
    for name in spoilt:
        (tmp_path / name).write_text('{"format": 3')
    app = page_of(tmp_path, SearchService(files=SearchFiles(tmp_path)))
    found = looked(app)
    damaged = {kind: [e.name for e in found[kind] if e.words == DAMAGED and not e.key] for kind in KINDS}
    assert damaged == {
        "clusters": ["damaged-one.json"],
        "searches": ["0123456789ab.json"],
        "plans": ["spoilt.json"],
        "runs": [f"{run}/status.json"],
    }
    assert [e.key for e in found["clusters"] if e.key] == [drawn]
    assert [e.key for e in found["plans"] if e.key] == ["whole"]


def test_a_folder_that_is_none_is_told(tmp_path):
    draw(tmp_path, CLUSTER)
    (tmp_path / "plans").write_text("not a folder")
    found = RecentFiles(FakeService(), tmp_path).look()
    assert [(e.key, e.words) for e in found["plans"]] == [("", DAMAGED)]
    assert len(found["clusters"]) == 1


def test_the_newest_come_first_and_one_cluster_comes_once(tmp_path):
    for n in range(MOST + 3):
        draw(tmp_path, CLUSTER.replace(name=f"number {n}"), age_s=100.0 - n)
    newest = draw(tmp_path, CLUSTER.replace(name="number 6"), words="opened the cluster of a search")
    draw(tmp_path, None)
    app = page_of(tmp_path)
    found = looked(app)["clusters"]
    assert app.recent.room == len(found) == MOST
    assert [e.name for e in found] == [f"number {n}" for n in (6, 7, 5, 4, 3)]
    assert found[0].key == newest


def test_searches_that_nobody_asked_for_or_that_came_to_nothing_are_left_out(tmp_path):
    fake = FakeService()
    request = SearchRequest(Problem(cluster=small_cluster(4), workload=tiny_workload()), title="asked")
    rehearsal = request.problem.replace(rehearsal_of="a larger one")
    for change in ({}, {"behind": True}, {"what": "front"}, {"problem": rehearsal}):
        fake.start(replace(request, **change))
    asked = fake.jobs[-1]
    assert [(e.key, "searching" in e.words) for e in looked(page_of(tmp_path, fake))["searches"]] == [(asked.id, True)]
    asked.state = "failed"
    assert looked(page_of(tmp_path, fake))["searches"] == ()


def test_what_is_looked_at_stays_and_is_looked_for_again_out_of_sight(tmp_path):
    draw(tmp_path, CLUSTER, age_s=10.0)
    now = [0.0]
    model = RecentModel(page_of(tmp_path).session, FakeService(), tmp_path, clock=lambda: now[0])

    def beats(in_sight: bool, number: int) -> bool:
        model.beat(in_sight)
        return model.entries is not None and len(model.entries["clusters"]) == number

    until(lambda: beats(True, 1))
    draw(tmp_path, CLUSTER.replace(name="another"))
    now[0] = 10 * LOOK_EVERY_S
    for _ in range(20):
        model.beat(in_sight=True)
        assert not model._calls, "it looks again only out of sight"
    until(lambda: beats(False, 2))
    assert model.room == 2


def test_what_is_gone_meanwhile_is_a_notice_and_the_page_stays(tmp_path):
    run, plan = "20260101-000000-gone-0000", chain_plan([8, 8], [5], cluster=small_cluster(4))
    PlanStore(tmp_path).keep(plan, "gone")
    draft = draw(tmp_path, CLUSTER)
    app = page_of(tmp_path)
    looked(app)
    before = app.cluster.cluster
    (tmp_path / "drafts" / f"{draft}.json").unlink()
    (tmp_path / "plans" / "gone.json").unlink()
    for kind, key in (("clusters", draft), ("searches", "0123456789ab"), ("plans", "gone"), ("runs", run)):
        app.open_recent(kind, key)
        assert app.session.notices.pop()[0] in ("warning", "error"), kind
    assert (app.session.page, app.cluster.cluster) == ("cluster", before)


def test_another_search_is_not_opened_while_one_goes_on(tmp_path):
    app = page_of(tmp_path)
    app.plan.start()
    other = page_of(tmp_path, app.plan._service)
    other.plan.start()
    first, second = app.plan.job_id, other.plan.job_id
    other.open_recent("searches", first)
    assert other.plan.job_id == second
    assert "stop it first" in other.session.notices[-1][1]
    other.open_recent("searches", second)
    assert other.session.page == "plan"


def test_names_stay_data_and_the_page_opens_only_what_is_listed(tmp_path):
    cluster = hostile_cluster()
    draft = draw(tmp_path, cluster)
    run = make_run(tmp_path, chain_plan([8, 8], [5], cluster=small_cluster(4)), "failed")
    write_annotations(tmp_path / "runs" / run, Annotations(name=IMG))
    app = page_of(tmp_path)
    looked(app)
    assert rows(app, "clusters")[0]["name"] == rows(app, "runs")[0]["name"] == IMG
    asked = []
    lists = RecentLists(lambda *entry: asked.append(entry), columns=app.recent.columns())
    for message in (
        None,
        {"kind": "clusters", "key": "../../etc/passwd"},
        {"kind": "runs", "key": draft},
        {"kind": ["clusters"], "key": {"a": 1}},
        {"kind": "clusters", "key": ""},
        {"kind": "clusters", "key": draft},
    ):
        lists._handle_msg(message)
    assert asked == [("clusters", draft)]


@pytest.mark.parametrize(
    ("then", "now", "text"),
    [
        ((2026, 11, 24, 14, 32), (2026, 11, 24, 20, 0), "14:32"),
        ((2026, 11, 20, 14, 32), (2026, 11, 24, 20, 0), "20 Nov 14:32"),
        ((2025, 11, 20, 14, 32), (2026, 11, 24, 20, 0), "20 Nov 2025"),
    ],
)
def test_a_time_is_told_as_far_as_it_matters(then, now, text):
    then_s, now_s = (time.mktime((*each, 0, 0, 0, -1)) for each in (then, now))
    assert when_text(then_s, now_s) == text


@pytest.mark.parametrize("unix_s", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_time_that_is_none_is_left_out(unix_s):
    assert when_text(unix_s) == ""


def test_a_part_that_is_shown_again_takes_its_display_back():
    part = html_pane(styles={"flex": "1"})
    show_if(part, False)
    assert (is_shown(part), part.styles) == (False, {"flex": "1", "display": "none"})
    show_if(part, True)
    assert is_shown(part)
    assert part.styles == {"flex": "1", "display": None}  # the browser keeps a property that is left out
