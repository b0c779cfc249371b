"""Why, what-if and kept plans as Python objects: a compute worker that answers at once, no page."""

import json
from pathlib import Path

import pytest

from hetplanner.codecs.spec import Codec
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import HetplannerError
from hetplanner.plan.model import LinkCodec, Plan, Provenance
from hetplanner.plan.problem import Problem
from hetplanner.planners.variants.attribution import divide_gain
from hetplanner.planners.variants.carry_over import carry_over
from hetplanner.planners.variants.schedules import reschedule
from hetplanner.planners.variants.whatif import Changes, evaluate_changes
from hetplanner.schema import checked
from hetplanner.ui.jobs.compute import Ticket
from hetplanner.ui.jobs.plan_bodies import plan_body
from hetplanner.ui.plan.models.kept import MOST_COMPARED, comparison
from hetplanner.ui.plan.models.whatif import AS_PLANNED, EVERYWHERE, REDUCTIONS
from hetplanner.ui.plan.models.why import bottleneck_text
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import shape_text
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.plans.grouped import grouped_plan
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService, errors, event


class HonestWorker:
    """Answers when the test says so, with what the real one computes."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[str, Plan, dict, Ticket]] = {}

    def ask(self, slot, what, plan, fields=None, answered=None) -> Ticket:
        if slot in self.open:
            self.open[slot][3].drop()
        ticket = Ticket()
        self.open[slot] = (what, plan, dict(fields or {}), ticket)
        return ticket

    def answer(self) -> None:
        for what, plan, fields, ticket in self.open.values():
            try:
                if what == "carry":
                    problem = checked(Problem, json.loads(json.dumps(fields["problem"])), "problem", from_file=True)
                    result = {"plan": plan_body(carry_over(plan, problem))}
                elif what == "explain":
                    gain = divide_gain(plan)
                    result = {} if gain is None else gain.to_data()
                else:
                    result = evaluate_changes(plan, Changes.of(fields["changes"])).to_data()
                ticket.settle(json.loads(json.dumps(result)), "")
            except HetplannerError as error:
                ticket.settle(None, str(error))
        self.open.clear()


@pytest.fixture
def compute():
    return HonestWorker()


@pytest.fixture
def app(tmp_path, compute):
    return PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path, compute=compute)


def estimated(plan: Plan) -> Plan:
    return plan.replace(estimate=estimate_plan(plan))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Deep pipelines over slow links: depth is what it gains by."""
    shallow = chain_plan([8, 8], [5], cluster=small_cluster(5, latency="200 ms"))
    return estimated(shallow.replace(stages=tuple(stage.replace(in_flight=8) for stage in shallow.stages)))


def show(app: PlannerApp, compute: HonestWorker, plan: Plan) -> None:
    app.plan.show(plan)
    compute.answer()
    app.explain.poll()


# -- why ------------------------------------------------------------------------------------------


def test_it_says_in_a_sentence_where_the_gain_comes_from(app, compute, plan):
    assert app.explain.why.sentence == ""
    app.plan.show(plan)
    assert app.explain.why.sentence.startswith("Comparing the plan")
    compute.answer()
    app.explain.poll()
    why = app.explain.why
    assert why.sentence.startswith("It takes ")
    assert "2 stages × 2 replicas as a launcher places them" in why.sentence
    assert "100 % from its depth (micro-batches in flight)" in why.sentence
    assert why.parts[0].name == "depth"
    assert why.parts[0].share == pytest.approx(1.0)
    assert "if it took no time" in why.bottleneck


def test_a_plan_without_gain_says_so(app, compute):
    show(app, compute, estimated(chain_plan([8, 8], [5])))
    assert app.explain.why.parts == []
    assert "no better than 2 stages × 2 replicas as a launcher places them" in app.explain.why.sentence
    assert app.explain.why.sentence.endswith("here the placement of devices does not matter.")


def test_nothing_is_concluded_from_a_search_that_tried_little(app, compute):
    plan = estimated(chain_plan([8, 8], [5]))
    show(app, compute, plan.replace(provenance=Provenance(planner="evolution", budget="1 s", evaluations=11)))
    assert app.explain.why.sentence.endswith("but only 11 placements were tried: search longer.")


def test_it_waits_for_the_end_of_a_search(app, compute, plan):
    show(app, compute, plan)
    app.plan.start()
    job = app.plan._job
    job.log.append(event(3.0))
    app.plan.poll()
    assert compute.open == {}, "while it searches, plans change faster than one reads"
    job.plan = plan
    job.log.append({"type": "state", "state": "done", "value": 1.0, "lower_bound": None, "text": ""})
    app.plan.poll()
    assert [what for what, *_ in compute.open.values()] == ["explain"]


def test_what_was_asked_of_another_plan_is_not_shown(app, compute, plan):
    app.plan.show(plan)
    other = estimated(chain_plan([16], [5]))
    app.plan.show(other)
    compute.answer()
    app.explain.poll()
    assert app.explain.why.plan is other
    assert "2 stages × 1 replica" in app.explain.why.sentence


def test_an_interleaved_plan_has_no_counterpart_to_compare_with(app, compute):
    show(app, compute, estimated(reschedule(chain_plan([8, 8], [3]), "interleaved", chunks=2)))
    assert app.explain.why.sentence.startswith("its devices serve several stages each")
    assert not app.explain.why.waiting


def test_words_for_bottlenecks_and_shapes(plan):
    estimate = plan.estimate
    nothing = estimate.replace(bottleneck=estimate.bottleneck.replace(step_s_without=estimate.step_s))
    assert "nothing single holds it back" in bottleneck_text(nothing)
    assert shape_text(plan) == "2 stages × 2 replicas"
    assert shape_text(chain_plan([16], [5])) == "2 stages × 1 replica"


# -- what if --------------------------------------------------------------------------------------


def test_dropping_a_device_shows_the_new_step_and_what_became_of_its_work(app, compute, plan):
    show(app, compute, plan)
    whatif = app.explain.whatif
    assert whatif.droppable == ["d0", "d1", "d2", "d3"]
    whatif.drop("d0")
    assert whatif.waiting
    assert whatif.outcome is None
    compute.answer()
    app.explain.poll()
    assert "d0" in whatif.outcome.notes[0]
    assert "d0" not in whatif.outcome.plan.ranks
    assert whatif.change_texts == ["without d0"]
    assert whatif.headline[1].endswith("now")
    step_s = whatif.outcome.plan.estimate.step_s
    assert whatif.better is (step_s < plan.estimate.step_s)
    assert whatif.droppable == ["d1", "d2", "d3"]
    whatif.drop("nobody")
    whatif.remove(0)
    assert (whatif.outcome, whatif.change_texts) == (None, [])


def test_a_link_is_changed_by_typing_and_changed_back_by_typing(app, compute, plan):
    show(app, compute, plan)
    whatif = app.explain.whatif
    assert whatif.link in whatif.param.link.objects
    whatif.link = "site-0 ↔ site-2"
    assert (whatif.bandwidth_mbit_s, whatif.latency_ms) == (50.0, 200.0)
    assert whatif.changes == Changes(), "looking at a link changes nothing"
    whatif.latency_ms = 1.0
    assert whatif.change_texts == ["site-0 ↔ site-2: 1 ms latency"]
    whatif.bandwidth_mbit_s = 100.0
    compute.answer()
    app.explain.poll()
    link = whatif.outcome.plan.problem.cluster.link("d0", "d2")
    assert (link.bandwidth, link.latency) == (12.5e6, 1e-3)
    whatif.link = "site-1 ↔ site-3"
    assert whatif.latency_ms == 200.0
    whatif.link = "site-0 ↔ site-2"
    assert (whatif.bandwidth_mbit_s, whatif.latency_ms) == (100.0, 1.0)
    whatif.param.update(bandwidth_mbit_s=50.0, latency_ms=200.0)
    assert whatif.changes == Changes()


def test_codecs_on_all_links_on_one_and_in_reductions(app, compute, plan):
    show(app, compute, plan)
    whatif = app.explain.whatif
    assert whatif.param.where.objects == [EVERYWHERE, "site-0 ↔ site-2", "site-1 ↔ site-3", REDUCTIONS]
    whatif.codec = "int8"
    whatif.where = REDUCTIONS
    assert whatif.codec == "none", "the field follows what is there"
    whatif.codec = "topk"
    whatif.ratio = 20.0
    assert whatif.change_texts == [f"{EVERYWHERE}: int8", f"{REDUCTIONS}: topk:20"]
    compute.answer()
    app.explain.poll()
    changed = whatif.outcome.plan
    assert {k.codec.name for k in changed.link_codecs} == {"int8"}
    assert changed.stages[0].reduce_codec == Codec(name="topk", ratio=20.0)
    whatif.where = EVERYWHERE
    assert whatif.codec == "int8"
    whatif.clear()
    assert whatif.codec == "none"


def test_a_plan_that_has_codecs_shows_them(app, compute, plan):
    links = tuple(
        LinkCodec.model_validate({"from": a, "to": b, "role": role, "codec": {"name": "int4"}})
        for a, b, role in (("d0", "d2", "activation"), ("d2", "d0", "gradient"))
    )
    constraints = plan.problem.constraints.replace(codecs=("none", "int4"))
    show(app, compute, plan.replace(link_codecs=links, problem=plan.problem.replace(constraints=constraints)))
    whatif = app.explain.whatif
    whatif.where = "site-0 ↔ site-2"
    assert whatif.codec == "int4"
    whatif.where = "site-1 ↔ site-3"
    assert whatif.codec == "none"


def test_what_cannot_go_on_says_why_and_leaves_the_plan(app, compute):
    lonely = estimated(chain_plan([16], [5]))
    show(app, compute, lonely)
    app.explain.whatif.drop("d0")
    compute.answer()
    app.explain.poll()
    assert "without d0 this plan cannot go on" in app.explain.whatif.error
    assert app.explain.whatif.outcome is None
    assert app.plan.plan is lonely


def test_another_degree_shows_step_and_memory_and_is_taken_back(app, compute):
    show(app, compute, grouped_plan(2))
    whatif = app.explain.whatif
    whatif.degree = "4"
    assert whatif.change_texts == ["groups of 4 devices"]
    compute.answer()
    app.explain.poll()
    assert whatif.headline[1].startswith("+")
    assert whatif.memory.count(" on h") == 2
    assert "(×4); now " in whatif.memory
    assert whatif.memory.endswith("(×2)")
    whatif.degree = "1"
    assert whatif.change_texts == ["each device alone"], "one degree at a time"
    whatif.degree = "8"
    compute.answer()
    app.explain.poll()
    assert "12 heads are no multiple of 8; use 4" in whatif.error
    whatif.remove(0)
    assert (whatif.degree, whatif.error) == (AS_PLANNED, "")


def test_devices_are_dropped_and_groups_changed_before_codecs_in_whatever_order_they_are_chosen(app, compute):
    show(app, compute, grouped_plan(2))
    whatif = app.explain.whatif
    whatif.codec = "int8"
    whatif.degree = "1"
    whatif.drop("h0-2")
    assert whatif.change_texts == ["without h0-2", "each device alone", "all links between stages: int8"]
    compute.answer()
    app.explain.poll()
    assert whatif.error == ""
    assert "h0-2" not in whatif.outcome.plan.ranks
    assert {str(rule.codec) for rule in whatif.outcome.plan.link_codecs} == {"int8"}
    again = Changes.of(whatif.changes.to_data())
    whatif.clear()
    assert whatif.degree == AS_PLANNED
    whatif.restore(again.to_data())
    assert whatif.degree == "1"


def test_changes_stay_while_the_search_improves_and_go_with_the_cluster(app, compute, plan):
    show(app, compute, plan)
    app.explain.whatif.drop("d0")
    better = plan.replace(provenance=plan.provenance.replace(seed=5))
    app.plan.plan = better
    assert app.explain.whatif.change_texts == ["without d0"]
    (asked,) = [p for what, p, *_ in compute.open.values() if what == "evaluate"]
    assert asked is better
    show(app, compute, estimated(chain_plan([8, 8], [5])))
    assert app.explain.whatif.change_texts == []


def test_search_again_takes_the_changed_problem_and_starts_from_the_changed_plan(app, compute, plan):
    show(app, compute, plan)
    whatif = app.explain.whatif
    whatif.drop("d0")
    whatif.link = "site-1 ↔ site-3"
    whatif.latency_ms = 7.0
    compute.answer()
    app.explain.poll()
    changed = whatif.outcome.plan
    app.search_again()
    request = app.plan._job.request
    assert request.start is changed
    assert request.problem.constraints.excluded == ("d0",)
    assert request.problem.cluster.link("d1", "d3").latency == 7e-3
    assert app.session.page == "plan"
    assert whatif.change_texts == [], "they are part of the problem now"
    assert app.cluster.cluster is changed.problem.cluster


# -- kept plans -----------------------------------------------------------------------------------


def test_keep_name_compare_and_reload(app, compute, plan, tmp_path):
    show(app, compute, plan)
    explain = app.explain
    explain.kept.typed = "mine"
    explain.keep()
    explain.kept.typed = "mine"
    explain.keep()
    assert "kept already" in explain.kept.name_error
    explain.whatif.drop("d0")
    compute.answer()
    app.explain.poll()
    explain.keep_outcome()
    assert explain.kept.name_error != "", "the typed name is still taken"
    explain.kept.typed = ""
    explain.keep_outcome()
    assert explain.kept.name_error == ""
    assert explain.kept.chosen[0] == "mine"
    assert len(explain.kept.compared()) == 2
    assert (tmp_path / "plans" / "mine.json").is_file()

    again = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path, compute=compute)
    remembered = explain.remembered() | {"shown": "mine"}
    again.restore("plan", "", "", "", remembered["shown"])
    again.explain.restore(remembered["kept"], remembered["whatif"])
    assert again.explain.kept.chosen == explain.kept.chosen
    assert again.plan.plan == plan
    assert again.explain.whatif.change_texts == ["without d0"]
    assert again.session.plan == plan


def test_two_pages_see_each_others_plans_and_lose_none_silently(app, compute, plan, tmp_path):
    other = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path, compute=compute)
    show(app, compute, plan)
    for name in ("a", "b"):
        app.explain.kept.typed = name
        app.explain.keep()
    other.explain.kept.look()
    assert set(other.explain.kept.names) == {"a", "b"}
    other.explain.kept.choose(["a", "b"])
    app.explain.kept.delete("a")
    other.explain.kept.look()
    assert other.explain.kept.chosen == ["b"]
    assert other.session.notices[-1] == ("warning", "a: deleted or renamed on another page.")
    assert other.explain.kept.load("a") is None
    assert "there is no 'a' any more" in errors(other)[-1]
    other.plan.show(plan)
    other.explain.kept.typed = "a"
    other.explain.keep()
    app.explain.kept.undo_delete()
    assert set(app.explain.kept.names) == {"a", "a 2", "b"}
    assert app.explain.kept.deleted == ""


def test_renaming_keeps_the_choice_and_refuses_what_is_taken(app, compute, plan):
    show(app, compute, plan)
    kept = app.explain.kept
    for name in ("a", "b"):
        kept.typed = name
        app.explain.keep()
    assert kept.rename("a", "c")
    assert kept.chosen == ["c", "b"]
    assert not kept.rename("c", "b")
    assert not kept.rename("c", "../../x")
    assert set(kept.names) == {"b", "c"}
    assert "warning" not in [kind for kind, _ in app.session.notices]


def test_at_most_four_are_compared_and_a_spoilt_file_is_said(app, compute, plan, tmp_path):
    show(app, compute, plan)
    kept = app.explain.kept
    for n in range(MOST_COMPARED + 1):
        kept.typed = f"p{n}"
        app.explain.keep()
    assert len(kept.chosen) == MOST_COMPARED
    kept.choose(kept.names)
    assert len(kept.chosen) == MOST_COMPARED
    assert "At most 4" in app.session.notices[-1][1]
    (tmp_path / "plans" / "p0.json").write_text("{")
    kept.look()
    (row,) = [row for row in kept.rows() if row["name"] == "p0"]
    assert "not JSON" in row["problem"]
    kept.delete("p0")
    assert "p0" not in kept.names


def test_opening_a_kept_plan_takes_its_problem_but_not_while_searching(app, compute, plan):
    show(app, compute, plan)
    app.explain.kept.typed = "mine"
    app.explain.keep()
    app.cluster.sample = "lab_2_sites_4"
    app.plan.start()
    app.explain.open("mine")
    assert app.explain.shown == ""
    assert "stop it first" in app.session.notices[-1][1]
    app.plan._job.log.append({"type": "state", "state": "failed", "text": "x"})
    app.plan.poll()
    app.explain.open("mine")
    assert app.explain.shown == "mine"
    assert app.plan.plan == plan
    assert app.plan.problem().cluster == plan.problem.cluster
    app.explain.kept.delete("mine")
    assert app.explain.shown == ""


def test_the_comparison_marks_what_is_best_and_leaves_out_what_nobody_has(plan):
    slower = estimated(plan.replace(stages=tuple(stage.replace(in_flight=1) for stage in plan.stages)))
    rows = {row.name: row for row in comparison({"a": slower, "b": plan})}
    assert rows["step time"].best == (1,)
    assert rows["same place"].texts[1] == "4 of 4 devices as in the first"
    assert "problem" not in rows
    assert rows["shape"].best == ()
    same = {row.name: row for row in comparison({"a": plan, "b": plan})}
    assert same["step time"].best == ()
    elsewhere = estimated(chain_plan([8, 8], [5]))
    assert "problem" in {row.name for row in comparison({"a": plan, "b": elsewhere})} or (
        elsewhere.problem.cluster.name == plan.problem.cluster.name
    )


# -- what is clicked, what the address says -------------------------------------------------------


def test_a_click_says_what_it_hit_and_lets_go_of_what_a_new_plan_lacks(app, compute, plan):
    show(app, compute, plan)
    explain = app.explain
    explain.set_focus("device", "d1")
    assert explain.focus_text.startswith("d1 (CPU generic, site-1), rank 1: stage 0, replica 1; computes")
    explain.set_focus("stage", "1")
    assert explain.focus_text.startswith("Stage 1: ")
    explain.set_focus("site", "site-4")
    assert explain.focus_text == "site-4: 0 of 1 devices"
    for kind, name in (("device", "d4"), ("stage", "7"), ("stage", "x"), ("site", "?"), ("", "")):
        explain.set_focus(kind, name)
        assert explain.focus == ("", "")
    explain.set_focus("device", "d3")
    app.plan.show(estimated(chain_plan([16], [5])))
    assert explain.focus == ("", "")
    assert explain.focus_text == ""


@pytest.mark.parametrize("text", ["[", '[{"do":"drop","device":"<b>"}]', "7", '"x"', "[" * 100, "w" * 5000])
def test_an_address_that_was_tampered_with_changes_nothing(app, compute, plan, text):
    show(app, compute, plan)
    app.restore("plan", "", "", "", "../../etc/passwd")
    app.explain.restore("a,../b,<i>", text)
    compute.answer()
    app.explain.poll()
    assert app.explain.kept.chosen == []
    assert app.explain.whatif.outcome is None
    assert app.plan.plan is plan


def test_the_folder_of_plans_is_that_of_the_home(tmp_path, app):
    assert not (Path(tmp_path) / "plans").exists(), "looking makes no folders"
    assert app.explain.kept.names == []
