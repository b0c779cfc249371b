"""The Simulate page's view-model: what controls ask for, what becomes of answers, what is refused where."""

import json
from types import SimpleNamespace

import pytest

from hetplanner.errors import HetplannerError
from hetplanner.planners.variants.depths import max_depths
from hetplanner.planners.variants.derive import Derivation, derive_plan, derived_to_data
from hetplanner.simulator.replay import replay_step
from hetplanner.ui.jobs.compute import Ticket
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.simulate.model import (
    AS_PLANNED,
    EVERYWHERE,
    SimulateModel,
    batch_sizes,
    depths_text,
    parse_depths,
    placed_error,
)
from hetplanner.ui.simulate.view import SimulateView
from tests.support.plans.factories import chain_plan, tiny_workload
from tests.support.processes.imported import imported


class FakeWorker:
    """Answers when it is told to, as the worker would; the newest question of a slot wins."""

    def __init__(self):
        self.questions = []

    def ask(self, slot, what, plan, fields=None, answered=None):
        for other, ticket, *_ in self.questions:
            if other == slot and not ticket.done:
                ticket.drop()
        ticket = Ticket()
        self.questions.append((slot, ticket, what, plan, fields))
        return ticket

    def answer(self):
        _, ticket, what, plan, fields = self.questions[-1]
        if what == "perfetto":
            return ticket.settle({"text": "{}"}, "")
        try:
            made = derive_plan(plan, Derivation.of(fields["wanted"]))
            result = {
                "made": derived_to_data(made),
                "replay": replay_step(made).to_data(),
                "room": max_depths(made),
            }
            ticket.settle(result, "")
        except HetplannerError as error:
            ticket.settle(None, str(error))
        return None


@pytest.fixture
def compute():
    return FakeWorker()


@pytest.fixture
def model(compute):
    session = Session(LaunchGuard("ABCD-EFGH-JKMN"))
    return SimulateModel(session, lambda: compute)


@pytest.fixture(scope="module")
def plan():
    made = chain_plan([8, 8], [3, 6], workload=tiny_workload(layers=6, global_batch=32))
    return derive_plan(made, Derivation()).replace(provenance=made.provenance)


@pytest.fixture
def opened(model, compute, plan):
    model.start()
    model.session.plan = plan
    answered(model, compute)
    return model


def answered(model, compute):
    assert model.busy
    compute.answer()
    model.poll()
    assert not model.busy


def test_a_plan_is_simulated_once_the_page_is_there(model, compute, plan):
    model.session.plan = plan
    assert compute.questions == []
    model.start()
    answered(model, compute)
    assert model.shown is plan
    assert model.base is model.replay
    assert not model.can_save
    model.start()
    assert len(compute.questions) == 1


def test_controls_show_the_plan_and_a_change_derives_another(opened, compute, plan):
    assert (opened.schedule, opened.micro_batch, opened.in_flight) == ("1f1b", 2, depths_text(plan))
    assert opened.param.micro_batch.objects == [1, 2, 4, 8, 16]
    opened.schedule = "gpipe"
    answered(opened, compute)
    assert opened.shown.schedule == "gpipe"
    assert opened.changes == ["schedule 1f1b → gpipe"]
    assert opened.can_save
    assert opened.replay.step_s != opened.base.step_s
    assert opened.session.plan is plan


def test_a_saved_plan_is_the_plan_in_hand_and_keeps_its_original_beside_it(opened, compute, plan):
    opened.in_flight = "1"
    answered(opened, compute)
    opened.save()
    assert opened.session.plan is opened.shown
    assert opened.session.plan.provenance.planner == "derived"
    assert "in flight 3 2 1 → 1" in opened.session.plan.provenance.derived
    assert opened.original is plan
    assert not opened.can_save
    opened.recompute = EVERYWHERE
    answered(opened, compute)
    assert opened.can_save
    asked = len(compute.questions)
    opened.reset()
    assert opened.shown is plan
    assert len(compute.questions) == asked, "what was found is known"
    assert opened.recompute == AS_PLANNED
    assert opened.can_save  # the derived one is still the current plan
    opened.save()
    assert opened.session.plan is plan


def test_a_plan_from_elsewhere_replaces_everything(opened, compute):
    opened.schedule = "gpipe"
    other = chain_plan([4], [5])
    opened.session.plan = other
    assert opened.shown is None
    compute.answer()
    opened.poll()
    assert opened.original is other
    assert opened.schedule == "1f1b"
    assert opened.shown.estimate is not None
    assert opened.shown.provenance == other.provenance


def test_an_answer_to_an_older_question_is_not_shown(opened, compute):
    opened.schedule = "gpipe"
    first = compute.questions[-1][1]
    opened.micro_batch = 4
    assert first.stale
    answered(opened, compute)
    assert (opened.shown.schedule, opened.shown.problem.workload.micro_batch) == ("gpipe", 4)


def test_what_is_refused_is_explained_at_its_field_and_the_last_good_state_stays(opened, compute, plan):
    before = opened.shown
    opened.in_flight = "three"
    assert opened.errors == {"in_flight": "must be whole numbers of at least 1, got 'three'"}
    assert not opened.busy
    opened.in_flight = "2 2"
    answered(opened, compute)
    assert opened.errors == {"in_flight": "must be one number, or one for each of the 3 stages, got 2"}
    assert opened.shown is before
    opened.in_flight = "2 2 2"
    answered(opened, compute)
    assert opened.errors == {}
    assert [stage.in_flight for stage in opened.shown.stages] == [2, 2, 2]


def test_depths_move_together_and_fill_the_memory(opened, compute):
    opened.shift_depths(1)
    answered(opened, compute)
    assert opened.in_flight == "4 3 2"
    opened.shift_depths(-2)
    answered(opened, compute)
    assert opened.in_flight == "2 1 1"
    opened.fill_memory()
    answered(opened, compute)
    assert opened.in_flight == "16"


def test_codecs_and_their_ratio(opened, compute):
    opened.messages = "topk"
    answered(opened, compute)
    assert {rule.codec.ratio for rule in opened.shown.link_codecs} == {10.0}
    opened.ratio = 20.0
    answered(opened, compute)
    assert {rule.codec.ratio for rule in opened.shown.link_codecs} == {20.0}
    opened.messages = "none"
    answered(opened, compute)
    assert opened.shown.link_codecs == ()


def test_a_trace_is_handed_to_the_page_and_forgotten(opened, compute):
    texts = []
    opened.param.watch(lambda _: texts.append(opened.perfetto), "perfetto_ready")
    opened.ask_perfetto()
    opened.ask_perfetto()
    assert [q[2] for q in compute.questions].count("perfetto") == 1
    compute.answer()
    opened.poll()
    assert texts == ["{}"]
    assert opened.perfetto == ""


def test_many_ranks_open_on_their_first_pipeline(model, compute):
    wide = chain_plan([1] * 26, [])
    model.start()
    model.session.plan = wide
    assert model.pipeline == 0
    assert len(model.param.pipeline.objects) == 27


def test_words_and_numbers_that_people_type():
    assert parse_depths("8, 7  6") == (8, 7, 6)
    for bad in ("", "0", "-1", "1.5", "1e3", "٣", "12345678", "<b>"):
        with pytest.raises(ValueError, match="must be"):
            parse_depths(bad)
    assert batch_sizes(1024, 8, 1) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert 7 in batch_sizes(28, 8, 7)
    assert placed_error("simulate: in_flight[0]: must be above 0", "") == {"in_flight": "must be above 0"}
    assert placed_error("the plan does not fit: d0", "recompute") == {"recompute": "the plan does not fit: d0"}


def test_the_model_imports_neither_panel_nor_numba():
    assert imported("import hetplanner.ui.simulate.model", "panel", "bokeh", "numba", "torch") == []


def test_the_page_follows_the_model(opened, compute, tmp_path):
    session = opened.session
    session.page = "simulate"
    view = SimulateView(SimpleNamespace(simulate=opened, session=session, save_derived=opened.save))
    assert "against" not in view.metrics.view.object
    assert len(view.gantt.sources["forward"].data["y"]) == 6 * 8
    view.controls._handle_msg({"name": "schedule", "value": "gpipe"})
    answered(opened, compute)
    assert "the plan" in view.metrics.view.object
    assert "schedule 1f1b → gpipe" in view.hint.view.object
    view.controls._handle_msg({"name": "micro_batch", "value": "7"})
    assert "must be one of those listed" in json.loads(view.controls.state)["errors"]["micro_batch"]
    view.controls._handle_msg({"name": "session", "value": "x"})
    view.pipeline._handle_msg({"name": "pipeline", "value": "1"})
    assert len(view.gantt.sources["forward"].data["y"]) == 3 * 8
    session.page = "plan"
    opened.reset()
    assert "schedule 1f1b → gpipe" in view.hint.view.object  # a hidden page is not redrawn
    session.page = "simulate"
    view.beat()
    assert "Derived" not in view.hint.view.object
    view.tools._handle_msg({"press": "perfetto"})
    assert compute.questions[-1][2] == "perfetto"
    view.tools._handle_msg({"press": "__init__"})


# -- what the page's address remembers ------------------------------------------------------------


def changed(model, compute):
    for name, value in (("schedule", "gpipe"), ("messages", "int8"), ("pipeline", "1")):
        model.edit(name, value)
    answered(model, compute)
    return model.edited


def test_changed_controls_are_remembered_and_set_again_for_the_same_plan(opened, compute, plan):
    text = changed(opened, compute)
    assert json.loads(text) == {"schedule": "gpipe", "messages": "int8", "pipeline": "1"}
    other = SimulateModel(Session(LaunchGuard("ABCD-EFGH-JKMN")), lambda: compute)
    other.session.plan = plan
    other.restore(text)
    assert other.edited == text, "also before anybody looks"
    other.start()
    compute.answer()  # the plan as it is, to compare with
    other.poll()
    answered(other, compute)
    assert (other.schedule, other.messages, other.pipeline, other.edited) == ("gpipe", "int8", 1, text)
    assert other.changes == opened.changes
    assert other.base is not None


@pytest.mark.parametrize("before", [True, False])
def test_controls_are_set_again_whether_they_come_before_the_plan_or_after(model, compute, plan, before):
    model.start()
    text = '{"in_flight":"2 2 1"}'
    if before:
        model.restore(text)
    model.session.plan = plan
    compute.answer()
    model.poll()
    if not before:
        model.restore(text)
    answered(model, compute)
    assert [stage.in_flight for stage in model.shown.stages] == [2, 2, 1]
    assert json.loads(model.edited) == {"in_flight": "2 2 1"}


def test_controls_of_another_plan_are_forgotten(opened, compute, plan):
    changed(opened, compute)
    opened.restore('{"schedule":"gpipe"}')
    opened.session.plan = plan.replace(schedule="gpipe")
    assert opened.edited == ""
    answered(opened, compute)
    assert not opened.changes


def test_a_reset_and_a_saved_plan_leave_nothing_to_remember(opened, compute):
    assert changed(opened, compute)
    opened.save()
    assert opened.edited == ""
    opened.edit("messages", "topk")
    assert opened.edited
    opened.reset()
    assert opened.edited == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schedule":7}', '{"pipeline":"9","nothing":"1","schedule":"x"}', '{"in_flight":"0"}']
)
def test_what_is_not_understood_changes_nothing(opened, text):
    opened.restore(text)
    assert opened.edited == ""
    assert not opened.changes
    assert not opened.busy
