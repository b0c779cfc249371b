"""Kernels compiled ahead of searches, and the search that goes on without them."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.estimate import CostModel
from hetplanner.liveness.priority import NICENESS
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import LOADING, Budget, Progress
from hetplanner.planners.search import compiled_parts, kernel_parts, rough_search
from hetplanner.planners.search.planner import make_search
from hetplanner.planners.search.population import EvolutionSettings, leader_of
from hetplanner.workload.presets import preset
from tests.support.processes.patience import HANG_S
from tests.unit.planners.test_planners_family import SAMPLES

# In a process of its own: after all parts were compiled (or loaded), searches ask for no kernel of another kind.
COVERED = """
import json, sys
from numba.core.dispatcher import Dispatcher
from hetplanner.planners.search.kernel_parts import COMPILE
for part in COMPILE.values(): part()
known = lambda: {f"{m}.{n}": len(d.signatures) for m, module in list(sys.modules.items()) if m.startswith("hetplanner")
                 for n, d in vars(module).items() if isinstance(d, Dispatcher)}
before = known()
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.workload.presets import preset
for objective in ("step-time", "cost", "dtfm"):
    for shape in [(8, 8), (None, None)]:
        if objective != "dtfm" or shape[0]:
            task = Problem(cluster=load_cluster(sys.argv[1]), workload=preset("gpt3-xl"), objective=objective,
                           constraints=Constraints(stages=shape[0], replicas=shape[1]))
            make_planner("evolution").solve(task, budget="60000 evaluations")
            make_planner("random").solve(task, budget="3 evaluations")
json.dump({name: count for name, count in known().items() if count != before.get(name)}, sys.stdout)
"""


def problem(objective: str = "step-time", stages: int | None = 4, replicas: int | None = 2) -> Problem:
    shape = Constraints(stages=stages, replicas=replicas)
    cluster = load_cluster(SAMPLES / "continents_4_sites_8.json")
    return Problem(cluster=cluster, workload=preset("tiny-gpt"), objective=objective, constraints=shape)


def test_what_is_compiled_ahead_is_all_that_searches_need():
    program = [sys.executable, "-c", COVERED, str(SAMPLES / "dtfm_5_worldwide.json")]
    done = subprocess.run(program, capture_output=True, check=True)
    assert json.loads(done.stdout) == {}


def test_every_part_has_words():
    assert list(compiled_parts.PARTS) == list(kernel_parts.COMPILE)


def test_each_part_is_compiled_once_and_marked(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(compiled_parts, "PARTS", {"a": "words", "b": "words"})
    monkeypatch.setattr(kernel_parts, "COMPILE", {name: partial(made.append, name) for name in ("a", "b")})
    monkeypatch.setattr("hetplanner.kernels.kernel_folder", lambda: tmp_path)
    assert compiled_parts.missing_parts() == ["a", "b"]
    assert list(kernel_parts.compile_parts()) == ["a", "b"]
    assert (made, compiled_parts.missing_parts(), compiled_parts.is_ready(["a", "b"])) == (["a", "b"], [], True)
    assert list(kernel_parts.compile_parts()) == ["a", "b"]
    assert made == ["a", "b"]


@pytest.mark.parametrize(
    ("objective", "stages", "replicas"),
    [("step-time", 4, 2), ("step-time", None, None), ("cost", 4, 2), ("dtfm", 4, 2)],
)
def test_a_search_goes_on_without_kernels_until_they_are_compiled(monkeypatch, objective, stages, replicas):
    looks = []
    monkeypatch.setattr(compiled_parts, "is_ready", lambda parts: len(looks) >= 200)
    monkeypatch.setattr(rough_search, "LOOK_EVERY_S", 0.0)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(compiled_parts, "compiler", lambda parts: sleeper)
    seen = []
    progress = Progress(Budget(seconds=1.0), seen.append, lambda: bool(looks.append(1)))
    task = problem(objective, stages, replicas)
    search = make_search(CostModel.of(task), EvolutionSettings(), 0, progress)
    before = leader_of(search.evolutions).value
    progress.start_budget()
    rough_search.search_roughly(search.evolutions, progress)
    leader = leader_of(search.evolutions)
    assert leader.value < before
    assert len(looks) == 200
    assert {event.phase for event in seen} <= {LOADING}
    again = leader.species.rough(tuple(gene.copy() for gene in leader.best.genes))
    assert again.value == pytest.approx(leader.value)
    used = [d for stage in leader.species.placement(leader.best) for d in stage]
    assert len(set(used)) == len(used)


def test_moves_keep_cut_shares_and_devices():
    rng = np.random.default_rng(0)
    genes = (np.arange(8), np.array([0, 2, 4, 6, 9]), np.array([3, 1]))
    for _ in range(500):
        genes = rough_search.changed(genes, 6, rng)
        place, cut, share = genes
        assert sorted(place.tolist()) == list(range(8))
        assert (cut[0], cut[-1]) == (0, 9)
        assert (np.diff(cut) > 0).all()
        assert share.sum() == 4
        assert share.min() >= 1


def test_the_compiling_process_ends_with_whoever_started_it(tmp_path):
    # Compiling all parts takes a minute; the process ends in the middle of one.
    command = compiled_parts.compiler()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(HANG_S) == 0
        assert process.stdout is not None
        assert len(process.stdout.readlines()) < len(compiled_parts.PARTS)


NICE = """
import os, sys
from hetplanner.planners.search.kernel_parts import main
main(sys.argv[1:])
print(os.nice(0))
"""


@pytest.mark.parametrize("options", [[], [compiled_parts.FOREGROUND]])
def test_it_works_at_low_priority_or_in_the_foreground_and_ends_while_its_parent_goes_on(options):
    command = [sys.executable, "-c", NICE, "small", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readlines()
        assert process.wait(HANG_S) == 0  # its stdin is open
    assert json.loads(said[0]) == {"ready": "small"}
    assert int(said[-1]) - os.nice(0) == (0 if options else NICENESS)
