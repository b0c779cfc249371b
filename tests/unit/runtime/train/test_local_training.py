"""Local steps on real tensors: against the same algorithm in one process by torch's own optimisers."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from hetplanner.codecs.spec import Codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.action import Kind
from hetplanner.plan.model import OuterOptimizer, Plan, Route
from hetplanner.plan.parts import parts_of, shares_of
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.rng import RngKey
from hetplanner.runtime.train.data import open_batches
from hetplanner.schedule.order import make_schedule
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.training.threaded_ranks import ThreadedRanks

# A file that stays as it is: the default, the sources of Python, differs from release to release.
TEXT = Path(__file__).parents[3] / "benchmarks" / "training" / "fusionllm.json"
CONFIG = TrainConfig(steps=6, seed=3, learning_rate=3e-3, warmup_steps=0, data=str(TEXT))
OUTER = OuterOptimizer()


def local_plan(shares=(2, 1), cuts=(2,), steps=3, outer=OUTER, **options) -> Plan:
    workload = tiny_workload(layers=1, global_batch=2 * sum(shares))
    return chain_plan(shares, cuts, workload=workload, **options).replace(local_steps=steps, outer=outer)


def with_codec(plan: Plan, codec: Codec) -> Plan:
    stages = tuple(stage.replace(reduce_codec=codec, error_feedback=True) for stage in plan.stages)
    return plan.replace(stages=stages)


def ragged_plan(steps=2) -> Plan:
    """Stages of one, two and two replicas; the embedding is tied between the first and the last."""
    plan = chain_plan([3, 1], [3, 5], cluster=small_cluster(6), workload=tiny_workload(layers=2, global_batch=8))
    first, second, third = plan.stages
    ids = plan.problem.cluster.device_ids
    stages = (
        first.replace(replicas=((ids[0],),)),
        second.replace(replicas=((ids[1],), (ids[2],))),
        third.replace(replicas=((ids[3],), (ids[4],))),
    )
    routes = (Route(replicas=(0, 0, 0), micro_batches=3), Route(replicas=(0, 1, 1), micro_batches=1))
    return plan.replace(stages=stages, routes=routes, ranks=ids[:5], local_steps=steps, outer=OUTER)


def by_torch(plan: Plan, config: TrainConfig) -> tuple[torch.Tensor, list[float]]:
    """DiLoCo in one process: the weights of the whole model after all steps, and the losses."""
    workload, size = plan.problem.workload, len(plan.problem.workload.graph.ops)
    batches, routes = open_batches(config, workload), range(len(plan.routes))
    models = [StageModel(workload, 0, size, config.seed) for _ in routes]
    inner = [
        torch.optim.AdamW(
            [
                {"params": [w for w in model.parameters if w.ndim >= 2], "weight_decay": config.weight_decay},
                {"params": [w for w in model.parameters if w.ndim < 2], "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
        )
        for model in models
    ]
    anchor = models[0].flat.detach().clone()
    cuts = [f * anchor.numel() // plan.fragments for f in range(plan.fragments + 1)]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    anchors, outers = [anchor[part] for part in parts], []
    for own in anchors:
        outers.append(torch.optim.SGD([own], lr=1.0))
        if plan.outer:
            momentum = plan.outer.momentum
            outers[-1] = torch.optim.SGD([own], plan.outer.learning_rate, momentum, nesterov=momentum > 0)
    losses = []
    for step in range(config.steps):
        losses.append(0.0)
        for r, route in enumerate(plan.routes):
            inner[r].zero_grad(set_to_none=False)
            for m in [m for m, of in enumerate(plan.route_of_micro_batch) if of == r]:
                loss = models[r].forward(None, batches.draw(step, m), RngKey(config.seed, step, m))
                (loss / (route.micro_batches * workload.micro_batch * workload.seq_len)).backward()
                losses[-1] += float(loss.detach()) / workload.tokens_per_step
            if config.clip_norm:
                torch.nn.utils.clip_grad_norm_(models[r].parameters, config.clip_norm)
            inner[r].step()
        fragment = plan.fragment_at(step)
        if fragment is not None:
            own, part = anchors[fragment], parts[fragment]
            weights = [route.micro_batches / workload.num_micro_batches for route in plan.routes]
            changes = [w * (own - model.flat[part]) for w, model in zip(weights, models, strict=True)]
            own.grad = sum(changes).detach()
            outers[fragment].step()
            for model in models:
                model.flat.data[part].copy_(own)
    return anchor, losses


SLOW_OUTER = OuterOptimizer(learning_rate=0.4, momentum=0.0)


@pytest.mark.parametrize(("steps", "outer"), [(1, OUTER), (3, OUTER), (3, None), (3, SLOW_OUTER)], ids=str)
def test_one_stage_equals_the_algorithm_in_one_process(steps, outer):
    plan = local_plan(cuts=(), steps=steps, outer=outer)
    expected, expected_losses = by_torch(plan, CONFIG)
    ranks = ThreadedRanks(plan, CONFIG)
    losses = [ranks.run_step(step) for step in range(CONFIG.steps)]
    one, two = ranks.weights(0)
    assert torch.equal(one, two)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert torch.allclose(one, expected, atol=2e-5)


def test_pipelines_with_a_tied_weight_equal_the_algorithm_in_one_process():
    config = CONFIG.replace(clip_norm=0.5)
    plan = local_plan(outer=OUTER)
    ranks = ThreadedRanks(plan, config)
    _, expected = by_torch(plan, config)
    losses = []
    for step in range(config.steps):
        losses.append(ranks.run_step(step))
        first, last = ranks.tied(0, "embedding"), ranks.tied(1, "embedding")
        assert all(torch.equal(a, b) for a, b in zip(first, last, strict=True)), "pipelines keep their weight tied"
        for stage in range(2):
            one, two = ranks.weights(stage)
            assert torch.equal(one, two) == (plan.fragment_at(step) == 0)
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("steps", "fragments", "outer"), [(3, 3, OUTER), (4, 2, None), (5, 2, SLOW_OUTER)], ids=str)
def test_fragments_equal_the_algorithm_in_one_process(steps, fragments, outer):
    config = CONFIG.replace(steps=2 * steps)
    plan = local_plan(cuts=(), steps=steps, outer=outer).replace(fragments=fragments)
    expected, expected_losses = by_torch(plan, config)
    ranks = ThreadedRanks(plan, config)
    parts = {g.fragment: slice(g.first_element, g.first_element + g.num_elements) for g in reduction_groups(plan)}
    losses = []
    for step in range(config.steps):
        losses.append(ranks.run_step(step))
        due, (one, two) = plan.fragment_at(step), ranks.weights(0)
        equal = [f for f, part in parts.items() if torch.equal(one[part], two[part])]
        assert equal == ([] if due is None else [due]), "the fragment that was averaged, and no other"
        if due is not None and step >= config.steps - steps:
            assert torch.allclose(one[parts[due]], expected[parts[due]], atol=2e-5)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    ranks.each(lambda executor: executor.meet())
    met, again = ranks.weights(0)
    assert torch.equal(met, again)
    assert torch.allclose(met, 2 / 3 * one + 1 / 3 * two, atol=1e-6), "at the end all meet at their mean"


def test_a_tied_weight_is_averaged_with_fragment_0():
    plan = local_plan(steps=4).replace(fragments=3)
    ranks = ThreadedRanks(plan, CONFIG)
    for step in range(5):
        ranks.run_step(step)
        first, last = ranks.tied(0, "embedding"), ranks.tied(1, "embedding")
        assert all(torch.equal(a, b) for a, b in zip(first, last, strict=True)), "pipelines keep their weight tied"
        assert torch.equal(*first) == (plan.fragment_at(step) == 0)


@pytest.mark.parametrize(
    "plan",
    [
        local_plan(shares=(1, 1, 1), cuts=()).replace(reducer="hierarchical"),
        with_codec(local_plan(shares=(1, 1, 1)), Codec(name="topk", ratio=20.0)),
        with_codec(local_plan(shares=(1, 1)), Codec(name="powersgd", rank=4)).replace(reducer="ring"),
        interleave(chain_plan([2, 2], [4], workload=tiny_workload(layers=4, global_batch=8))),
        ragged_plan(),
    ],
    ids=["hierarchical", "topk", "powersgd", "interleaved", "ragged"],
)
def test_replicas_are_equal_on_the_fragment_just_averaged(plan):
    plan = plan.replace(local_steps=3, outer=OUTER, fragments=2)
    ranks = ThreadedRanks(plan, CONFIG)
    losses = []
    for step in range(6):
        losses.append(ranks.run_step(step))
        for group in reduction_groups(plan):
            if not group.tied and group.fragment == plan.fragment_at(step):
                part = slice(group.first_element, group.first_element + group.num_elements)
                assert all(torch.equal(a[part], b[part]) for a, b in pairwise(ranks.weights(group.stages[0])))
    assert losses[-1] < losses[0]
    ranks.each(lambda executor: executor.meet())
    for stage in range(len(plan.stages)):
        assert all(torch.equal(a, b) for a, b in pairwise(ranks.weights(stage)))


def test_a_synchronisation_sends_a_fragment():
    plan = local_plan(cuts=(), steps=4)
    sent = {}
    for fragments in (1, 4):
        ranks = ThreadedRanks(plan.replace(fragments=fragments), CONFIG)
        sent[fragments] = []
        for step in range(4):
            ranks.run_step(step)
            sent[fragments].append(ranks.executors[0].stats.reduce_bytes)
    assert sum(sent[1]) == sent[1][3] == sum(sent[4])
    assert max(sent[4]) <= sent[1][3] / 4 + 8


def test_replicas_of_a_ragged_plan_are_equal_after_each_synchronisation():
    plan = ragged_plan()
    ranks = ThreadedRanks(plan, CONFIG)
    losses = [ranks.run_step(step) for step in range(CONFIG.steps)]
    assert losses[-1] < losses[0]
    for stage in (1, 2):
        assert torch.equal(*ranks.weights(stage))
    assert all(torch.equal(copy, ranks.tied(0, "embedding")[0]) for copy in ranks.tied(2, "embedding"))


@pytest.mark.parametrize("reducer", ["ring", "hierarchical"])
@pytest.mark.parametrize(
    "codec", [Codec(name="int4"), Codec(name="topk", ratio=20.0), Codec(name="powersgd", rank=4)], ids=str
)
def test_codecs_with_error_feedback_leave_replicas_equal(reducer, codec):
    plan = local_plan(shares=(1, 1, 1), steps=2).replace(reducer=reducer)
    plan = with_codec(plan, codec)
    ranks = ThreadedRanks(plan, CONFIG)
    losses = [ranks.run_step(step) for step in range(CONFIG.steps)]
    assert losses[-1] < losses[0]
    for stage in range(2):
        weights = ranks.weights(stage)
        assert all(torch.equal(a, b) for a, b in pairwise(weights))


def test_interleaved_pipelines_keep_their_weights_tied_and_meet():
    workload = tiny_workload(layers=4, global_batch=8)
    plan = interleave(chain_plan([2, 2], [4], workload=workload)).replace(local_steps=2, outer=OUTER)
    ranks = ThreadedRanks(plan, CONFIG.replace(clip_norm=1.0))
    losses = [ranks.run_step(step) for step in range(4)]
    assert losses[-1] < losses[0]
    for stage in range(len(plan.stages)):
        assert torch.equal(*ranks.weights(stage))
    last = len(plan.stages) - 1
    assert torch.equal(ranks.tied(0, "embedding")[0], ranks.tied(last, "embedding")[1])


def test_replicas_in_the_middle_of_their_steps_meet_at_their_mean():
    plan = local_plan(cuts=(), shares=(3, 1), steps=4, outer=OUTER)
    ranks = ThreadedRanks(plan, CONFIG)
    for step in range(2):
        ranks.run_step(step)
    one, two = ranks.weights(0)
    ranks.each(lambda executor: executor.meet())
    met, again = ranks.weights(0)
    assert torch.equal(met, again)
    assert torch.allclose(met, 0.75 * one + 0.25 * two, atol=1e-6)
    ranks.run_step(2)
    ranks.run_step(3)
    ranks.each(lambda executor: executor.meet())  # equal already
    assert torch.equal(*ranks.weights(0))


@pytest.mark.parametrize("fragments", [1, 2])
def test_what_steps_carry_on_is_state_that_can_be_saved_and_taken_back(fragments):
    plan = local_plan(steps=2).replace(fragments=fragments)
    plan = with_codec(plan, Codec(name="topk", ratio=10.0))
    ranks, resumed = ThreadedRanks(plan, CONFIG), ThreadedRanks(plan, CONFIG)
    for step in range(3):
        ranks.run_step(step)
    for old, new in zip(ranks.executors, resumed.executors, strict=True):
        new.reductions.load_state({name: tensor.clone() for name, tensor in old.reductions.state().items()})
        for chunk, other in zip(old.chunks, new.chunks, strict=True):
            other.model.flat.data.copy_(chunk.model.flat)
            for part, tensor in other.optimizer.states.items():
                tensor.copy_(chunk.optimizer.states[part])
            other.optimizer.num_steps = chunk.optimizer.num_steps
        new.completed_steps = old.completed_steps
    for step in range(3, 6):
        assert ranks.run_step(step) == resumed.run_step(step)
    assert all(torch.equal(a, b) for s in range(2) for a, b in zip(ranks.weights(s), resumed.weights(s), strict=True))
    with pytest.raises(InvalidInput, match="resume with the plan that was saved"):
        resumed.executors[0].reductions.load_state({})


# -- the plan's side -----------------------------------------------------------------------------


def test_parts_are_pipelines_and_their_shares_add_up():
    plan = local_plan(shares=(3, 1))
    assert [part.places for part in parts_of(plan, [0, 1])] == [((0, 0), (1, 0)), ((0, 1), (1, 1))]
    assert shares_of(plan, [0]) == {(0, 0): 0.75, (0, 1): 0.25}
    assert shares_of(plan, [0, 1]) == {(0, 0): 0.375, (1, 0): 0.375, (0, 1): 0.125, (1, 1): 0.125}
    (all_of_ragged,) = parts_of(ragged_plan(), [0, 1, 2])
    assert len(all_of_ragged.places) == 5
    assert [part.micro_batches for part in parts_of(ragged_plan(), [1, 2])] == [3, 1]
    assert sum(shares_of(ragged_plan(), [0, 2]).values()) == pytest.approx(1.0)


def test_what_is_averaged_is_reduced_in_the_last_local_step_alone():
    plan = local_plan()
    groups = reduction_groups(plan)
    assert [g.every_step for g in groups] == [True, True, False, False, False]
    assert [g.ranks for g in groups if g.every_step] == [(0, 2), (1, 3)]
    for synchronises in (True, False):
        for rank in range(4):
            actions = make_schedule(plan, synchronises=synchronises).of_rank(rank)
            reduced = [groups[a.group].every_step for a in actions if a.kind is Kind.REDUCE]
            assert reduced == [True] + [False] * (2 * synchronises), "what happens in every step comes first"
            assert actions[-1].kind is Kind.STEP
    every = plan.replace(local_steps=1, outer=None)
    assert make_schedule(every) == make_schedule(every, synchronises=False)
    assert all(group.every_step for group in reduction_groups(every))
