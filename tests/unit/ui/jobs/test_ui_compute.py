"""The compute worker: real answers, newest question of a slot, a process that dies or hangs or talks nonsense."""

import json
import os
import signal
import sys
import time
import weakref

import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.planners.search.moments import plan_moment
from hetplanner.planners.search.tried import TriedShape
from hetplanner.planners.variants.derive import derived_from_data
from hetplanner.planners.variants.whatif import ChangeLink, Changes, WhatIf
from hetplanner.simulator.replay import Replay, replay_step
from hetplanner.ui.jobs import compute as compute_module
from hetplanner.ui.jobs.compute import ComputeWorker, Ticket
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import until


def settled(ticket: Ticket) -> Ticket:
    until(lambda: ticket.done, "no answer")
    return ticket


@pytest.fixture
def compute():
    made = []

    def make(script: str | None = None) -> ComputeWorker:
        made.append(ComputeWorker(None if script is None else [sys.executable, "-c", script]))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def plan():
    return chain_plan([8, 8], [3])


SLOW_ECHO = """
import json, sys, time
for line in sys.stdin:
    m = json.loads(line)
    if m["do"] != "plan":
        time.sleep(m.get("sleep", 0))
        print(json.dumps({"id": m["id"], "result": {"n": m["n"]}}), flush=True)
"""


def test_it_evaluates_explains_and_simulates(compute, plan):
    one = compute()
    changes = Changes(changes=(ChangeLink(sites=("site-0", "site-1"), bandwidth=1e9),))
    first = one.ask("a", "evaluate", plan, {"changes": changes.to_data()})
    explained = one.ask("b", "explain", plan)
    simulated = one.ask("c", "simulate", plan, {"wanted": {"schedule": "gpipe"}})
    assert settled(first).error == ""
    found = WhatIf.from_data(first.result, plan, changes)
    assert found.plan.estimate.step_s < estimate_plan(plan).step_s
    assert found.plan.problem.cluster.link("d0", "d1").bandwidth == 1e9
    assert settled(explained).result["value"] == pytest.approx(estimate_plan(plan).step_s)
    result = settled(simulated).result
    made = derived_from_data(result["made"], plan)
    assert (made.schedule, made.provenance.planner) == ("gpipe", "derived")
    trace = replay_step(made).spans.to_trace(plan.ranks)
    assert Replay.from_data(result["replay"]).spans.to_trace(plan.ranks) == trace
    text = settled(one.ask("d", "perfetto", made)).result["text"]
    assert json.loads(text) == trace.to_perfetto()


def test_it_makes_a_report_with_the_film_of_the_search(compute, plan):
    estimate = estimate_plan(plan)
    moments = [plan_moment(plan, 3.0 - i, float(i), i).to_data() for i in range(3)]
    search = {
        "moments": moments,
        "tried": [TriedShape(2, 1, 1.0, 3).to_data()],
        "baselines": {"rank order": estimate.model_dump(mode="json")},
        "offset_s": 1.0,
    }
    one = compute()
    found = settled(one.ask("a", "report", plan, search)).result["text"]
    assert "Moment 3 of 3: 1 s after 3 s of search" in found
    assert "Shapes tried" in found
    assert ">rank order</text>" in found
    assert "Who does what" in settled(one.ask("a", "report", plan)).result["text"]


def test_a_mistake_of_the_question_is_its_answer_and_the_next_one_works(compute, plan):
    one = compute()
    wrong = settled(one.ask("a", "evaluate", plan, {"changes": [{"do": "drop", "device": "nobody"}]}))
    assert wrong.result is None
    assert "'nobody' is no usable device" in wrong.error
    assert settled(one.ask("a", "evaluate", plan, {"changes": []})).error == ""


def test_the_newest_question_of_a_slot_wins_and_others_keep_their_turn(compute, plan):
    one = compute(SLOW_ECHO)
    running = one.ask("a", "evaluate", plan, {"n": 0, "sleep": 0.3})
    until(lambda: running.began > 0, "never began")
    tickets = [one.ask("a", "evaluate", plan, {"n": n}) for n in (1, 2, 3)]
    other = one.ask("b", "evaluate", plan, {"n": 9})
    assert settled(tickets[2]).result == {"n": 3}
    assert settled(other).result == {"n": 9}
    assert running.stale
    assert [t.stale for t in tickets] == [True, True, False]


def test_quick_questions_come_before_explanations(compute, plan):
    one = compute(SLOW_ECHO)
    running = one.ask("x", "evaluate", plan, {"n": 0, "sleep": 0.3})
    until(lambda: running.began > 0, "never began")
    explained = one.ask("a", "explain", plan, {"n": 1})
    evaluated = one.ask("b", "evaluate", plan, {"n": 2})
    assert settled(evaluated).began < settled(explained).began


def test_a_long_computation_that_nobody_wants_any_more_is_ended(compute, plan, monkeypatch):
    monkeypatch.setattr(compute_module, "RESTART_S", 0.05)
    one = compute(SLOW_ECHO)
    endless = one.ask("a", "simulate", plan, {"n": 0, "sleep": 3600})
    until(lambda: endless.began > 0 and time.monotonic() > endless.began + 0.1, "never began")
    assert settled(one.ask("a", "simulate", plan, {"n": 1})).result == {"n": 1}
    assert endless.stale


def test_it_starts_again_when_its_process_was_killed(compute, plan):
    one = compute()
    settled(one.ask("a", "evaluate", plan, {"changes": []}))
    before = one.pid
    os.kill(before, signal.SIGKILL)
    until(lambda: not one._child.alive, "it lives on")
    assert settled(one.ask("a", "evaluate", plan, {"changes": []})).error == ""
    assert one.pid != before


def test_what_takes_too_long_is_given_up_with_a_reason(compute, plan, monkeypatch):
    monkeypatch.setattr(compute_module, "ANSWER_LIMIT_S", 0.2)
    late = settled(compute(SLOW_ECHO).ask("a", "evaluate", plan, {"n": 0, "sleep": 3600}))
    assert "the process that computes this ended" in late.error


def test_a_process_that_dies_or_talks_nonsense_is_reported_with_its_last_words(compute, plan):
    dead = settled(compute("import sys; sys.stdin.readline(); sys.exit('out of luck')").ask("a", "explain", plan))
    assert "out of luck" in dead.error
    for said in ("nonsense", "[1]", '{"id": "x"}'):
        script = f"import sys; sys.stdin.readline(); print({said!r}, flush=True)"
        assert settled(compute(script).ask("a", "explain", plan)).error.startswith("compute worker: ")


def test_a_command_that_does_not_exist_is_reported(plan):
    one = ComputeWorker(["/nonexistent/compute"])
    assert "compute worker: " in settled(one.ask("a", "explain", plan)).error
    one.close()


def test_many_plans_are_forgotten_in_the_same_order_on_both_sides(compute, plan, monkeypatch):
    monkeypatch.setattr(compute_module, "KNOWN_PLANS", 2)
    one = compute()
    plans = [plan.replace(provenance=plan.provenance.replace(seed=n)) for n in range(4)]
    for each in (*plans, *reversed(plans), plans[0], plans[3], plans[0]):
        assert settled(one.ask("a", "evaluate", each, {"changes": []})).error == ""


def test_who_asked_is_told_of_the_answer_and_may_be_gone(compute, plan):
    one, told = compute(), []
    ticket = one.ask("a", "evaluate", plan, {"changes": []}, lambda: told.append(ticket.done))
    until(lambda: told, "not told")
    assert told == [True]

    def gone():
        raise RuntimeError("the page was closed")

    one.ask("a", "evaluate", plan, {"changes": []}, gone)
    assert settled(one.ask("b", "evaluate", plan, {"changes": []})).error == settled(ticket).error


def test_an_answered_question_is_forgotten_while_the_worker_waits_for_the_next(compute, plan):
    class Page:
        def told(self):
            pass

    page = Page()
    gone = weakref.ref(page)
    settled(compute(SLOW_ECHO).ask("a", "x", plan, {"n": 1}, page.told))
    del page
    until(lambda: gone() is None, "the compute worker holds whom it told")
