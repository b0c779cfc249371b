"""The side bar as data: what is typed, what is refused and where, and what a planner's own settings become."""

import json
import math

import pytest

from hetplanner.planners.interface import NO_FIELD
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.settings.models.fields import planner_defaults, planner_fields
from hetplanner.ui.settings.models.form import located
from hetplanner.ui.settings.models.problem import MODEL_OPTIONS
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.workload.presets import preset
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, errors, event

# -- a planner's own settings ---------------------------------------------------------------------


@pytest.mark.parametrize("planner", planner_names())
def test_every_setting_that_a_planner_declares_becomes_a_field_with_its_law(planner):
    model_fields = planner_type(planner).settings_type.model_fields
    declared = {name: info for name, info in model_fields.items() if info.json_schema_extra != NO_FIELD}
    fields = planner_fields(planner)
    assert [field.name for field in fields] == list(declared)
    defaults = planner_defaults(planner)
    for field in fields:
        assert field.hint, f"{planner}.{field.name} has no description"
        assert field.parse(field.shown(defaults[field.name])) == defaults[field.name]
        if field.kind in ("whole", "number"):
            for end in (field.low, field.high):
                taken = not (field.above and end == field.low)
                assert math.isfinite(end)
                if taken:
                    make_planner(planner, {field.name: field.parse(str(end))})
            with pytest.raises(Exception, match="must be"):
                field.parse(str(field.high + 1))


def test_own_settings_go_into_the_request_and_stay_with_their_planner(app):
    form = app.settings
    form.edit("planner.population", "20")
    form.edit("planner.starts", "random")
    assert form.notes["Settings of evolution"] == "population 20, starts random"
    form.edit("planner", "random")
    form.edit("planner.keep", "best")
    assert "planner.population" not in form.values
    form.edit("planner", "evolution")
    assert form.values["planner.population"] == "20"
    form.edit("planner.starts", "structured")
    app.search()
    request = app.plan._service.jobs[0].request
    assert (request.planner, request.settings) == ("evolution", {"population": 20})


def test_without_the_token_a_setting_takes_no_more_of_the_machine(app):
    app.settings.edit("planner.processes", "8")
    assert "without the launch token" in app.settings.errors["planner.processes"]
    assert app.plan.changed_settings == {}
    app.session.unlock(TOKEN)
    app.settings.edit("planner.processes", "8")
    assert app.settings.errors == {}
    assert app.plan.changed_settings == {"processes": 8}


# -- typing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "raw", "law"),
    [
        ("global_batch", "abc", "whole number"),
        ("global_batch", "", "whole number"),
        ("global_batch", "1e3", "whole number"),
        ("global_batch", "0", "from 1 to 1,000,000"),
        ("seed", "9" * 30, "whole number"),
        ("budget_s", "nan", "a number"),
        ("budget_s", "1e308", "from 0.1 to 600"),
        ("budget_s", {"a": 1}, "a number"),
        ("planner", "<b>os</b>", "must be one of"),
        ("planner.heat", "0", "above 0"),
        ("pinned", "d0 3", "such as 'd0: 0, d5: 3'"),
        ("pinned", "nobody: 0", "unknown device 'nobody'"),
        ("excluded", "nobody", "unknown device 'nobody'"),
        ("reducers", [], "at least one"),
    ],
)
def test_what_cannot_be_meant_stays_beside_its_law_and_changes_nothing(app, name, raw, law):
    form = app.settings
    before = app.plan.problem()
    form.edit(name, raw)
    assert list(form.errors) == [name]
    assert law in form.errors[name]
    assert form.values[name] == str(raw)
    assert app.plan.problem() == before
    app.search()
    assert not app.plan.searching
    assert law in errors(app)[0]
    json.dumps([form.groups, form.values, form.errors, form.notes, form.disabled])


def test_a_corrected_text_takes_its_error_away(app):
    app.settings.edit("seed", "x")
    app.settings.edit("seed", "7")
    assert (app.settings.errors, app.plan.seed) == ({}, 7)


@pytest.mark.parametrize(
    ("edits", "field", "law"),
    [
        ({"micro_batch": "3"}, "global_batch", "multiple of micro_batch"),
        ({"seq_len": "4096"}, "seq_len", "at most the model's max_seq_len"),
        ({"stages": "7"}, "stages", "must be at most the model's 6 layers"),
        ({"stages": "3", "replicas": "3"}, "stages", "need 9 devices, but 8 are usable"),
        ({"pinned": "tokyo: 9"}, "pinned", "must be below"),
        ({"codecs": ["topk", "adatopk"]}, "codecs", "allow one of them"),
        ({"planner": "gcma"}, "planner", "plans for objective dtfm"),
    ],
)
def test_a_law_that_settings_break_together_stands_beside_the_field_it_names(app, edits, field, law):
    for name, raw in edits.items():
        app.settings.edit(name, raw)
    assert list(app.settings.errors) == [field]
    assert law in app.settings.errors[field]


def test_everything_a_problem_may_ask_for_can_be_set(app):
    first, second = app.plan.cluster.device_ids[:2]
    edits = {
        "stages": "", "replicas": "2", "excluded": f"{second},", "pinned": f"{first}: 1", "codecs": ["int8", "topk"],
        "codec_block": "64", "max_ratio": "30", "reducers": ["ring"], "max_local_steps": "8", "fragments": "4",
        "tensor": ["1", "2"], "sharding": ["zero3", "tensor"],
        "dtype": "bfloat16", "recompute": True, "objective": "cost", "layers": "4",
    }  # fmt: skip
    for name, raw in edits.items():
        app.settings.edit(name, raw)
    problem = app.plan.problem()
    wanted = problem.constraints
    assert (wanted.stages, wanted.replicas, wanted.excluded, wanted.pinned) == (None, 2, (second,), {first: 1})
    assert (wanted.codecs, wanted.codec_block, wanted.max_ratio) == (("none", "int8", "topk"), 64, 30.0)
    assert (wanted.reducers, wanted.max_local_steps, wanted.fragments) == (("ring",), 8, 4)
    assert (wanted.tensor, wanted.sharding) == ((1, 2), ("tensor", "zero3"))
    app.settings.edit("tensor", ["1"])
    assert app.plan.problem().constraints.sharding == ("tensor",), "single devices divide nothing"
    app.settings.edit("tensor", ["1", "2"])
    assert (problem.workload.dtype, problem.workload.recompute, problem.objective) == ("bfloat16", True, "cost")
    assert problem.workload.graph.num_layers == 4
    assert app.settings.notes["Devices"] == "7 of 8, groups of 1 or 2, 1 pinned"
    other = PlannerApp(LaunchGuard(TOKEN), app.plan._service, SAMPLES)
    other.plan.take_problem(problem)
    assert other.plan.problem() == problem


def test_a_fixed_shape_stays_while_it_fits_and_becomes_auto_where_it_does_not(app):
    assert (app.plan.stages, app.plan.replicas) == (0, 0)
    app.settings.edit("stages", "4")
    app.settings.edit("replicas", "2")
    app.plan.excluded = list(app.plan.cluster.device_ids[:2])
    assert (app.plan.stages, app.plan.replicas) == (0, 0)
    assert app.session.notice == ("info", "4 × 2 does not fit 6 devices: stages and replicas are auto again.")
    assert app.settings.errors == {}
    app.settings.edit("stages", "2")
    app.cluster.sample = "lab_2_sites_4"
    assert app.plan.excluded == []
    assert (app.plan.stages, app.plan.replicas) == (2, 0)


def test_auto_is_the_squarest_shape_for_the_objective_of_dtfm(app):
    app.settings.edit("objective", "dtfm")
    wanted = app.plan.problem().constraints
    assert (app.plan.stages, app.plan.replicas) == (0, 0)
    assert wanted.stages * wanted.replicas == 8
    app.settings.edit("objective", "step-time")
    assert app.plan.problem().constraints.stages is None


def test_a_tighter_bound_is_of_the_objective_of_dtfm_alone(app):
    form = app.settings
    assert "bound_s" in form.disabled
    form.edit("objective", "dtfm")
    assert "bound_s" not in form.disabled
    form.edit("bound_s", "20")
    assert app.plan._request(0).bound_s == 20.0
    form.edit("objective", "step-time")
    assert "bound_s" in form.disabled
    assert app.plan._request(0).bound_s == 0.0


def test_excluded_devices_are_one_with_those_of_the_map(app):
    first, second, *_ = app.plan.cluster.device_ids
    editor = app.cluster.editor
    app.settings.edit("excluded", f"{second}, {first}")
    assert editor.excluded == (first, second)
    editor.undo()
    assert (app.plan.excluded, app.settings.values["excluded"]) == ([], "")
    editor.exclude([second], "excluded one")
    assert app.settings.values["excluded"] == second


def test_a_free_shape_stays_free(app):
    app.settings.edit("stages", "")
    app.settings.edit("replicas", "0")
    app.cluster.sample = "lab_2_sites_4"
    assert (app.plan.stages, app.plan.replicas) == (0, 0)
    assert app.settings.values["stages"] == ""


def test_boundary_layers_and_shared_layers_go_into_the_problem_and_come_back_with_it(app):
    form = app.settings
    assert {"boundary_factor", "boundary_every"} <= set(form.disabled), "without a kind they mean nothing"
    for name, raw in (("boundary_layers", "maxout"), ("boundary_factor", "2"), ("boundary_every", "2"),
                      ("shared_layers", "3")):  # fmt: skip
        form.edit(name, raw)
    assert form.errors == {}
    assert form.notes["Model options"] == "maxout to 1/2, 3 share"
    problem = app.plan.problem()
    assert problem.workload == preset("tiny-gpt", recompute=False, boundary_layers="maxout:2:2", shared_layers=3)
    address = form.edited
    app.plan.preset = "small-gpt"
    assert app.plan.workload().transformer.boundary_layers is None
    assert form.notes["Model options"] == "as it is"
    app.plan.take_problem(problem)
    assert app.plan.problem() == problem
    app.plan.preset = "gpt2"
    form.restore(address)
    assert app.plan.workload() == problem.workload


def test_options_are_refused_beside_their_field_and_left_out_where_the_model_takes_none(app):
    form = app.settings
    form.edit("boundary_layers", "wide")
    assert form.errors["boundary_layers"].startswith("must be one of none, bottleneck, maxout")
    form.edit("shared_layers", "0")
    assert form.errors["shared_layers"] == "must be from 1 to 1,000, got 0"
    form.edit("shared_layers", "1")
    config = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 6, "n_head": 2, "n_layer": 4, "n_positions": 64}
    app.plan.upload_model("config.json", json.dumps(config).encode())
    form.edit("boundary_layers", "bottleneck")
    assert form.errors["boundary_factor"] == "hidden must be a multiple of boundary_layers.factor, got 6 and 4"
    form.edit("boundary_factor", "2")
    assert form.errors == {}
    app.plan.preset = "tiny-resnet"
    assert set(MODEL_OPTIONS) <= set(form.disabled)
    form.edit("boundary_layers", "maxout")
    assert app.plan.boundary_layers == "none"
    assert app.plan.workload().transformer is None


def test_an_uploaded_model_may_lose_the_options_that_it_comes_with(app):
    app.plan.take_problem(app.plan.problem().replace(workload=preset("tiny-gpt", boundary_layers="bottleneck:4")))
    assert app.settings.values["boundary_layers"] == "bottleneck"
    app.settings.edit("boundary_layers", "none")
    assert app.plan.workload().transformer.boundary_layers is None


def test_a_captured_models_sizes_are_locked(app):
    app.plan.preset = "tiny-resnet"
    assert set(app.settings.disabled) >= {"layers", "seq_len"}
    app.settings.edit("layers", "3")
    assert app.plan.layers != 3


def test_what_the_search_refuses_stands_beside_its_field_until_something_changes(app):
    app.settings.edit("objective", "dtfm")
    app.search()
    job = app.plan._service.jobs[0]
    text = "constraints: give the number of stages or of replicas (the other follows)"
    job.log.append(event(1.0))
    job.log.append({"type": "state", "state": "failed", "text": text})
    job.state = "failed"
    app.plan.poll()
    assert app.settings.errors == {"stages": text.removeprefix("constraints: ")}
    app.settings.edit("stages", "4")
    assert app.settings.errors == {}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("settings: excluded[3]: unknown device 'x'", {"excluded": "unknown device 'x'"}),
        ("constraints.pinned: 3 devices are pinned", {"pinned": "3 devices are pinned"}),
        ("gpt2: global_batch must be a multiple", {"global_batch": "global_batch must be a multiple"}),
        ("planner gcma: plans for dtfm", {"planner": "planner gcma: plans for dtfm"}),
        ("cluster: choose a sample", {"": "cluster: choose a sample"}),
        ("gpt2 fits nowhere", {"": "gpt2 fits nowhere"}),
    ],
)
def test_errors_find_their_field(message, place):
    assert located(message) == place


def test_a_reload_finds_what_was_changed_since_the_last_search(app):
    form = app.settings
    form.edit("stages", "3")
    app.plan.preset = "gpt2"
    assert json.loads(form.edited) == {"preset": "gpt2"}  # whose shape is its own
    for name, raw in {"stages": "", "codecs": ["int8"], "planner": "random", "planner.most": "7", "seed": "x"}.items():
        form.edit(name, raw)
    other = PlannerApp(LaunchGuard(TOKEN), app.plan._service, SAMPLES)
    other.plan.cluster = app.plan.cluster
    other.settings.restore(form.edited)
    assert other.plan.problem() == app.plan.problem()
    assert (other.plan.planner, other.plan.changed_settings, other.plan.seed) == ("random", {"most": 7}, 0)
    app.settings.edit("seed", "0")
    app.search()
    assert form.edited == ""


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"preset":"../x"}', '{"no":1,"codecs":{"a":1},"stages":[[]]}'])
def test_a_forged_address_changes_nothing(app, text):
    before = app.plan.problem()
    app.settings.restore(text)
    assert app.plan.problem() == before


def test_a_list_too_long_for_the_address_is_left_out(app):
    app.settings.edit("pinned", ", ".join(f"{app.plan.cluster.device_ids[0]}: 0" for _ in range(500)))
    assert app.settings.errors == {}
    assert app.settings.edited == ""
