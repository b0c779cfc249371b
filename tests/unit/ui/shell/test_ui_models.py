"""View-models as Python objects: no Panel, no browser, no search process unless a test is about one."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.ui.jobs.jobs import SearchJob, SearchRequest
from hetplanner.ui.jobs.kernel_work import KernelWork
from hetplanner.ui.plan.models.plan import MAX_BUDGET_LOCKED_S, thinned
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.settings.models.problem import MODEL_OPTIONS, UPLOADED, default_shape
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import (
    against_text,
    change_text,
    count_text,
    percent_text,
    seconds_text,
    value_text,
)
from hetplanner.workload.files import workload_to_data
from hetplanner.workload.presets import preset_names
from tests.support.models.dags import residual_network
from tests.support.processes.imported import imported

SAMPLES = Path(__file__).resolve().parents[4] / "sample_clusters"
TOKEN = "ABCD-EFGH-JKMN"


class FakeService:
    """Takes searches and lets the test play the worker."""

    def __init__(self) -> None:
        self.jobs: list[SearchJob] = []
        self.refuse = False
        self.kernels = KernelWork()

    def start(self, request: SearchRequest) -> SearchJob:
        if self.refuse:
            raise InvalidInput("search: 2 searches are running on this server; stop one or wait")
        self.jobs.insert(0, SearchJob(f"job{len(self.jobs)}", request))
        return self.jobs[0]

    def job(self, job_id: str) -> SearchJob | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def stop(self, job_id: str) -> None:
        job = self.job(job_id)
        assert job is not None
        job.state, job.stop_asked = "stopping", True
        job.log.append({"type": "state", "state": "stopping"})


def event(best: float, seconds: float = 1.0, evaluations: int = 10) -> dict:
    return {
        "type": "event",
        "best": best,
        "low": best,
        "median": best + 0.5,
        "high": best + 1,
        "evaluations": evaluations,
        "seconds": seconds,
        "spent_s": seconds,
        "searched_s": seconds,
        "phase": "search",
    }


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path)


def errors(app: PlannerApp) -> list[str]:
    return [text for kind, text in app.session.notices if kind == "error"]


def test_view_models_import_neither_panel_nor_numba_nor_torch():
    assert imported("import hetplanner.ui.shell.models.app", "panel", "bokeh", "numba", "torch", "holoviews") == []


# -- cluster --------------------------------------------------------------------------------------


def test_it_opens_on_the_world_wide_cluster_with_gpt3_xl_in_any_shape(app):
    assert app.cluster.sample == "dtfm_5_worldwide"
    assert (app.plan.preset, app.plan.stages, app.plan.replicas) == ("gpt3-xl", 0, 0)
    problem = app.plan.problem()
    assert len(problem.cluster.devices) == 64
    assert problem.workload.name == "gpt3-xl"


def test_codecs_and_their_greatest_ratio_are_part_of_the_problem(app):
    assert app.plan.problem().constraints.codecs == ("none",)
    app.plan.codecs, app.plan.max_ratio = ["int8", "adatopk"], 25.0
    constraints = app.plan.problem().constraints
    assert (constraints.codecs, constraints.max_ratio) == (("none", "int8", "adatopk"), 25.0)
    app.plan.codecs = ["topk", "adatopk"]
    with pytest.raises(InvalidInput, match="allow one of them"):
        app.plan.problem()


def test_every_sample_can_be_chosen_and_a_fixed_shape_that_does_not_fit_becomes_auto(app):
    for name in app.cluster.param.sample.objects[:-1]:
        app.cluster.sample = name
        problem = app.plan.problem()
        assert problem.cluster.name
        assert (problem.constraints.stages, problem.constraints.replicas) == (None, None)
        rows = app.cluster.device_rows()
        assert len(rows["id"]) == len(problem.cluster.devices)
        assert app.cluster.summary.startswith(problem.cluster.name)


# -- plan -----------------------------------------------------------------------------------------


def test_a_preset_brings_its_own_numbers_and_overrides_stay_within_the_laws(app):
    app.plan.preset = "gpt2"
    assert (app.plan.layers, app.plan.seq_len) == (12, 1024)
    app.plan.layers = 24
    assert app.plan.workload().graph.num_layers == 24
    app.plan.micro_batch = 7
    app.search()
    assert "multiple of micro_batch" in errors(app)[0]
    assert not app.plan.searching


def test_a_hugging_face_config_is_taken_and_a_bad_one_refused(app):
    config = {
        "model_type": "gpt2", "vocab_size": 1000, "n_positions": 64, "n_embd": 64, "n_layer": 10, "n_head": 4,
    }  # fmt: skip
    app.plan.upload_model("config.json", json.dumps(config).encode())
    assert errors(app) == []
    assert app.plan.layers == 10
    assert app.plan.problem().workload.graph.num_layers == 10
    for bad in (b"nonsense", b"[]", b'{"model_type":"resnet"}', b'{"model_type":"gpt2"}'):
        app.plan.upload_model("config.json", bad)
    assert len(errors(app)) == 4
    assert app.plan.upload_error == errors(app)[-1]
    assert app.plan.problem().workload.graph.num_layers == 10
    app.plan.preset = "gpt2"
    assert app.plan.problem().workload.graph.num_params == 124_439_808
    app.plan.preset = UPLOADED
    assert app.plan.problem().workload.graph.num_layers == 10


def test_without_an_upload_its_entry_says_what_to_do(app):
    app.plan.preset = UPLOADED
    app.search()
    assert "upload a Hugging Face config.json or a captured workload first" in errors(app)[0]


def test_every_preset_can_be_chosen_and_a_shape_that_it_is_too_small_for_becomes_auto(app):
    for name in preset_names():
        app.plan.stages, app.plan.replicas = 8, 8
        app.plan.preset = name
        problem = app.plan.problem()
        assert problem.workload.name == name
        assert (problem.constraints.stages or 1) <= problem.workload.most_stages
    assert errors(app) == []


def test_a_captured_model_is_taken_planned_and_shown(app):
    network = residual_network(20, global_batch=64)
    content = json.dumps(workload_to_data(network)).encode()
    app.plan.upload_model("resnet.json", content)
    assert errors(app) == []
    assert app.plan.uploaded_text == "residual: 1.0 M parameters, 143 ops, to plan with, not to train"
    assert set(app.plan.fixed_settings) == {"layers", "seq_len", "bound_s", *MODEL_OPTIONS}
    problem = app.plan.problem()
    assert problem.workload == network
    app.plan.upload_model("resnet.json", content.replace(b'"b3.sum"', b'"elsewhere"', 1))
    (message,) = errors(app)
    assert "resnet.json: captured" in message
    app.plan.preset = "gpt2"
    app.plan.fine_tuning = "adapters"
    frozen = ("boundary_factor", "boundary_every", "frozen_layers", "bound_s")
    assert app.plan.fixed_settings == frozen, "with boundary layers, frozen ones, and DT-FM's objective"


def test_what_is_trained_is_a_setting_that_a_plan_brings_back(app):
    app.plan.preset = "gpt2"
    assert app.plan.workload().fine_tuning is None
    app.plan.param.update(fine_tuning="adapters", adapter_rank=4, adapter_targets=["c_fc"])
    adapters = app.plan.problem()
    assert str(adapters.workload.fine_tuning.adapters) == "4:16:c_fc"
    app.plan.param.update(fine_tuning="layers", frozen_layers=3)
    frozen = app.plan.problem()
    assert (frozen.workload.fine_tuning.adapters, frozen.workload.fine_tuning.frozen_layers) == (None, 3)
    for problem in (adapters, frozen):
        app.plan.take_problem(problem)
        assert app.plan.problem().workload == problem.workload
    app.plan.preset = "tiny-gpt"
    assert app.plan.workload().fine_tuning is None


def test_default_shapes_use_all_devices_as_squarely_as_possible():
    assert default_shape(64, 24, 1024) == (8, 8)
    assert default_shape(8, 6, 16) == (4, 2)
    assert default_shape(7, 6, 16) == (1, 7)
    assert default_shape(4, 2, 16) == (2, 2)
    assert default_shape(64, 6, 2) == (6, 2)


def test_a_search_fills_the_model_as_records_come(app):
    app.search()
    job = app.plan._service.jobs[0]
    assert app.plan.state == "starting"
    assert app.session.page == "plan"
    seen = []
    app.plan.param.watch(lambda e: seen.append(len(app.plan.points)), "points_changed")
    job.log.append(event(10.0))
    job.log.append(event(8.0, 2.0))
    app.plan.poll()
    assert seen == [2]
    assert app.plan.value == 8.0
    assert app.plan.state == "running"
    assert app.plan.progress == pytest.approx(0.2)
    assert "8 s left" in app.plan.progress_text
    job.state = "done"
    job.log.append({"type": "state", "state": "done", "value": 7.5, "lower_bound": 5.0, "text": ""})
    app.plan.poll()
    assert (app.plan.state, app.plan.value, app.plan.lower_bound) == ("done", 7.5, 5.0)
    assert app.plan.progress == 1.0


def test_a_second_page_joins_with_the_whole_history(app, tmp_path):
    app.cluster.sample = "laptop_8_cities"
    app.plan.preset = "gpt2"
    app.plan.stages, app.plan.replicas = 4, 2
    app.search()
    service = app.plan._service
    for i in range(5):
        service.jobs[0].log.append(event(10.0 - i, i + 1.0))
    other = PlannerApp(LaunchGuard(TOKEN), service, SAMPLES, tmp_path)
    assert list(other.plan.recent().values()) == ["job0"]
    other.restore("plan", "job0", "")
    assert [p.best for p in other.plan.points] == [10.0, 9.0, 8.0, 7.0, 6.0]
    assert other.session.page == "plan"
    assert other.cluster.sample == "laptop_8_cities"
    assert (other.plan.preset, other.plan.stages, other.plan.replicas) == ("gpt2", 4, 2)
    other.restore("nonsense", "job99", "../../etc")
    assert other.session.page == "plan"


def test_a_failed_search_is_a_notice_and_another_can_start(app):
    app.search()
    job = app.plan._service.jobs[0]
    job.state = "failed"
    job.log.append({"type": "state", "state": "failed", "text": "gpt3-xl fits nowhere"})
    app.plan.poll()
    assert errors(app) == ["gpt3-xl fits nowhere"]
    app.search()
    assert app.plan.state == "starting"


def test_stop_shows_at_once(app):
    app.search()
    app.plan.stop()
    assert app.plan.state == "stopping"


def test_without_the_token_a_search_is_short(app):
    app.plan.budget_s = 500.0
    app.search()
    assert app.plan._service.jobs[0].request.budget_s == MAX_BUDGET_LOCKED_S
    other = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES)
    other.session.unlock(TOKEN)
    other.plan.budget_s = 500.0
    other.search()
    assert other.plan._service.jobs[0].request.budget_s == 500.0


def test_a_full_server_refuses_in_a_line(app):
    app.plan._service.refuse = True
    app.search()
    assert "stop one or wait" in errors(app)[0]
    assert app.plan.state == "idle"


def test_long_curves_are_thinned_and_keep_their_ends():
    points = [SimpleNamespace(seconds=i) for i in range(1001)]
    kept = thinned(points, 1000)
    assert len(kept) < 1000
    assert (kept[0].seconds, kept[-1].seconds) == (0, 1000)


# -- session, texts -------------------------------------------------------------------------------


def test_only_the_session_that_typed_the_token_is_unlocked(app, tmp_path):
    guard = LaunchGuard(TOKEN)
    one, two = (PlannerApp(guard, FakeService(), SAMPLES, tmp_path) for _ in range(2))
    assert not one.session.unlock("wrong-token")
    assert one.session.unlock(TOKEN.lower())
    assert (one.session.unlocked, two.session.unlocked) == (True, False)
    for _ in range(10):
        two.session.unlock("wrong-token")
    assert "not the launch token" in errors(two)[-1]
    assert two.session.unlock(TOKEN)


def test_numbers_are_written_for_people():
    assert seconds_text(4.1234) == "4.12 s"
    assert seconds_text(None) == seconds_text(float("inf")) == "–"
    assert count_text(11_900) == "11.9k"
    assert percent_text(0.0731) == "7.3 %"
    assert percent_text(-0.001, 0) == "0 %"
    assert change_text(78.0, 100.0) == "−22 %"
    assert change_text(None, 100.0) == ""
    assert against_text(78.0, "rank order", 100.0) == "−22 % against rank order"
    assert against_text(49.2184, "rank order", 49.2190) == "as good as rank order"
    assert value_text(49.21838, "dtfm") == "49.2184 s"
    assert value_text(0.5, "cost") == "$0.5"
