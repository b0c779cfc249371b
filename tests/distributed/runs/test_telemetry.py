"""What a real run says about itself: bytes and waiting by link, queue depths, gradient norms."""

from itertools import pairwise
from pathlib import Path

import pytest

from hetplanner.plan.train import TrainConfig
from hetplanner.runs.run import Run
from tests.support.plans.factories import chain_plan, small_cluster
from tests.support.training.real_ranks import train

pytestmark = pytest.mark.distributed

STEPS = 4


def test_links_queues_and_gradient_norms_of_a_run(tmp_path: Path) -> None:
    plan = chain_plan([3, 1], [4], cluster=small_cluster(4, bandwidth="20 Mbit/s", latency="20 ms"))
    train(plan, TrainConfig(steps=STEPS, emulate_links=True), tmp_path)
    run = Run(tmp_path).read_all()
    boundary = plan.boundary_bytes(0, 0, 2, "activation")
    first, last = run.ranks[0].links, run.ranks[2].links
    assert first[2, "activation"].sent == last[0, "activation"].taken == 3 * STEPS
    assert first[2, "activation"].sent_bytes == 3 * STEPS * boundary
    assert first[2, "gradient"].taken_bytes == last[0, "gradient"].sent_bytes
    assert first[1, "reduce"].sent_bytes > 0
    assert set(first) == {(2, "activation"), (2, "gradient"), (1, "reduce")} | {k for k in first if k[1] == "reduce"}
    assert run.ranks[0].links_steps == STEPS
    sent = sum(total.sent_bytes for t in run.ranks for (_, role), total in t.links.items() if role != "reduce")
    assert sent == run.bytes_boundary
    # A step waits at least one way there and one way back.
    assert last[0, "activation"].wait_s + first[2, "gradient"].wait_s >= STEPS * 0.04
    assert run.late[0] == sum(total.late for t in run.ranks for total in t.links.values())
    steps = run.steps()
    assert all(step.in_flight == 2 and step.held >= 1 for step in steps), "as deep as the plan says"
    depths = [s.value for s in run.trace().samples if s.name == "micro-batches in flight" and s.rank == 0]
    assert depths[:2] == [1.0, 2.0]
    assert max(depths) == 2.0
    assert depths[-1] == 0.0


def test_the_gradient_norm_needs_no_clipping(tmp_path: Path) -> None:
    plan = chain_plan([2, 2], [4])
    train(plan, TrainConfig(steps=3), tmp_path / "free")
    train(plan, TrainConfig(steps=3, clip_norm=1e9), tmp_path / "clipped")
    free, clipped = ([s.grad_norm for s in Run(tmp_path / name).read_all().steps()] for name in ("free", "clipped"))
    assert free == pytest.approx(clipped, rel=1e-6)
    assert all(a != b for a, b in pairwise(free))
