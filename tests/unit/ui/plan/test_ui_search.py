"""A search as the page follows it: loading, progress, bound and gap, and going on from its best plan."""

import time

import pytest

from hetplanner.planners.baselines.rank_order import RankOrderPlanner
from hetplanner.planners.interface import LOADING
from hetplanner.planners.search.ancestry import Ancestor
from hetplanner.planners.search.tried import TriedShape
from hetplanner.ui.plan.views.search_history import AncestryCard, TriedCard
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, errors, event


def newest(app):
    return app.plan._service.jobs[0]


def finish(app, value: float = 5.0, *, seconds: float = 4.0):
    """Plays a worker that finds a plan and ends."""
    job = newest(app)
    job.log.append(event(value + 3, seconds / 2))
    job.log.append(event(value, seconds))
    job.plan = RankOrderPlanner().solve(job.request.problem).plan
    job.log.append({"type": "state", "state": "done", "value": value, "lower_bound": 4.0, "text": ""})
    job.state = "done"
    app.plan.poll()
    return job


# -- progress -------------------------------------------------------------------------------------


def test_loading_kernels_is_said_and_is_no_progress(app):
    app.search()
    job = newest(app)
    assert app.plan.is_waiting
    job.log.append(event(9.0, 0.5) | {"phase": LOADING, "spent_s": 0.0})
    job.started_s = time.time() - 2
    app.plan.poll()
    assert app.plan.is_waiting
    assert app.plan.progress == 0.0
    assert app.plan.progress_text == "loading kernels …"
    job.log.append(event(8.5, 40.0, 310) | {"phase": LOADING, "spent_s": 40.0, "searched_s": 40.0})
    app.plan.poll()
    assert app.plan.progress == 0.0
    assert app.plan.progress_text == (
        "preparing kernels, once per installation: 310 placements without them so far; the budget has not begun."
    )
    job.log.append(event(8.0, 43.0) | {"spent_s": 2.5, "searched_s": 42.5})
    app.plan.poll()
    assert not app.plan.is_waiting
    assert app.plan.progress == pytest.approx(0.25)
    assert app.plan.progress_text == "search: 10 placements in 2.5 s, 8 s left"
    job.log.append(event(8.0, 50.6) | {"spent_s": 10.1, "searched_s": 50.1})
    app.plan.poll()
    assert "comparing the best plans" in app.plan.progress_text
    job.log.append({"type": "state", "state": "done", "value": 8.0, "lower_bound": 4.0, "text": ""})
    job.state = "done"
    app.plan.poll()
    assert app.plan.progress_text == "Done: 10 placements in 50.1 s; 40 s of them before kernels were ready"


def test_bound_gap_and_population_stand_under_the_curve(app):
    app.search()
    assert app.plan.found_text == ""
    newest(app).log.append({"type": "bound", "value": 4.0})
    newest(app).log.append(event(5.0))
    app.plan.poll()
    assert app.plan.gap == pytest.approx(0.2)
    text = app.plan.found_text
    assert text == "population 5 s to 6 s · no plan is below 4 s: at most 20 % can still be gained"
    newest(app).log.append({"type": "state", "state": "done", "value": 5.0, "lower_bound": 5.0, "text": ""})
    app.plan.poll()
    assert app.plan.found_text.endswith("proven optimal")


def test_cards_of_a_search_that_has_ended_say_what_it_told_and_no_more_what_will_come(app):
    tried, ancestry = TriedCard(app.plan, 200), AncestryCard(app.plan, 200)
    app.search()
    ends = []
    for shapes, births in (([], []), ([TriedShape(2, 2, 9.0, 3)], [Ancestor("seed", 9.0, 1, 2, 2, ())])):
        for card in (tried, ancestry):
            card.beat()
            assert card.empty in str(card._words.view.object)
        newest(app).tried, newest(app).ancestry = shapes, births
        finish(app)
        for card in (tried, ancestry):
            card.beat()
            ends.append(str(card._words.view.object))
        app.search()
    words = ("told of no shapes", "told of no parents", "one shape only", "is a first layout")
    assert all(word in end for word, end in zip(words, ends, strict=True)), ends


# -- going on -------------------------------------------------------------------------------------


def test_resume_starts_from_the_best_plan_and_its_curve_goes_on(app):
    assert not app.plan.can_resume
    app.search()
    first = finish(app)
    assert app.plan.can_resume
    app.settings.edit("codecs", ["int8"])
    app.resume()
    request = newest(app).request
    assert request.start is first.plan
    assert (request.continues, request.seed, request.offset_s) == (first.id, 0, 4.0)
    assert request.problem.constraints.codecs == ("none", "int8")
    assert app.plan.plan is first.plan  # in sight until there is a better one
    (earlier,) = app.plan.earlier
    assert [p.best for p in earlier.points] == [8.0, 5.0]
    newest(app).log.append(event(5.5, 0.5))  # the finished plan need not be the best met
    newest(app).log.append(event(4.5, 1.0))
    app.plan.poll()
    assert [p.best for p in app.plan.points] == [5.5, 4.5], "the problem has changed"
    assert app.plan.points[-1].searched_s == 5.0
    assert app.plan.points[-1].spent_s == 1.0
    # A page that joins sees the same.
    other = PlannerApp(LaunchGuard(TOKEN), app.plan._service, SAMPLES)
    other.restore("plan", newest(app).id, "")
    assert [p.best for p in other.plan.earlier[0].points] == [8.0, 5.0]
    assert other.plan.points[-1].searched_s == 5.0


def test_another_seed_keeps_the_first_curve_and_starts_the_clock_again(app):
    app.search()
    first = finish(app)
    app.reseed()
    request = newest(app).request
    assert (request.seed, app.plan.seed, request.offset_s, request.continues) == (1, 1, 0.0, first.id)
    assert request.start is first.plan
    finish(app, 4.5)
    app.settings.edit("planner", "random")
    assert not app.plan.can_resume
    app.reseed()
    assert (newest(app).request.start, newest(app).request.seed) == (None, 2)
    assert [search.label for search in app.plan.earlier] == ["seed 0", "seed 1"]


def test_a_plan_of_another_cluster_is_nothing_to_go_on_from(app):
    app.search()
    finish(app)
    app.cluster.sample = "lab_2_sites_4"
    assert not app.plan.can_resume
    app.resume()
    assert "another cluster" in errors(app)[0]
    assert len(app.plan._service.jobs) == 1


def test_a_new_search_forgets_the_curves_before_it(app):
    app.search()
    finish(app)
    app.resume()
    finish(app)
    app.search()
    assert app.plan.earlier == ()
    assert app.plan.plan is None


def test_curves_of_another_objective_are_not_compared(app):
    app.search()
    finish(app)
    app.settings.edit("objective", "cost")
    app.resume()
    assert app.plan.earlier == ()


def test_a_failed_resume_leaves_the_plan_it_began_with(app):
    app.search()
    first = finish(app)
    app.resume()
    newest(app).log.append({"type": "state", "state": "failed", "text": "start: too little of it is usable"})
    newest(app).state = "failed"
    app.plan.poll()
    assert app.plan.plan is first.plan
    assert app.session.plan is first.plan
    assert app.settings.errors == {"": "start: too little of it is usable"}
