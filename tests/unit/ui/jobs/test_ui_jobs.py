"""The job log, and searches in a worker process: real ones, and workers that die, hang or talk nonsense."""

import json
import os
import signal
import sys

import psutil
import pytest

from hetplanner.cluster.generators import r10j
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import LOADING, SearchEvent
from hetplanner.ui.jobs.jobs import MAX_ACTIVE, JobLog, SearchRequest, SearchService
from hetplanner.ui.jobs.plan_bodies import plan_of_body
from hetplanner.ui.jobs.search_files import search_data
from hetplanner.ui.jobs.worker import PlanDrawer
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload
from tests.support.plans.grouped import GPT, hosts
from tests.support.processes.patience import HANG_S, until


def problem(**constraints) -> Problem:
    fields = {"stages": 2, "replicas": 2} | constraints
    return Problem(cluster=small_cluster(4), workload=tiny_workload(), constraints=Constraints(**fields))


def of_type(job, kind):
    return [record for record in job.log.since(0)[0] if record["type"] == kind]


@pytest.fixture(scope="module")
def searching():
    """One worker for the tests that only search: each of its own takes seconds to import and to load kernels."""
    one = SearchService()
    yield one
    one.close()


@pytest.fixture
def service():
    """Makes services of a test's own, whose workers are killed, looked at or made up."""
    made = []

    def make(script: str | None = None) -> SearchService:
        command = None if script is None else [sys.executable, "-c", script]
        made.append(SearchService(command))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_readers_get_what_is_newer_than_their_cursor_and_late_ones_the_history():
    log = JobLog()
    log.append({"type": "event", "best": 1})
    records, cursor = log.since(0)
    assert [r["best"] for r in records] == [1]
    assert log.since(cursor) == ([], cursor)
    log.append({"type": "event", "best": 2})
    assert [r["best"] for r in log.since(cursor)[0]] == [2]
    assert [r["best"] for r in log.since(0)[0]] == [1, 2]


def test_a_full_log_thins_old_events_and_keeps_the_rest():
    log = JobLog(max_records=100)
    log.append({"type": "baseline"})
    for i in range(1000):
        log.append({"type": "event", "best": i})
    log.append({"type": "state"})
    records, cursor = log.since(0)
    assert len(records) <= 100
    assert cursor == 1002
    assert records[0]["type"] == "baseline"
    assert records[-1]["type"] == "state"
    bests = [r["best"] for r in records if r["type"] == "event"]
    assert bests == sorted(bests)
    assert bests[-1] == 999


def test_a_search_reports_baselines_events_and_a_plan_of_the_same_problem(searching):
    asked = problem()
    job = searching.start(SearchRequest(asked, budget_s=None, evaluations=3000))
    until(lambda: job.ended, "the search ends")
    assert (job.state, job.message) == ("done", "")
    assert {r["label"] for r in of_type(job, "baseline")} == {"rank order", "random"}
    events = of_type(job, "event")
    assert events
    assert job.plan is not None
    assert job.plan.problem == asked
    assert job.plan.estimate is not None
    end = of_type(job, "state")[-1]
    assert end["value"] == pytest.approx(job.plan.estimate.step_s, rel=1e-12)
    assert end["lower_bound"] <= end["value"]
    assert end["value"] <= min(r["value"] for r in of_type(job, "baseline")) * (1 + 1e-9)


def test_a_search_over_groups_of_devices_brings_the_groups_and_no_bound_of_single_devices(searching):
    asked = Problem(
        cluster=hosts(("T4", 4), ("T4", 4)), workload=GPT, constraints=Constraints(tensor=(2, 4), stages=2, replicas=1)
    )
    job = searching.start(SearchRequest(asked, budget_s=None, evaluations=600))
    until(lambda: job.ended, "the search ends")
    assert (job.state, job.message) == ("done", "")
    assert job.plan.problem == asked.replace(groups=job.plan.problem.groups)
    assert {group.degree for group in job.plan.problem.groups} <= {2, 4}
    assert estimate_plan(job.plan).step_s == pytest.approx(job.plan.estimate.step_s)
    assert not of_type(job, "bound")
    assert of_type(job, "state")[-1]["lower_bound"] <= job.plan.estimate.step_s
    assert plan_of_body(asked, search_data(job)["plan"], "search", Plan) == job.plan


def test_the_same_worker_takes_the_next_search(searching):
    one = searching
    one.start(SearchRequest(problem(), budget_s=None, evaluations=500))
    until(lambda: one._idle is not None, "the first search ends and its worker waits for another")
    idle = one._idle
    second = one.start(SearchRequest(problem(), seed=1, budget_s=None, evaluations=500))
    until(lambda: second.ended, "the second search ends")
    assert second.state == "done"
    until(lambda: one._idle is idle, "the same worker waits again")


def test_stop_ends_a_long_search_with_its_best_plan(searching):
    job = searching.start(SearchRequest(problem(), budget_s=600.0))
    until(lambda: of_type(job, "event"), "the first event")
    searching.stop(job.id)
    until(lambda: job.ended, "the search stops")
    assert job.state == "stopped"
    assert job.plan is not None


def test_a_search_goes_on_from_a_plan_and_is_no_worse(searching):
    first = searching.start(SearchRequest(problem(), budget_s=None, evaluations=500))
    until(lambda: first.ended, "the first search ends")
    second = searching.start(SearchRequest(problem(), budget_s=None, evaluations=500, start=first.plan, seed=1))
    until(lambda: second.ended, "the second search ends")
    assert (second.state, second.message) == ("done", "")
    assert second.plan.estimate.step_s <= first.plan.estimate.step_s * (1 + 1e-12)
    # Of another cluster it is refused, in a line.
    other = Problem(cluster=small_cluster(5), workload=tiny_workload(), constraints=Constraints(stages=2, replicas=2))
    third = searching.start(SearchRequest(other, budget_s=None, evaluations=500, start=first.plan))
    until(lambda: third.ended, "the third search ends")
    assert third.state == "failed"
    assert "another cluster" in third.message


def test_settings_reach_the_planner_and_the_bound_comes_before_the_end(searching):
    job = searching.start(SearchRequest(problem(), planner="random", settings={"keep": "best", "most": 7}))
    until(lambda: job.ended, "the search ends")
    assert (job.state, of_type(job, "state")[-1]["evaluations"]) == ("done", 7)
    (bound,) = of_type(job, "bound")
    assert 0 < bound["value"] <= of_type(job, "state")[-1]["value"]
    wrong = searching.start(SearchRequest(problem(), planner="random", settings={"most": 0}))
    until(lambda: wrong.ended, "the setting is refused")
    assert "most" in wrong.message


def jittered() -> Problem:
    shape = Constraints(stages=6, replicas=8)
    return Problem(cluster=r10j(0, num_devices=48), workload=preset("gpt2"), objective="dtfm", constraints=shape)


def test_a_tighter_bound_is_worked_on_beside_a_search_and_behind_it_until_it_is_stopped(searching):
    job = searching.start(SearchRequest(jittered(), budget_s=None, evaluations=500, bound_s=600.0))

    def values() -> list[float]:
        return [record["value"] for record in of_type(job, "bound")]

    until(lambda: job.ended or len(set(values())) > 1, lambda: f"bounds {values()}: {job.message}")
    assert job.plan is not None, "the search is over, its plan is there"
    searching.stop(job.id)
    until(lambda: job.ended, "the work is stopped")
    (end,) = (record for record in of_type(job, "state") if record["state"] == "stopped")
    assert values()[0] < max(values()) <= end["lower_bound"] <= end["value"], "higher than the one that is soon found"
    assert job.plan.provenance.lower_bound == end["lower_bound"]


def is_at_work(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_bound_s_process_ends_with_its_worker(service):
    one = service()
    job = one.start(SearchRequest(jittered(), budget_s=600.0, bound_s=600.0))
    worker = psutil.Process(one._workers[job.id].pid)
    until(lambda: of_type(job, "event"), "the first event")
    started = worker.children(recursive=True)
    assert started
    worker.kill()
    until(lambda: not any(is_at_work(process) for process in started), "its processes end")


def test_loading_kernels_is_no_part_of_the_budget(service):
    job = service().start(SearchRequest(problem(), budget_s=0.5))
    until(lambda: job.ended, "the search ends")
    events = of_type(job, "event")
    assert events[0]["phase"] == LOADING
    assert all(event["spent_s"] <= event["seconds"] for event in events)
    assert events[-1]["spent_s"] > events[0]["spent_s"]


def test_a_front_comes_with_its_plans(searching):
    job = searching.start(SearchRequest(problem(stages=None, replicas=None), what="front", budget_s=1.0))
    until(lambda: job.ended, "the search ends")
    assert (job.state, job.message) == ("done", "")
    phases = [record["phase"] for record in of_type(job, "front")]
    assert LOADING in phases
    assert phases[-1] == "done"
    rows = of_type(job, "state")[-1]["rows"]
    assert len(rows) == len(job.front) > 0
    for number, row in enumerate(rows):
        plan = job.plan_on_front(number)
        assert plan.problem is job.request.problem
        assert plan.estimate.step_s == pytest.approx(row["step_s"], rel=1e-12)


def test_an_elastic_plan_comes_beside_a_steady_state_step_of_it(searching):
    settings = {"mode": "elastic"}
    job = searching.start(SearchRequest(problem(), planner="swarm", settings=settings, budget_s=1.0))
    until(lambda: job.ended, "the search")
    assert job.state == "done"
    assert [len(stage.peers) for stage in job.elastic.stages] == [2, 2]
    assert job.elastic.problem is job.request.problem
    assert job.plan is not None


def test_what_the_planner_refuses_is_reported_in_a_line(searching):
    job = searching.start(SearchRequest(problem(stages=3, replicas=2), budget_s=1.0))
    until(lambda: job.ended, "the search fails")
    assert job.state == "failed"
    assert "devices" in job.message
    assert "\n" not in job.message


def test_a_killed_worker_is_reported_and_the_next_search_gets_a_new_one(service):
    one = service()
    job = one.start(SearchRequest(problem(), budget_s=600.0))
    until(lambda: of_type(job, "event"), "the first event")
    os.kill(one._workers[job.id].pid, signal.SIGKILL)
    until(lambda: job.ended, "the death is seen")
    assert job.state == "failed"
    assert "exit code -9" in job.message
    again = one.start(SearchRequest(problem(), budget_s=None, evaluations=500))
    until(lambda: again.ended, "the next search ends")
    assert again.state == "done"


def test_a_worker_that_cannot_start_is_reported_with_its_last_words(service):
    job = service("import sys; sys.exit('no such module: planner')").start(SearchRequest(problem()))
    until(lambda: job.ended, "the death is seen")
    assert job.state == "failed"
    assert "no such module: planner" in job.message


def test_a_worker_that_does_not_stop_is_killed(service):
    one = service("import time; time.sleep(600)")
    job = one.start(SearchRequest(problem()))
    one.stop(job.id)
    until(lambda: job.ended, "the worker is killed")
    assert job.state == "stopped"
    assert "killed" in job.message


def test_a_plan_that_breaks_the_laws_is_not_taken_from_a_worker(service):
    script = (
        "import json,sys; r=json.loads(sys.stdin.readline());"
        "print(json.dumps({'type':'end','job':r['job'],'plan':{'stages':[]},'value':1}),flush=True);sys.stdin.read()"
    )
    job = service(script).start(SearchRequest(problem()))
    until(lambda: job.ended, "the message is refused")
    assert job.state == "failed"
    assert job.plan is None


def test_only_so_many_searches_run_at_once(service):
    one = service("import time; time.sleep(600)")
    for _ in range(MAX_ACTIVE):
        one.start(SearchRequest(problem()))
    with pytest.raises(InvalidInput, match="stop one or wait"):
        one.start(SearchRequest(problem()))


def test_a_worker_ends_when_its_server_is_gone(service):
    one = service()
    one.warm()
    process = one._idle.process
    process.stdin.close()
    assert process.wait(HANG_S) == 0


def test_a_request_is_plain_json_that_names_no_code():
    message = json.loads(SearchRequest(problem()).to_message("7"))
    known = {"do", "job", "problem", "planner", "seed", "budget_s", "evaluations", "bound_s", "settings", "start"}
    known.add("start_problem")
    assert set(message) == known


def test_ragged_placements_wait_for_the_finished_plan():
    task = Problem(cluster=small_cluster(3), workload=tiny_workload(), constraints=Constraints(stages=2))
    ragged = SearchEvent(1.0, 1.0, 1.0, 1.0, 1, 0.0, (("d0", "d1"), ("d2",)))
    assert PlanDrawer(task).draw(ragged) is None
    even = SearchEvent(1.0, 1.0, 1.0, 1.0, 1, 0.0, (("d0",), ("d2",)))
    plan = PlanDrawer(task).draw(even)
    assert plan is not None
    assert set(plan.ranks) == {"d0", "d2"}
    # What is no better than the current plan is not drawn.
    assert PlanDrawer(task, plan).draw(even) is None
