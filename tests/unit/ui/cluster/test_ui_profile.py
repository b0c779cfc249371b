"""The measured profile of the page: loaded, used where it is of the model, told of where it is not."""

import pytest

from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.planners.finish import fit_plan, order_devices
from hetplanner.profiles.files import profile_from_json, profile_to_json
from hetplanner.profiles.model import Profile
from hetplanner.ui.cluster.models.profile import COLLECTIVES_USE, MAX_ROWS, MAX_SHOWN, NO_PROFILE
from hetplanner.ui.cluster.views.cluster import ClusterView
from hetplanner.ui.cluster.views.profile import ProfilePart
from hetplanner.ui.jobs.jobs import SearchRequest, SearchService
from hetplanner.ui.plan.views.plan import PlanView
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.settings.models.differences import differences_text
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.cards import is_shown
from tests.support.plans.profiles import made_collectives, profile_of
from tests.support.processes.patience import until
from tests.unit.ui.plan.test_ui_explain import HonestWorker
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService

CPU = "CPU generic"
HEAD = "micro_batch,layer,forward_s,backward_s\n"
CSV = HEAD + "2,embedding,0.1,0.2\n2,block,0.1,0.2\n2,head,0.1,0.2\n"


def given(profile: Profile) -> bytes:
    return profile_to_json(profile).encode()


def loaded(app: PlannerApp) -> Profile:
    profile = profile_of(app.plan.workload(), CPU)
    assert app.profile.take_files({"profile.json": given(profile)})
    return profile


def test_without_a_profile_the_card_says_what_one_is_and_where_seconds_come_from(app):
    assert (app.profile.lead, app.profile.text) == ("", NO_PROFILE)
    assert app.profile.sources == "8 × CPU generic: catalog"
    app.cluster.editor.apply(None, "emptied")
    assert app.profile.sources == ""
    assert app.profile.download().getvalue() == b""


def test_a_profile_is_used_while_it_is_of_the_model(app):
    profile = loaded(app)
    assert app.plan.problem().profile == profile
    assert app.profile.sources == "8 × CPU generic: profile (measured at micro-batch 2)"
    assert app.profile.text == "tiny-gpt, float32, 64 tokens a sample\nSource: a test"
    assert profile_from_json(app.profile.download().getvalue()) == profile
    app.plan.micro_batch = 4
    assert "extrapolated to micro-batch 4" in app.profile.sources
    app.plan.dtype = "float16"
    assert app.plan.problem().profile is None
    assert app.profile.misfit.endswith("is of float32, the workload of float16; choose number format float32")
    assert app.profile.sources == "8 × CPU generic: catalog"
    app.plan.dtype = "float32"
    assert (app.plan.problem().profile, app.profile.misfit) == (profile, "")
    app.profile.remove()
    assert app.plan.problem().profile is None


def test_seconds_that_no_device_can_reach_are_not_used(app):
    app.plan.preset = "gpt3-xl"
    profile = profile_of(app.plan.workload(), "T4")
    rows = [row.replace(forward=1e-12, backward=1e-12) for row in profile.rows]
    assert app.profile.take_files({"profile.json": given(profile.replace(rows=rows))})
    assert "TFLOP/s" in app.profile.misfit
    assert app.plan.problem().profile is None


def test_several_files_are_merged_and_another_tools_are_imported_for_the_model(app):
    two = {f"{kind}.json": given(profile_of(app.plan.workload(), kind)) for kind in (CPU, "T4")}
    assert app.profile.take_files(two)
    assert app.plan.profile.kinds == (CPU, "T4")
    assert not app.profile.take_files({"mine.csv": CSV.encode()})
    assert (
        app.profile.error == "mine.csv: does not say what kind of device was measured; give it (kind of device GH200)"
    )
    assert app.plan.profile.kinds == (CPU, "T4")
    app.profile.kind = " CPU generic "
    assert app.profile.take_files({"mine.csv": CSV.encode()})
    assert app.profile.error == ""
    assert app.profile.sources == "8 × CPU generic: profile (measured at micro-batch 2)"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"format": "hetplanner/cluster@1"}', b'{"format": "hetplanner/profile@9"}', b"[" * 9999],
)
def test_a_refused_file_is_one_line_and_loses_nothing(app, content):
    profile = loaded(app)
    assert not app.profile.take_files({"<b>.json": content})
    assert app.profile.error.isprintable()
    assert "<b>.json" in app.profile.error
    assert app.plan.profile == profile
    app.profile.refuse_files("too large")
    assert app.profile.error == "too large"
    app.profile.remove()
    assert app.profile.error == ""


def test_a_profile_that_would_slow_the_page_is_refused(app):
    large = profile_of(app.plan.workload(), CPU, sizes=range(1, MAX_ROWS // 3 + 2))
    assert not app.profile.take_files({"profile.json": given(large)})
    assert "hetplanner plan --profile" in app.profile.error
    layers = profile_of(app.plan.workload(), CPU, sizes=range(1, MAX_ROWS // 3 - 1))
    assert app.profile.take_files({"profile.json": given(layers)})
    larger = layers.replace(collectives=made_collectives(degrees=(2, 4)))
    assert not app.profile.take_files({"profile.json": given(larger)})
    assert f"has {len(layers.rows) + 12:,};" in app.profile.error


def test_measured_collectives_are_shown_and_said_to_be_used_where_the_profile_is(app):
    part = ProfilePart(app)
    layers = profile_of(app.plan.workload(), CPU)
    assert app.profile.take_files({"profile.json": given(layers)})
    assert (app.profile.collectives_use, is_shown(part.curves), part.collectives) == ("", False, None)
    with_some = layers.replace(collectives=made_collectives(CPU, degrees=(2, 4)))
    assert app.profile.take_files({"profile.json": given(with_some)})
    assert is_shown(part.curves)
    assert part.collectives.keys.data["group"] == ["2 × CPU generic", "4 × CPU generic"]
    assert app.profile.collectives_use == COLLECTIVES_USE
    assert COLLECTIVES_USE in part.use.view.object
    part.set_dark(True)
    assert part.collectives.look.is_dark
    app.plan.preset = "gpt2"
    assert (app.profile.collectives_use, is_shown(part.use.view), is_shown(part.curves)) == ("", False, True)
    app.profile.remove()
    assert not is_shown(part.curves)
    assert part.collectives.source.data["xs"] == []


def test_a_figure_of_collectives_takes_the_theme_that_the_page_has(app):
    page = ClusterView(app)
    page.set_dark(True)
    page.beat()
    profile = profile_of(app.plan.workload(), CPU).replace(collectives=made_collectives(CPU))
    assert app.profile.take_files({"profile.json": given(profile)})
    assert page.profile.collectives.look.is_dark
    page.set_dark(False)
    assert not page.profile.collectives.look.is_dark


def test_a_problem_brings_its_profile_and_leaves_an_unused_one_loaded(app):
    without = app.plan.problem()
    profile = loaded(app)
    with_it = app.plan.problem()
    assert differences_text(without, with_it) == "profile none → tiny-gpt measured"
    renewed = with_it.replace(profile=profile.replace(source="another"))
    assert differences_text(with_it, renewed) == "rows of profile tiny-gpt measured"
    app.plan.take_problem(without)
    assert app.plan.profile is None
    app.plan.take_problem(with_it)
    assert app.plan.problem() == with_it
    app.plan.preset = "gpt2"
    app.plan.take_problem(app.plan.problem())
    assert app.plan.profile == profile


def test_the_card_shows_what_is_loaded_and_the_plan_page_what_was_used(app):
    part = ProfilePart(app)
    shown = (part.download, part.remove, part.table, part.misfit.view)
    assert not any(map(is_shown, shown))
    assert "hetplanner profile MODEL" in part.text.view.object
    assert app.profile.take_files({"p.json": given(profile_of(app.plan.workload(), CPU, sizes=range(1, 21)))})
    assert all(map(is_shown, shown[:3]))
    assert part.table.object.count("<tr") == 1 + MAX_SHOWN
    assert "… and 20 more" in part.table.object
    page = PlanView(app)
    problem = app.plan.problem()
    app.plan.show(fit_plan(order_devices(problem, (4, 2)), CostModel.of(problem)))
    assert "Compute seconds from 8 × CPU generic: profile (measured at micro-batch 2)." in page.why.view.object
    app.plan.preset = "gpt2"
    assert is_shown(part.misfit.view)
    app.profile.take_files({"p.json": b"{"})
    assert is_shown(part.error.view)
    app.profile.remove()
    assert not any(map(is_shown, (*shown, part.error.view)))


def test_a_plan_in_hand_is_estimated_anew_with_a_profile(tmp_path):
    compute = HonestWorker()
    app = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path, compute=compute)
    app.cluster.sample, app.plan.preset = "laptop_8_cities", "tiny-gpt"
    problem = app.plan.problem()
    app.plan.show(fit_plan(order_devices(problem, (4, 2)), CostModel.of(problem)))
    before_s = app.plan.estimate.step_s
    loaded(app)
    assert app.carry.state == "asking"
    compute.answer()
    app.poll_answers()
    assert app.carry.state == "carried"
    assert app.plan.estimate.step_s > before_s
    assert "profile none → tiny-gpt measured" in app.carry.words


def test_the_search_in_its_own_process_uses_the_profile(app):
    loaded(app)
    service = SearchService()
    try:
        job = service.start(SearchRequest(app.plan.problem(), evaluations=200, budget_s=None))
        until(lambda: job.ended, "the search ends")
        assert job.plan is not None, job.message
        assert job.plan.estimate.step_s == pytest.approx(estimate_plan(job.plan).step_s)
        bare = job.plan.replace(problem=job.plan.problem.replace(profile=None), estimate=None)
        assert estimate_plan(bare).step_s < job.plan.estimate.step_s / 2
    finally:
        service.close()
