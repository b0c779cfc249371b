"""Compression-aware and shared layers over several ranks: equal to one process, bytes as declared, with codecs too."""

from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hetplanner.codecs.spec import Codec
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.train.reference import train_reference
from hetplanner.workload.workload import Workload
from tests.distributed.training.test_runtime_equality import boundary_and_reduce_bytes, gpt, with_codec
from tests.support.plans.factories import chain_plan
from tests.support.training.real_ranks import Ranks, train

pytestmark = pytest.mark.distributed

CONFIG = TrainConfig(steps=10, seed=3, learning_rate=3e-3, clip_norm=0.5)


def bottleneck(factor: int = 4, every: int = 1) -> dict[str, object]:
    return {"boundary_layers": {"kind": "bottleneck", "factor": factor, "every": every}}


def maxout(factor: int = 2) -> dict[str, object]:
    return {"boundary_layers": {"kind": "maxout", "factor": factor}}


def between(workload: Workload, layer: int) -> int:
    """The boundary in front of a layer: where the narrow part has ended."""
    return next(i for i, op in enumerate(workload.graph.ops) if op.layer == layer)


def cut(workload: Workload, shares: list[int], *layers: int) -> Plan:
    return chain_plan(shares, [between(workload, layer) for layer in layers], workload=workload)


PLANS = {
    "bottleneck at the cut": lambda: cut(gpt(**bottleneck()), [8], 2),
    "bottleneck, cut beside it": lambda: cut(gpt(**bottleneck(2, 2)), [5, 3], 3),
    "maxout, dropout": lambda: cut(gpt(dropout=0.1, **maxout()), [8], 1, 3),
    "llama maxout": lambda: cut(gpt(family="llama", heads=4, kv_heads=1, tie_embeddings=False, **maxout(4)), [8], 2),
    "shared, cut through a group": lambda: cut(gpt(shared_layers=2), [5, 3], 1, 3),
    "shared, cut inside a layer": lambda: chain_plan([8], [2, 6], workload=gpt(shared_layers=4)),
    "all shared, interleaved, bottleneck": lambda: interleave(cut(gpt(shared_layers=4, **bottleneck()), [4, 4], 2)),
}


def boundary_bytes_of(plan: Plan, steps: int) -> int:
    """What a plan declares."""
    total = 0
    for m in range(plan.problem.workload.num_micro_batches):
        path = plan.path_of_micro_batch(m)
        for s, (a, b) in enumerate(pairwise(path)):
            if a != b:
                total += plan.boundary_bytes(s, a, b, "activation") + plan.boundary_bytes(s, b, a, "gradient")
    return steps * total


def check_bytes(plan: Plan, ranks: Ranks, steps: int) -> None:
    boundary, reduced = boundary_and_reduce_bytes(ranks)
    assert boundary == boundary_bytes_of(plan, steps)
    assert reduced == steps * sum(g.transfer_bytes(t) for g in reduction_groups(plan) for t in g.program)


@pytest.mark.parametrize("name", PLANS)
def test_losses_weights_and_bytes(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    model, expected = train_reference(plan.problem.workload, CONFIG)
    ranks = train(plan, CONFIG, tmp_path)
    assert max(abs(a - b) for a, b in zip(ranks.losses(), expected, strict=True)) < 5e-5
    saved, reference = load_file(tmp_path / "model.safetensors"), model.named_weights()
    assert saved.keys() == reference.keys()
    assert max((saved[k] - w).abs().max() for k, w in reference.items()) < 1e-3
    check_bytes(plan, ranks, CONFIG.steps)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_codecs_compose_on_activations_gradients_and_averaging(codec: str, tmp_path: Path) -> None:
    workload = gpt(shared_layers=2, **bottleneck())
    light = Codec(name=codec, block=64)
    plan = with_codec(cut(workload, [5, 3], 1, 3), light)
    plan = plan.replace(stages=tuple(s.replace(reduce_codec=light, error_feedback=True) for s in plan.stages))
    _, expected = train_reference(workload, CONFIG)
    ranks = train(plan, CONFIG, tmp_path)
    losses = ranks.losses()
    assert losses != expected
    assert losses[-1] < losses[0] - 0.1
    assert abs(losses[-1] / expected[-1] - 1) < 0.02
    check_bytes(plan, ranks, CONFIG.steps)
    boundary, _ = boundary_and_reduce_bytes(ranks)
    dense = CONFIG.steps * 8 * 2 * 2 * (2 * 32 * 32 * 4)  # 8 micro-batches over two boundaries, forth and back
    assert boundary <= dense / 4 * (0.27 if codec == "int8" else 0.15)
