"""Uncompressed runs equal one process; lossy codecs stay close; what travels is counted."""

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import Codec
from hetplanner.plan.model import LinkCodec, OuterOptimizer, Plan, Route, Stage
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.registry import make_planner
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime import session
from hetplanner.runtime.comm import wire
from hetplanner.runtime.comm.wire import PairWire
from hetplanner.runtime.measure.profile import WINDOW_S
from hetplanner.runtime.model.sample import generate, load_model
from hetplanner.runtime.train.reference import train_reference
from hetplanner.schedule.order import make_schedule
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster
from tests.support.plans.factories import small_gpt as gpt
from tests.support.training.real_ranks import Ranks, train

pytestmark = pytest.mark.distributed

STEPS, FEW = 30, 10
LONG = ("2x2 uneven layers and shares, another order", "1-3-2 ragged", "2x2 interleaved, two chunks")
"""Of these plans losses are compared over `STEPS`, of the others over `FEW`."""


def llama(*, global_batch: int = 16) -> Workload:
    return gpt(global_batch=global_batch, family="llama", kv_heads=1, heads=4, tie_embeddings=False)


def ragged_plan(workload: Workload, cluster: Cluster | None = None) -> Plan:
    """1, 3 and 2 replicas; one replica of the last stage serves two routes."""
    cluster = cluster or small_cluster(6)
    ids = cluster.device_ids
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=(
            Stage(first_op=0, end_op=3, replicas=((ids[3],),), in_flight=5),
            Stage(first_op=3, end_op=8, replicas=((ids[0],), (ids[1],), (ids[5],)), in_flight=2),
            Stage(first_op=8, end_op=len(workload.graph.ops), replicas=((ids[2],), (ids[4],)), in_flight=1),
        ),
        routes=(
            Route(replicas=(0, 0, 0), micro_batches=4),
            Route(replicas=(0, 1, 1), micro_batches=3),
            Route(replicas=(0, 2, 1), micro_batches=1),
        ),
        ranks=ids,
    )


def back_and_forth_plan(workload: Workload, replicas: int) -> Plan:
    """Three stages on two devices a route: the first device serves the embedding and the head, which are one weight."""
    cluster = small_cluster(2 * replicas)
    ids = cluster.device_ids
    outer, inner = (tuple((d,) for d in part) for part in (ids[:replicas], ids[replicas:]))
    edges = (0, 3, 8, len(workload.graph.ops))
    return Plan(
        problem=Problem(cluster=cluster, workload=workload),
        stages=tuple(
            Stage(first_op=a, end_op=b, replicas=where, in_flight=2)
            for (a, b), where in zip(itertools.pairwise(edges), (outer, inner, outer), strict=True)
        ),
        routes=tuple(Route(replicas=(r,) * 3, micro_batches=8 // replicas) for r in range(replicas)),
        schedule="interleaved",
        ranks=ids,
    )


def recomputed(plan: Plan) -> Plan:
    return plan.replace(stages=tuple(stage.replace(recompute=True) for stage in plan.stages))


def in_another_order(plan: Plan) -> Plan:
    """In that of devices a thousand times as slow, which begin with the backwards earlier."""
    other = plan.replace(order_scale=1000.0)
    assert make_schedule(other).actions != make_schedule(plan).actions
    return other


PLANS = {
    "2x2 uneven layers and shares, another order": lambda: in_another_order(
        chain_plan([5, 3], [3], cluster=small_cluster(4, latency="1 ms"), workload=gpt(), in_flight=[5, 5])
    ),
    "3x2 uneven": lambda: chain_plan([7, 1], [1, 8], workload=gpt()),
    "4x1": lambda: chain_plan([8], [2, 7, 10], workload=gpt()),
    "2x2 gpipe": lambda: chain_plan([2, 6], [5], workload=gpt(), schedule="gpipe"),
    "1x2 tied inside one stage": lambda: chain_plan([3, 5], [], workload=gpt()),
    "4x1 cut before the loss": lambda: chain_plan([8], [4, 10, 11], workload=gpt()),
    "1-3-2 ragged": lambda: ragged_plan(gpt()),
    "2x2 llama": lambda: chain_plan([5, 3], [4], workload=llama()),
    "2x2 dropout": lambda: chain_plan([5, 3], [6], workload=gpt(dropout=0.1)),
    "4x2 unequal shares": lambda: chain_plan([5, 3], [2, 5, 7], workload=gpt()),
    "2x2 interleaved, two chunks": lambda: interleave(chain_plan([5, 3], [5], workload=gpt())),
    "2x2 interleaved, dropout, recompute": lambda: recomputed(
        interleave(chain_plan([4, 4], [4], workload=gpt(dropout=0.1)), in_flight=2)
    ),
    "1x2 interleaved, tied on one rank twice": lambda: back_and_forth_plan(gpt(), 1),
    "2x2 interleaved, tied on every rank of a stage twice": lambda: back_and_forth_plan(gpt(), 2),
}


@pytest.mark.parametrize("name", PLANS)
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    config = TrainConfig(steps=STEPS if name in LONG else FEW, seed=3, learning_rate=3e-3)
    model, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    losses = ranks.losses()
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 5e-5
    assert losses[-1] < losses[0] - 0.3, "the model learns"
    saved = load_file(tmp_path / "model.safetensors")
    reference = model.named_weights()
    assert saved.keys() == reference.keys()
    for weight_name, weight in reference.items():
        assert (saved[weight_name] - weight).abs().max() < 1e-3, weight_name


def in_pairs(rank: int) -> None:
    """As with nccl: a communicator for every pair and direction, on which only the order tells messages apart."""
    session.have_own_gpus = lambda device: True
    session.PairWire = partial(PairWire, backend="gloo")  # type: ignore[misc, assignment]


PAIRED = {
    "2x2 interleaved, tied on every rank of a stage twice": {},
    "2x2 interleaved, two chunks": {"clip_norm": 0.5},
    "1-3-2 ragged": {},
}


@pytest.mark.parametrize("name", PAIRED)
def test_messages_without_tags_arrive_in_the_order_in_which_they_are_sent(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]().replace(reducer="ring")
    config = TrainConfig(steps=6, seed=3, learning_rate=3e-3, **PAIRED[name])
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path, fault=in_pairs)
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 5e-5


def in_small_parts(rank: int) -> None:
    wire.LEAST_PART_BYTES = 100  # messages here are small


def test_messages_that_several_connections_carry_arrive_whole(tmp_path: Path) -> None:
    plan = PLANS["1-3-2 ragged"]()
    config = TrainConfig(steps=4, seed=3, learning_rate=3e-3)
    one = train(plan, config, tmp_path / "one").losses()
    assert train(plan, config.replace(connections=3), tmp_path / "three", fault=in_small_parts).losses() == one


REDUCED = {
    "4x1 on two sites": lambda: chain_plan([2, 3, 1, 2], [], workload=gpt(), cluster=sites_cluster((3, 1))),
    "1-3-2 on three sites, tied": lambda: ragged_plan(gpt(), sites_cluster((2, 3, 1))),
}


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
@pytest.mark.parametrize("name", REDUCED)
def test_every_reducer_equals_one_process_and_sends_what_it_declares(name: str, reducer: str, tmp_path: Path) -> None:
    plan = REDUCED[name]().replace(reducer=reducer)
    config = TrainConfig(steps=8, seed=3, learning_rate=3e-3)
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 5e-5
    declared = sum(group.transfer_bytes(t) for group in reduction_groups(plan) for t in group.program)
    assert boundary_and_reduce_bytes(ranks)[1] == 8 * declared
    assert sum(s["bytes"] for s in ranks.all_lines("span") if s["kind"] == "reduce" and s["step"] == 1) == declared


def predicted_s(plan: Plan, steps: int, run_dir: Path) -> float:
    """The predicted time of a step over emulated links; in a run of so many steps it is right to a quarter."""
    ranks = train(plan, TrainConfig(steps=steps, seed=3, emulate_links=True), run_dir, profile_s=WINDOW_S)
    predicted = json.loads((run_dir / "prediction.json").read_text())["step_s"]
    times_s = sorted(line["end_s"] - line["start_s"] for line in ranks.lines(0, "step"))
    assert 0.8 <= times_s[len(times_s) // 2] / predicted <= 1.25
    return predicted


@pytest.mark.parametrize("reducer", REDUCER_NAMES)
def test_every_reducer_takes_as_long_as_predicted_over_emulated_links(reducer: str, tmp_path: Path) -> None:
    # Links so slow that the reduction is the step, also where other processes slow the profile (by 70 ms, seen).
    cluster = sites_cluster((2, 1), inside=("100 Mbit/s", "5 ms"), between=("5 Mbit/s", "300 ms"))
    plan = chain_plan([2, 1, 1], [], workload=gpt(global_batch=8), cluster=cluster).replace(reducer=reducer)
    assert predicted_s(plan, 4, tmp_path) > 0.4, "the latency between the sites is most of it"


def test_local_steps_send_a_fraction_and_save_the_mean(tmp_path: Path) -> None:
    every = chain_plan([2, 2], [4], workload=gpt(global_batch=8))
    local = every.replace(local_steps=4, outer=OuterOptimizer())
    config = TrainConfig(steps=10, seed=3, learning_rate=3e-3, warmup_steps=2)
    runs = {name: train(plan, config, tmp_path / name) for name, plan in (("every", every), ("local", local))}
    groups = reduction_groups(local)
    sync, step = (
        sum(g.transfer_bytes(t) for g in groups if g.every_step is every_step for t in g.program)
        for every_step in (False, True)
    )
    # Steps 4 and 8 synchronise; after step 10 replicas meet, which no step counts.
    assert boundary_and_reduce_bytes(runs["local"])[1] == 2 * sync + 10 * step
    assert runs["local"].losses()[-1] < runs["local"].losses()[0] - 0.3
    assert runs["local"].losses()[-1] == pytest.approx(runs["every"].losses()[-1], rel=0.1)
    assert (tmp_path / "local" / "model.safetensors").exists()


@pytest.mark.parametrize("replicas", [1, 2])
def test_clipping_counts_every_weight_once_when_a_rank_holds_several_chunks(replicas: int, tmp_path: Path) -> None:
    plan = back_and_forth_plan(gpt(), replicas)
    config = TrainConfig(
        steps=10, seed=1, clip_norm=0.3, learning_rate=3e-3, warmup_steps=2, lr_schedule="cosine", lr_floor=0.0
    )
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 5e-5
    norms = [{line["grad_norm"] for line in ranks.all_lines("step") if line["step"] == t} for t in range(10)]
    assert all(len(n) == 1 and min(n) > 0.3 for n in norms), "all ranks clip by the same norm"


def test_chunks_take_as_long_as_predicted_over_emulated_links(tmp_path: Path) -> None:
    # Links so slow that messages are the step, also on a busy machine.
    cluster = small_cluster(4, bandwidth="4 Mbit/s", latency="60 ms")
    plan = interleave(chain_plan([5, 3], [5], workload=gpt(), cluster=cluster))
    assert predicted_s(plan, 8, tmp_path) > 0.48, "there and back over three boundaries, and the reduction"


def test_recompute_and_clipping_equal_one_process(tmp_path: Path) -> None:
    plan = recomputed(chain_plan([5, 3], [4], workload=gpt(dropout=0.1)))
    config = TrainConfig(steps=10, seed=1, clip_norm=0.5, learning_rate=3e-3)
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 5e-5
    norms = [{line["grad_norm"] for line in ranks.all_lines("step") if line["step"] == t} for t in range(10)]
    assert all(len(n) == 1 and min(n) > 0.5 for n in norms[:1]), "all ranks clip by the same norm"


def with_codec(plan: Plan, codec: Codec) -> Plan:
    """Every boundary link compressed, both ways."""
    pairs = {
        (plan.ranks[a], plan.ranks[b])
        for m in range(plan.problem.workload.num_micro_batches)
        for path in [plan.path_of_micro_batch(m)]
        for a, b in itertools.pairwise(path)
    }
    rules = [LinkCodec(from_device=a, to_device=b, role="activation", codec=codec) for a, b in sorted(pairs)]
    rules += [LinkCodec(from_device=b, to_device=a, role="gradient", codec=codec) for a, b in sorted(pairs)]
    return plan.replace(link_codecs=tuple(rules))


def boundary_and_reduce_bytes(ranks: Ranks) -> tuple[int, int]:
    lines = ranks.all_lines("step")
    return sum(x["boundary_bytes"] for x in lines), sum(x["reduce_bytes"] for x in lines)


def test_int8_stays_close_and_travels_light(tmp_path: Path) -> None:
    plan = chain_plan([5, 3], [4], workload=gpt())
    config = TrainConfig(steps=FEW, seed=0, learning_rate=3e-3)
    dense = train(plan, config, tmp_path / "dense")
    light = train(with_codec(plan, Codec(name="int8", block=256)), config, tmp_path / "int8")
    assert abs(light.losses()[-1] / dense.losses()[-1] - 1) < 0.01
    assert light.losses() != dense.losses()
    dense_boundary, dense_reduce = boundary_and_reduce_bytes(dense)
    light_boundary, light_reduce = boundary_and_reduce_bytes(light)
    # 8 micro-batches over one boundary, forth and back, 2 x 32 x 32 float32 each
    assert dense_boundary == FEW * 8 * 2 * 2 * 32 * 32 * 4
    assert light_boundary <= 0.27 * dense_boundary
    assert light_reduce == dense_reduce
    spans = [s for s in light.all_lines("span") if s["kind"] == "send"]
    assert sum(s["bytes"] for s in spans) == light_boundary


def test_fp16_and_compressed_reduction_keep_replicas_equal(tmp_path: Path) -> None:
    plan = with_codec(chain_plan([5, 3], [4], workload=gpt()), Codec(name="fp16"))
    plan = plan.replace(stages=tuple(s.replace(reduce_codec=Codec(name="int8")) for s in plan.stages))
    config = TrainConfig(steps=FEW, seed=0, learning_rate=3e-3)
    _, expected = train_reference(plan.problem.workload, config)
    ranks = train(plan, config, tmp_path)
    assert abs(ranks.losses()[-1] / expected[-1] - 1) < 0.01
    _, reduced = boundary_and_reduce_bytes(ranks)
    params = plan.problem.workload.graph.num_params
    assert reduced < 0.3 * FEW * params * 4 * 2 * 2


def test_topk_gradients_follow_the_activations_positions(tmp_path: Path) -> None:
    """A third of the elements over two boundaries, with recompute and several micro-batches in flight."""
    workload = gpt(dropout=0.1)
    plan = with_codec(chain_plan([5, 3], [4, 8], workload=workload), Codec(name="topk", ratio=3.0))
    plan = plan.replace(stages=tuple(s.replace(recompute=i == 1) for i, s in enumerate(plan.stages)))
    config = TrainConfig(steps=STEPS, seed=0, learning_rate=3e-3)
    _, expected = train_reference(workload, config)
    ranks = train(plan, config, tmp_path / "topk")
    losses = ranks.losses()
    assert losses[-1] < losses[0] - 0.5, "the model learns"
    assert abs(losses[-1] / expected[-1] - 1) < 0.1
    sent, _ = boundary_and_reduce_bytes(ranks)
    elements = 2 * 32 * 32
    kept = -(-elements // 3)
    # fp16 values and a bitmap with the activations, values alone with the gradients
    assert sent == STEPS * 8 * 2 * (2 * kept + elements // 8 + 2 * kept)
    spans = [s for s in ranks.all_lines("span") if s["kind"] == "send"]
    assert {s["bytes"] for s in spans if s["role"] == "gradient"} == {2 * kept}
    assert sent == STEPS * sum(
        plan.boundary_bytes(s, a, b, "activation") + plan.boundary_bytes(s, b, a, "gradient")
        for m in range(8)
        for s, (a, b) in enumerate(itertools.pairwise(plan.path_of_micro_batch(m)))
    )


def test_a_ratio_of_one_keeps_all_and_equals_fp16(tmp_path: Path) -> None:
    plan = chain_plan([5, 3], [4], workload=gpt())
    config = TrainConfig(steps=10, seed=0, learning_rate=3e-3)
    half = train(with_codec(plan, Codec(name="fp16")), config, tmp_path / "fp16")
    whole = train(with_codec(plan, Codec(name="topk", ratio=1.0)), config, tmp_path / "topk")
    assert whole.losses() == half.losses()


@pytest.mark.parametrize("rule", ["topk", "adatopk"])
def test_a_planned_ratio_trains_close_to_dense(rule: str, tmp_path: Path) -> None:
    cluster = small_cluster(4, bandwidth="2 Mbit/s", latency="5 ms")
    constraints = Constraints(stages=2, replicas=2, codecs=("none", rule), max_ratio=6.0)
    problem = Problem(cluster=cluster, workload=gpt(), constraints=constraints)
    plan = make_planner("evolution").solve(problem, budget="2000 evaluations").plan
    assert {rule.codec.name for rule in plan.link_codecs} == {"topk"}
    config = TrainConfig(steps=STEPS, seed=0, learning_rate=3e-3)
    _, expected = train_reference(problem.workload, config)
    ranks = train(plan, config, tmp_path)
    losses = ranks.losses()
    assert losses[-1] < losses[0] - 0.5, "the model learns"
    assert abs(losses[-1] / expected[-1] - 1) < 0.1


def test_saved_model_has_the_loss_it_was_trained_to_and_samples(tmp_path: Path) -> None:
    plan = chain_plan([8], [4], workload=gpt())
    config = TrainConfig(steps=FEW, seed=0, learning_rate=3e-3)
    ranks = train(plan, config, tmp_path)
    reference, _ = train_reference(plan.problem.workload, config)
    model = load_model(tmp_path)
    assert generate(model, "def ", 20, 0.0) == generate(reference, "def ", 20, 0.0)
    text = generate(model, "def ", 30, temperature=0.8, seed=1)
    assert text.startswith("def ")
    assert text == generate(model, "def ", 30, temperature=0.8, seed=1)
    (validation,) = ranks.all_lines("validation")
    assert abs(validation["loss_sum"] / validation["num_tokens"] - ranks.losses()[-1]) < 1.0
