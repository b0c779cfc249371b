"""Islands: the same plan whoever runs them, never orphans, never torch."""

import multiprocessing
import subprocess
import sys
from itertools import pairwise

import pytest

from hetplanner.cluster.generators import mixed_gpus, r10
from hetplanner.cost.check import check_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.planners.search import island_search, islands
from hetplanner.workload.presets import preset
from tests.support.processes.imported import imported
from tests.support.processes.patience import HANG_S

EPOCH = 4_000
UNGUARDED = """
from hetplanner.cluster.generators import r10
from hetplanner.plan.problem import Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset

task = Problem(cluster=r10(5, num_devices=64), workload=preset("gpt3-xl"))
make_planner("evolution", {"islands": 2, "processes": 2}).solve(task, budget="600 s")
"""


def step_problem():
    return Problem(cluster=mixed_gpus(4, num_devices=14, num_sites=3), workload=preset("gpt2", global_batch=64))


def dtfm_problem():
    shape = Constraints(stages=4, replicas=4)
    return Problem(cluster=r10(5, num_devices=16), workload=preset("gpt2"), objective="dtfm", constraints=shape)


def solve(task, budget="24000 evaluations", seed=1, **settings):
    options = {name: settings.pop(name) for name in ("on_event", "should_stop") if name in settings}
    return make_planner("evolution", {"chain": 1000} | settings).solve(task, budget=budget, seed=seed, **options)


@pytest.mark.parametrize("problem", [step_problem, dtfm_problem])
def test_the_plan_does_not_depend_on_the_number_of_processes(problem, monkeypatch):
    """Three islands with exchanges, in this process and in two others."""
    monkeypatch.setattr(island_search, "EPOCH", EPOCH)
    task = problem()
    alone, two = (solve(task, islands=3, processes=n) for n in (1, 2))
    assert alone.plan.stages == two.plan.stages
    assert alone.plan.routes == two.plan.routes
    assert alone.value == two.value
    assert alone.evaluations == two.evaluations
    assert not multiprocessing.active_children()


def test_islands_exchange_their_elites(monkeypatch):
    monkeypatch.setattr(island_search, "EPOCH", EPOCH)
    handed = []
    receive = islands.Island.receive
    monkeypatch.setattr(islands.Island, "receive", lambda self, elites: (handed.append(elites), receive(self, elites)))
    result = solve(dtfm_problem(), islands=3)
    # 8,000 evaluations an island: one exchange of three islands.
    assert len(handed) == 3
    assert all(0 < len(elites) <= islands.ELITES for elites in handed)
    best = min(candidate.value for elites in handed for _, candidate in elites)
    assert result.value <= best * (1 + 1e-9)


def test_every_island_has_its_own_seed_and_the_first_the_search_s():
    seeds = [islands.island_seed(7, i) for i in range(16)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("processes", [1, 2])
def test_cancel_leaves_the_best_plan_and_no_process(processes):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 40

    result = solve(step_problem(), budget="600 s", islands=2, processes=processes, should_stop=stop)
    assert result.cancelled
    check_plan(result.plan)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [1, 2])
def test_events_of_all_islands_only_get_better_and_keep_their_distance(processes):
    seen = []
    result = solve(step_problem(), budget="1 s", islands=2, processes=processes, on_event=seen.append)
    assert tuple(seen) == result.events
    assert [e.best for e in seen] == sorted((e.best for e in seen), reverse=True)
    assert [e.evaluations for e in seen] == sorted(e.evaluations for e in seen)
    gaps = [b.seconds - a.seconds for a, b in pairwise(seen[1:-1])]
    assert all(gap >= 0.1 - 1e-9 for gap in gaps)


def test_a_budget_of_zero_starts_no_process(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: pytest.fail("a process was started"))
    check_plan(solve(step_problem(), budget="0 s", islands=2, processes=2).plan)


def test_a_process_of_an_island_loads_no_torch():
    modules = "hetplanner.planners.search.island_processes, hetplanner.planners.search.planner"
    assert imported(f"import {modules}", "torch") == []


def test_a_script_that_guards_nothing_is_told_so(tmp_path):
    """Its processes end before they have read the task, which is larger than a pipe holds."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=HANG_S)
    assert "hetplanner.errors.RunError: a process of the search ended unexpectedly" in done.stderr


def test_numbers_of_islands_and_processes_are_checked():
    for settings in ({"islands": 0}, {"processes": 0}, {"islands": 65}):
        with pytest.raises(InvalidInput, match="planner evolution"):
            make_planner("evolution", settings)
