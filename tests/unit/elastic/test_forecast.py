"""An elastic plan planned, its steady-state step, and what it trains while peers come and go."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hetplanner as hp
from hetplanner.cli.app import app
from hetplanner.cli.planning.forecast import PUBLISHED_TRACES
from hetplanner.codecs.spec import Codec
from hetplanner.cost.check import check_plan
from hetplanner.cost.elastic.swarm_costs import cost_swarm
from hetplanner.cost.estimate import estimate_plan
from hetplanner.elastic.forecast import preemptions
from hetplanner.elastic.forecast.forecast import cast_lives, fleet_of, forecast_plan
from hetplanner.elastic.forecast.preemptions import Life, PreemptionTrace
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import any_plan_from_data, plan_to_data, save_plan
from hetplanner.plan.model import OuterOptimizer
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.registry import make_planner
from hetplanner.plots.data.swarms.swarms import forecast_columns
from tests.support.plans.factories import small_cluster, swarm_plan, tiny_workload, unlike_cluster

MANY = swarm_plan([6, 6], [5], workload=tiny_workload(global_batch=512))
UNLIKE = swarm_plan(
    [4, 4], [5], cluster=unlike_cluster(np.random.default_rng(3), 8), workload=tiny_workload(global_batch=256)
)


def trace(*lives, duration=1000.0):
    return PreemptionTrace(name="t", duration=duration, lives=tuple(Life(peer=p, start=a, end=b) for p, a, b in lives))


# -- planner ---------------------------------------------------------------------------------------


def solved(**constraints):
    task = Problem(
        cluster=unlike_cluster(np.random.default_rng(1), 9),
        workload=tiny_workload(),
        constraints=Constraints(**constraints),
    )
    return make_planner("swarm", {"mode": "elastic"}).solve(task)


def test_the_planner_gives_an_elastic_plan_with_the_estimate_of_its_steady_state_step():
    result = solved(stages=3)
    plan = result.elastic
    assert len(plan.stages) == 3
    assert plan.estimate == result.plan.estimate
    assert plan.estimate.replace(notes=()) == estimate_plan(hp.steady_state_plan(plan))
    assert plan.provenance == result.plan.provenance
    assert result.value == plan.estimate.step_s
    assert any_plan_from_data(json.loads(json.dumps(plan_to_data(plan)))) == plan
    check_plan(hp.steady_state_plan(plan))
    assert make_planner("swarm").solve(plan.problem).elastic is None


def test_lossy_codecs_are_for_slow_links_and_only_if_allowed():
    assert solved().elastic.activation_codec == Codec()
    slow = Problem(
        cluster=small_cluster(4, bandwidth="2 Mbit/s"),
        workload=tiny_workload(),
        constraints=Constraints(stages=2, codecs=("none", "int8", "int4", "topk")),
    )
    plan = make_planner("swarm", {"mode": "elastic"}).solve(slow).elastic
    assert plan.activation_codec.name in ("int8", "int4")
    assert plan.averaging_codec.name == "int8", "what needs feeding back cannot average in a swarm"


# -- a steady-state step -----------------------------------------------------------------------------------


def test_a_steady_state_step_wires_in_proportion_to_speed_over_all_pairs():
    steady = hp.steady_state_plan(MANY)
    assert sum(route.micro_batches for route in steady.routes) == MANY.num_micro_batches
    pairs = Counter()
    load = Counter()
    for route in steady.routes:
        pairs[route.replicas] += route.micro_batches
        for s, replica in enumerate(route.replicas):
            load[s, replica] += route.micro_batches
    assert len(pairs) == 36, "every peer meets every peer of the next stage"
    assert max(load.values()) - min(load.values()) <= 6
    assert hp.steady_state_plan(MANY) == steady
    assert hp.steady_state_plan(MANY, seed=1) != steady
    assert hp.simulate(steady).end_s > 0


def test_fast_peers_get_more_in_a_steady_state_step():
    costs, steady = cost_swarm(UNLIKE), hp.steady_state_plan(UNLIKE)
    load = Counter()
    for route in steady.routes:
        load[steady.stages[0].replicas[route.replicas[0]][0]] += route.micro_batches
    speeds = np.array([costs.speed[peer] for peer in UNLIKE.stages[0].peers])
    shares = np.array([load[peer] for peer in UNLIKE.stages[0].peers]) / UNLIKE.num_micro_batches
    assert shares == pytest.approx(speeds / speeds.sum(), abs=0.02)


def test_codecs_of_the_plan_are_those_of_its_steady_state_step():
    plan = MANY.replace(activation_codec=Codec(name="int8"), averaging_codec=Codec(name="fp16"))
    steady = hp.steady_state_plan(plan)
    assert {(rule.role, rule.codec.name) for rule in steady.link_codecs} == {("activation", "int8")}
    assert {stage.reduce_codec.name for stage in steady.stages} == {"fp16"}


# -- forecasts -------------------------------------------------------------------------------------


def test_costs_are_those_of_the_estimate():
    costs = cost_swarm(MANY)
    assert sum(costs.load_S) == pytest.approx(1.0)
    assert len(set(costs.speed.values())) == 1
    capacity = min(6 * next(iter(costs.speed.values())) / load for load in costs.load_S)
    step_s = MANY.num_micro_batches * (1 / capacity + costs.overhead_s)
    assert step_s == pytest.approx(estimate_plan(hp.steady_state_plan(MANY)).step_s)


def test_without_preemptions_a_swarm_trains_as_in_a_steady_state_step():
    still = trace(*((peer, 0.0, 1000.0) for peer in MANY.peers))
    stay = MANY.rebalancing.replace(policy="none")
    found = forecast_plan(MANY, cost_swarm(MANY), still, range(2), rebalancing=stay)
    assert found.share_of_steady_state == pytest.approx(1.0)
    assert found.stalled == 0
    assert found.tokens_per_s.p05 == found.tokens_per_s.p95


def test_a_trace_that_names_the_devices_is_taken_as_it_is():
    costs = cost_swarm(UNLIKE)
    gone = [(peer, 0.0, 500.0 if peer in UNLIKE.stages[0].peers else 1000.0) for peer in UNLIKE.peers]
    cast, stages = cast_lives(trace(*gone), UNLIKE, costs, 0)
    assert stages == UNLIKE.stage_of_peer
    assert [life.speed for life in cast.lives] == [costs.speed[life.peer] for life in cast.lives]
    still = UNLIKE.rebalancing.replace(policy="none")
    found = forecast_plan(UNLIKE, costs, trace(*gone), [0], rebalancing=still)
    assert found.stalled == pytest.approx(0.5)
    assert found.share_of_steady_state == pytest.approx(0.5, rel=0.1)
    moved = forecast_plan(UNLIKE, costs, trace(*gone), [0], download_s=1.0)
    assert moved.stalled < 0.01
    assert moved.runs[0].moves


def test_other_traces_become_fleets_of_the_plans_size_on_its_devices():
    costs = cost_swarm(UNLIKE)
    zone = trace(("a", 0.0, 1000.0), ("b", 0.0, 1000.0), ("c", 200.0, 700.0), ("d", 100.0, 600.0))
    fleet = fleet_of(zone, UNLIKE, seed=0)
    assert len(fleet.lives) >= 3 * len(zone.lives) - 1
    cast, stages = cast_lives(fleet, UNLIKE, costs, 0)
    start = [life for life in cast.lives if life.start == 0]
    assert set(stages) == {life.peer for life in start}
    assert len({life.speed for life in cast.lives}) == len(set(costs.speed.values()))
    if len(start) <= 8:
        of_start = Counter(life.speed for life in start)
        assert of_start <= Counter(costs.speed.values()), "at the start each stands for another device"
    assert cast_lives(fleet, UNLIKE, costs, 0)[0] == cast
    assert cast_lives(fleet, UNLIKE, costs, 1)[0] != cast


def test_rebalancing_brings_more_than_none_and_the_spread_holds_the_mean():
    found = hp.forecast(
        UNLIKE, lifetime_s=3600.0, duration_s=6 * 3600.0, seeds=4, policies=("none", "throughput"), download_s=120.0
    )
    none, ours = found["none"], found["throughput"]
    assert ours.tokens_per_s.mean > none.tokens_per_s.mean
    assert ours.share_of_optimal > none.share_of_optimal
    assert ours.share_of_late > none.share_of_late
    assert 0.8 < ours.share_of_late < 1.1
    assert ours.tokens_per_s.p05 <= ours.tokens_per_s.mean <= ours.tokens_per_s.p95
    assert len(ours.runs) == 4
    assert hp.plots.swarm_throughput({name: each.runs[0] for name, each in found.items()})
    assert np.mean(ours.tokens_of_runs) == pytest.approx(ours.tokens_per_s.mean)
    rows = forecast_columns(found)
    assert rows["label"] == ["none"] * 4 + ["throughput"] * 4
    assert rows["tokens"] == [*none.tokens_of_runs, *ours.tokens_of_runs]
    assert hp.plots.swarm_forecast(found)
    with pytest.raises(InvalidInput, match="at least one forecast"):
        hp.plots.swarm_forecast({})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give a trace, or a mean life"),
        ({"preemptions": "bamboo_p2", "lifetime_s": 60.0}, "give a trace, or a mean life"),
        ({"preemptions": "nothing.json"}, "nothing.json: no such file"),
        ({"lifetime_s": 60.0, "seeds": 0}, "seeds: must be from 1"),
        ({"lifetime_s": 60.0, "seeds": 10**12}, "seeds: must be from 1 to 1000"),
        ({"lifetime_s": -1.0}, "must be above 0"),
        ({"lifetime_s": 60.0, "duration_s": 600.0, "download_s": -1.0}, "download_s: must be 0 or more"),
    ],
)
def test_wrong_forecasts_are_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        hp.forecast(MANY, **given)


# -- command line ----------------------------------------------------------------------------------


def test_the_command_line_plans_and_forecasts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hp.save_cluster(small_cluster(6), "cluster.json")
    plan = ("plan", "cluster.json", "tiny-gpt", "--mode", "elastic", "--stages", "2", "--rebalancing", "queue")
    runner = CliRunner()
    done = runner.invoke(app, [*plan, "-o", "swarm.json"])
    assert done.exit_code == 0, done.output
    assert "elastic, 3+3 peers, rebalancing queue" in done.stdout
    data = json.loads(runner.invoke(app, [*plan, "--json"]).stdout)
    assert data["mode"] == data["plan"]["mode"] == "elastic"
    untied = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    untied |= {"num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False}
    Path("config.json").write_text(json.dumps(untied))
    rounds = ("plan", "cluster.json", "config.json", *plan[3:], "--local-steps", "8", "-o", "rounds.json")
    text = runner.invoke(app, rounds)
    assert "rounds of 8 local steps" in text.stdout, text.output
    assert "quality not modelled: replicas take 8 steps by themselves" in text.stdout
    chosen = hp.load_elastic_plan("rounds.json")
    assert (chosen.local_steps, chosen.outer) == (8, OuterOptimizer())
    assert (
        chosen.estimate.step_s
        < hp.estimate_plan(hp.steady_state_plan(chosen.replace(local_steps=1, outer=None))).step_s
    )
    told = json.loads(runner.invoke(app, [*rounds, "--json"]).stdout)
    assert told["step_s"] == told["value"] == chosen.estimate.step_s
    assert told["gap"] is None, "the bound of the search is of steps that all agree"
    refused = runner.invoke(app, [*plan, "--local-steps", "8"])
    assert "where stages share a weight" in str(refused.exception)
    late = runner.invoke(app, [*plan, "--delayed-updates", "-o", "late.json"])
    assert "updates delayed by a step" in late.stdout
    assert "quality not modelled: delayed updates" in late.stdout
    saved = hp.load_elastic_plan("swarm.json")
    assert hp.load_elastic_plan("late.json").replace(delayed_updates=False).stages == saved.stages
    assert hp.load_elastic_plan("late.json").delayed_updates
    assert isinstance(saved, ElasticPlan)
    assert not saved.delayed_updates
    assert saved.stages == any_plan_from_data(data["plan"]).stages
    steady = json.loads(runner.invoke(app, ["simulate", "swarm.json", "--json"]).stdout)
    assert steady["step_s"] > 0
    storm = ("simulate", "swarm.json", "--lifetime", "2h", "--duration", "4h", "--seeds", "3")
    found = json.loads(runner.invoke(app, [*storm, "--policies", "none,throughput", "--json"]).stdout)
    assert set(found["policies"]) == {"none", "throughput"}
    assert len(found["policies"]["none"]["shares_of_optimal"]) == 3
    text = runner.invoke(app, ["simulate", "swarm.json", "--preemptions", "bamboo_p2", "--seeds", "2"]).stdout
    assert "Expected throughput" in text
    assert "queue" in text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("plan", "c.json", "tiny-gpt", "--mode", "liquid"), "--mode: must be static or elastic"),
        (("plan", "c.json", "tiny-gpt", "--mode", "elastic", "--planner", "evolution"), "only planner swarm"),
        (("plan", "c.json", "tiny-gpt", "--rebalancing", "queue"), "add --mode elastic"),
        (("plan", "c.json", "tiny-gpt", "--delayed-updates"), "add --mode elastic"),
        (("plan", "c.json", "tiny-gpt", "--local-steps", "4"), "add --mode elastic, or take --max-local-steps"),
        (
            ("plan", "c.json", "tiny-gpt", "--mode", "elastic", "--local-steps", "4", "--delayed-updates"),
            "does not go with --local-steps",
        ),
        (
            ("plan", "c.json", "tiny-gpt", "--mode", "elastic", "--rebalancing", "magic"),
            "--rebalancing: must be",
        ),
        (("simulate", "static.json", "--lifetime", "1h"), "mode: must be 'elastic' here"),
        (("simulate", "swarm.json", "--lifetime", "1h", "--policies", "magic"), "--policies: must be among"),
        (("simulate", "swarm.json", "--lifetime", "1 parsec"), "parsec"),
        (("simulate", "swarm.json", "--lifetime", "1h", "--preemptions", "bamboo_p2"), "one of the two"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    hp.save_cluster(small_cluster(4), "c.json")
    save_plan(swarm_plan([2, 2], [5]), "swarm.json")
    save_plan(hp.steady_state_plan(swarm_plan([2, 2], [5])), "static.json")
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, InvalidInput), refused.output
    assert words in str(refused.exception)


def test_the_command_line_names_the_published_traces():
    assert PUBLISHED_TRACES == preemptions.PUBLISHED_TRACES
