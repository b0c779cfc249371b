"""Local steps: the closed form, the event engine and the kernels agree on the mean step; bounds stay below."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.cost.advice.reductions import advise_reductions
from hetplanner.cost.bounds.lower_bounds import bound_step
from hetplanner.cost.check import check_plan, peak_bytes
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.cost.reduction import reduction_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.plan.model import OuterOptimizer, Plan
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.attribution import attribute_gain
from hetplanner.simulator.simulation import simulate, summarise_plan, summarise_trace
from hetplanner.simulator.timing import simulate_step_s, simulate_times
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster, tied_workload, tiny_workload
from tests.support.plans.random_plans import random_plan

seeds = st.integers(0, 2**32 - 1)


fragmented = st.integers(1, 6).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(1, steps)))


def local(plan: Plan, steps: int, fragments: int = 1) -> Plan:
    constraints = plan.problem.constraints.replace(max_local_steps=steps)
    return plan.replace(
        problem=plan.problem.replace(constraints=constraints),
        local_steps=steps,
        outer=OuterOptimizer(),
        fragments=fragments,
        estimate=None,
    )


@settings(max_examples=60, deadline=None)
@given(seeds, fragmented)
def test_the_kernels_mean_step_is_the_engines(seed: int, shape: tuple[int, int]) -> None:
    plan = local(random_plan(seed, zero=False), *shape)
    summary = summarise_plan(plan)
    assert simulate_step_s(plan) == pytest.approx(summary.step_s, rel=1e-9)
    busy = simulate_times(plan).busy_s_N
    rows = [row["compute"] + row["optimizer"] for row in summary.per_rank]
    assert rows == pytest.approx(busy.tolist(), rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(2, 5))
def test_reductions_of_stages_are_in_the_last_step_alone(seed: int, steps: int) -> None:
    plan = local(random_plan(seed, zero=False), steps)
    trace = simulate(plan, steps=2 * steps)
    per_step = [sum(s.bytes for s in trace.spans if s.kind == "reduce" and s.step == k) for k in range(2 * steps)]
    often, averaged = (
        sum(g.transfer_bytes(t) for g in reduction_groups(plan) if g.every_step is every for t in g.program)
        for every in (True, False)
    )
    assert per_step == ([often] * (steps - 1) + [often + averaged]) * 2
    # Steps run into each other, so a cycle takes hardly longer than its steps one by one.
    assert trace.end_s <= 2 * steps * summarise_plan(plan).step_s * 1.1


@settings(max_examples=40, deadline=None)
@given(seeds, fragmented)
def test_a_round_reduces_every_fragment_once(seed: int, shape: tuple[int, int]) -> None:
    steps, fragments = shape
    plan = local(random_plan(seed, zero=False), steps, fragments)
    trace = simulate(plan, steps=steps, first_step=0)
    for k in range(steps):
        due = [g for g in reduction_groups(plan) if g.is_due(plan.fragment_at(k))]
        sent = sum(s.bytes for s in trace.spans if s.kind == "reduce" and s.step == k)
        assert sent == sum(g.transfer_bytes(t) for g in due for t in g.program)


@settings(max_examples=60, deadline=None)
@given(seeds, fragmented)
def test_fragments_send_as_much_and_the_closed_form_gains_what_hides(seed: int, shape: tuple[int, int]) -> None:
    """A fragment's reduction hides behind the drain as the whole's does, and pays for its latency by itself."""
    steps, fragments = shape
    whole, cut = (local(random_plan(seed, zero=False), steps, f) for f in (1, fragments))
    sent = [float(reduction_bytes(plan)[2].sum()) for plan in (whole, cut)]
    # Shards and blocks of codecs are rounded up.
    assert sent[1] == pytest.approx(sent[0], rel=0.05, abs=2000)
    once, many, endless = (estimate_plan(p).step_s for p in (whole, cut, local(random_plan(seed, zero=False), 100_000)))
    assert endless * (1 - 1e-9) <= many
    if fragments == 1:
        assert many == once
    assert sum(estimate_plan(cut).terms.values()) == pytest.approx(many)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 64))
def test_the_closed_form_falls_with_local_steps_to_what_the_pipeline_takes(seed: int, steps: int) -> None:
    plan = random_plan(seed, zero=False)
    once, many = estimate_plan(local(plan, 1)), estimate_plan(local(plan, steps))
    endless = estimate_plan(local(plan, 100_000))
    assert endless.step_s * (1 - 1e-9) <= many.step_s <= once.step_s * (1 + 1e-9)
    # The mean of one step with reductions and the others without.
    alone = endless.step_s - (once.step_s - endless.step_s) / (100_000 - 1)
    assert many.step_s == pytest.approx(alone + (once.step_s - alone) / steps, rel=1e-9)
    assert sum(many.terms.values()) == pytest.approx(many.step_s)


def test_the_closed_form_is_near_the_simulated_mean() -> None:
    rng = random.Random(0)
    for _ in range(40):
        shares = [rng.randint(1, 6) for _ in range(rng.randint(2, 3))]
        cluster = small_cluster(2 * len(shares), bandwidth=rng.choice(["20 Mbit/s", "200 Mbit/s"]))
        workload = tiny_workload(layers=8, global_batch=2 * sum(shares))
        steps = rng.choice([2, 4, 16])
        for fragments in (1, 2, steps):
            plan = local(chain_plan(shares, [9], cluster=cluster, workload=workload), steps, fragments)
            assert 0.6 <= estimate_plan(plan).step_s / simulate_step_s(plan) <= 1.3


def test_a_long_synchronisation_becomes_short_ones() -> None:
    """The same bytes in a round, but no step is long; and later stages hide a part of theirs behind the drain."""
    workload = tiny_workload(layers=8, global_batch=8)
    untied = workload.replace(transformer=workload.transformer.replace(tie_embeddings=False))
    chain = chain_plan([2, 2], [1, 2, 3], cluster=small_cluster(8, bandwidth="5 Mbit/s"), workload=untied)
    steps_s = {}
    for fragments in (1, 8):
        plan = local(chain, 8, fragments)
        steps_s[fragments] = [summarise_trace(simulate(plan, first_step=k)).step_s for k in range(8)]
        assert simulate_step_s(plan) == pytest.approx(sum(steps_s[fragments]) / 8, rel=1e-9)
        assert estimate_plan(plan).step_s == pytest.approx(simulate_step_s(plan), rel=0.01)
    assert max(steps_s[8]) < 0.4 * max(steps_s[1])
    assert sum(steps_s[8]) < 0.95 * sum(steps_s[1])


def test_more_than_allowed_is_refused_and_the_note_says_what_is_not_modelled() -> None:
    plan = local(chain_plan([4, 4], [9]), 8)
    check_plan(plan)
    with pytest.raises(InvalidInput, match=r"local_steps: must be at most constraints.max_local_steps 8, got 9"):
        check_plan(plan.replace(local_steps=9))
    check_plan(local(plan, 65, 64))
    with pytest.raises(InvalidInput, match=r"fragments: stage 1 has 64 weights of its own, .* into 65 fragments"):
        check_plan(local(plan, 65, 65))
    (note,) = estimate_plan(plan).notes
    assert "quality not modelled: replicas take 8 steps by themselves" in note
    (note,) = estimate_plan(plan.replace(outer=None)).notes
    assert "then their mean" in note
    (note,) = estimate_plan(plan.replace(fragments=4)).notes
    assert "step in 4 fragments" in note


def test_anchor_and_momentum_are_held_where_there_are_replicas() -> None:
    plan = chain_plan([4, 4], [9])
    tables = CostTables(plan.problem)
    params = [tables.stage_trained(stage.first_op, stage.end_op) for stage in plan.stages]
    with_outer, mean = local(plan, 4), local(plan, 4).replace(outer=None)
    for changed, each in ((with_outer, 8), (mean, 4)):
        more = np.array(peak_bytes(changed, tables)) - np.array(peak_bytes(plan, tables))
        assert more.tolist() == [each * params[s] for _, s in plan.chunks]
    alone = local(chain_plan([8], [9]), 4)
    assert peak_bytes(alone, tables) == peak_bytes(alone.replace(local_steps=1, outer=None), tables)


def problem(most: int, *, between: str = "2 Mbit/s", **constraints: object) -> Problem:
    return Problem(
        cluster=sites_cluster([2, 2], between=(between, "50 ms")),
        workload=tiny_workload(global_batch=32),
        constraints=Constraints(max_local_steps=most, **constraints),
    )


def test_a_search_takes_local_steps_where_reductions_bind_and_only_there() -> None:
    planner = make_planner("evolution")
    once = planner.solve(problem(1), budget="2000 evaluations")
    many = planner.solve(problem(64), budget="2000 evaluations")
    assert once.plan.local_steps == 1
    assert many.plan.local_steps > 1
    assert many.plan.outer == OuterOptimizer()
    assert many.value < 0.7 * once.value
    assert many.lower_bound <= many.value
    check_plan(many.plan)
    # A single pipeline reduces nothing.
    alone = planner.solve(problem(64, replicas=1), budget="500 evaluations").plan
    assert alone.local_steps == 1
    assert alone.outer is None


def test_a_search_cuts_what_it_synchronises_into_the_fragments_asked_for() -> None:
    solution = make_planner("rank-order").solve(problem(64, stages=2, replicas=2, fragments=4))
    assert solution.plan.local_steps > 4
    assert solution.plan.fragments == 4
    check_plan(solution.plan)
    assert solution.lower_bound <= solution.value
    assert make_planner("rank-order").solve(problem(1, stages=2, replicas=2, fragments=4)).plan.fragments == 1


def test_no_more_local_steps_than_are_worth_it() -> None:
    """Doubling them gains less and less; the fewest within two per cent of the best are taken."""
    plan = make_planner("rank-order").solve(problem(65536, stages=2, replicas=2)).plan
    assert 1 < plan.local_steps < 65536
    fewer = plan.replace(local_steps=plan.local_steps // 2)
    most = plan.replace(local_steps=65536)
    best = estimate_plan(most).step_s
    assert estimate_plan(plan).step_s <= 1.02 * best * (1 + 1e-9) < estimate_plan(fewer).step_s


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 32))
def test_bounds_stay_below_plans_with_local_steps(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    wanted = Problem(
        cluster=sites_cluster([2, 2], between=(f"{rng.choice([1, 20, 500])} Mbit/s", "20 ms")),
        workload=tied_workload(rng, 12),
        constraints=Constraints(
            stages=shape[0], replicas=shape[1], max_local_steps=most, fragments=int(rng.integers(1, 4))
        ),
    )
    model = CostModel.of(wanted)
    bound = bound_step(model.tables, model.links)
    for name in ("rank-order", "random", "opfence"):
        try:
            plan = make_planner(name).solve(wanted, seed=seed).plan
        except Infeasible:
            continue
        assert bound <= estimate_plan(plan, model=model).step_s * (1 + 1e-9)
        assert bound <= summarise_trace(simulate(plan)).step_s * 1.5


def test_what_would_help_where_reductions_bind() -> None:
    """Advice is what the plan would take with the change; none where it is allowed already, or helps little."""
    plan = make_planner("rank-order").solve(problem(1, stages=2, replicas=2, reducers=("central-ps",))).plan
    text = advise_reductions(plan)
    assert text is not None
    assert re.match(r"gradient reductions take \d+% of the step: reducer ([\w-]+) would take .*; 8 local steps", text)
    slow = chain_plan([8], [9])
    assert advise_reductions(slow.replace(estimate=estimate_plan(slow))) is None
    allowed = make_planner("rank-order").solve(problem(4096, stages=2, replicas=2)).plan
    assert advise_reductions(allowed) is None
    assert advise_reductions(plan.replace(estimate=None)) is None


def test_a_gain_by_local_steps_is_told() -> None:
    gain = attribute_gain(make_planner("rank-order").solve(problem(64, stages=2, replicas=2)).plan)
    assert gain is not None
    shares = {part.name: part.share for part in gain.parts}
    assert shares["local steps"] > 0.5
