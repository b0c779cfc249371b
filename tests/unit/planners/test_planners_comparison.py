"""Comparisons: the same numbers from the same seeds, nothing lost when one planner fails or a person stops."""

import csv
import io
import json
import signal
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import hetplanner as hp
from hetplanner.cli.app import app
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners import registry
from hetplanner.planners.base import BasePlanner
from hetplanner.planners.baselines.rank_order import RankOrderPlanner
from hetplanner.planners.comparison import run_comparison
from hetplanner.planners.exhaustive.symmetry import Listing
from hetplanner.workload.presets import preset
from tests.support.plans.factories import small_cluster, tiny_workload

LAB = str(Path(__file__).parents[3] / "sample_clusters" / "lab_2_sites_4.json")
PROBLEM = Problem(cluster=small_cluster(4), workload=tiny_workload(), constraints=Constraints(stages=2, replicas=2))
FEW = "300 evaluations"
QUICK = ("random", "rank-order")


class RefusingPlanner(BasePlanner):
    """Solves nothing with odd seeds."""

    name: ClassVar[str] = "refusing"
    summary: ClassVar[str] = "for tests"

    def search(self, problem, model, seed, progress):
        if seed % 2:
            raise Infeasible("plan: odd seeds are short of 1 GiB; use even ones")
        return RankOrderPlanner().search(problem, model, seed, progress)


class NeverPlanner(BasePlanner):
    """Refuses every problem."""

    name: ClassVar[str] = "never"
    summary: ClassVar[str] = "for tests"

    def search(self, problem, model, seed, progress):
        raise InvalidInput("plan: never")


class InterruptedPlanner(BasePlanner):
    """Somebody presses Ctrl-C while it searches with seed 2."""

    name: ClassVar[str] = "interrupted"
    summary: ClassVar[str] = "for tests"

    def search(self, problem, model, seed, progress):
        if seed == 2:
            signal.raise_signal(signal.SIGINT)
        progress.is_over()
        return RankOrderPlanner().search(problem, model, seed, progress)


@pytest.fixture(autouse=True)
def more_planners(monkeypatch):
    added = {cls.name: (__name__, cls.__name__) for cls in (RefusingPlanner, NeverPlanner, InterruptedPlanner)}
    monkeypatch.setattr(registry, "_PLANNERS", registry._PLANNERS | added)


def numbers(comparison):
    """What must not depend on the machine's speed."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in comparison.to_rows()]


def test_same_seeds_and_evaluations_give_the_same_numbers():
    options = {"planners": ("evolution", *QUICK), "seeds": 2, "budget": FEW}
    one, two = (run_comparison(PROBLEM, **options) for _ in range(2))
    assert numbers(one) == numbers(two)
    assert [(row.planner, row.seed) for row in one.rows] == [
        (name, seed) for seed in (0, 1) for name in ("evolution", *QUICK)
    ]
    for row in one.rows:
        assert row.result is not None
        assert row.result.seed == row.seed
        assert row.result.plan.provenance.planner == row.planner


def test_summaries_are_of_the_rows():
    comparison = run_comparison(PROBLEM, planners=QUICK, seeds=(1, 2, 3, 5), budget=FEW)
    random, in_order = comparison.summaries()
    values = sorted(result.value for result in comparison.results("random").values())
    assert (random.best, random.worst) == (values[0], values[-1])
    assert random.median == (values[1] + values[2]) / 2
    assert (random.runs, random.failed) == (4, 0)
    # The first baseline named is what ratios refer to.
    assert comparison.baseline == "random"
    assert random.ratio == 1.0
    assert in_order.ratio == pytest.approx(random.median / in_order.median)
    bound = comparison.lower_bound
    assert bound is not None
    assert all(bound <= value for value in values)
    assert random.gap == pytest.approx(1 - bound / random.median)
    assert comparison.best_result().value == min(values[0], in_order.best)
    assert comparison.best_result("rank-order").value == in_order.best


def test_the_baseline_is_the_first_of_the_kind_or_the_one_named():
    names = ("evolution", "rank-order", "random")
    assert run_comparison(PROBLEM, planners=names, seeds=1, budget=FEW).baseline == "rank-order"
    assert run_comparison(PROBLEM, planners=("evolution",), seeds=1, budget=FEW).baseline == "evolution"
    assert run_comparison(PROBLEM, planners=names, seeds=1, budget=FEW, baseline="random").baseline == "random"


def test_all_planners_are_compared_unless_some_are_named(monkeypatch):
    monkeypatch.setattr(registry, "_PLANNERS", {name: registry._PLANNERS[name] for name in QUICK})
    comparison = run_comparison(PROBLEM, seeds=1, budget=FEW)
    assert set(comparison.planners) == set(QUICK)


def test_a_planner_without_a_plan_leaves_the_others_alone():
    comparison = run_comparison(PROBLEM, planners=("refusing", "never", "rank-order"), seeds=3, budget=FEW)
    refusing, never, in_order = comparison.summaries()
    assert (refusing.runs, refusing.failed) == (2, 1)
    assert "1 GiB" in refusing.error
    assert (never.runs, never.failed, never.best, never.ratio) == (0, 3, None, None)
    assert in_order.runs == 3
    assert not comparison.cancelled


def test_if_every_planner_refuses_the_reason_is_raised():
    with pytest.raises(InvalidInput, match="never"):
        run_comparison(PROBLEM, planners=("never",), seeds=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"planners": ("rank-order", "nobody")}, "nobody"),
        ({"planners": ("random", "random")}, "random is there twice"),
        ({"planners": ()}, "planners: must name at least one of"),
        ({"seeds": 0}, "seeds: must be from 1"),
        ({"seeds": (1, 1)}, "different"),
        ({"seeds": (-1,)}, "from 0 on"),
        ({"seeds": ()}, "seeds"),
        ({"budget": "soon"}, "budget"),
        ({"planners": QUICK, "baseline": "evolution"}, "baseline: must be one of the planners"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(options, words):
    def never(event):
        raise AssertionError("a search has begun")

    with pytest.raises(InvalidInput, match=words):
        run_comparison(PROBLEM, **options, on_event=never)


def test_events_tell_how_far_it_is():
    news = []
    run_comparison(PROBLEM, planners=QUICK, seeds=2, budget=FEW, on_event=news.append)
    assert [(n.planner, n.seed) for n in news if n.event.phase == "done"] == [(p, s) for s in (0, 1) for p in QUICK]
    assert {n.total for n in news} == {4}
    assert [n.done for n in news] == sorted(n.done for n in news)


def test_an_interrupt_keeps_what_is_done():
    comparison = hp.compare_planners(PROBLEM, planners=("rank-order", "interrupted"), seeds=5, budget=FEW)
    done = [("rank-order", 0), ("interrupted", 0), ("rank-order", 1), ("interrupted", 1), ("rank-order", 2)]
    assert [(row.planner, row.seed) for row in comparison.rows] == done
    assert comparison.cancelled
    assert comparison.summaries()[1].runs == 2


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupt_while_a_planner_counts_keeps_what_is_done(monkeypatch, presses):
    """Once: the planner ends. Twice: it is not waited for."""
    more = Listing.more

    def interrupted(listing, most):
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return more(listing, most)

    monkeypatch.setattr(Listing, "more", interrupted)
    sample = load_cluster(Path(LAB).with_name("dtfm_2_spot.json"))
    task = Problem(
        cluster=sample, workload=preset("gpt3-xl"), objective="dtfm", constraints=Constraints(stages=8, replicas=8)
    )
    comparison = hp.compare_planners(task, planners=("rank-order", "exhaustive"), seeds=2, budget="600 s")
    assert [(row.planner, row.seed) for row in comparison.rows] == [("rank-order", 0)]
    assert comparison.cancelled


def test_csv_and_data_hold_every_search():
    comparison = run_comparison(PROBLEM, planners=("refusing", "random"), seeds=2, budget=FEW)
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert [(row["planner"], row["seed"]) for row in rows] == [
        ("refusing", "0"),
        ("random", "0"),
        ("refusing", "1"),
        ("random", "1"),
    ]
    assert float(rows[1]["value"]) == comparison.results("random")[0].value
    assert rows[2]["value"] == ""
    assert "1 GiB" in rows[2]["error"]
    data = json.loads(json.dumps(comparison.to_data(), allow_nan=False))
    assert [planner["planner"] for planner in data["planners"]] == ["refusing", "random"]
    assert len(data["rows"]) == 4


def compare(*arguments):
    shape = ("--stages", "2", "--replicas", "2", "--evaluations", "300")
    return CliRunner().invoke(app, ["compare", LAB, "tiny-gpt", *shape, *arguments])


def test_the_command_prints_a_table_and_writes_csv(tmp_path):
    out = tmp_path / "rows.csv"
    done = compare(
        "--planners", "random,rank-order,refusing", "--seeds", "3", "--baseline", "rank-order", "-o", str(out)
    )
    assert done.exit_code == 0, done.output
    assert "median of rank-order" in done.stdout
    assert "refusing: 1 of 3 searches gave no plan" in done.stdout
    assert len(out.read_text().splitlines()) == 1 + 9


def test_the_command_prints_json():
    done = compare("--planners", "evolution,rank-order", "--seeds", "2", "--json")
    data = json.loads(done.stdout)
    assert data["objective"] == "step-time"
    assert data["baseline"] == "rank-order"
    assert [(p["planner"], p["runs"]) for p in data["planners"]] == [("evolution", 2), ("rank-order", 2)]
    assert data["planners"][0]["median"] <= data["planners"][1]["median"]


def test_the_command_keeps_what_is_done_when_interrupted():
    done = compare("--planners", "rank-order,interrupted", "--seeds", "4")
    assert done.exit_code == 0, done.output
    assert "stopped after 5 searches" in done.stdout
