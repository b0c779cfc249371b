"""The front of time against cost: its search, its points, choosing and taking a plan."""

from hetplanner.planners.baselines.rank_order import RankOrderPlanner
from hetplanner.planners.interface import LOADING
from hetplanner.plots.live import FrontCurve
from hetplanner.ui.jobs.plan_bodies import plan_body
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, errors

ROW = {
    "tokens_per_s": 100.0, "tokens_per_usd": 10.0, "device_usd": 1.0, "egress_usd": 0.5, "pipelines": 1,
    "unpriced_egress_bytes": {"Oregon": 2e9},
    "bottleneck": "compute",
}  # fmt: skip


def points(*pairs, phase="between", spent_s=5.0):
    return {"type": "front", "points": [list(p) for p in pairs], "evaluations": 10, "spent_s": spent_s, "phase": phase}


def finish(app):
    job = app.front._service.jobs[0]
    plans = []
    for stages, devices in ((2, 4), (1, 1)):
        constraints = job.request.problem.constraints.replace(stages=stages, replicas=devices // stages)
        plan = RankOrderPlanner().solve(job.request.problem.replace(constraints=constraints)).plan
        plans.append(plan.replace(problem=job.request.problem))
    job.front = [plan_body(plan) for plan in plans]
    rows = [
        ROW | {"step_s": 1.0, "usd_per_mtoken": 4.0, "stages": 2, "devices": 4},
        ROW | {"step_s": 3.0, "usd_per_mtoken": 2.0, "stages": 1, "devices": 1},
    ]
    record = {"rows": rows, "least_step_s": 0.5, "least_usd_per_mtoken": 1.0, "text": ""}
    job.state = "done"
    job.log.append({"type": "state", "state": "done", **record})
    app.front.poll()
    return plans


def test_a_front_is_searched_in_any_shape_and_says_where_it_stands(app):
    app.front.start()
    job = app.front._service.jobs[0]
    assert job.request.what == "front"
    constraints = job.request.problem.constraints
    assert (constraints.stages, constraints.replicas) == (None, None)
    assert app.plan.recent() == {}
    job.log.append(points(phase=LOADING, spent_s=0.0))
    app.front.poll()
    assert app.front.text.startswith("loading kernels for")
    job.log.append(points((1.0, 4.0), (2.0, 3.0)))
    app.front.poll()
    assert app.front.text == "plans between: 10 layouts, 2 on the front, 5 s left"
    app.front.start()
    assert len(app.front._service.jobs) == 1
    finish(app)
    assert app.front.text.startswith("Done: 2 plans")


def test_a_plan_of_the_front_is_chosen_and_taken(app):
    app.front.start()
    plans = finish(app)
    app.front.step(1)
    assert (app.front.chosen, "2 stages" in app.front.chosen_text) == (0, True)
    app.front.step(1)
    app.front.step(1)
    assert app.front.chosen == 1
    app.front.choose(7)
    assert app.front.chosen == 1
    app.front.take()
    assert errors(app) == []
    assert app.plan.plan == plans[1]
    assert app.session.plan == plans[1]
    assert (app.plan.stages, app.plan.replicas) == (0, 0)
    assert app.front.rows  # the front stays
    assert app.explain.shown in app.explain.kept.names, "a reload finds it"


def test_another_page_finds_the_front_and_another_model_hides_it(app):
    app.front.start()
    finish(app)
    other = PlannerApp(LaunchGuard(TOKEN), app.front._service, SAMPLES)
    other.plan.param.update(cluster=app.plan.cluster, preset="tiny-gpt")
    assert other.front.points == app.front.points
    other.plan.preset = "gpt2"
    assert (other.front.points, other.front.state) == ([], "idle")


def test_what_a_front_cannot_do_is_said(app):
    app.plan.pinned = {app.plan.cluster.device_ids[0]: 0}
    app.plan.micro_batch = 7
    app.front.start()
    assert "multiple of micro_batch" in errors(app)[0]
    app.plan.micro_batch = 1
    app.front.start()
    job = app.front._service.jobs[0]
    job.state, job.message = "failed", "pins"
    job.log.append({"type": "state", "state": "failed", "text": "pins"})
    app.front.poll()
    assert app.front.text == "The search failed: pins"
    assert errors(app)[-1] == "pins"


def test_the_figure_finds_the_point_next_to_a_click():
    figure = FrontCurve()
    assert figure.nearest(1.0, 1.0) is None
    figure.update([(1.0, 4.0), (4.0, 1.0)], least=(0.5, 0.5), chosen=1, own=(8.0, 2.0))
    assert figure.nearest(1.01, 3.97) == 0
    assert figure.nearest(3.9, 1.01) == 1
    assert figure.nearest(2.0, 2.0) is None
    assert figure.nearest(-1.0, 2.0) is None
    assert figure.chosen_source.data == {"x": [4.0], "y": [1.0]}
    assert figure.figure.x_range.end > 8.0
    figure.update([(1.0, 4.0)])
    assert figure.figure.x_range.start < 1.0 < figure.figure.x_range.end
    figure.set_dark(True)
