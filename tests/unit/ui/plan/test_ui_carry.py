"""Never stale: whatever changes, the current plan is of the current settings, or says that it is not."""

import random

import pytest

from hetplanner.cluster.edits import delete_sites
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import HetplannerError
from hetplanner.plan.groupings import Groupings
from hetplanner.plan.model import Plan
from hetplanner.planners.finish import fit_plan, order_devices
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.settings.models.differences import differences_text
from hetplanner.ui.shell.models.app import PlannerApp
from tests.support.plans.factories import chain_plan
from tests.support.plans.grouped import hosts
from tests.unit.ui.plan.test_ui_explain import HonestWorker
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService, event


@pytest.fixture
def compute():
    return HonestWorker()


@pytest.fixture
def app(tmp_path, compute):
    app = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path, compute=compute)
    app.cluster.sample = "laptop_8_cities"
    app.plan.preset = "gpt2"
    return app


def planned(app: PlannerApp, stages: int = 4, replicas: int = 2) -> Plan:
    """A plan of the current problem."""
    problem = app.plan.problem()
    return fit_plan(order_devices(problem, (stages, replicas)), CostModel.of(problem))


def finish_search(app: PlannerApp, plan: Plan) -> None:
    app.search()
    job = app.plan._service.jobs[0]
    job.log.append(event(plan.estimate.step_s + 1))
    job.plan, job.state = plan, "done"
    done = {"type": "state", "state": "done", "value": plan.estimate.step_s, "lower_bound": 1e-6, "text": ""}
    job.log.append(done)
    app.plan.poll()


def answer(app: PlannerApp, compute: HonestWorker) -> None:
    compute.answer()
    app.poll_answers()


def test_a_changed_setting_estimates_the_plan_anew_and_says_what_it_was(app, compute):
    found = planned(app)
    finish_search(app, found)
    assert (app.carry.state, app.carry.words) == ("current", "")
    app.plan.global_batch = 2 * app.plan.global_batch
    assert app.carry.state == "asking"
    assert "estimated again" in app.carry.words, "until the answer is here, the numbers are marked"
    answer(app, compute)
    assert app.carry.state == "carried"
    assert app.plan.plan is app.session.plan
    assert app.plan.plan.problem == app.plan.problem()
    assert app.plan.plan.estimate.step_s > found.estimate.step_s
    assert "Changed since: global batch 512 → 1024. Was " in app.carry.words
    assert app.plan.bound is None
    assert app.plan.best_baseline is None
    assert app.plan.found_text.startswith("A search of the settings before")
    app.plan.global_batch = app.plan.global_batch // 2
    assert app.carry.state == "current"
    assert app.plan.plan is app.session.plan is found, "the plan that was found is back without a new estimate"


def test_what_cannot_be_carried_over_is_marked_and_the_way_back_is_open(app, compute):
    found = planned(app)
    finish_search(app, found)
    app.plan.excluded = [found.ranks[0], found.ranks[1]]
    answer(app, compute)
    assert app.carry.state == "outdated"
    assert "2 of its 8 devices cannot be used any more" in app.carry.words
    assert app.plan.plan is found
    app.carry.back()
    assert app.carry.state == "current"
    assert app.plan.excluded == []
    assert app.plan.plan is found


def test_settings_that_mean_nothing_leave_the_plan_marked(app, compute):
    finish_search(app, planned(app))
    app.plan.codecs = ["topk", "adatopk"]
    assert app.carry.state == "outdated"
    assert "allow one of them" in app.carry.words
    app.plan.codecs = ["none"]
    assert app.carry.state == "current"


def test_a_change_while_the_search_goes_on_is_said_and_made_good_at_its_end(app, compute):
    plan = planned(app)
    app.search()
    job = app.plan._service.jobs[0]
    job.log.append(event(9.0))
    job.plan = plan
    app.plan.poll()
    app.plan.seq_len = 512
    assert "the search is for the settings before" in app.carry.words
    job.state = "done"
    job.log.append({"type": "state", "state": "done", "value": 9.0, "lower_bound": None, "text": ""})
    app.plan.poll()
    answer(app, compute)
    assert app.carry.state == "carried"
    assert app.plan.plan.problem.workload.seq_len == 512


def test_another_cluster_marks_the_plan_and_a_new_search_clears_the_mark(app, compute):
    finish_search(app, planned(app))
    app.cluster.sample = "lab_2_sites_4"
    answer(app, compute)
    assert "cluster laptop_8_cities → lab_2_sites_4" in app.carry.words
    finish_search(app, planned(app, 2, 2))
    assert app.carry.words == ""
    assert "gpt2 on lab_2_sites_4, 2 stages × 2 replicas (plan " in app.carry.subject


def test_an_opened_plan_is_current_however_its_problem_is_written(app, compute):
    plan = chain_plan([8, 8], [5])
    app.plan.show(plan.replace(estimate=estimate_plan(plan)))
    assert app.carry.state == "current"


def test_a_hundred_random_changes_leave_no_number_without_a_mark(app, compute):
    """After each: the plan is one of the current problem, or the page says that it is not."""
    finish_search(app, planned(app))
    rng = random.Random(16)
    samples = ["laptop_8_cities", "lab_2_sites_4"]
    plan = app.plan

    def exclude() -> None:
        plan.excluded = rng.sample(plan.cluster.device_ids, rng.randrange(3))

    def slow_a_link() -> None:
        sites = [site.name for site in plan.cluster.sites]
        app.drawing.selected = tuple(rng.sample(sites, 2))
        app.drawing.set_link(rng.choice(["10 Mbit/s", "1 Gbit/s"]), rng.choice(["1 ms", "90 ms"]))

    def delete_a_site() -> None:
        if len(plan.cluster.sites) > 1:
            name = rng.choice(plan.cluster.sites).name
            app.drawing.selected = (name,)
            app.cluster.editor.edit(lambda c: delete_sites(c, [name]), f"deleted {name}")
            assert app.drawing.about_selected == ""

    changes = [
        lambda: setattr(plan, "global_batch", rng.choice([16, 64, 96])),
        lambda: setattr(plan, "seq_len", rng.choice([128, 1024])),
        lambda: setattr(plan, "stages", rng.choice([0, 0, 2, 4])),
        lambda: setattr(plan, "replicas", rng.choice([0, 0, 2])),
        lambda: setattr(plan, "codecs", rng.choice([["none"], ["int8"], ["topk", "adatopk"]])),
        lambda: setattr(plan, "preset", rng.choice(["gpt2", "tiny-gpt"])),
        lambda: setattr(plan, "objective", rng.choice(["step-time", "dtfm"])),
        lambda: setattr(app.cluster, "sample", rng.choice(samples)),
        exclude, slow_a_link, delete_a_site, app.cluster.editor.undo, app.cluster.editor.undo,
    ]  # fmt: skip
    carried = marked = 0
    for _ in range(100):
        rng.choice(changes)()
        try:
            wanted = plan.problem()
        except HetplannerError:
            wanted = None
        if app.plan.plan.problem != wanted:
            assert app.carry.words, "before the answer is here"
        answer(app, compute)
        shown = app.plan.plan
        assert app.session.plan is shown, "Export, Simulate and Run have what the Plan page shows"
        assert app.explain.whatif.plan is shown
        if shown.problem == wanted:
            carried += app.carry.state == "carried"
        else:
            marked += 1
            assert app.carry.state == "outdated"
            assert app.carry.words
        assert app.plan.outdated == (plan.request.problem != wanted)
    assert carried > 10
    assert marked > 10


def test_differences_are_named_by_what_a_person_sets(app):
    old = app.plan.problem()
    app.plan.param.update(global_batch=128, max_ratio=30.0, excluded=[app.plan.cluster.device_ids[0]], recompute=True)
    words = differences_text(old, app.plan.problem())
    assert words == "global batch 512 → 128, recompute always off → on, excluded none → " + (
        f"{app.plan.cluster.device_ids[0]} and 1 more"
    )
    assert differences_text(old, old) == ""


# -- what a fixed shape costs -----------------------------------------------------------------------


def end(job, value: float, plan: Plan | None = None) -> None:
    job.plan, job.value, job.state = plan, value, "done"
    job.log.append(event(value))
    job.log.append({"type": "state", "state": "done", "value": value, "lower_bound": None, "text": ""})


def test_a_fixed_shape_is_compared_with_auto_and_the_better_plan_can_be_taken(app, compute):
    free = planned(app, 1, 8)
    app.plan.stages = 4
    fixed = planned(app)
    finish_search(app, fixed)
    behind = app.plan._service.jobs[0]
    assert behind.request.behind
    assert behind.request.problem.constraints.stages is None
    assert app.free_shape.text.startswith("A second search measures")
    assert list(app.plan.recent().values()) == ["job0"], "nobody asked for it"
    end(behind, fixed.estimate.step_s / 2, free)
    app.poll_answers()
    assert app.free_shape.can_take
    assert app.free_shape.text.startswith("4 × auto: ")
    app.free_shape.take()
    assert app.plan.job_id == behind.id
    assert (app.plan.stages, app.plan.plan) == (0, free)
    assert app.carry.state == "current"
    assert app.free_shape.text == ""


def test_a_fixed_shape_that_costs_nothing_says_so_and_another_search_ends_the_comparison(app, compute):
    app.plan.stages = 4
    fixed = planned(app)
    finish_search(app, fixed)
    end(app.plan._service.jobs[0], fixed.estimate.step_s, fixed)
    app.poll_answers()
    assert "Fixing them costs nothing here." in app.free_shape.text
    assert not app.free_shape.can_take
    app.plan.stages = 2
    assert app.free_shape.text == "", "it was about other settings"
    app.search()
    assert app.free_shape.text == ""


def test_a_search_in_any_shape_needs_no_comparison(app, compute):
    finish_search(app, planned(app))
    assert len(app.plan._service.jobs) == 1


@pytest.mark.parametrize("degrees", ["2", "12"])
def test_groups_that_a_search_chose_stay_while_the_degrees_allowed_do(app, compute, degrees):
    app.plan.cluster = hosts(("T4", 4), ("T4", 4))
    app.plan.tensor = list(degrees)
    asked = app.plan.problem()
    ways = Groupings(asked)
    grouped = asked.replace(groups=ways.groups(ways.alike()[0]))
    found = fit_plan(order_devices(grouped, (2, 2)), CostModel.of(grouped))
    finish_search(app, found)
    assert (app.carry.state, app.carry.words) == ("current", "")
    app.plan.global_batch = 2 * app.plan.global_batch
    answer(app, compute)
    assert app.carry.state == "carried"
    assert app.plan.plan.problem.groups == grouped.groups
    app.plan.tensor = ["1"]
    answer(app, compute)
    assert app.carry.state != "current"
    assert "devices in a group" in app.carry.words
